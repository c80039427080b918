"""Where the time of `tailor` of a folder goes: what one process does alone, the jobs that all wait for, and the
processor time of each part of all jobs together.

Run: python3 tools/gpu/phases.py TREE NEW_FOLDER [GPU]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

START = time.perf_counter()

from torchtailor.surgery import library as surgery  # noqa: E402
from torchtailor.surgery.opened import OpenLibrary  # noqa: E402
from torchtailor.surgery.proof import prove as proof  # noqa: E402
from torchtailor.tailoring import folder as stage  # noqa: E402
from torchtailor.tailoring.choices import cut_for  # noqa: E402

_ALONE = ("find_installed", "owners_by_file", "run_all", "_whole_where_wanted", "_update_records", "replace_folder")
_SHOWN = 12


# of each library; a part that is in another one counts there too
_PARTS: dict[str, tuple[object, str]] = {
    "copying libraries": (stage, "copy_file"),
    "reading (stock, and output in the proof)": (OpenLibrary, "read"),
    "hashes of files": (surgery, "hash_file"),
    "hash of instructions": (surgery, "instructions_sha256"),
    "plan": (surgery, "make_plan"),
    "layout": (surgery, "prepare"),
    "writing": (surgery, "write"),
    "proof": (surgery, "prove"),
    "of the proof: images": (proof, "check_images"),
    "of the proof: pointers": (proof, "check_pointers"),
    "of the proof: loaded bytes": (proof, "check_loaded_bytes"),
}


class Row(NamedTuple):
    """What something took, and whether it is a job, a part of one, or done while nothing else is."""

    begin: float
    wall: float
    user: float
    system: float
    kind: str
    name: str

    @classmethod
    def parse(cls, line: str) -> Row:
        begin, wall, user, system, kind, name = line.split("\t")
        return cls(float(begin), float(wall), float(user), float(system), kind, name)


def spent() -> tuple[float, float]:
    """User and system time of this thread."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_utime, usage.ru_stime


def timed(log: Path, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*values: Any, **options: Any) -> Any:
        begin, (user, system) = time.perf_counter(), spent()
        result = function(*values, **options)
        what = getattr(values[0], "name", "files") if name == "job" else name
        after = spent()
        kind = "part" if name in _PARTS else "job" if name == "job" else "alone"
        row = (begin - START, time.perf_counter() - begin, after[0] - user, after[1] - system, kind, what)
        with log.open("a") as file:
            file.write("\t".join(map(str, row)) + "\n")
        return result

    wrapper.__module__, wrapper.__qualname__ = stage.__name__, getattr(function, "__qualname__", name)
    return wrapper


def main() -> None:
    tree, output, gpu = Path(sys.argv[1]), Path(sys.argv[2]), (*sys.argv[3:], "9.0")[0]
    log = Path(tempfile.mkstemp(suffix=".log")[1])
    print(f"imports: {time.perf_counter() - START:.2f} s")
    options = cut_for(gpu, nvidia=True, strip=True)
    owners: dict[str, tuple[object, str]] = {
        "job": (stage, "_do"),
        "listing": (stage._Listing, "of"),
        "folders": (stage._Copy, "__init__"),
        **{name: (stage, name) for name in _ALONE},
        **_PARTS,
    }
    for label, (owner, name) in owners.items():
        setattr(owner, name, timed(log, label, getattr(owner, name)))
    stage.tailor_folder(tree, output, options)
    print(f"all: {time.perf_counter() - START:.2f} s")
    rows = [Row.parse(line) for line in log.read_text().splitlines()]
    log.unlink()
    own, jobs, parts = ([row for row in rows if row.kind == kind] for kind in ("alone", "job", "part"))
    last = sorted(jobs, key=lambda row: row.begin + row.wall)[-_SHOWN:]
    longest = sorted(jobs, key=lambda row: -row.wall)[:_SHOWN]
    for title, chosen in (
        ("alone", own),
        (f"the longest of {len(jobs)} jobs", longest),
        ("those that ended last", last),
    ):
        print(f"{title}:\n  begin    wall    user  system")
        for begin, wall, user, system, _, name in chosen:
            print(f"  {begin:5.2f}  {wall:6.2f}  {user:6.2f}  {system:6.2f}  {name}")
    print("parts of all jobs:\n    user  system")
    for part, among in (("files", jobs), *((part, parts) for part in _PARTS)):
        user, system = (sum(getattr(row, what) for row in among if row.name == part) for what in ("user", "system"))
        print(f"  {user:6.2f}  {system:6.2f}  {part}")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"  {usage.ru_utime:6.2f}  {usage.ru_stime:6.2f}  all processes but the first")


if __name__ == "__main__":
    main()

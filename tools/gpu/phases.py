"""Where the wall-clock time of `tailor` of a folder goes: what one process does alone, and the jobs that all wait for.

Run: python3 tools/gpu/phases.py TREE NEW_FOLDER [GPU]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

START = time.perf_counter()

from torchtailor.tailoring import folder as stage  # noqa: E402
from torchtailor.tailoring.choices import cut_for  # noqa: E402

_ALONE = ("find_installed", "owners_by_file", "run_all", "_put_hooks", "_put_stand_ins", "_update_records")
_SHOWN = 12


def timed(log: Path, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*values: Any, **options: Any) -> Any:
        begin, spent = time.perf_counter(), time.thread_time()
        result = function(*values, **options)
        what = getattr(values[0], "name", name) if name == "job" else name
        row = (begin - START, time.perf_counter() - begin, time.thread_time() - spent, os.getpid(), what)
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
    }
    for label, (owner, name) in owners.items():
        setattr(owner, name, timed(log, label, getattr(owner, name)))
    stage.tailor_folder(tree, output, options)
    print(f"all: {time.perf_counter() - START:.2f} s")
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    log.unlink()
    shutil.rmtree(output)
    own, jobs = [row for row in rows if int(row[3]) == os.getpid()], [row for row in rows if int(row[3]) != os.getpid()]
    last = sorted(jobs, key=lambda row: float(row[0]) + float(row[1]))[-_SHOWN:]
    longest = sorted(jobs, key=lambda row: -float(row[1]))[:_SHOWN]
    for title, chosen in (
        ("alone", own),
        (f"the longest of {len(jobs)} jobs", longest),
        ("those that ended last", last),
    ):
        print(f"{title}:\n  begin    wall  thread")
        for begin, wall, thread, _, name in chosen:
            print(f"  {float(begin):5.2f}  {float(wall):6.2f}  {float(thread):6.2f}  {name}")


if __name__ == "__main__":
    main()

"""One name for one option in every command, and one answer where what it names is not there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from tests.calling import call
from tests.unit.building.stack import FAT
from torchtailor.cli import COMMANDS
from torchtailor.cli._dispatch import load_command
from torchtailor.core.errors import ExitCode


class Option(NamedTuple):
    """An option or argument as a command has it."""

    command: str
    names: tuple[str, ...]
    kind: str
    help: str

    @property
    def name(self) -> str:
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def key(self) -> str:
        return f"{self.command} {self.name}"


def options() -> Iterator[Option]:
    """All that commands list, and their arguments."""
    for name in COMMANDS:
        loaded: Any = load_command(name)
        for part, command in (getattr(loaded, "commands", None) or {"": loaded}).items():
            for item in command.params:
                if not item.hidden and "--verbose" not in item.opts:
                    names = (*item.opts, *item.secondary_opts)
                    yield Option(f"{name} {part}".strip(), names, _kind(item), item.help or "")


def _kind(item: Any) -> str:
    """The type of one value, whether it may be left out or repeated or not."""
    kind = item.type_descriptor.annotation
    while inner := [one for one in get_args(kind) if one is not type(None)]:
        kind = inner[0]
    return str(kind.__name__)


ALL = tuple(options())
BY_NAME: dict[str, list[Option]] = defaultdict(list)
for _option in ALL:
    if _option.names[0].startswith("-"):
        BY_NAME[_option.name].append(_option)

# What these are told differs by command, as it is of that command's work; the idea is one.
SAME_IDEA = {
    "--all": "everything there is",
    "--cpu": "the CPU",
    "--driver": "a version of NVIDIA's driver",
    "--dry-run": "do nothing, show it",
    "--env": "an environment that is there",
    "--force": "what is there is replaced",
    "--from": "a description of a machine",
    "--gpu": "GPUs",
    "--into": "the environment to install into",
    "--jobs": "how much is done at once",
    "--json": "a document on stdout",
    "--kernels": "functions in GPU code",
    "--level": "how far a proof goes",
    "--markdown": "a text for a report",
    "--nvidia": "NVIDIA's libraries are cut too",
    "--out": "where results go",
    "--pack": "packs",
    "--plain": "no bars",
    "--platform": "the platform of an image",
    "--prune": "remove what is no longer needed",
    "--publish-nvidia": "NVIDIA's libraries are published too",
    "--python": "a Python",
    "--release": "a release of PyTorch",
    "--report": "one page in HTML",
    "--since": "from this release on",
    "--top": "rows of a table",
    "--variant": "a variant's name",
    "--via": "a build method",
    "--why": "reasons",
    "--with": "packages beside torch",
}
# An option whose value is of another type somewhere: a version, or the path of a Python; a word, or one of an enum's.
KINDS = {"--python", "--level", "--via", "--jobs", "--out"}
# Names that something had before, or that other tools give to what has a name here.
NEVER = {
    "--output": "--out", "--html": "--report", "--gpus": "--gpu", "--gpu-arch": "--gpu", "--processes": "--jobs",
    "--threads": "--jobs", "--parallel": "--jobs", "--package-name": "--variant", "--format": "--json",
    "--environment": "--env", "--simulate": "--dry-run", "--cuda-version": "--cuda", "--python-version": "--python",
    "--silent": "--quiet", "--method": "--via", "--torch": "--release", "--arch": "--gpu",
}  # fmt: skip


def test_an_option_is_written_the_same_in_every_command() -> None:
    for name, rows in BY_NAME.items():
        spelled = {frozenset(row.names) for row in rows} - {frozenset({"--nvidia"})}
        assert len(spelled) == 1, (name, [row.command for row in rows])
        assert name in KINDS or len({row.kind for row in rows}) == 1, (name, {row.command: row.kind for row in rows})


def test_an_option_means_the_same_in_every_command() -> None:
    """An option that says something else in another command is here with what both mean, or has a name of its own."""
    assert {name for name, rows in BY_NAME.items() if len({row.help for row in rows}) > 1} == SAME_IDEA.keys()


def test_no_idea_has_a_second_name() -> None:
    assert not BY_NAME.keys() & NEVER.keys()
    assert {short: name for name, rows in BY_NAME.items() for short in rows[0].names if short[1] != "-"} == {
        "-o": "--out", "-n": "--dry-run", "-j": "--jobs", "-q": "--quiet", "-i": "--index-url", "-f": "--find-links",
        "-d": "--detail",
    }  # fmt: skip


# What is written, so need not be there.
WRITTEN = {
    "--out", "--report", "--record", "--print-env", "--caches", "--junit", "--work", "--into",
    "tailor --pack", "image --pack", "build --pack", "site out", "recipes write folder",
}  # fmt: skip
# By option or argument that names something: a line in which that is missing.
LINES = {
    "recommend --from": "recommend --from gone",
    "detect --from": "detect --from gone",
    "inspect paths": "inspect gone",
    "sizes what": "sizes ./gone",
    "diff --budget": "diff lib.so lib.so --budget gone",
    "diff old": "diff ./gone lib.so",
    "diff new": "diff lib.so ./gone",
    "tailor paths": "tailor gone --gpu 9.0",
    "tailor --env": "tailor --env gone --gpu 9.0",
    "tailor --workload": "tailor lib.so --gpu 9.0 --workload gone",
    "image source": "image oci:gone oci:new:x --gpu 9.0",
    "tailor --bake-caches": "tailor lib.so --gpu 9.0 --bake-caches gone",
    "image --bake-caches": "image oci:gone oci:new:x --gpu 9.0 --bake-caches gone",
    "image --workload": "image oci:gone oci:new:x --gpu 9.0 --workload gone",
    "restore --env": "restore --env gone",
    "record --misses": "record -o new.trace --misses gone -- true",
    "record program": "record -o new.trace -- ./gone",
    "trace show traces": "trace show gone",
    "trace merge inputs": "trace merge gone -o new.trace",
    "run --pack": "run --pack gone -- true",
    "run program": "run ./gone",
    "install --workload": "install sm90-avx2 --into env --workload gone",
    "install --find-links": "install sm90-avx2 --into env --find-links gone",
    "build --workload": "build sm90-avx2 --workload gone",
    "build --find-links": "build sm90-avx2 --find-links gone",
    "build --source": "build sm90-avx2 --via source --source ./gone",
    "ci --workload": "ci github sm90-avx2 --workload gone -n",
    "ci --package": "ci github sm90-avx2 --package ./gone -n",
    "sizes --find-links": "sizes torch --find-links gone",
    "diff --find-links": "diff torch==2.0 torch==2.1 --find-links gone",
    "catalog update --find-links": "catalog update --find-links gone -n",
    "recipes check folder": "recipes check gone",
    "recipes migrate folder": "recipes migrate gone",
    "recipes hash --tree": "recipes hash --tree gone",
    "recipes build --tree": "recipes build --tree gone",
    "publish dist": "publish gone --to index",
    "publish --to": "publish --to gone --list",
    "verify target": "verify gone",
    "verify --against": "verify lib.so --against gone",
    "verify --root": "verify lib.so --root gone",
    "verify --python": "verify lib.so --python gone",
    "doctor message": "doctor gone.log",
    "doctor --env": "doctor --env gone",
    "doctor --from": "doctor --from gone",
}


REFUSED = {"ci --pack", "install --pack", "build --bake-caches", "install --bake-caches", "ci --bake-caches"}


def test_every_option_that_names_a_file_is_in_the_table() -> None:
    files = {row.key for row in ALL if row.kind == "Path" and not {row.name, row.key} & WRITTEN}
    assert not files - LINES.keys() - REFUSED
    assert not LINES.keys() - {row.key for row in ALL}


@pytest.mark.parametrize("key", LINES)
def test_what_is_not_there_ends_with_one_exit_code(key: str, tmp_path: Path) -> None:
    """A sentence that names it, and a next step that is not the same line again."""
    (tmp_path / "lib.so").write_bytes(FAT)
    said = call(*LINES[key].split(), cwd=tmp_path)
    assert said.returncode == ExitCode.NO_MATCH, said.stderr
    first, _, hint = said.stderr.partition("\n")
    assert first.startswith("error: ") and ("gone" in first or key == "publish --to")
    assert hint.strip() and "gone" not in hint
    assert {path.name for path in tmp_path.iterdir()} == {"lib.so"}

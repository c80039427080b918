"""What stands in for an extension module that was left out: a module that says so and names the command.

It raises what Python raises without it, so that programs that can go without the module still do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from torchtailor.artifact.drops import DroppedFile
from torchtailor.surgery.options import UNOPENED

_MODULE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\.(?:cpython-\w+(?:-\w+)*|abi3))?\.so")
_STEP = 1 << 20
_START = '"""Left out by torchtailor'
_TEXT = '''"""Left out by torchtailor (--drop-unopened): {file}"""

raise ModuleNotFoundError(
    "{file} was left out, because the program that was recorded never opened it: {command} brings it back.",
    name=__name__,
)
'''

Read = Callable[[str], Iterable[bytes]]


def stand_ins(
    dropped: Iterable[DroppedFile], present: Collection[str], read: Read, command: Callable[[str], str]
) -> dict[str, tuple[str, bytes]]:
    """For each extension module that was never opened and is left out, by its path: the path and text of its stand-in.

    `present` are the files that stay, `read` gives the bytes of one that does not, `command` what brings it back.
    """
    found = {}
    for file in dropped:
        path = PurePosixPath(file.path)
        match = _MODULE.fullmatch(path.name)
        if file.rule != UNOPENED or match is None:
            continue
        place = path.with_name(f"{match['name']}.py").as_posix()
        package = path.with_name(match["name"]).as_posix()
        taken = place in present or any(other.startswith(f"{package}/") for other in present)
        if not taken and _has(read(file.path), f"\0PyInit_{match['name']}\0".encode()):
            found[file.path] = place, _TEXT.format(file=path.name, command=command(file.path)).encode()
    return found


def is_stand_in(path: Path) -> bool:
    """Whether a file is one of these."""
    try:
        return path.suffix == ".py" and path.read_bytes()[: len(_START)] == _START.encode()
    except OSError:
        return False


def read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_STEP):
            yield chunk


def _has(chunks: Iterable[bytes], wanted: bytes) -> bool:
    rest = b""
    for chunk in chunks:
        rest += bytes(chunk)
        if wanted in rest:
            return True
        rest = rest[-len(wanted) :]
    return False

"""What stands in for an extension module or a library that was left out: it says so and names the command.

For a module that is a module, which raises what Python raises without it, so that programs that can go without it still
do. For a library it is one in its place, for which the dynamic linker says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from torchtailor.code.binary.placeholder import machine_of, placeholder
from torchtailor.surgery.cut import UNOPENED
from torchtailor.trees.artifact.drops import DroppedFile
from torchtailor.trees.artifact.libraries import is_shared_name

_MODULE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\.(?:cpython-\w+(?:-\w+)*|abi3))?\.so")
_STEP = 1 << 20
_START = '"""Left out by torchtailor'
_TEXT = '''"""Left out by torchtailor (--drop-unopened): {file}"""

raise ModuleNotFoundError(
    "{file} was left out, because the program that was recorded never opened it: {command} brings it back.",
    name=__name__,
)
'''

_SENTENCE = "{file} was left out, because the program that was recorded never opened it; {command} brings it back"

Read = Callable[[str], Iterable[bytes]]


def stand_ins(
    dropped: Iterable[DroppedFile], present: Collection[str], read: Read, command: Callable[[str], str]
) -> dict[str, tuple[str, bytes]]:
    """For each extension module and library that was never opened and is left out, by its path: the path and content
    of its stand-in, which for a library is the same path.

    `present` are the files that stay, `read` gives the bytes of one that does not, `command` what brings it back.
    """
    found = {}
    for file in dropped:
        path = PurePosixPath(file.path)
        if file.rule != UNOPENED or not is_shared_name(path.name):
            continue
        match = _MODULE.fullmatch(path.name)
        if match and _has(read(file.path), f"\0PyInit_{match['name']}\0".encode()):
            place = path.with_name(f"{match['name']}.py").as_posix()
            package = path.with_name(match["name"]).as_posix()
            if place not in present and not any(other.startswith(f"{package}/") for other in present):
                found[file.path] = place, _TEXT.format(file=path.name, command=command(file.path)).encode()
        elif machine := machine_of(bytes(next(iter(read(file.path)), b""))):
            sentence = _SENTENCE.format(file=path.name, command=command(file.path))
            found[file.path] = file.path, placeholder(machine, path.name, sentence)
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

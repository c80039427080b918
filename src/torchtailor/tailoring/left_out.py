"""What stands in for an extension module or a library that was left out: it says so and names the command.

For a module that is a module, which raises what Python raises without it, so that programs that can go without it still
do. For a library it is one in its place, for which the dynamic linker says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from torchtailor.code.binary.placeholder import placeholder
from torchtailor.surgery.cut import UNOPENED
from torchtailor.tailoring.tree import FileState, FileTree, NewFile
from torchtailor.trees.artifact.drops import DroppedFile
from torchtailor.trees.artifact.libraries import is_shared_name, module_name

_START = '"""Left out by torchtailor'
_TEXT = '''"""Left out by torchtailor (--drop-unopened): {file}"""

raise ModuleNotFoundError(
    "{file} was left out, because the program that was recorded never opened it: {command} brings it back.",
    name=__name__,
)
'''

_SENTENCE = "{file} was left out, because the program that was recorded never opened it; {command} brings it back"


def stand_ins(tree: FileTree, dropped: Mapping[str, DroppedFile]) -> dict[str, NewFile]:
    """For each extension module and library that was never opened and is left out, by its path: its stand-in, which for
    a library has the same path.

    A library that no package lists leaves nothing: nobody would remove it, and it would hide another of its name.
    """
    made: dict[str, NewFile] = {}
    present = [path for path in tree.sizes if path not in dropped]
    for file in dropped.values():
        path = PurePosixPath(file.path)
        if file.rule != UNOPENED or not is_shared_name(path.name):
            continue
        shared, package = tree.shared(file.path), next(iter(tree.packages(file.path)), None)
        if shared.is_module:
            name = path.with_name(module_name(path.name)).as_posix()
            place = f"{name}.py"
            if place in present or any(other.startswith(f"{name}/") for other in present):
                continue
            content = _TEXT.format(file=path.name, command=tree.brings_back(file.path)).encode()
        elif shared.machine and package:
            place = file.path
            sentence = _SENTENCE.format(file=path.name, command=tree.brings_back(file.path))
            content = placeholder(shared.machine, path.name, sentence)
        else:
            continue
        made[file.path] = NewFile(place, content, FileState.of_bytes(content), package)
    return made


def is_stand_in(path: Path) -> bool:
    """Whether a file is one of these."""
    try:
        return path.suffix == ".py" and path.read_bytes()[: len(_START)] == _START.encode()
    except OSError:
        return False

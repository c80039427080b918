"""Compiles modules to an index; run by the Python that will import them, which needs no torchtailor.

python -I compile_modules.py < modules > index

It gets two marshalled things: a list of modules as (path without an ending, file, source) and when folders changed, or
a list of paths of Python's own library and nothing.
"""

# ruff: noqa: PTH100, PTH113, PTH116, PTH118, PTH119, PTH120, PTH122, PTH123

from __future__ import annotations

import _imp
import hashlib
import marshal
import os
import runpy
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Module = tuple[str, str, bytes | None]

_INIT = "/__init__.py"


def digest_of(source: bytes) -> bytes:
    """The hash of a source that an index has."""
    return hashlib.blake2b(source, digest_size=8).digest()


def compiled(modules: Iterable[Module]) -> Iterator[tuple[str, str, bytes, int, bytes]]:
    """What an index has of modules; templates that cannot be compiled are left out."""
    for inside, file, source in modules:
        if source is None:
            yield inside, file, b"", -1, b""
            continue
        try:
            code = compile(source, file, "exec", dont_inherit=True, optimize=0)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        yield inside, file, marshal.dumps(code), len(source), digest_of(source)


def of_python(files: Sequence[str]) -> Iterator[Module]:
    """Modules of this Python's own library; of those that every program has, only that they are there."""
    root = os.path.dirname(os.__file__)
    here = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    loaded = {os.path.relpath(file, root) for file in here if file.startswith(root + os.sep)}
    frozen: list[str] = getattr(_imp, "_frozen_module_names", list)()
    loaded.update(name.replace(".", "/") + ending for name in frozen for ending in (".py", _INIT))
    for file in sorted({*files, *loaded}):
        path = os.path.join(root, file)
        if os.path.realpath(path) != os.path.join(os.path.realpath(root), file) or not os.path.isfile(path):
            continue
        inside = file[: -len(_INIT)] if file.endswith(_INIT) else os.path.splitext(file)[0]
        if file.endswith(".so"):
            inside = os.path.basename(file).partition(".")[0]
        source: bytes | None = None
        if file.endswith(".py") and file in files:
            with open(path, "rb") as opened:
                source = opened.read()
        yield inside, file, source


def main() -> None:
    """Read modules, write their index."""
    warnings.simplefilter("ignore")
    modules, times = marshal.load(sys.stdin.buffer)
    version = ""
    if times is None:
        modules, version, root = list(of_python(modules)), sys.version, os.path.dirname(os.__file__)
        folders = {os.path.dirname(file) for _, file, _ in modules}
        times = {folder: os.stat(os.path.join(root, folder)).st_mtime_ns for folder in folders}
    finder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "moved_modules.py")
    sys.stdout.buffer.write(runpy.run_path(finder)["write_index"](compiled(modules), times, version))


if __name__ == "__main__":
    main()

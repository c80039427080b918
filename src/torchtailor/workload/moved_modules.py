"""Imports the modules of packages that were moved into a pack, because the program that was recorded never did.

A copy of this file lies beside the packs, and a .pth file in site-packages runs it: it needs nothing but Python, and
is quick to start. What is in site-packages comes first; packs are opened when a module is not there. A pack is code:
the same files and folders are used as the hook of libraries uses (`native/packs.c`), by owner, rights and kind.
"""

# ruff: noqa: PTH100, PTH116, PTH118, PTH119, PTH120, PTH208

from __future__ import annotations

import os
import stat
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType
    from zipfile import ZipFile

MODULES = "python-"  # how the names of packs of modules begin
PACK_OF_MODULES = ".zip"
NAMES = ".names"
_LOOKS = 10  # in a second


class _DistrustError(Exception):
    """Why a file or folder is not used."""


class _Trust:
    """Whose files are used: those of who could change site-packages anyway."""

    def __init__(self, site: str, named: str = "") -> None:
        """`named` is a folder of TORCHTAILOR_PACK: its owner and the program's may own what is there, too."""
        above = os.stat(site)
        self._users = {0, above.st_uid, *((os.geteuid(), os.stat(named).st_uid) if named else ())}
        self._groups = {above.st_gid} if above.st_mode & stat.S_IWGRP and not above.st_mode & stat.S_ISVTX else set()
        self._named = bool(named)
        self.check(above)

    def check(self, info: os.stat_result) -> None:
        if info.st_uid not in self._users:
            raise _DistrustError("it belongs to another user")
        writable = info.st_mode & stat.S_IWOTH or (info.st_mode & stat.S_IWGRP and info.st_gid not in self._groups)
        if writable and not self._named:
            raise _DistrustError("other users may write to it")

    def open(self, name: str, at: int | None = None, *, is_folder: bool = False) -> int:
        """A plain file or a folder; links are not followed, and nothing waits for who writes into a pipe."""
        kind = stat.S_ISDIR if is_folder else stat.S_ISREG
        if not kind(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):  # opening a device may do something
            raise _DistrustError("it is a link, or not a " + ("folder" if is_folder else "plain file"))
        only = os.O_DIRECTORY if is_folder else os.O_NONBLOCK
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | only, dir_fd=at)
        try:
            self.check(os.fstat(file))
        except _DistrustError:
            os.close(file)
            raise
        return file


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


class _Loader(SourceFileLoader):
    """Loads a module as from its file, with the source from a pack."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def path_stats(self, path: object) -> dict[str, float]:
        raise OSError  # it has no bytecode

    def get_data(self, path: str) -> bytes:
        return self._source if path == self.path else super().get_data(path)


class MovedModules:
    """Finds modules of one site-packages folder in the packs of a folder, and of those that TORCHTAILOR_PACK names."""

    def __init__(self, site: str, folder: str) -> None:
        self._site, self._folder = site, folder
        self._packs: dict[str, tuple[ZipFile, frozenset[str]]] = {}
        self._names: dict[str, str] = {}  # the modules of packs that may lie elsewhere, and the names of these
        self._looked = False
        self._refused: set[str] = set()
        self.said = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None) -> ModuleSpec | None:
        """As an import asks, after all others were."""
        last = name.rpartition(".")[2]
        for place in [self._site] if path is None else path:
            if place == self._site or place.startswith(self._site + os.sep):
                if not self._looked:
                    self._look()
                file = os.path.join(place, f"{last}.py")
                inside = os.path.relpath(file, self._site).replace(os.sep, "/")
                if spec := self._found(name, file, inside) or self._awaited(name, file, inside):
                    return spec
        return None

    def _found(self, name: str, file: str, inside: str) -> ModuleSpec | None:
        for place, (pack, names) in self._packs.items():
            if inside not in names:
                continue
            try:
                source = pack.read(inside)
            except Exception as error:  # whatever zipfile raises for a file that was changed since
                self._refuse(place, error)
                continue
            self._say(name, f"was not imported when the program was recorded; it comes from {place}")
            spec = ModuleSpec(name, _Loader(name, file, source), origin=file)
            spec.has_location = True
            return spec
        return None

    def _awaited(self, name: str, file: str, inside: str) -> ModuleSpec | None:
        """A module whose pack is not there yet; without it, that is said instead of that there is no such module."""
        pack = self._names.get(inside)
        if pack is None:
            return None
        wait = os.environ.get("TORCHTAILOR_PACK_WAIT", "")
        left = int(wait) * _LOOKS if wait.isdecimal() else 0
        if left and not self._packs:
            self._say(name, f"is in {pack}, which is not there yet: waiting for it up to {wait} seconds")
        import time

        for _ in range(left):
            time.sleep(1 / _LOOKS)
            self._look()
            if spec := self._found(name, file, inside):
                return spec
        raise ModuleNotFoundError(
            f"No module named {name!r}: it was not imported when the program was recorded, and {pack}, which has it, "
            f"is neither in {self._folder} nor where TORCHTAILOR_PACK says (`torchtailor packs pull` brings packs)"
        )  # without its name: `from package import module` would say another thing

    def _look(self) -> None:
        """Open the packs that are there, and were not before."""
        self._looked = True
        own = os.path.basename(self._folder)
        named = [place for place in os.environ.get("TORCHTAILOR_PACK", "").split(":") if place]
        for folder in (self._folder, *named, *(os.path.join(place, own) for place in named)):
            try:
                if folder != self._folder:
                    self._open_folder(os.path.realpath(folder), _Trust(self._site, folder))
                    continue
                trust = _Trust(self._site)
                os.close(trust.open(os.path.dirname(folder), is_folder=True))
                self._open_folder(folder, trust)
            except FileNotFoundError:
                continue
            except (OSError, _DistrustError) as error:
                self._refuse(folder, error)

    def _open_folder(self, folder: str, trust: _Trust) -> None:
        from zipfile import ZipFile

        at = trust.open(folder, is_folder=True)
        try:
            for name in sorted(name for name in os.listdir(at) if name.startswith(MODULES)):
                path = os.path.join(folder, name)
                if path in self._packs:
                    continue
                try:
                    file = os.fdopen(trust.open(name, at), "rb")
                    if name.endswith(NAMES):
                        with file:
                            self._names.update(_read_names(file.read()))
                        continue
                    pack = ZipFile(file)
                    self._packs[path] = pack, frozenset(pack.namelist())
                except Exception as error:  # an import that is not ours must not end in what a pack has
                    self._refuse(path, error)
        finally:
            os.close(at)

    def _refuse(self, path: str, error: Exception) -> None:
        if path not in self._refused:
            sys.stderr.write(_printable(f"torchtailor: {path} is not used: {error}.") + "\n")
        self._refused.add(path)

    def _say(self, name: str, what: str) -> None:
        again = any(getattr(finder, "said", False) for finder in sys.meta_path)  # this one, or another package's
        if not again and os.environ.get("TORCHTAILOR_QUIET", "0") in ("", "0"):
            sys.stderr.write(_printable(f"torchtailor: {name} {what} ") + "(TORCHTAILOR_QUIET=1 hides this line).\n")
        self.said = True


def list_of_names(pack: str, modules: Iterable[str]) -> bytes:
    """What lies beside the finder, where a pack may not: the modules that it has."""
    import zlib

    return zlib.compress("\n".join([pack, *modules]).encode(), 9)


def _read_names(data: bytes) -> dict[str, str]:
    import zlib

    pack, *modules = zlib.decompress(data).decode().split("\n")
    return dict.fromkeys(modules, pack)


if __name__ == "torchtailor_moved_modules":
    _own = os.path.dirname(os.path.abspath(__file__))
    sys.meta_path.append(MovedModules(os.path.dirname(os.path.dirname(_own)), _own))

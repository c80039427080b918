"""Imports the modules of packages that were moved into a pack, because the program that was recorded never did.

A copy of this file lies beside the packs, and a .pth file in site-packages runs it: it needs nothing but Python, and
is quick to start. What is in site-packages comes first; packs are opened when a module is not there.
"""

# ruff: noqa: PTH100, PTH118, PTH119, PTH120, PTH208

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from zipfile import ZipFile

_PREFIX = "python-"


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
        self._packs: list[tuple[ZipFile, frozenset[str]]] | None = None
        self.said = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None) -> ModuleSpec | None:
        """As an import asks, after all others were."""
        last = name.rpartition(".")[2]
        for place in [self._site] if path is None else path:
            if place == self._site or place.startswith(self._site + os.sep):
                file = os.path.join(place, f"{last}.py")
                inside = os.path.relpath(file, self._site).replace(os.sep, "/")
                for pack, names in self._opened():
                    if inside in names:
                        self._say(name, str(pack.filename))
                        spec = ModuleSpec(name, _Loader(name, file, pack.read(inside)), origin=file)
                        spec.has_location = True
                        return spec
        return None

    def _opened(self) -> list[tuple[ZipFile, frozenset[str]]]:
        if self._packs is None:
            from zipfile import BadZipFile, ZipFile

            self._packs = []
            own = os.path.basename(self._folder)
            named = [place for place in os.environ.get("TORCHTAILOR_PACK", "").split(":") if place]
            for folder in (self._folder, *named, *(os.path.join(place, own) for place in named)):
                try:
                    files = [name for name in sorted(os.listdir(folder)) if name.startswith(_PREFIX)]
                except OSError:
                    continue
                for file in files:
                    try:
                        pack = ZipFile(os.path.join(folder, file))
                    except (OSError, BadZipFile) as error:
                        sys.stderr.write(f"torchtailor: {folder}/{file} cannot be read: {error}.\n")
                        continue
                    self._packs.append((pack, frozenset(pack.namelist())))
        return self._packs

    def _say(self, name: str, pack: str) -> None:
        again = any(getattr(finder, "said", False) for finder in sys.meta_path)  # this one, or another package's
        if not again and os.environ.get("TORCHTAILOR_QUIET", "0") in ("", "0"):
            sys.stderr.write(
                f"torchtailor: {name} was not imported when the program was recorded; it comes from {pack} "
                "(TORCHTAILOR_QUIET=1 hides this line).\n"
            )
        self.said = True


if __name__ == "torchtailor_moved_modules":
    _own = os.path.dirname(os.path.abspath(__file__))
    sys.meta_path.append(MovedModules(os.path.dirname(os.path.dirname(_own)), _own))

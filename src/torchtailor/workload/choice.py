"""What stays in the libraries for a workload: what its traces name, and the margin that the user chose."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from itertools import chain

import msgspec

from torchtailor.core.errors import NoMatchError
from torchtailor.core.tables import read_table
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.workload.pack import PACK_FOLDER
from torchtailor.workload.trace import FILES_UNKNOWN, STANDARD, Trace, merge_traces

_LARGE = 64 << 10
Ranges = tuple[tuple[int, int], ...]
_DATA = re.compile(r"[^/]+\.data/")
_DIST_INFO = re.compile(r"(?P<site>(?:.*/)?)[^/]+\.dist-info/[^/]+")
_FOR_COMPILERS = (".h", ".hpp", ".hxx", ".hh", ".cuh", ".cu", ".inl", ".inc", ".cmake", ".a", ".o", ".bc", ".pyi")
_LICENCE = re.compile(r"\.dist-info/|(?:^|/)[^/]*(?:licen[cs]e|notice|copying|copyright|eula)[^/]*$", re.IGNORECASE)
_PYTHON = (".py", ".pyc", ".pth")
_BYTECODE = re.compile(r"(?P<folder>(?:.*/)?)__pycache__/(?P<module>[^/.]+)\.(?P<tag>[^/.]+)(?:\.[^/]*)?\.pyc")
_EXTENSION = re.compile(r"(?:.*/)?[^/.]+\.(?P<tag>cpython-\d+t?)-[^/]*\.so")
_CERTIFICATES = ".pem"  # the first connection of a program reads them, which may come long after its start


class Scope(Enum):
    """What stays as one if any of it was used."""

    CONTAINER = "container"
    LIBRARY = "library"


class Margin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named choice of what stays beside what was used."""

    name: str
    keeps: Scope
    what: str


@cache
def margins() -> dict[str, Margin]:
    """All margins, by name."""
    known = read_table("workload", "margins.toml", dict[str, tuple[Margin, ...]])["margin"]
    return {margin.name: margin for margin in known}


@dataclass(frozen=True)
class TracedWorkload:
    """What a cut keeps in place; the rest that the target could run goes to packs."""

    trace: Trace
    margin: str = "exact"
    _touched: dict[str, tuple[tuple[int, int], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _used: dict[str, frozenset[int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.margin not in margins():
            raise NoMatchError(f"There is no margin {self.margin}.", f"There are {', '.join(margins())}.")
        self._touched.update((library.identity, library.touched) for library in self.trace.libraries if library.pages)
        self._used.update((library.identity, frozenset(library.used)) for library in self.trace.libraries)

    @classmethod
    def of(cls, traces: Iterable[Trace], margin: str = "exact") -> TracedWorkload:
        return cls(merge_traces(traces), margin)

    @property
    def label(self) -> str:
        return self.trace.label

    @property
    def uses_gpu_code(self) -> bool:
        return any(library.used for library in self.trace.libraries)

    @property
    def knows_files(self) -> bool:
        """Whether the traces tell which files were opened."""
        return bool(self.trace.opened) and FILES_UNKNOWN not in self.trace.lost

    def unopened(self, sizes: Mapping[str, int], *, sources: bool = False) -> list[str]:
        """Of these files, by path and size, those that were never opened: large ones, small ones that only compilers
        read, and bytecode of modules that were not imported, which Python makes again from their source; with `sources`
        also these, which go to packs. What was looked for, and licences stay. Files beside packages, such as Python
        itself, are not in a trace."""
        if not self.trace.opened:
            return []
        opened = {*self.trace.opened, *self.trace.looked}
        imports = any(path.endswith(_PYTHON) for path in opened)  # else it is not known what was imported
        used = {library.name for library in self.trace.libraries if library.used}  # misses tell of no files
        names = _names_in_traces(sizes)
        moved = set(_unused_modules(names, opened)) if sources and imports else set()
        return [
            path
            for path, size in sizes.items()
            if (
                path in moved
                or (imports and _is_unused_bytecode(path, names, opened))
                or ((size >= _LARGE or path.endswith(_FOR_COMPILERS)) and not path.endswith((*_PYTHON, _CERTIFICATES)))
            )
            and not _LICENCE.search(path)
            and path in names
            and names[path] not in opened
            and path.rsplit("/", 1)[-1] not in used
            and not names[path].startswith(f"{PACK_FOLDER}/")
        ]

    def in_order(self, paths: Iterable[str], resolve: Callable[[str], str]) -> Iterator[str]:
        """Of all files of a tree those that were opened, in the order of their first use; `resolve` follows links. A
        trace that knows no files elsewhere, as those of older releases, names those of Python."""
        paths = list(paths)
        yield from map(resolve, self.trace.elsewhere)
        own = ((path, match[1]) for path in paths if (match := STANDARD.fullmatch(f"/{path}")))
        for named, names in ((own, self.trace.standard), (_names_in_traces(paths).items(), self.trace.opened)):
            places: dict[str, list[str]] = {}
            for path, name in named:
                places.setdefault(name, []).append(path)
            for name in names:
                bytecode = None if name in places else _BYTECODE.fullmatch(name)
                yield from map(resolve, places.get(_source_of(bytecode) if bytecode else name, ()))

    def imported(self, paths: Iterable[str]) -> list[str]:
        """Of these files, those from which modules of Python were imported: their sources, and extension modules."""
        sources = _sources(self.trace.opened)
        return sorted(path for path, name in _names_in_traces(paths).items() if name in sources)

    @property
    def standard(self) -> list[str]:
        """The same of Python's own library, relative to it."""
        return sorted(_sources(self.trace.standard))

    @property
    def pythons(self) -> list[str]:
        """The tags of the Pythons that imported modules, `cpython-313`, as the names of their files have them."""
        bytecode = filter(None, map(_BYTECODE.fullmatch, self.trace.opened))
        names = chain(self.trace.opened, (library.name for library in self.trace.libraries))
        return sorted({match["tag"] for match in chain(bytecode, filter(None, map(_EXTENSION.fullmatch, names)))})

    def touched(self, identity: str) -> Ranges:
        """The addresses of a library that were touched, as (start, end); none where that was not recorded."""
        return self._touched.get(identity, ())

    @property
    def knows_pages(self) -> bool:
        """Whether the traces tell which pages of libraries were touched, and so which libraries were loaded."""
        return bool(self._touched)

    def never_loaded(self, identity: str, name: str) -> bool:
        """Whether a library was surely not loaded: neither it nor a file or another release of its name."""
        if not self.knows_pages or identity in self._used:
            return False
        names = chain(self.trace.opened, (library.name for library in self.trace.libraries))
        return all(path.rpartition("/")[2] != name for path in names)

    def knows_another(self, name: str, identity: str) -> bool:
        """Whether a library of this name was used, but of another release than this one."""
        return identity not in self._used and any(
            library.used and library.name == name for library in self.trace.libraries
        )

    def stays(self, identity: str, count: int) -> frozenset[int]:
        """The positions of the containers of a library that stay, of as many as it has."""
        used = self._used.get(identity, frozenset())
        whole = bool(used) and margins()[self.margin].keeps is Scope.LIBRARY
        return frozenset(range(count)) if whole else used


def _sources(opened: Iterable[str]) -> set[str]:
    """The modules that were imported by opening these files."""
    sources = {_source_of(match) for path in opened if (match := _BYTECODE.fullmatch(path))}
    return sources | {path for path in opened if path.endswith(".py") or _EXTENSION.fullmatch(path)}


def _source_of(bytecode: re.Match[str]) -> str:
    return f"{bytecode['folder']}{bytecode['module']}.py"


def _is_unused_bytecode(path: str, names: Mapping[str, str], opened: Collection[str]) -> bool:
    """Whether a file is the bytecode of a module whose source is there, and neither was opened."""
    match = _BYTECODE.fullmatch(path)
    source = _source_of(match) if match else ""
    return source in names and names.get(path) not in opened and names[source] not in opened


def _unused_modules(names: Mapping[str, str], opened: Collection[str]) -> Iterable[str]:
    """The sources of modules of which neither these nor bytecode was opened. Those of packages stay, as without them
    their folder would be one, and so do modules beside a folder of their name."""
    bytecode = {_source_of(match) for path in opened if (match := _BYTECODE.fullmatch(path))}
    folders = {path.rpartition("/")[0] for path in names}
    for path, name in names.items():
        folder, _, file = path.rpartition("/")
        module = file.removesuffix(".py")
        if file == module or not module.isidentifier() or module == "__init__":
            continue
        if name not in opened and name not in bytecode and f"{folder}/{module}".lstrip("/") not in folders:
            yield path


def _names_in_traces(paths: Iterable[str]) -> dict[str, str]:
    """The paths that a trace can name, each as it does: below site-packages or where else packages are installed."""
    paths = list(paths)
    places = sorted({match["site"] for path in paths if (match := _DIST_INFO.fullmatch(path))}, key=len)
    names = {}
    for path in paths:
        inside = installed_path(path)
        if inside != path:
            names[path] = inside
        elif _DATA.match(path):  # scripts and data of a wheel are installed elsewhere
            continue
        elif (place := next((place for place in places if path.startswith(place)), None)) is not None:
            names[path] = path[len(place) :]
    return names

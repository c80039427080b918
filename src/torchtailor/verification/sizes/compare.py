"""How two artifacts differ in size: by package, file, class of bytes, architecture and kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from torchtailor.core.documents import Bytes
from torchtailor.verification.inspection.kernels import KernelRow
from torchtailor.verification.inspection.measure import SizeRow, Sizes, SizeTotal
from torchtailor.verification.inspection.parts import PLAIN_FILES, ByteClass

_DIST_INFO = re.compile(r"(?:^|(?<=/))([A-Za-z0-9_.]+)-[^/]+\.(dist-info|data)(?=/)")
# What auditwheel adds to names; to that of a library of a wheel that it repaired before, twice.
_MANGLED_LIBRARY = re.compile(r"(?:-[0-9a-f]{8})+(?=(?:\.\w+)*\.so)")
_PYTHON_TAG = re.compile(r"\.(?:cpython-[\w-]+|abi3)(?=\.so$)")
_SO_VERSION = re.compile(r"(?<=\.so)(?:\.[\w.]+)$")
_INLINE_NAMESPACE = re.compile(r"\b(?:CUB|THRUST|_V)_\d{6}_\w+::")  # of CCCL: its version, and what it was built for
_WHEEL = re.compile(r"(?:^|(?<=/))([A-Za-z0-9_.]+)-[^/]+\.whl$")


class SizeChange(msgspec.Struct, frozen=True):
    """What became of something: bytes on disk and as compressed, before and after; 0 where it was not there."""

    name: str
    old: Bytes
    new: Bytes
    old_packed: int | None = None
    new_packed: int | None = None

    @property
    def growth(self) -> int:
        return self.new - self.old

    @property
    def verdict(self) -> str:
        """`new`, `gone`, `grew`, `shrank` or `same`."""
        if not self.old or not self.new:
            return "new" if self.new else "gone"
        return "grew" if self.growth > 0 else "shrank" if self.growth else "same"


class KernelChange(msgspec.Struct, frozen=True):
    """What became of the functions of one name, or of one template, in one library and for one architecture."""

    library: str
    code: str
    name: str
    old: Bytes
    new: Bytes
    old_functions: int
    new_functions: int

    @property
    def growth(self) -> int:
        return self.new - self.old


class ComparedSizes(msgspec.Struct, frozen=True):
    """One side of a comparison."""

    name: str
    size: Bytes
    packed: int | None
    skipped: tuple[str, ...]


class DiffDocument(msgspec.Struct, frozen=True):
    """How two artifacts differ."""

    old: ComparedSizes
    new: ComparedSizes
    packages: tuple[SizeChange, ...]
    files: tuple[SizeChange, ...]
    classes: tuple[SizeChange, ...]
    architectures: tuple[SizeChange, ...]
    kernels: tuple[KernelChange, ...]
    exceeded: tuple[str, ...] = ()


@dataclass(frozen=True)
class SizeComparison:
    """Two artifacts, side by side."""

    old: Sizes
    new: Sizes

    @property
    def total(self) -> SizeChange:
        return SizeChange("total", self.old.total, self.new.total, self.old.packed, self.new.packed)

    @cached_property
    def packages(self) -> tuple[SizeChange, ...]:
        return self._by(lambda row: row.package or "(no package)")

    @cached_property
    def files(self) -> tuple[SizeChange, ...]:
        """By file; one whose name says a version or a hash is the same file in both."""
        return tuple(msgspec.structs.replace(file, name=self._named(file.name)) for file in self._files)

    @cached_property
    def _files(self) -> tuple[SizeChange, ...]:
        return self._by(lambda row: unversioned(row.file))

    @cached_property
    def _names(self) -> Mapping[str, set[str]]:
        """The files' own names, of the new side or, where it has none, of the old one."""
        sides: list[dict[str, set[str]]] = []
        for rows in (self.old.rows, self.new.rows):
            names: dict[str, set[str]] = {}
            for row in rows:
                names.setdefault(unversioned(row.file), set()).add(_without_hashes(row.file))
            sides.append(names)
        return sides[0] | sides[1]

    def _named(self, file: str) -> str:
        """`libcurand.so.10` of `libcurand.so`: the one name that it has, or that by which several are the same."""
        names = self._names.get(file, set())
        return next(iter(names)) if len(names) == 1 else file

    @cached_property
    def classes(self) -> tuple[SizeChange, ...]:
        return self._by(lambda row: row.kind.value)

    @cached_property
    def architectures(self) -> tuple[SizeChange, ...]:
        return self._by(lambda row: row.code)

    @cached_property
    def parts(self) -> tuple[SizeChange, ...]:
        """By file, class and architecture: what grew or shrank by itself."""
        return self._by(lambda row: "\0".join((unversioned(row.file), row.kind.value, row.code)))

    @cached_property
    def causes(self) -> tuple[SizeChange, ...]:
        """What changed by itself, in words and the largest first: a file that is new or gone is one of them, whatever
        is in it, and so is a folder of files without machine code."""
        whole = {file.name: file for file in self._files if file.verdict in ("new", "gone")}
        named = [
            msgspec.structs.replace(one, name=_in_words(*part))
            for one in self.parts
            if one.growth and (part := _split(one.name))[0] not in whole
        ]
        plain = {file for side in (self.old, self.new) for file in _plain_files(side)}
        for verdict, other in (("new", self.old), ("gone", self.new)):
            folders = {folder for row in other.rows for folder in _folders(unversioned(row.file))}
            together: dict[str, list[SizeChange]] = {}
            for name, one in whole.items():
                if one.verdict == verdict:
                    place = next((folder for folder in _folders(name) if folder not in folders), "")
                    together.setdefault(place if name in plain else "", []).append(one)
            alone = together.pop("", []) + [each.pop() for each in together.values() if len(each) == 1]
            named += [msgspec.structs.replace(one, name=_in_words(self._named(one.name), "", "")) for one in alone]
            named += [sum_of(f"{place}/ ({len(each)} files)", each) for place, each in together.items() if each]
        return tuple(sorted(named, key=lambda one: (-abs(one.growth), one.name)))

    @cached_property
    def contents(self) -> Mapping[str, tuple[SizeChange, ...]]:
        """Of libraries that are new or gone, by their names in words, the classes of their bytes."""
        whole = {file.name for file in self._files if file.verdict in ("new", "gone")}
        found: dict[str, dict[str, list[SizeChange]]] = {}
        for part in self.parts:
            file, kind, _ = _split(part.name)
            if file in whole and ByteClass(kind) not in PLAIN_FILES:
                found.setdefault(_in_words(self._named(file), "", ""), {}).setdefault(kind, []).append(part)
        return {
            file: tuple(sorted((sum_of(*each) for each in kinds.items()), key=lambda one: -abs(one.growth)))
            for file, kinds in found.items()
        }

    @cached_property
    def functions(self) -> tuple[KernelChange, ...]:
        """Kernels of all libraries together."""
        together: dict[tuple[str, str], list[int]] = {}
        for one in self.kernels:
            sums = together.setdefault((one.code, one.name), [0, 0, 0, 0])
            for column, number in enumerate((one.old, one.new, one.old_functions, one.new_functions)):
                sums[column] += number
        changes = (KernelChange("", *key, *sums) for key, sums in together.items())
        return tuple(sorted(changes, key=lambda one: (-abs(one.growth), one.name, one.code)))

    @cached_property
    def kernels(self) -> tuple[KernelChange, ...]:
        """What became of kernels, the largest change first."""
        old, new = _by_name(self.old.kernels), _by_name(self.new.kernels)
        changes = []
        for key in {**old, **new}:
            (before, were), (after, are) = old.get(key, (0, 0)), new.get(key, (0, 0))
            changes.append(KernelChange(*key, before, after, were, are))
        return tuple(sorted(changes, key=lambda one: (-abs(one.growth), one.name, one.code, one.library)))

    @property
    def document(self) -> DiffDocument:
        """What `diff --json` prints: of files and kernels those that changed."""
        old, new = (ComparedSizes(one.name, one.total, one.packed, one.skipped) for one in (self.old, self.new))
        return DiffDocument(
            old,
            new,
            packages=self.packages,
            files=tuple(file for file in self.files if file.growth),
            classes=self.classes,
            architectures=self.architectures,
            kernels=tuple(kernel for kernel in self.kernels if kernel.growth),
        )

    def _by(self, key: Callable[[SizeRow], str]) -> tuple[SizeChange, ...]:
        """The largest change first."""
        old, new = self.old.by(key), self.new.by(key)
        none = SizeTotal() if None in (self.old.packed, self.new.packed) else SizeTotal(0, 0)
        changes = (_change(name, old.get(name, none), new.get(name, none)) for name in {**old, **new})
        return tuple(sorted(changes, key=lambda one: (-abs(one.growth), -one.new, one.name)))


def sum_of(name: str, changes: Iterable[SizeChange | KernelChange]) -> SizeChange:
    """What became of all of these together."""
    changes = list(changes)
    sides = ([getattr(change, side, None) for change in changes] for side in ("old_packed", "new_packed"))
    packed = ([size for size in side if size is not None] for side in sides)
    return SizeChange(
        name,
        sum(change.old for change in changes),
        sum(change.new for change in changes),
        *(sum(side) if side else None for side in packed),
    )


def unversioned(file: str) -> str:
    """A file's name without what every release changes: versions of packages and libraries, hashes, Python tags."""
    return _SO_VERSION.sub("", _without_hashes(file))


def _without_hashes(file: str) -> str:
    """The same with the version of a library, by which people know it."""
    for pattern in (_MANGLED_LIBRARY, _PYTHON_TAG):
        file = pattern.sub("", file)
    return _WHEEL.sub(r"\1.whl", _DIST_INFO.sub(r"\1.\2", file))


def unversioned_function(name: str) -> str:
    """A function's name without the version of the library of templates that it is from."""
    return _INLINE_NAMESPACE.sub("", name)


def _split(name: str) -> tuple[str, str, str]:
    file, kind, code = name.split("\0")
    return file, kind, code


def _plain_files(sizes: Sizes) -> Iterable[str]:
    """The files that are nothing but text and data."""
    kinds: dict[str, set[ByteClass]] = {}
    for row in sizes.rows:
        kinds.setdefault(unversioned(row.file), set()).add(row.kind)
    return (file for file, found in kinds.items() if found.issubset(PLAIN_FILES))


def _folders(file: str) -> Iterable[str]:
    """The folders that a file is in, the outermost first."""
    return (file[: slash.start()] for slash in re.finditer("/", file) if slash.start())


def _in_words(file: str, kind: str, code: str) -> str:
    """`sm_120 in libtorch_cuda.so`, `host code of libtorch_cpu.so`, or the file alone."""
    name = file.rpartition("/")[2]
    if code:
        return f"{code} in {name}"
    return f"{kind} of {name}" if kind and ByteClass(kind) not in PLAIN_FILES else name


def _change(name: str, old: SizeTotal, new: SizeTotal) -> SizeChange:
    return SizeChange(name, old.size, new.size, old.packed, new.packed)


def _by_name(rows: Iterable[KernelRow]) -> Mapping[tuple[str, str, str], tuple[int, int]]:
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for row in rows:
        key = (unversioned(row.library), row.code, unversioned_function(row.name))
        size, functions = sums.get(key, (0, 0))
        sums[key] = (size + row.size, functions + row.functions)
    return sums

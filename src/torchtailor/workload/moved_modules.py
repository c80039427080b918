"""Imports modules of packages from other places than files of their own, both by what a recorded program did.

Those that it imported are in one indexed file a package, those that it never did in a pack.

A copy of this file lies beside these, and a .pth file in site-packages runs it: it needs nothing but Python, and is
quick to start. An index is asked first, and answers only for folders that are as they were when it was installed. Packs
are opened when a module is not in site-packages. A pack is code: the same files and folders are used as the hook of
libraries uses (`native/packs.c`), by owner, rights and kind.
"""

# ruff: noqa: PTH109, PTH110, PTH115, PTH116, PTH118, PTH119, PTH120, PTH208

from __future__ import annotations

import _imp
import marshal
import os
import stat
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import (  # what importlib.util has it from, which is slow to import
    MAGIC_NUMBER,
    ExtensionFileLoader,
    FileFinder,
    PathFinder,
    SourceFileLoader,
    spec_from_file_location,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import CodeType, ModuleType
    from typing import Any
    from zipfile import ZipFile

    # Its file, the size of its source (-1: not known), where its code begins and ends in the index (nowhere for an
    # extension module), the hash of this and of its source.
    IndexRow = tuple[str, int, int, int, bytes, bytes]
    # For which Python (empty: each that reads its bytecode), when folders changed last, and the modules.
    IndexTable = tuple[str, dict[str, int], dict[str, IndexRow]]

MODULES = "python-"  # how the names of packs of modules begin
PACK_OF_MODULES = ".zip"
NAMES = ".names"
_LOOKS = 10  # in a second

INDEX = "index-{}.bin"  # with the tag of its Python, as the names of bytecode have it
STANDARD = "standard-{}.bin"  # the same for modules of Python itself
INDEX_MAGIC = b"TTMODS1\n"
INDEX_KEY = 0x746F726368  # of the hashes in an index
_TABLE = 8 + 4 + 8 + 8  # where the table of an index begins: behind magic, Python's own, size and hash of the table
INDEX_VARIABLE = "TORCHTAILOR_INDEX"  # 0: not used; files: the source of each module is looked at
_INIT = "/__init__.py"


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
    """Finds modules of one site-packages folder in the packs beside it, and in those that TORCHTAILOR_PACK names."""

    def __init__(self, site: str) -> None:
        self.site = site
        self._folders: dict[str, list[str]] = {}  # with packs, by the first part of the paths of their modules
        self._packs: dict[str, tuple[ZipFile, frozenset[str]]] = {}
        self._names: dict[str, tuple[str, str]] = {}  # modules, with their packs by name, and the folders that say so
        self._looked: set[str] = set()
        self._refused: set[str] = set()
        self.said = False

    def add(self, folder: str, tops: str) -> None:
        for top in tops.split():
            known = self._folders.setdefault(top, [])
            if folder not in known:  # Python reads the .pth files of some environments twice
                known.append(folder)

    def find_spec(self, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None) -> ModuleSpec | None:
        """As an import asks, after all others were."""
        last = name.rpartition(".")[2]
        for place in [self.site] if path is None else path:
            if place == self.site or place.startswith(self.site + os.sep):
                file = os.path.join(place, f"{last}.py")
                inside = self._inside(file)
                folders = self._looked_at(inside)
                spec = (self._found(name, file, inside) or self._awaited(name, file, inside)) if folders else None
                if spec:
                    return spec
        return None

    def names_in(self, folder: str) -> list[str]:
        """The modules of a folder that are in packs, also in those that are not there yet."""
        if folder != self.site and not folder.startswith(self.site + os.sep):
            return []
        inside = self._inside(folder)
        for one in self._folders if inside == "." else [inside]:
            self._looked_at(one)
        every = {*self._names, *(name for _, names in self._packs.values() for name in names)}
        parts = (name.rpartition("/") for name in every)
        return sorted(file[:-3] for place, _, file in parts if (place or ".") == inside)

    def list_with(self, file: str) -> str:
        """The list of names in which a module is; empty where it is in no pack."""
        inside = file[len(self.site) + 1 :] if file.startswith(self.site + os.sep) else ""
        pack, folder = self._names.get(inside, ("", ""))
        names = os.path.join(folder, pack.removesuffix(PACK_OF_MODULES) + NAMES)
        return names if pack and not os.path.exists(file) else ""

    def _inside(self, path: str) -> str:
        return os.path.relpath(path, self.site).replace(os.sep, "/")

    def _looked_at(self, inside: str) -> list[str]:
        """The folders that may have packs with a module, which were looked at."""
        folders = self._folders.get(inside.partition("/")[0].removesuffix(".py"), [])
        for folder in folders:
            if folder not in self._looked:
                self._look(folder)
        return folders

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
        if inside not in self._names:
            return None
        pack, folder = self._names[inside]
        wait = os.environ.get("TORCHTAILOR_PACK_WAIT", "")
        left = int(wait) * _LOOKS if wait.isdecimal() else 0
        if left and all(os.path.basename(place) != pack for place in self._packs):
            self._say(name, f"is in {pack}, which is not there yet: waiting for it up to {wait} seconds")
        import time

        for _ in range(left):
            time.sleep(1 / _LOOKS)
            self._look(folder)
            if spec := self._found(name, file, inside):
                return spec
        raise ModuleNotFoundError(
            f"No module named {name!r}: it was not imported when the program was recorded, and {pack}, which has it, "
            f"is neither in {folder} nor where TORCHTAILOR_PACK says (`torchtailor packs pull` brings packs)"
        )  # without its name: `from package import module` would say another thing

    def _look(self, own: str) -> None:
        """Open the packs of a package that are there, and were not before."""
        self._looked.add(own)
        named = [place for place in os.environ.get("TORCHTAILOR_PACK", "").split(":") if place]
        for folder in (own, *named, *(os.path.join(place, os.path.basename(own)) for place in named)):
            try:
                if folder != own:
                    self._open_folder(os.path.realpath(folder), _Trust(self.site, folder))
                    continue
                trust = _Trust(self.site)
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
                            self._names |= dict.fromkeys(*_read_names(file.read(), folder))
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


class _WithPkgutil:
    """Waits for the import of pkgutil, which then lists modules in packs, too."""

    def __init__(self, moved: MovedModules) -> None:
        self._moved = moved

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "pkgutil":
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
        spec = next((spec for spec in specs if spec), None)
        if spec and isinstance(spec.loader, SourceFileLoader):
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self.list_in(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def list_in(self, pkgutil: ModuleType) -> None:
        """`pkgutil.iter_modules` asks the function that is registered for the finder of a folder."""
        listing = pkgutil.iter_importer_modules
        stock = listing.dispatch(FileFinder)

        def with_moved(importer: FileFinder, prefix: str = "") -> Iterator[tuple[str, bool]]:
            known = set()
            for name, is_package in stock(importer, prefix):
                known.add(name)
                yield name, is_package
            for name in self._moved.names_in(importer.path):
                if prefix + name not in known:
                    yield prefix + name, False

        listing.register(FileFinder, with_moved)
        every = pkgutil.iter_modules

        def iter_modules(path: Iterable[str] | None = None, prefix: str = "") -> Iterator[Any]:
            for module in every(path, prefix):
                folder, name = getattr(module.module_finder, "path", ""), module.name[len(prefix) :]
                moved = not module.ispkg and self._moved.list_with(os.path.join(folder, f"{name}.py"))
                yield module._replace(module_finder=_Listed(self._moved, folder, moved)) if moved else module

        pkgutil.iter_modules = iter_modules  # type: ignore[attr-defined]


class _Listed:
    """Finds a module that pkgutil listed: torch asks for a file, which it reads to know whether its code changed."""

    def __init__(self, moved: MovedModules, folder: str, names: str) -> None:
        self._moved, self._folder, self._names = moved, folder, names

    def find_spec(self, name: str, _: ModuleType | None = None) -> ModuleSpec:
        said, self._moved.said = self._moved.said, True  # it was not imported
        try:
            spec = self._moved.find_spec(name, [self._folder])
        except ModuleNotFoundError:
            spec = None
        finally:
            self._moved.said = said
        spec = spec or ModuleSpec(name, None)
        spec.origin = self._names  # a pack is named there by its hash
        return spec


class _IndexedLoader(SourceFileLoader):
    """Loads a module as from its file, with its code from an index."""

    def __init__(self, name: str, path: str, take: Callable[[], bytes]) -> None:
        super().__init__(name, path)
        self._take = take

    def get_code(self, fullname: str) -> CodeType | None:
        data = self._take()
        if not data:
            return super().get_code(fullname)
        code: CodeType = marshal.loads(data)
        _imp._fix_co_filename(code, self.path)  # type: ignore[attr-defined]  # as bytecode that was moved
        return code


class Index:
    """One file with the code of modules below a folder from which Python imports."""

    def __init__(self, root: str, path: str, record: str) -> None:
        self.root = root
        self.path, self._record = path, record
        self._rows: dict[str, IndexRow] | None = None
        self._code: dict[str, bytes] = {}
        self.real = ""  # the root without links, once it was asked for
        self._since = 0  # what is newer was changed
        self._times: dict[str, int] = {}  # of folders, where they were known when it was made
        self._folders: dict[str, bool] = {}
        self.loaded: dict[str, str] = {}  # modules by name, with their files
        self.files: frozenset[str] = frozenset()  # all that it knows, none of which is a link

    def find(self, name: str, inside: str, *, files: bool) -> ModuleSpec | None:
        """A module by its path below the root, without its ending."""
        if self._rows is None:
            try:
                self._rows = self._read()
            except Exception:  # damaged, of another format, or gone: files are imported as ever
                self._rows = {}
        if inside not in self._rows:
            return None
        file, size, _, _, digest, _ = self._rows[inside]
        place = f"{self.root}/{file}"
        folder = place.rpartition("/")[0]
        try:
            if not self._is_whole(folder) or (files and not self._is_same(place, size)):
                return None
        except OSError:
            return None
        if file.endswith(".so"):
            self.loaded[name] = place
            return spec_from_file_location(name, place, loader=ExtensionFileLoader(name, place))
        if inside not in self._code:
            return None

        def take() -> bytes:  # once: a second import, as of another interpreter, is as ever
            code = self._code.pop(inside, b"")
            if _imp.source_hash(INDEX_KEY, code) != digest:
                return b""
            self.loaded[name] = place
            return code

        within = [folder] if file.endswith(_INIT) else None
        loader = _IndexedLoader(name, place, take)
        return spec_from_file_location(name, place, loader=loader, submodule_search_locations=within)

    def _is_whole(self, folder: str) -> bool:
        """Whether nothing came, left or was replaced in a folder since the package was installed."""
        if folder not in self._folders:
            time, known = os.stat(folder).st_mtime_ns, self._times.get(folder[len(self.root) + 1 :])
            self._folders[folder] = time <= self._since if known is None else time == known
        return self._folders[folder]

    def _is_same(self, place: str, size: int) -> bool:
        info = os.stat(place)
        return info.st_mtime_ns <= self._since and size in (info.st_size, -1)

    def _read(self) -> dict[str, IndexRow]:
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            info = os.fstat(file)
            data = b""
            while len(data) < info.st_size and (piece := os.read(file, info.st_size - len(data))):
                data = data + piece if data else piece
        finally:
            os.close(file)
        version, self._times, table = read_index(data)
        if version not in ("", sys.version):  # of Python's own modules
            return {}
        self.files = frozenset(f"{self.root}/{row[0]}" for row in table.values())
        # pip compiles, and uv links files, after the index was written
        self._since = max(info.st_mtime_ns, os.stat(self._record).st_mtime_ns if self._record else 0)
        self._code = {inside: data[row[2] : row[3]] for inside, row in table.items() if row[2] < row[3]}
        return table


def read_index(data: bytes) -> IndexTable:
    """What is in an index: nothing where it is damaged, or this Python cannot use it."""
    if data[:12] != INDEX_MAGIC + MAGIC_NUMBER or sys.flags.optimize:
        return "", {}, {}
    table = _table(data)
    if len(table) != _size(data) or _imp.source_hash(INDEX_KEY, table) != data[20:_TABLE]:
        return "", {}, {}
    return read_table(data)


def read_table(data: bytes) -> IndexTable:
    """What is in an index that is whole."""
    table: IndexTable = marshal.loads(_table(data))
    return table


def _size(data: bytes) -> int:
    return int.from_bytes(data[12:20], "little")


def _table(data: bytes) -> bytes:
    return data[_TABLE : _TABLE + _size(data)]


def write_index(
    modules: Iterable[tuple[str, str, bytes, int, bytes]], times: dict[str, int], version: str = ""
) -> bytes:
    """The index of modules: the path of each without an ending, its file, its code, size and hash of its source."""
    modules = list(modules)
    rows = {}
    at = _TABLE
    for inside, file, code, size, source in modules:
        digest = _imp.source_hash(INDEX_KEY, code)
        rows[inside] = file, size, at, at + len(code), digest, source
        at += len(code)

    def table(shift: int) -> bytes:
        moved = {key: (*row[:2], row[2] + shift, row[3] + shift, *row[4:]) for key, row in rows.items()}
        return marshal.dumps((version, times, moved), 2)

    size = len(table(0))  # numbers have one length
    whole = table(size)
    head = INDEX_MAGIC + MAGIC_NUMBER + size.to_bytes(8, "little") + _imp.source_hash(INDEX_KEY, whole)
    return b"".join([head, whole, *(code for _, _, code, _, _ in modules)])


class IndexedModules:
    """Finds modules of which the code is in an index; what it does not know is found as ever."""

    def __init__(self) -> None:
        self._indexes: dict[str, list[Index]] = {}  # by the first part of the names that they have
        self._files = os.environ.get(INDEX_VARIABLE) == "files"
        self._real: dict[str, str] = {}  # roots without links
        self._names: dict[str, frozenset[str]] = {}  # of what folders of sys.path have

    def invalidate_caches(self) -> None:
        self._names.clear()

    def add(self, index: Index, tops: str) -> None:
        for top in tops.split():
            known = self._indexes.setdefault(top, [])
            if all(one.path != index.path for one in known):  # Python reads the .pth files of some environments twice
                known.append(index)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As an import asks; a reload reads the file."""
        indexes = self._indexes.get(name.partition(".")[0])
        if indexes is None or target is not None:
            return None
        for index in indexes:
            inside = ""
            if path is None:
                inside = name if self._comes_first(name, index.root) else ""
            elif type(path) is list and len(path) == 1 and path[0].startswith(f"{index.root}/"):
                inside = f"{path[0][len(index.root) + 1 :]}/{name.rpartition('.')[2]}"
            if inside and (spec := index.find(name, inside, files=self._files)):
                self._tell_inspect()
                return spec
        return None

    def _tell_inspect(self, *, of_all: bool = False) -> None:
        """`inspect` looks for the module of a file by following the links of the files of all modules, and torch asks
        it while it is imported: of these it is known that there are none. `of_all`: also of those that came without
        an import, as the parts of an extension module do."""
        inspect = sys.modules.get("inspect")
        names = getattr(inspect, "modulesbyfile", None)
        files = getattr(inspect, "_filesbymodname", None)
        if inspect is None or names is None or files is None:
            return
        _ask_once(inspect, self)
        for index in self._used():
            if of_all or not index.real:
                index.real = self._real[index.root] = self._real.get(index.root) or _real(index.root)
                every = ((name, getattr(module, "__file__", "")) for name, module in list(sys.modules.items()))
                index.loaded.update((name, file) for name, file in every if file in index.files)
            for name in [name for name in index.loaded if name in sys.modules]:
                module, file = sys.modules[name], index.loaded.pop(name)
                if files.get(name) != file == getattr(module, "__file__", ""):
                    files[name] = file
                    names[file] = names[index.real + file[len(index.root) :]] = module.__name__

    def is_importing(self, file: str, *, of_all: bool = False) -> bool:
        """Whether a file is of a package of an index that is just being imported, of which `inspect` is told."""
        index = next((index for index in self._used() if file in index.files), None)
        top = file[len(index.root) + 1 :].partition("/")[0] if index else ""
        is_it = getattr(getattr(sys.modules.get(top), "__spec__", None), "_initializing", False)
        if is_it:
            self._tell_inspect(of_all=of_all)
        return bool(is_it)

    def _used(self) -> set[Index]:
        return {index for several in self._indexes.values() for index in several if index.files}

    def _comes_first(self, name: str, root: str) -> bool:
        """Whether nothing before a folder in sys.path has a module of this name."""
        for place in sys.path:
            if place == root:
                return True
            if self._has(place, name):
                found = PathFinder.find_spec(name, [place])
                if found and found.loader:
                    return False
        return False

    def _has(self, place: str, name: str) -> bool:
        """Whether a folder, or an archive, may have a module of this name; what came to a folder since it was asked is
        seen after `importlib.invalidate_caches`, as importlib's own rules are."""
        place = place or os.getcwd()
        if place not in self._names:
            try:
                self._names[place] = frozenset(entry.partition(".")[0] for entry in os.listdir(place))
            except NotADirectoryError:
                return True
            except OSError:
                self._names[place] = frozenset()
        return name in self._names[place]


def _ask_once(inspect: Any, finder: IndexedModules) -> None:
    """While a package is imported, each of its sources is asked once whether it changed since it was read; before
    Python 3.12 `inspect.getsourcefile` is as it is since then, which does not look for a file that was read."""
    import linecache

    if hasattr(linecache.checkcache, "stock"):
        return
    check, find = linecache.checkcache, inspect.getsourcefile
    asked: set[str] = set()

    def checkcache(filename: str | None = None) -> None:
        if filename in asked and filename in linecache.cache and finder.is_importing(filename):
            return
        check(filename)
        asked.discard(filename or "")
        if filename and finder.is_importing(filename, of_all=True) and filename in linecache.cache:
            asked.add(filename)

    def getsourcefile(of: object) -> str | None:
        file: str = inspect.getfile(of)
        found: str | None = file if file.endswith(".py") and file in linecache.cache else find(of)
        return found

    checkcache.stock = check  # type: ignore[attr-defined]
    linecache.checkcache = checkcache
    if sys.version_info < (3, 12):
        inspect.getsourcefile = getsourcefile


def _real(folder: str) -> str:
    """A folder without links; `os.path.realpath` asks of each that is above it."""
    try:
        file = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        try:
            return os.readlink(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
    except OSError:
        return os.path.realpath(folder)


def use_index(hook: str, tops: str, record: str, standard: str = "") -> None:
    """Use the index beside a copy of this file, and that of Python's own modules; called by a .pth file."""
    if os.environ.get(INDEX_VARIABLE) == "0":
        return
    own = os.path.dirname(hook)
    site = os.path.dirname(os.path.dirname(own))
    finder = next((one for one in sys.meta_path if isinstance(one, IndexedModules)), None)
    if finder is None:
        finder = IndexedModules()
        sys.meta_path.insert(sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0, finder)
    tag = sys.implementation.cache_tag
    finder.add(Index(site, os.path.join(own, INDEX.format(tag)), os.path.join(site, record)), tops)
    if standard:
        finder.add(Index(os.path.dirname(os.__file__), os.path.join(own, STANDARD.format(tag)), ""), standard)


def use_packs(hook: str, tops: str) -> None:
    """Import modules from the packs beside a copy of this file; called by a .pth file."""
    own = os.path.dirname(hook)
    site = os.path.dirname(os.path.dirname(own))
    moved = next((one for one in sys.meta_path if isinstance(one, MovedModules) and one.site == site), None)
    if moved is None:
        moved = MovedModules(site)
        sys.meta_path.append(moved)
        if "pkgutil" in sys.modules:
            _WithPkgutil(moved).list_in(sys.modules["pkgutil"])
        else:
            sys.meta_path.insert(0, _WithPkgutil(moved))
    moved.add(own, tops)


def list_of_names(pack: str, modules: Iterable[str]) -> bytes:
    """What lies beside the finder, where a pack may not: the modules that it has."""
    import zlib

    return zlib.compress("\n".join([pack, *modules]).encode(), 9)


def _read_names(data: bytes, folder: str) -> tuple[list[str], tuple[str, str]]:
    import zlib

    pack, *modules = zlib.decompress(data).decode().split("\n")
    return modules, (pack, folder)

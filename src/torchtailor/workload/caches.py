"""Compile caches that a program wrote: recorded to a folder of their own, checked, and packed for those who start with
them.

The program is told by variables to write there, so that nothing of other programs is in the folder. What the caches are
for (GPU, driver, torch, Triton) is noted beside them: another one would compile all anew, after it had copied them.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import msgspec

from torchtailor.core.disk import disk_errors, hash_file, write_atomically
from torchtailor.core.errors import BadInputError, ImpossibleError, NoMatchError, UsageError
from torchtailor.core.tables import read_table
from torchtailor.core.trust import Limit, decode_json, read_limited

NOTE = "torchtailor-caches.json"
GpusAndDriver = tuple[tuple[str, ...], str]
_SCHEMA = "torchtailor-caches/1"
_OF_TORCH = re.compile(r"(.*/(?:site|dist)-packages)/torch/")
_LARGEST = 1 << 30  # bytes of one file
_RECORD = "Record them again: `torchtailor record -o app.trace --caches FOLDER -- PROGRAM`."


class CompileCache(msgspec.Struct, frozen=True):
    """A folder that a compiler writes to."""

    name: str
    variable: str
    gpu: bool = False


class _Table(msgspec.Struct, frozen=True):
    named_by: tuple[str, ...]
    cache: tuple[CompileCache, ...]


@cache
def _table() -> _Table:
    return read_table("workload", "caches.toml", _Table)


def compile_caches() -> tuple[CompileCache, ...]:
    return _table().cache


class MadeFor(msgspec.Struct, frozen=True):
    """What caches are for; what is empty was not there, or nothing depends on it."""

    torch: str = ""
    triton: str = ""
    gpus: tuple[str, ...] = ()
    driver: str = ""


class _Note(msgspec.Struct, frozen=True):
    schema: str
    made_for: MadeFor
    written_at: str = ""  # where it is not the folder that they are in: by a program in a container


@dataclass(frozen=True)
class Caches:
    """A folder of caches, and what they are for."""

    folder: Path
    made_for: MadeFor
    written_at: str

    @cached_property
    def files(self) -> dict[str, Path]:
        """What compilers wrote, by its path; locks and files that they were still writing are left out."""
        return dict(_files(self.folder))

    def packed(self) -> bytes:
        """A zip of all files; the same for the same ones. The folder's own path is its comment: some caches have it in
        them, and get the new one when they are unpacked."""
        made = io.BytesIO()
        with ZipFile(made, "w", ZIP_DEFLATED, compresslevel=6) as packed:
            packed.comment = os.fsencode(self.written_at)
            for name, path in self.files.items():
                packed.writestr(ZipInfo(name), read_limited(path, _LARGEST), ZIP_DEFLATED, 6)
        return made.getvalue()

    @cached_property
    def digest(self) -> str:
        """Of all files, and where they were written."""
        lines = [f"{hash_file(path)}  {name}\n" for name, path in self.files.items()]
        return hashlib.sha256("".join([self.written_at, *lines]).encode(errors="surrogateescape")).hexdigest()

    def are_named_by(self, library: str) -> bool:
        """Whether programs look for these caches by the bytes of a library, which has to stay as it is."""
        return bool(self.made_for.triton) and any(f"/{library}".endswith(f"/{name}") for name in _table().named_by)

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())

    def check(self, *, torch: str, triton: str, gpus: Iterable[str], driver: str | None) -> None:
        """Refuse caches that programs there would not use."""
        made, gpus = self.made_for, tuple(gpus)
        pairs = [("torch", made.torch, torch), ("Triton", made.triton, triton)]
        wrong = [(what, one, other) for what, one, other in pairs if one != other and (what == "torch" or one)]
        if made.gpus and not set(made.gpus) <= set(gpus):
            wrong.append(("GPU", " and ".join(made.gpus), ", ".join(gpus) or "none"))
        if made.driver and driver and _numbers(driver) < _numbers(made.driver):
            wrong.append(("driver", made.driver, driver))
        if wrong:
            what, one, other = wrong[0]
            raise ImpossibleError(
                f"The caches in {self.folder} were made for {what} {one or 'that is not known'}, and this is for "
                f"{other or 'none'}: programs would not use them.",
                f"{_RECORD[:-1]} with what they are for.",
            )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for one in compile_caches():
        for path in sorted((folder / one.name).rglob("*")):
            inside = path.relative_to(folder).as_posix()
            if (
                stat.S_ISREG(path.lstat().st_mode)
                and not path.name.endswith((".lock", ".tmp"))
                and "/tmp" not in inside
            ):
                yield inside, path


def caching_environment(folder: Path, seen_as: str = "") -> dict[str, str]:
    """The variables with which a program writes its caches to a folder, which is made; in a container it has another
    path."""
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / NOTE).is_file():
            raise UsageError(f"{folder} holds other files.", "Give a new folder with --caches.")
        (folder / NOTE).unlink(missing_ok=True)
        for one in compile_caches():
            (folder / one.name).mkdir(exist_ok=True)
    return {one.variable: f"{seen_as or folder.resolve()}/{one.name}" for one in compile_caches()}


def copy_caches(source: Path, target: Path) -> None:
    """Copy what compilers wrote, and nothing that a link leads to."""
    with disk_errors(target):
        for name, path in _files(source):
            place = target / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place, follow_symlinks=False)


def note_caches(
    folder: Path,
    opened: Iterable[str],
    machine: Callable[[], GpusAndDriver],
    root: Path = Path("/"),
    seen_as: str = "",
) -> Caches:
    """Note what a program's caches are for, by the files that it opened, below the root that it had, and the machine
    that it ran on."""
    site = next((found[1] for path in opened if (found := _OF_TORCH.match(path))), "")
    installed = (root / site.lstrip("/")).glob("*-*.dist-info") if site else ()
    names = (one.name.removesuffix(".dist-info").partition("-") for one in installed)
    versions = {name.lower(): version for name, _, version in names}
    for_gpu = {one.name for one in compile_caches() if one.gpu}
    gpus: tuple[str, ...] = ()
    driver = ""
    if any(name.partition("/")[0] in for_gpu for name, _ in _files(folder)):
        gpus, driver = machine()
    made = MadeFor(versions.get("torch", ""), versions.get("triton", ""), gpus, driver)
    with disk_errors(folder):
        write_atomically(folder / NOTE, msgspec.json.encode(_Note(_SCHEMA, made, seen_as)) + b"\n")
    return Caches(folder, made, seen_as or str(folder.resolve()))


def read_caches(folder: Path) -> Caches:
    """The caches that were recorded to a folder."""
    try:
        note = decode_json(read_limited(folder / NOTE, Limit.SMALL), _Note, str(folder / NOTE), _RECORD)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoMatchError(f"{folder} holds no caches that `record --caches` wrote.", _RECORD) from error
    except OSError as error:
        raise BadInputError(f"{folder} cannot be read: {error.strerror}.", _RECORD) from error
    if note.schema != _SCHEMA:
        raise BadInputError(f"{folder} was written by another version of torchtailor.", _RECORD)
    found = Caches(folder, note.made_for, note.written_at or str(folder.resolve()))
    if not found.files:
        raise NoMatchError(f"{folder} holds no caches: the program compiled nothing.", _RECORD)
    return found

"""Which files are libraries, and where they lie: loose in a folder, or packed in a wheel."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchtailor.code.binary import placeholder
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import MAGIC, SECTION_HEADER, ElfMachine, FileType
from torchtailor.code.binary.source import BufferSource, ByteSource, blamed_on, open_source
from torchtailor.code.gpucode.files import HEAD_SIZE, CodeFile, is_code_file, known_by_head, read_code_file
from torchtailor.trees.wheels.archive import Member, WheelArchive, head_of_member, open_member

# never libraries, and many: not opening them makes a large environment quick
_TEXT_SUFFIXES = frozenset((
    ".c", ".cc", ".cfg", ".cmake", ".cpp", ".css", ".csv", ".cu", ".cuh", ".gif", ".h", ".hpp", ".html",
    ".hxx", ".in", ".inc", ".ini", ".inl", ".ipynb", ".jinja", ".jpg", ".js", ".json", ".lark", ".map",
    ".md", ".mjs", ".pem", ".png", ".proto", ".pth", ".pxd", ".pxi", ".py", ".pyc", ".pyi", ".pyx", ".rst",
    ".sh", ".svg", ".toml", ".ts", ".ttf", ".txt", ".typed", ".xml", ".yaml", ".yml",
    ".cubin",  # an ELF file, but not for this processor: one of the files of GPU code
))  # fmt: skip
_MODULE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:\.(?:cpython-\w+(?:-\w+)*|abi3))?\.so")
_SHARED_NAME = re.compile(r"\.so(\.[\w.]+)?$")


@dataclass(frozen=True, slots=True)
class SharedFile:
    """What a shared library is to those who load it."""

    machine: ElfMachine | None  # None for one that is no library, or for a processor that is not known
    is_module: bool  # of Python

    @classmethod
    def read(cls, path: str, source: ByteSource) -> SharedFile:
        machine = placeholder.machine_of(bytes(source.read(0, min(source.size, placeholder.HEAD_SIZE))))
        name = module_name(path)
        return cls(machine, bool(name) and source.find(f"\0PyInit_{name}\0".encode(), 0, source.size) >= 0)


def module_name(path: str) -> str:
    """The name that an extension module has in Python, by its file's; empty for what cannot be one."""
    match = _MODULE.fullmatch(path.rpartition("/")[2])
    return match["name"] if match else ""


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """One ELF file of an artifact, loose or inside a wheel."""

    name: str  # as it is installed: relative to site-packages
    owner: str  # the wheel it is in; empty for a loose file
    size: int
    path: Path  # of the file, or of the wheel
    member: Member | None = None

    @property
    def short_name(self) -> str:
        return self.name.rsplit("/", 1)[-1]

    @contextmanager
    def open(self) -> Iterator[ByteSource]:
        """Random access to its bytes where they are: nothing is unpacked to disk."""
        if self.member is not None:
            with open_member(self.path, self.member) as packed:
                yield packed
        else:
            with open_source(self.path) as source, blamed_on(str(self.path)):
                yield source

    @property
    def is_elf(self) -> bool:
        """Whether it is an ELF file, and not what stands in for a library that was left out."""
        return (is_shared_name(self.name) or may_be_elf(self.name)) and _is_elf(self.head(placeholder.HEAD_SIZE))

    def head(self, size: int = HEAD_SIZE) -> bytes:
        """Its first bytes."""
        if self.member is not None:
            return head_of_member(self.path, self.member, size)
        with self.path.open("rb") as file:
            return file.read(size)

    def code(self) -> CodeFile | None:
        """What it is as a file of GPU code; mostly its first bytes tell, and nothing else is unpacked."""
        if not known_by_head(self.name):
            with self.open() as source:
                return read_code_file(self.name, source, self.size)
        return read_code_file(self.name, BufferSource(self.head()), self.size)


def is_shared_name(name: str) -> bool:
    """`libx.so`, `libx.so.12`, `_C.cpython-313-x86_64-linux-gnu.so`: a library by its name."""
    return bool(_SHARED_NAME.search(name))


def why_not_cut(elf: ElfFile) -> str:
    """Why a file that is no library by its name is never cut, whatever GPU code it has; empty for linked programs.

    What follows the last section is an installer's data, which it finds by the length of the file.
    """
    if elf.header.type not in (FileType.SHARED, FileType.EXECUTABLE):
        return "it is not linked"
    table = elf.header.section_table_offset + len(elf.sections) * SECTION_HEADER.size
    end = max([table, *(section.file_end for section in elf.sections if section.in_file)])
    return "other data follows its last section" if elf.source.size > end else ""


def is_placeholder(path: Path) -> bool:
    """Whether a file only stands in for a library that was left out."""
    try:
        with path.open("rb") as file:
            return placeholder.is_placeholder(file.read(placeholder.HEAD_SIZE))
    except OSError:
        return False


def _is_elf(head: bytes) -> bool:
    return head.startswith(MAGIC) and not placeholder.is_placeholder(head)


def packed_libraries(archive: WheelArchive) -> Iterator[Member]:
    """The ELF files of a wheel."""
    for member in archive.files:
        if may_be_elf(member.name) and _is_elf(archive.head(member, placeholder.HEAD_SIZE)):
            yield member


def packed_code_files(archive: WheelArchive) -> Iterator[Member]:
    """The files of a wheel that are GPU code by their name."""
    return (member for member in archive.files if is_code_file(member.name))


def loose_libraries(folders: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """The ELF files anywhere under some folders, each once however many names it has."""
    seen: set[tuple[int, int]] = set()
    for root in folders:
        for folder, folders_in, names in os.walk(root):
            folders_in.sort()
            for name in sorted(names):
                if not may_be_elf(name):
                    continue
                path = Path(folder, name)
                stat = _stat_if_elf(path)
                if stat is not None and (stat.st_dev, stat.st_ino) not in seen:
                    seen.add((stat.st_dev, stat.st_ino))
                    yield path, stat


def loose_code_files(folders: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """The files under some folders that are GPU code by their name; links are left out."""
    for root in folders:
        for folder, folders_in, names in os.walk(root):
            folders_in.sort()
            for name in sorted(filter(is_code_file, names)):
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink():
                    yield path, path.stat()


def may_be_elf(name: str) -> bool:
    """Whether a file of this name is worth opening to see."""
    return os.path.splitext(name)[1] not in _TEXT_SUFFIXES  # noqa: PTH122 (a Path each is slow)


def _stat_if_elf(path: Path) -> os.stat_result | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return os.fstat(file.fileno()) if _is_elf(file.read(placeholder.HEAD_SIZE)) else None
    except OSError:  # a broken link, or not ours to read: nothing that Python could import either
        return None

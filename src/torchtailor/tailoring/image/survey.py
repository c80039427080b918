"""The first reading of an image: all layers once, and of their files only what decides about a cut.

Libraries with GPU code are kept as files as long as there is room, so that most layers are read only once more.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from torchtailor.code.binary.elf import ElfFile, NotElfError, UnsupportedElfError
from torchtailor.code.binary.elf_headers import MAGIC
from torchtailor.code.binary.source import BufferSource, ByteSource, open_source
from torchtailor.code.gpucode.files import HEAD_SIZE, CodeFile, known_by_head, read_code_file
from torchtailor.code.gpucode.scan import scan_elf
from torchtailor.core.disk import staged_for
from torchtailor.core.errors import BadInputError
from torchtailor.core.format import human_bytes, printable
from torchtailor.core.progress import Progress
from torchtailor.core.room import DiskNeed, check_room, free_at
from torchtailor.core.trust import Limit
from torchtailor.oci.compression import LayerCompression, UnpackedLayer, ahead
from torchtailor.oci.filesystem import (
    Content,
    LayerFile,
    MemberKind,
    MergedView,
    Whiteouts,
    clean_path,
    is_marker,
    whiteout_of,
)
from torchtailor.oci.imagespec import wrong_layer
from torchtailor.oci.tarstream import GLOBAL, HARD_LINK, SYMLINK, LayerMember, TarReader
from torchtailor.surgery.strip import removable_sections
from torchtailor.tailoring.gpu_stand_ins import AskingLibrary
from torchtailor.tailoring.libraries import is_program_with_code
from torchtailor.trees.artifact.drops import is_decider
from torchtailor.trees.artifact.libraries import SharedFile, is_shared_name, may_be_elf
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.trees.licences import is_closed_text
from torchtailor.trees.wheels.metadata import LICENCE_HEAD, Metadata, is_licence_file
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.identity import library_identity

_IN_MEMORY = 4 << 20  # bytes: a library up to this size is scanned without a file
_MOST_TEXT = 512 << 20  # bytes of all RECORDs and METADATAs
_WORTH_NAMING = 4096  # bytes of a file that is doubled
_SPARE = 1 << 30  # of the disk, which an unpacked library leaves free
_IN_SITE = re.compile(r"(?:^|/)(?:site|dist)-packages/")
_DIST_INFO = re.compile(r"(?:.*/)?[^/]+\.dist-info(?=/)")
# Debian's list of sums, and that of images without dpkg itself
_DPKG_SUMS = re.compile(r"var/lib/dpkg/(?:info|status\.d)/(?P<name>[a-z0-9][a-z0-9+.-]+)(?::[a-z0-9]+)?\.md5sums")
_GLIBC = re.compile(r"(?:^|/)libc(?:-2\.\d+)?\.so(?:\.6)?$")
_READS_RELR = b"GLIBC_ABI_DT_RELR\0"  # what libraries with packed relocations ask of it
_PLAIN_NAME = re.compile(r"[\w.+-]{1,120}", re.ASCII)
_AGAIN = "Fetch or build the image again."


@dataclass(frozen=True, slots=True)
class FoundLibrary:
    """A library that may be cut, or has symbol tables that may go; `kept` is where its bytes lie, if they were kept."""

    file: LayerFile
    kept: Path | None
    has_code: bool = True

    @property
    def content(self) -> Content:
        return self.file.content


@dataclass(frozen=True, slots=True)
class PackageText:
    """A RECORD or METADATA of a layer, stored as a file of its own."""

    file: LayerFile
    stored: Path

    @property
    def dist_info(self) -> str:
        return self.file.path.rpartition("/")[0]

    @property
    def site(self) -> str:
        return self.dist_info.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One layer as it is: how it is packed, what it unpacks to, how many files it has."""

    diff_id: str
    unpacked_size: int
    compression: LayerCompression
    files: int


def counted_pieces(pieces: Iterator[bytes], progress: Progress) -> Iterator[bytes]:
    """The same pieces, whose bytes are shown as they come."""
    for piece in pieces:
        progress.advance(len(piece))
        yield piece


ReadFile = Callable[[TarReader, LayerFile], None]


class LayerScan:
    """Goes through layers and merges them; what is done with the bytes of each file is the caller's."""

    def __init__(self, read_file: ReadFile) -> None:
        self._read_file = read_file
        self.view = MergedView()
        self.layers: list[LayerFacts] = []
        self.folders: list[tuple[int, int, str]] = []  # members that are one: layer, number, path

    def add_layer(self, tar: UnpackedLayer, diff_id: str, where: str) -> None:
        """Read the next layer, which must have the digest that the configuration says."""
        with closing(ahead(tar)) as pieces:
            facts = self._merge(pieces, tar, where)
        if facts.diff_id != diff_id:
            raise wrong_layer(where, facts.diff_id, diff_id)
        self.layers.append(facts)

    def _merge(self, pieces: Iterator[bytes], tar: UnpackedLayer, where: str) -> LayerFacts:
        number = len(self.layers)
        hasher = hashlib.sha256()
        total = 0

        def hashed() -> Iterator[bytes]:
            nonlocal total
            for piece in pieces:
                hasher.update(piece)
                total += len(piece)
                yield piece

        reader = TarReader(hashed(), where)
        files: list[LayerFile] = []
        folders: list[str] = []
        deleted: list[str] = []
        opaque: list[str] = []
        for member in reader:
            if member.kind == GLOBAL:
                continue
            path = clean_path(os.fsdecode(member.name), where)
            if member.is_folder:
                folders.append(path)
                self.folders.append((number, member.number, path))
            elif is_marker(path):
                continue
            elif hides := whiteout_of(path):
                (opaque if hides[1] else deleted).append(hides[0])
            elif path:
                files.append(self._member(reader, member, path, number, where))
        for _ in reader.trailer():
            pass
        self.view.add_layer(number, files, Whiteouts(tuple(deleted), tuple(opaque)), folders)
        return LayerFacts(f"sha256:{hasher.hexdigest()}", total, tar.compression, len(files))

    def _member(self, reader: TarReader, member: LayerMember, path: str, layer: int, where: str) -> LayerFile:
        link = ""
        kind = MemberKind.OTHER
        if member.kind == HARD_LINK:
            kind, link = MemberKind.HARD_LINK, clean_path(os.fsdecode(member.link), where)
        elif member.kind == SYMLINK:
            kind, link = MemberKind.SYMLINK, os.fsdecode(member.link)
        elif member.sparse:
            kind = MemberKind.SPARSE
        elif member.is_file:
            kind = MemberKind.FILE
        file = LayerFile(layer, member.number, path, kind, member.size, 0, link, (layer, member.number))
        if kind in (MemberKind.FILE, MemberKind.SPARSE) and file.size:
            self._read_file(reader, file)
        return file


@dataclass
class ImageSurvey:
    """What all layers of one image hold."""

    folder: Path  # for what is kept
    room: int  # bytes of libraries that may be kept
    strip: bool | None = None  # symbol tables: of all libraries, of none, or (None) of packages that have GPU code
    relr: bool = False  # whether relocations of these packages are packed
    unopened: bool = False  # whether libraries may be left out because they were never opened
    workload: TracedWorkload | None = None  # whose untouched pages go to packs
    without_gpu: bool = False  # whether packages that only a GPU needs leave
    keeps_sources: bool = False  # whether modules are read, for packs or indexes
    packs_unopened: bool = False  # whether modules and libraries of packages that it never used go to packs
    candidates: dict[Content, FoundLibrary] = field(default_factory=dict)
    records: list[PackageText] = field(default_factory=list)
    metadata: dict[str, Metadata] = field(default_factory=dict)  # by the path of the dist-info folder
    closed: dict[str, tuple[str, ...]] = field(default_factory=dict)  # its licence files that are proprietary
    code: dict[str, CodeFile] = field(default_factory=dict)  # files of GPU code, by path
    heads: dict[str, bytes] = field(default_factory=dict)  # of files that say what a rule of --drop goes by
    shared: dict[Content, SharedFile] = field(default_factory=dict)  # what libraries are that may be left out
    asking: dict[Content, AskingLibrary] = field(default_factory=dict)  # libraries of packages, if these leave
    texts: dict[Content, bytes] = field(default_factory=dict)  # METADATA, in the same case
    unread: list[tuple[LayerFile, str]] = field(default_factory=list)  # libraries that are damaged, and how
    debian: dict[str, str] = field(default_factory=dict)  # files whose sums dpkg has, and their packages
    glibcs: list[LayerFile] = field(default_factory=list)  # those that read packed relocations
    sources: dict[Content, tuple[int, int]] = field(default_factory=dict)  # modules, by place in a file
    _text: int = 0

    def __post_init__(self) -> None:
        self._scanned = LayerScan(self._read_file)

    @property
    def view(self) -> MergedView:
        return self._scanned.view

    @property
    def layers(self) -> list[LayerFacts]:
        return self._scanned.layers

    @property
    def folders(self) -> list[tuple[int, int, str]]:
        return self._scanned.folders

    def add_layer(self, pieces: Iterator[bytes], size: int, diff_id: str, where: str) -> None:
        """Read the next layer."""
        self._scanned.add_layer(UnpackedLayer(pieces, size, where), diff_id, where)

    def of_layer(self, number: int) -> list[FoundLibrary]:
        return [candidate for candidate in self.candidates.values() if candidate.file.layer == number]

    def names(self) -> dict[Content, list[LayerFile]]:
        """All names of the bytes of candidates."""
        found: dict[Content, list[LayerFile]] = {}
        for file in self.view.files:
            if file.content in self.candidates:
                found.setdefault(file.content, []).append(file)
        return found

    def _read_file(self, reader: TarReader, file: LayerFile) -> None:
        from isal import isal_zlib

        if file.kind is MemberKind.SPARSE:
            if is_shared_name(file.path) and reader.head(len(MAGIC)) == MAGIC:
                self.unread.append((file, "it is stored as a sparse file"))
            return
        name = file.path.rpartition("/")[2]
        head = reader.head(HEAD_SIZE)
        crc = isal_zlib.crc32(head)

        def rest() -> Iterator[bytes]:
            nonlocal crc
            for piece in reader.data():
                crc = isal_zlib.crc32(piece, crc)
                yield piece

        if head.startswith(MAGIC) and may_be_elf(name):
            self._scan(file, head, rest())
        elif self.keeps_sources and name.endswith(".py") and _IN_SITE.search(file.path):
            self._source(file, head, rest())
        elif name in ("RECORD", "METADATA") and file.path.rpartition("/")[0].endswith(".dist-info"):
            self._package_text(file, name, head, rest())
        elif (inside := _DIST_INFO.match(file.path)) and is_licence_file(file.path):
            self._licence(inside[0], head[:LICENCE_HEAD])
        elif package := _DPKG_SUMS.fullmatch(file.path):
            self._debian_package(file, package["name"], head, rest())
        elif known_by_head(name) and (code := read_code_file(file.path, BufferSource(head), file.size)):
            self.code[file.path] = code
        elif is_decider(installed_path(file.path)):
            self.heads[file.path] = head
        for _ in rest():
            pass
        file.crc = crc

    @property
    def _spool(self) -> Path:
        return self.folder / "sources"

    def _source(self, file: LayerFile, head: bytes, rest: Iterable[bytes]) -> None:
        with self._spool.open("ab") as spool:
            self.sources[file.content] = (spool.tell(), file.size)
            spool.writelines((head, *rest))

    def source(self, file: LayerFile) -> bytes:
        """The bytes of a module of a package."""
        if not file.size:
            return b""
        start, size = self.sources[file.content]
        with self._spool.open("rb") as spool:
            spool.seek(start)
            return spool.read(size)

    def package(self, dist_info: str) -> Metadata | None:
        """What is known of the package of a dist-info folder."""
        found = self.metadata.get(dist_info)
        return replace(found, licence_heads=self.closed.get(dist_info, ())) if found else None

    def _licence(self, dist_info: str, head: bytes) -> None:
        text = head.decode("utf-8", "replace")
        if dist_info not in self.closed and is_closed_text(text):
            self.closed[dist_info] = (text,)

    def _package_text(self, file: LayerFile, name: str, head: bytes, rest: Iterable[bytes]) -> None:
        limit = Limit.RECORD if name == "RECORD" else Limit.METADATA
        self._text += file.size
        if file.size > limit or self._text > _MOST_TEXT:
            raise BadInputError(
                f"{printable(file.path)[:200]} has {human_bytes(file.size)}, which no real one has.", _AGAIN
            )
        data = b"".join((head, *rest))
        if name == "RECORD":
            stored = self.folder / f"record-{file.layer}-{file.number}"
            stored.write_bytes(data)
            self.records.append(PackageText(file, stored))
            return
        if self.without_gpu:
            self.texts[file.content] = data
        with suppress(BadInputError):  # then the names of its libraries decide
            self.metadata[file.path.rpartition("/")[0]] = Metadata.parse(data, file.path)

    def _debian_package(self, file: LayerFile, package: str, head: bytes, rest: Iterable[bytes]) -> None:
        """The paths of a package; what is too long to be a list is left unread, since nothing depends on it."""
        self._text += file.size
        if file.size > Limit.RECORD or self._text > _MOST_TEXT:
            self._text -= file.size
            return
        for line in b"".join((head, *rest)).splitlines():
            _, _, path = line.partition(b"  ")
            if path:
                self.debian[os.fsdecode(path)] = package

    def _scan(self, file: LayerFile, head: bytes, rest: Iterable[bytes]) -> None:
        place: Path | None = None
        has_code = False
        with ExitStack() as stack:
            try:
                if file.size <= _IN_MEMORY:
                    data = b"".join((head, *rest))
                    wanted, has_code = self._wanted(file, BufferSource(data))
                    if wanted and len(data) <= self.room:
                        place = self.place(file)
                        place.write_bytes(data)
                else:
                    place = self.place(file)
                    store(place, chain((head,), rest), file)
                    wanted, has_code = self._wanted(file, stack.enter_context(open_source(place)))
            except (NotElfError, UnsupportedElfError):  # for another processor, or 32-bit
                wanted = False
            except BadInputError as error:
                wanted = False
                if is_shared_name(file.path):
                    self.unread.append((file, error.message.rstrip(".")))
        if wanted and place and file.size <= self.room:
            self.room -= file.size
        elif place:
            shutil.rmtree(place.parent)
            place = None
        if wanted:
            self.candidates[file.content] = FoundLibrary(file, place, has_code)

    def _wanted(self, file: LayerFile, source: ByteSource) -> tuple[bool, bool]:
        """Whether a library may change, and whether it has GPU code or pages that go."""
        if not is_shared_name(file.path):
            found = is_program_with_code(source)
            return found, found
        if self.unopened:
            self.shared[file.content] = SharedFile.read(file.path, source)
        elf = ElfFile(source)
        if self.without_gpu and _IN_SITE.search(file.path):
            self.asking[file.content] = AskingLibrary.read(file.path, elf)
        if _GLIBC.search(file.path) and source.find(_READS_RELR, 0, source.size) >= 0:
            self.glibcs.append(file)
        code = scan_elf(elf)
        if code.containers:
            return True, True
        if self.workload:
            identity = library_identity(elf, code)
            own = self.packs_unopened and bool(_IN_SITE.search(file.path))
            name = file.path.rpartition("/")[2]
            if self.workload.touched(identity) or (own and self.workload.never_loaded(identity, name)):
                return True, True
        if self.strip is None:
            return bool(_IN_SITE.search(file.path)) and (self.relr or bool(removable_sections(elf))), False
        return self.strip, False

    def place(self, file: LayerFile) -> Path:
        """A place for the bytes of a library, under its own name: that tells who made it."""
        name = file.path.rpartition("/")[2]
        folder = self.folder / f"{file.layer}-{file.number}"
        folder.mkdir(exist_ok=True)
        return folder / (name if _PLAIN_NAME.fullmatch(name) else "library.so" if is_shared_name(name) else "program")


def store(place: Path, pieces: Iterable[bytes], file: LayerFile) -> None:
    """Write a library to a file, if the disk has room for it."""
    check_room(
        printable(file.path)[:200],
        [DiskNeed(staged_for(place), file.size + _SPARE, free_at(place.parent))],
        "Free some space, or write the image to another disk; for registries and pipes set TMPDIR.",
    )
    with place.open("wb") as out:
        for piece in pieces:
            out.write(piece)


def doubled(files: Iterable[LayerFile]) -> list[list[LayerFile]]:
    """Files with the same bytes in several layers, by size and checksum; the largest first."""
    groups: dict[tuple[int, int], list[LayerFile]] = {}
    for file in files:
        if file.kind is MemberKind.FILE and file.size >= _WORTH_NAMING:
            groups.setdefault((file.size, file.crc), []).append(file)
    found = [group for group in groups.values() if len({file.layer for file in group}) > 1]
    return sorted(found, key=lambda group: -group[0].size)

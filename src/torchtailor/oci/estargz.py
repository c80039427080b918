"""Layers that can be read in parts: eStargz, which is plain gzip for all who do not know it.

Each file, and each 4 MiB of a large one, is a gzip member of its own, and a table of contents at the end says where
they begin. A snapshotter mounts such a layer without pulling it. What lies before a landmark it fetches at once: the
files that a trace names, in the order of their first use. All others stay in the order that they had.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec

from torchtailor.core.errors import ImpossibleError
from torchtailor.core.format import printable
from torchtailor.core.progress import Progress
from torchtailor.oci.compression import LayerCompression, LayerWriter, MemberPacker, WrittenLayer
from torchtailor.oci.filesystem import clean_path, is_marker, whiteout_of
from torchtailor.oci.tarstream import BLOCK, GLOBAL, HARD_LINK, SYMLINK, LayerMember, TarReader, header_of

TOC_DIGEST = "containerd.io/snapshot/stargz/toc.digest"
UNPACKED_SIZE = "io.containers.estargz.uncompressed-size"
_TOC, _PREFETCH, _NO_PREFETCH = "stargz.index.json", ".prefetch.landmark", ".no.prefetch.landmark"
_CHUNK = 4 << 20
_LANDMARK = b"\x0f"
_PIECE = 1 << 16
_XATTR = b"SCHILY.xattr."
_EMPTY = f"sha256:{hashlib.sha256().hexdigest()}"
_MOST_LINKS = 20  # from name to name of one file; real layers have one
_KINDS = {HARD_LINK: "hardlink", SYMLINK: "symlink", b"3": "char", b"4": "block", b"6": "fifo"}
_FOOTER = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x1a\0SG\x16\0%016xSTARGZ\x01\0\0\xff\xff" + bytes(8)


class _Chunk(msgspec.Struct, rename="camel", omit_defaults=True):
    """A part of a large file, after its first."""

    name: str
    type: str
    offset: int = 0
    chunk_offset: int = 0
    chunk_size: int = 0  # of the last one 0
    chunk_digest: str = ""


class _Entry(msgspec.Struct, rename="camel", omit_defaults=True):
    """What the table of contents says of a member."""

    name: str
    type: str
    mode: int
    uid: int
    gid: int
    size: int = 0
    modtime: str = ""
    link_name: str = ""
    dev_major: int = 0
    dev_minor: int = 0
    xattrs: dict[str, str] | None = None
    digest: str = ""
    offset: int = 0
    chunk_size: int = 0
    chunk_digest: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    """A member of the tar; a whiteout is about the path that it hides, any other about its own."""

    about: str  # of a header for all members: /
    hides: bool
    link: str  # of a hard link
    start: int
    headers: int  # bytes
    entry: _Entry | None  # of a header for all members none

    @property
    def kind(self) -> str:
        return self.entry.type if self.entry else ""


def layer_writer(
    path: Path, compression: LayerCompression, threads: int, first: Iterable[str] = (), progress: Progress | None = None
) -> LayerWriter:
    """What writes a layer that is packed so; `first` are the paths that are used first, if they are in it."""
    if compression is LayerCompression.ESTARGZ:
        return _EstargzWriter(path, threads, first, progress or Progress())
    return LayerWriter(path, compression, threads)


class _EstargzWriter(LayerWriter):
    """Keeps the tar in a file until it is whole, and packs it in its new order then."""

    def __init__(self, path: Path, threads: int, first: Iterable[str], progress: Progress) -> None:
        self._packer: MemberPacker
        super().__init__(path, LayerCompression.ESTARGZ, threads)
        self._tar = path.with_name(f"{path.name}.tar").open("w+b")
        self._first, self._progress = first, progress
        self._headers = b""  # what goes before the next file's data
        self._packed: list[_Entry | _Chunk | None] = []  # what each gzip member holds

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        super().__exit__(kind, error, _)
        self._tar.close()
        Path(self._tar.name).unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        self._tar.write(data)

    @property
    def is_empty(self) -> bool:
        return not self._tar.tell()

    def finish(self) -> WrittenLayer:
        self._progress.begin("Packing a layer", self._tar.tell())
        places = list(_places(self._tar))
        first, rest = _in_order(places, self._first)
        entries = [entry for place in first for entry in self._member(place)]
        entries += self._new_file(_Entry(_PREFETCH if first else _NO_PREFETCH, "reg", 0o644, 0, 0), _LANDMARK)
        entries += [entry for place in rest for entry in self._member(place)]
        self._end_headers()
        self._packer.finish()
        for entry, (offset, digest) in zip(self._packed, self._packer.written, strict=True):
            if entry is not None:
                entry.offset, entry.chunk_digest = offset, digest
            if isinstance(entry, _Entry):
                entry.digest = entry.digest or digest
        offset = self._size
        toc = msgspec.json.encode({"version": 1, "entries": entries})
        self._add(b"".join((_header(_TOC, len(toc)), toc, bytes(-len(toc) % BLOCK + 2 * BLOCK))), None)
        self._packer.finish()
        self._put(_FOOTER % offset)
        about = {TOC_DIGEST: f"sha256:{hashlib.sha256(toc).hexdigest()}", UNPACKED_SIZE: str(self._unpacked)}
        return replace(super().finish(), annotations=about)

    def _member(self, place: _Place) -> list[_Entry | _Chunk]:
        self._tar.seek(place.start)
        self._headers += self._tar.read(place.headers)
        if place.entry is None:
            return []
        return self._data(place.entry, self._tar) if place.entry.size else [place.entry]

    def _new_file(self, entry: _Entry, data: bytes) -> list[_Entry | _Chunk]:
        self._headers += _header(entry.name, len(data))
        entry.size = len(data)
        return self._data(entry, io.BytesIO(data.ljust(BLOCK, b"\0")))

    def _data(self, entry: _Entry, file: BinaryIO) -> list[_Entry | _Chunk]:
        """Pack the data of a file, chunk by chunk."""
        self._end_headers()
        hasher = hashlib.sha256()
        chunks: list[_Entry | _Chunk] = []
        for start in range(0, entry.size, _CHUNK):
            data = file.read(min(_CHUNK, entry.size - start))
            last = start + len(data) == entry.size
            chunk = _Chunk(entry.name, "chunk", chunk_offset=start) if start else entry
            chunk.chunk_size = 0 if last else len(data)
            if entry.size > _CHUNK:
                hasher.update(data)
            self._add(data, chunk)
            chunks.append(chunk)
            self._progress.advance(len(data))
        if entry.size > _CHUNK:
            entry.digest = f"sha256:{hasher.hexdigest()}"
        self._headers = file.read(-entry.size % BLOCK)
        return chunks

    def _end_headers(self) -> None:
        if self._headers:
            self._add(self._headers, None)
            self._headers = b""

    def _add(self, data: bytes, entry: _Entry | _Chunk | None) -> None:
        super().write(data)
        self._packed.append(entry)


def _places(tar: BinaryIO) -> Iterator[_Place]:
    """All members of a tar, but for what another writer of eStargz added."""
    tar.seek(0)

    def skip(size: int) -> bool:
        tar.seek(size, os.SEEK_CUR)
        return True

    reader = TarReader(iter(lambda: tar.read(_PIECE), b""), "The new layer", skip)
    for member in reader:
        start = reader.offset - len(member.blocks)
        if member.kind == GLOBAL:
            yield _Place("/", hides=False, link="", start=start, headers=len(member.blocks), entry=None)
            continue
        path = clean_path(os.fsdecode(member.name), "The new layer")
        if path in (_TOC, _PREFETCH, _NO_PREFETCH):
            continue
        hides = None if is_marker(path) else whiteout_of(path)
        link = clean_path(os.fsdecode(member.link), "The new layer") if member.kind == HARD_LINK else ""
        entry = _entry(member, path)
        yield _Place(hides[0] if hides else path, hides is not None, link, start, len(member.blocks), entry)


def _entry(member: LayerMember, path: str) -> _Entry:
    kind = "dir" if member.is_folder else "reg" if member.is_file else _KINDS.get(member.kind)
    if kind is None or member.sparse:
        raise _refused(path, "a sparse file" if member.sparse else f"of the kind {member.kind!r}")
    header, records = header_of(member)
    try:
        plain = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        device = (plain.devmajor, plain.devminor) if kind in ("char", "block") else (0, 0)
        return _Entry(
            member.name.decode(),
            kind,
            member.mode,
            int(records.get(b"uid", plain.uid)),
            int(records.get(b"gid", plain.gid)),
            size=member.size if kind == "reg" else 0,
            modtime=_time(float(records.get(b"mtime", plain.mtime))),
            link_name=member.link.decode() if kind.endswith("link") else "",
            dev_major=device[0],
            dev_minor=device[1],
            xattrs=dict(_xattrs(records)) or None,
            digest="" if kind != "reg" or member.size else _EMPTY,
        )
    except UnicodeDecodeError as error:
        raise _refused(path, "named with bytes that are no UTF-8") from error
    except (ValueError, tarfile.HeaderError) as error:
        raise _refused(path, "described by numbers that are none") from error


def _refused(path: str, what: str) -> ImpossibleError:
    return ImpossibleError(
        f"{printable(path)[:200]} is {what}, which eStargz cannot hold.", "Choose gzip or zstd for --compress."
    )


def _xattrs(records: Mapping[bytes, bytes]) -> Iterator[tuple[str, str]]:
    for key, value in records.items():
        if key.startswith(_XATTR):
            yield key.removeprefix(_XATTR).decode(), base64.b64encode(value).decode()


def _time(seconds: float) -> str:
    """Whole seconds, as Python compares them with what bytecode says of its source."""
    try:
        return datetime.fromtimestamp(math.floor(seconds), UTC).isoformat().replace("+00:00", "Z") if seconds else ""
    except (ValueError, OverflowError, OSError):
        return ""


def _in_order(places: Sequence[_Place], paths: Iterable[str]) -> tuple[list[_Place], list[_Place]]:
    """What comes first, with the folders above and what hard links name, and all others as they were."""
    about: dict[str, list[_Place]] = {}
    for place in places:
        about.setdefault(place.about, []).append(place)
    moved: dict[int, _Place] = {}  # by where each begins

    def move(path: str, links: int = 0) -> bool:
        """A path that is there twice stays, as the last one counts."""
        if path not in about:
            return False
        for end in (0, *(index for index, char in enumerate(path) if char == "/"), len(path)):
            group = about.get(path[:end], [])
            own = [place for place in group if not place.hides]
            if len(own) > 1 and any(place.kind != "dir" for place in own):
                return False
            for place in own:
                if place.link and (links == _MOST_LINKS or not move(place.link, links + 1)):
                    return False
            moved.update((place.start, place) for place in group)
        return True

    for path in paths:
        move(path)
    return list(moved.values()), [place for place in places if place.start not in moved]


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)

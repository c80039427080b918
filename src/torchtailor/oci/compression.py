"""Layers unpacked and packed again as streams: gzip on all cores with the same bytes every time, zstd, or plain."""

from __future__ import annotations

import hashlib
import io
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from torchtailor.core.errors import BadInputError
from torchtailor.core.format import human_bytes
from torchtailor.trees.wheels.deflate import PIECE, STREAM_END, Effort, combined_crc, deflate_piece

_CHUNK = 1 << 20
_AHEAD = 8  # pieces
_LARGEST_WINDOW = 1 << 27  # of zstd; what its own command line allows
_ZSTD_LEVEL = 3
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # no name and no time: the same input gives the same bytes
_MAGICS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
# A layer may unpack to so many times its size once it is larger than this; real ones stay below 20.
_MOST_TIMES, _HARMLESS = 200, 4 << 30
Result = TypeVar("Result")


class LayerCompression(Enum):
    """How a layer is packed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"
    ESTARGZ = "estargz"  # gzip for who does not know it

    @classmethod
    def of(cls, head: bytes) -> LayerCompression:
        """By the first bytes: media types are sometimes wrong, and nobody goes by them."""
        if head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:  # a skippable frame of zstd
            return cls.ZSTD
        return next((cls(name) for magic, name in _MAGICS.items() if head.startswith(magic)), cls.NONE)


class UnpackedLayer:
    """The tar of a layer, in pieces, from its packed ones; what it was packed with is known after the first."""

    def __init__(self, pieces: Iterator[bytes], size: int, where: str) -> None:
        self._file = _PieceFile(pieces)
        self.compression = LayerCompression.of(self._file.peek(4))
        self._size, self._where = size, where

    def __iter__(self) -> Iterator[bytes]:
        from isal import isal_zlib
        from zstandard import ZstdError

        damaged: Any = (EOFError, OSError, isal_zlib.error, ZstdError)
        total = 0
        stream = self._stream()
        try:
            while piece := stream.read(_CHUNK):
                total += len(piece)
                if total > _HARMLESS and total > _MOST_TIMES * self._size:
                    raise BadInputError(
                        f"{self._where} unpacks to more than {_MOST_TIMES} times its {human_bytes(self._size)}.",
                        "No real layer does; it was made to fill the disk.",
                    )
                yield piece
            for _ in self._file.rest():  # so that its digest is checked
                pass
        except damaged as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise BadInputError(
                f"{self._where} cannot be unpacked: it is damaged or cut short.", "Fetch or build the image again."
            ) from error

    def _stream(self) -> Any:
        if self.compression is LayerCompression.GZIP:
            from isal import igzip

            return igzip.IGzipFile(fileobj=self._file, mode="rb")  # type: ignore[no-untyped-call]
        if self.compression is LayerCompression.ZSTD:
            from zstandard import ZstdDecompressor

            unpacker = ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
            file: Any = self._file
            return unpacker.stream_reader(file, read_size=_CHUNK, read_across_frames=True)
        return self._file


def ahead(pieces: Iterable[bytes]) -> Generator[bytes, None, None]:
    """The same pieces, made by a thread while the last ones are used: unpacking and hashing take two cores.

    The thread has ended when the last piece was given, or the generator is closed.
    """
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def make() -> None:
        try:
            for piece in pieces:
                ready.put(piece)
                if stopped.is_set():
                    return
            ready.put(None)
        except BaseException as error:
            ready.put(error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        while (piece := ready.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        stopped.set()
        while thread.is_alive():
            with suppress(queue.Empty):
                ready.get(timeout=0.01)
        thread.join()


class _PieceFile(io.RawIOBase):
    """Pieces as a file that can only be read forward."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def readable(self) -> bool:
        return True

    def peek(self, size: int) -> bytes:
        while len(self._held) < size and (piece := next(self._pieces, b"")):
            self._held += piece
        return self._held[:size]

    def read(self, size: int = -1) -> bytes:
        if not self._held:
            self._held = next(self._pieces, b"")
        if size < 0 or size >= len(self._held):
            data, self._held = self._held, b""
        else:
            data, self._held = self._held[:size], self._held[size:]
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def rest(self) -> Iterator[bytes]:
        yield self._held
        self._held = b""
        yield from self._pieces


@dataclass(frozen=True, slots=True)
class WrittenLayer:
    """A packed layer in a file."""

    path: Path
    digest: str
    size: int
    diff_id: str
    unpacked_size: int
    compression: LayerCompression
    annotations: Mapping[str, str] | None = None  # what who fetches it in parts has to know


class _Packer(Protocol):
    def add(self, data: bytes) -> None: ...

    def finish(self) -> None: ...

    def stop(self) -> None: ...


class LayerWriter:
    """Packs a tar into a file while it is written; hashes of both are known at the end."""

    def __init__(self, path: Path, compression: LayerCompression, threads: int) -> None:
        self._path, self._compression = path, compression
        self._file = path.open("wb")
        self._hasher, self._diff = hashlib.sha256(), hashlib.sha256()
        self._size = self._unpacked = 0
        self._packer: _Packer
        if compression is LayerCompression.GZIP:
            self._packer = _GzipPacker(self._put, threads)
        elif compression is LayerCompression.ZSTD:
            self._packer = _ZstdPacker(self._put, threads)
        elif compression is LayerCompression.ESTARGZ:
            self._packer = MemberPacker(self._put, threads)
        else:
            self._packer = _NoPacker(self._put)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._packer.stop()
        self._file.close()
        if kind is not None:
            self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        self._unpacked += len(data)
        self._diff.update(data)
        self._packer.add(data)

    @property
    def is_empty(self) -> bool:
        return not self._unpacked

    def finish(self) -> WrittenLayer:
        self._packer.finish()
        self._file.flush()
        return WrittenLayer(
            self._path,
            f"sha256:{self._hasher.hexdigest()}",
            self._size,
            f"sha256:{self._diff.hexdigest()}",
            self._unpacked,
            self._compression,
        )

    def _put(self, data: bytes) -> None:
        self._hasher.update(data)
        self._size += len(data)
        self._file.write(data)


class _Put(Protocol):
    def __call__(self, data: bytes, /) -> None: ...


class _NoPacker:
    def __init__(self, put: _Put) -> None:
        self.add = put

    def finish(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _InThreads(Generic[Result]):
    """Jobs on several threads; what they give is taken in their order, and few are ahead."""

    def __init__(self, threads: int, take: Callable[[Result], None]) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._ahead, self._take = threads + 1, take
        self._waiting: deque[Future[Result]] = deque()

    def submit(self, work: Callable[[bytes], Result], data: bytes) -> None:
        self._waiting.append(self._pool.submit(work, data))
        if len(self._waiting) >= self._ahead:
            self._take(self._waiting.popleft().result())

    def finish(self) -> None:
        while self._waiting:
            self._take(self._waiting.popleft().result())

    def stop(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class _GzipPacker:
    """One gzip member; its pieces are packed apart, so that their number of threads does not change a byte."""

    def __init__(self, put: _Put, threads: int) -> None:
        self._put = put
        self._jobs = _InThreads(threads, self._collect)
        self.stop = self._jobs.stop
        self._held: list[bytes] = []
        self._held_size = self._crc = self._total = 0
        put(_GZIP_HEADER)

    def add(self, data: bytes) -> None:
        while data:
            part = data[: PIECE - self._held_size]
            self._held.append(part)
            self._held_size += len(part)
            data = data[len(part) :]
            if self._held_size == PIECE:
                self._submit()

    def finish(self) -> None:
        if self._held_size:
            self._submit()
        self._jobs.finish()
        self._put(STREAM_END + _gzip_end(self._crc, self._total))

    def _submit(self) -> None:
        piece = b"".join(self._held)
        self._held, self._held_size = [], 0
        self._jobs.submit(_deflated, piece)

    def _collect(self, done: tuple[bytes, int, int]) -> None:
        packed, crc, size = done
        self._crc = combined_crc(self._crc, crc, size)
        self._total += size
        self._put(packed)


class MemberPacker:
    """A gzip member of each piece that is given; where each begins, and its digest, is known once it is written."""

    def __init__(self, put: _Put, threads: int) -> None:
        self._put, self._size = put, 0
        self._jobs = _InThreads(threads, self._collect)
        self.finish, self.stop = self._jobs.finish, self._jobs.stop
        self.written: list[tuple[int, str]] = []

    def add(self, data: bytes) -> None:
        self._jobs.submit(_member, data)

    def _collect(self, done: tuple[bytes, str]) -> None:
        packed, digest = done
        self.written.append((self._size, digest))
        self._size += len(packed)
        self._put(packed)


def _deflated(data: bytes) -> tuple[bytes, int, int]:
    return *deflate_piece(data, Effort.FAST), len(data)


def _member(data: bytes) -> tuple[bytes, str]:
    packed, crc, size = _deflated(data)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return b"".join((_GZIP_HEADER, packed, STREAM_END, _gzip_end(crc, size))), digest


def _gzip_end(crc: int, size: int) -> bytes:
    return crc.to_bytes(4, "little") + (size & 0xFFFFFFFF).to_bytes(4, "little")


class _ZstdPacker:
    """One zstd frame; its jobs have a fixed size, so that their number of threads does not change a byte."""

    def __init__(self, put: _Put, threads: int) -> None:
        from zstandard import ZstdCompressor

        self._put = put
        self._frame = ZstdCompressor(level=_ZSTD_LEVEL, threads=max(threads, 1)).compressobj()

    def add(self, data: bytes) -> None:
        if packed := self._frame.compress(data):
            self._put(packed)

    def finish(self) -> None:
        self._put(self._frame.flush())

    def stop(self) -> None:
        pass

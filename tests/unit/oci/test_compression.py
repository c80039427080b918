"""Packing and unpacking: the same bytes for any number of threads, and errors where they belong."""

from __future__ import annotations

import gzip
import io
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from torchtailor.core.errors import BadInputError
from torchtailor.oci.compression import LayerCompression, LayerWriter, UnpackedLayer, WrittenLayer, ahead

DATA = random.Random(1).randbytes(700_000) + bytes(9_000_000) + b"text " * 100_000


def written(path: Path, compression: LayerCompression, threads: int, step: int) -> WrittenLayer:
    with LayerWriter(path, compression, threads) as writer:
        for start in range(0, len(DATA), step):
            writer.write(DATA[start : start + step])
        return writer.finish()


def unpacked(data: bytes, step: int = 10_000) -> bytes:
    pieces = (data[start : start + step] for start in range(0, len(data), step))
    return b"".join(UnpackedLayer(pieces, len(data), "A layer"))


@pytest.mark.parametrize("compression", [one for one in LayerCompression if one is not LayerCompression.ESTARGZ])
def test_the_same_bytes_for_any_number_of_threads(tmp_path: Path, compression: LayerCompression) -> None:
    results = [written(tmp_path / f"{n}", compression, n, 1_000_003 // n) for n in (1, 2, 5)]
    assert len({(one.digest, one.size, one.diff_id) for one in results}) == 1
    data = (tmp_path / "1").read_bytes()
    assert unpacked(data) == DATA
    if compression is LayerCompression.GZIP:
        assert gzip.decompress(data) == DATA
    if compression is LayerCompression.ZSTD:
        assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read() == DATA


def test_streams_of_several_parts(tmp_path: Path) -> None:
    """eStargz is many gzip members, zstd:chunked has frames and frames to skip."""
    assert unpacked(gzip.compress(b"one") + gzip.compress(b"two") + bytes(100)) == b"onetwo"
    frame = zstandard.ZstdCompressor().compress
    skipped = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"index"
    assert unpacked(skipped + frame(b"one") + skipped + frame(b"two") + skipped) == b"onetwo"


def test_what_follows_is_no_layer() -> None:
    with pytest.raises(BadInputError, match="A layer cannot be unpacked"):
        unpacked(gzip.compress(b"one") + b"garbage")


def test_a_writer_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), LayerWriter(tmp_path / "x", LayerCompression.GZIP, 2) as writer:
        writer.write(DATA)
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_ahead() -> None:
    before = threading.active_count()
    assert b"".join(ahead(iter([b"a", b"b"] * 100))) == b"ab" * 100

    def failing() -> Iterator[bytes]:
        yield b"a"
        raise BadInputError("broken")

    pieces = ahead(failing())
    assert next(pieces) == b"a"
    with pytest.raises(BadInputError, match="broken"):
        next(pieces)
    endless = ahead(iter(lambda: b"x", b""))
    next(endless)
    endless.close()
    assert threading.active_count() == before

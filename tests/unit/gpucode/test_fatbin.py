"""Containers: what was written is what is read, and what is damaged is refused."""

from __future__ import annotations

import contextlib
import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gpucode.builders import ARCH, BASE_FLAGS, FAMILY, LZ4, ZSTD, Entry, container
from torchtailor.code.binary.source import BufferSource
from torchtailor.code.gpucode.fatbin import (
    Compression,
    Container,
    ImageKind,
    decompress,
    decompress_payload,
    read_container,
    read_wrapper,
)
from torchtailor.core.errors import BadInputError

entries = st.builds(
    Entry,
    payload=st.binary(min_size=1, max_size=300),
    kind=st.sampled_from([1, 2, 4, 8, 64]),
    sm=st.sampled_from([50, 75, 86, 90, 100, 121]),
    flags=st.sampled_from([BASE_FLAGS, BASE_FLAGS | ARCH, BASE_FLAGS | FAMILY]),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
    name=st.sampled_from([b"", b"kernel.cu", b"a/long/path/to/some/kernel.cu"]),
    extra_header=st.sampled_from([0, 8, 40, 120]),
)


def read(data: bytes, offset: int = 0) -> object:
    return read_container(BufferSource(data), offset, len(data))


@given(st.lists(entries, max_size=8), st.sampled_from([0, 8, 256]))
def test_what_is_written_is_read(written: list[Entry], offset: int) -> None:
    blob = container(*written)
    data = bytes(offset) + blob + b"behind"
    found = read_container(BufferSource(data), offset, len(data))
    assert (found.offset, found.end) == (offset, offset + len(blob))
    assert len(found.entries) == len(written)
    position = offset + 16
    for image, entry in zip(found.entries, written, strict=True):
        assert image.offset == position
        assert (image.kind_number, image.sm, image.name.encode()) == (entry.kind, entry.sm, entry.name)
        assert image.compression.value == entry.compression
        assert decompress(BufferSource(data), image)[: len(entry.payload)] == entry.payload
        position = image.end
    assert position == found.end


@pytest.mark.parametrize(
    ("kind", "flags", "label"),
    [
        (2, 0, "sm_90"),
        (2, ARCH, "sm_90a"),
        (4, 0, "sm_90"),
        (2, FAMILY, "sm_90f"),
        (1, ARCH, "compute_90a"),
        (64, 0, "compute_90"),
        (8, 0, "lto_90"),
        (32, 0, "unknown (kind 32, 90)"),
        (2, ARCH | FAMILY, "unknown (kind 2, 90)"),
    ],
)
def test_labels(kind: int, flags: int, label: str) -> None:
    data = container(Entry(b"x", kind=kind, flags=BASE_FLAGS | flags))
    (image,) = read_container(BufferSource(data), 0, len(data)).entries
    assert image.label == label


def test_an_unknown_kind_is_kept() -> None:
    data = container(Entry(b"one"), Entry(b"two", kind=999), Entry(b"three"))
    images = read_container(BufferSource(data), 0, len(data)).entries
    assert [image.kind for image in images] == [ImageKind.CUBIN, ImageKind.UNKNOWN, ImageKind.CUBIN]
    assert images[1].target is None


def test_unknown_compression_is_reported_and_not_unpacked() -> None:
    data = bytearray(container(Entry(b"x" * 64, compression="lz4")))
    struct.pack_into("<Q", data, 16 + 40, BASE_FLAGS)  # compressed, and no word of how
    (image,) = read_container(BufferSource(data), 0, len(data)).entries
    assert image.compression is Compression.UNKNOWN
    with pytest.raises(BadInputError, match="not known"):
        decompress(BufferSource(data), image)


def damage(offset: int, form: str, value: int) -> bytes:
    data = bytearray(container(Entry(b"x" * 40, compression="lz4", name=b"n"), Entry(b"y" * 40)))
    struct.pack_into(form, data, offset, value)
    return bytes(data)


ENTRY = 16


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (damage(0, "<I", 0xBA55ED51), "magic"),
        (damage(4, "<H", 2), "version"),
        (damage(6, "<H", 24), "header"),
        (damage(8, "<Q", 1 << 60), "past the end"),
        (damage(8, "<Q", (1 << 64) - 8), "past the end"),
        (damage(8, "<Q", 100), "cut short|reaches past"),
        (damage(ENTRY + 2, "<H", 0), "version"),
        (damage(ENTRY + 4, "<I", 0), "sizes"),
        (damage(ENTRY + 4, "<I", 63), "sizes"),
        (damage(ENTRY + 4, "<I", 1 << 31), "sizes"),
        (damage(ENTRY + 8, "<Q", 1 << 63), "past the end"),
        (damage(ENTRY + 8, "<Q", 7), "sizes"),
        (damage(ENTRY + 16, "<I", 0xFFFFFFFF), "compressed to more"),
        (damage(ENTRY + 32, "<I", 0xFFFFFFFF), "name"),
        (damage(ENTRY + 56, "<Q", 0), "raw size"),
    ],
)
def test_damage_is_named(data: bytes, why: str) -> None:
    with pytest.raises(BadInputError, match=why):
        read(data)


def test_a_container_may_be_anywhere() -> None:
    blob = container(Entry(b"x"))
    found = read(bytes(4) + blob, 4)
    assert isinstance(found, Container)
    assert (found.offset, found.end) == (4, 4 + len(blob))


@given(st.lists(entries, min_size=1, max_size=3), st.data())
def test_every_truncation_is_refused(written: list[Entry], data: st.DataObject) -> None:
    blob = container(*written)
    length = data.draw(st.integers(0, len(blob) - 1))
    with pytest.raises(BadInputError):
        read(blob[:length])


@given(st.lists(entries, min_size=1, max_size=3), st.data())
def test_flipped_bits_never_crash(written: list[Entry], data: st.DataObject) -> None:
    blob = bytearray(container(*written))
    for position in data.draw(st.lists(st.integers(0, len(blob) * 8 - 1), min_size=1, max_size=8)):
        blob[position // 8] ^= 1 << position % 8
    source = BufferSource(bytes(blob))
    try:
        for image in read_container(source, 0, len(blob)).entries:
            decompress(source, image, max_size=1 << 20)
    except BadInputError as error:
        assert error.message.endswith(".")


@given(st.binary(max_size=300), st.sampled_from([Compression.LZ4, Compression.ZSTD]), st.integers(0, 1 << 63))
def test_garbage_is_not_unpacked(payload: bytes, compression: Compression, raw_size: int) -> None:
    with contextlib.suppress(BadInputError):
        assert len(decompress_payload(payload, compression, raw_size, max_size=1 << 24)) == raw_size


def test_the_largest_size_is_one_that_lz4_can_count() -> None:
    with pytest.raises(BadInputError, match="more than the 2147483647 allowed"):
        decompress_payload(bytes(9_000_000), Compression.LZ4, 1 << 31)


def test_a_size_that_lies_is_refused_before_memory_is_taken() -> None:
    payload = Entry(b"x" * 1000, compression="zstd").encode()[64:]
    with pytest.raises(BadInputError):
        decompress_payload(payload, Compression.ZSTD, (1 << 31) - 1)
    with pytest.raises(BadInputError, match="LZ4 cannot"):
        decompress_payload(b"\x00" * 16, Compression.LZ4, (1 << 31) - 1)
    with pytest.raises(BadInputError, match="allowed"):
        decompress_payload(b"\x00" * 16, Compression.LZ4, 1 << 40)


def test_a_large_zstd_image_is_unpacked() -> None:
    payload = bytes(range(256)) * (1 << 17)
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(payload)
    assert decompress_payload(packed, Compression.ZSTD, len(payload)) == payload
    with pytest.raises(BadInputError, match="should have"):
        decompress_payload(packed, Compression.ZSTD, len(payload) - 1)


def test_scrambled_code_is_said_to_be_so() -> None:
    data = container(Entry(b"x", kind=8, flags=BASE_FLAGS | 0x10000 | ZSTD | LZ4))
    (image,) = read_container(BufferSource(data), 0, len(data)).entries
    assert image.scrambled
    with pytest.raises(BadInputError, match="scrambled"):
        decompress(BufferSource(data), image)


@pytest.mark.parametrize(("magic", "version"), [(0, 1), (0x466243B1, 0), (0x466243B1, 3)])
def test_wrappers_are_checked(magic: int, version: int) -> None:
    with pytest.raises(BadInputError, match="wrapper"):
        read_wrapper(BufferSource(struct.pack("<iiQQ", magic, version, 0, 0)), 0)


def test_a_small_image_does_not_unpack_to_gigabytes() -> None:
    """Refused by its header, before a byte is unpacked."""
    raw = bytes(100 << 20)
    with pytest.raises(BadInputError, match="as no real one does"):
        decompress_payload(zstandard.compress(raw), Compression.ZSTD, len(raw))

"""Libraries inside wheels: the same answers as unpacked, and nothing taken on trust."""

from __future__ import annotations

import random
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.gpucode.builders import FIXTURES, Entry, Place, container, cubin, elf
from torchtailor.code.binary.inflate import InflateSource
from torchtailor.code.binary.source import BufferSource
from torchtailor.code.gpucode.scan import LibraryCode, scan_file, scan_source
from torchtailor.core.errors import BadInputError
from torchtailor.trees.wheels.archive import Member, WheelArchive, open_member
from torchtailor.verification.inspection.unused import code_use

LIBRARIES = sorted(FIXTURES.glob("*.so"))


def make_wheel(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def list_members(wheel: Path) -> tuple[Member, ...]:
    with WheelArchive(wheel) as archive:
        return tuple(archive.files)


def scan_member(wheel: Path, member: Member) -> LibraryCode:
    with open_member(wheel, member) as source:
        return scan_source(source)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_packed_library_reads_like_an_unpacked_one(tmp_path: Path, method: int) -> None:
    wheel = make_wheel(tmp_path / "x.whl", {f"x/{lib.name}": lib.read_bytes() for lib in LIBRARIES}, method)
    for member, library in zip(list_members(wheel), LIBRARIES, strict=True):
        assert scan_member(wheel, member) == scan_file(library)


def test_two_passes_and_little_memory_are_enough(tmp_path: Path) -> None:
    """Containers spread over 24 MB, read through windows of one."""
    blob = container(Entry(bytes(range(256)) * 4000))
    data = elf(Place(".nv_fatbin", blob * 12), Place(".ldata", (blob + bytes(8)) * 12, flags=3))
    wheel = make_wheel(tmp_path / "x.whl", {"x.so": data})
    (member,) = list_members(wheel)
    with open_member(wheel, member) as source:
        assert isinstance(source, InflateSource)
        assert scan_source(source) == scan_source(BufferSource(data))
        assert source.passes == 2
        assert len(source._window) + len(source._before) <= 2 << 20


def test_holes_do_not_cost_passes(tmp_path: Path) -> None:
    """A library whose code was zeroed in place, as some tools do, has long rows of zeros between containers."""
    blob = container(Entry(b"code"))
    data = elf(Place(".nv_fatbin", (blob + bytes(3 << 20)) * 5))
    wheel = make_wheel(tmp_path / "x.whl", {"x.so": data})
    (member,) = list_members(wheel)
    with open_member(wheel, member) as source:
        assert isinstance(source, InflateSource)
        assert len(scan_source(source).containers) == 5
        assert source.passes == 2


def test_what_gpus_load_takes_as_many_passes_for_many_gpus_as_for_one(tmp_path: Path) -> None:
    """Of onnxruntime-training's library of 811 MB `inspect --unused` unpacked all 115 times: for each GPU, the names
    of the functions in a container's older cubins were read before and after those of its newest."""
    blobs = [
        container(*(Entry(cubin(sm, 3 << 20, kernel=f"k{sm}"), sm=int(sm)) for sm in ("80", "86", "89")))
        for _ in range(2)
    ]
    data = elf(Place(".nv_fatbin", b"".join(blobs)))
    wheel = make_wheel(tmp_path / "x.whl", {"x.so": data})
    (member,) = list_members(wheel)
    with open_member(wheel, member) as source:
        assert isinstance(source, InflateSource)
        code = scan_source(source)
        use = code_use(source, "x.so", code)
        assert use == code_use(BufferSource(data), "x.so", code)
        assert {"sm_80", "sm_86", "sm_89"} == {row.code for row in use.loaded}
        assert source.passes <= 4  # two that find the code, one for the names, one for what is there twice


SEVERAL = (b"\x01\x02\x03\x04", b"\x00\x00", b"\xff")


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(min_size=1, max_size=5000), st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 6000))))
def test_any_order_of_reads(data: bytes, reads: list[tuple[int, int]]) -> None:
    data = data * 700  # several windows
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    packed = packer.compress(data) + packer.flush()
    source = InflateSource(lambda offset, size: packed[offset : offset + size], len(data), zlib.crc32(data))
    for offset, size in reads:
        start = offset * len(data) // 6001
        end = min(start + size, len(data))
        assert source.read(start, end - start) == data[start:end]
        assert source.find(b"\x01\x02", start, end) == data.find(b"\x01\x02", start, end)
        several = [data.find(needle, start, end) for needle in SEVERAL]
        first = min((place for place in several if place >= 0), default=-1)
        assert source.find(SEVERAL, start, end) == BufferSource(data).find(SEVERAL, start, end) == first
    with pytest.raises(BadInputError):
        source.read(len(data), 1)


def test_the_first_pass_goes_to_the_end_wherever_reads_go_back() -> None:
    """The section table of a library that patchelf changed is not at its end: of one of nixl the last 165 kB were not
    counted, and were not compared with the checksum."""
    data = random.Random(1).randbytes(5 << 20)
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    packed = packer.compress(data) + packer.flush()
    for crc in (zlib.crc32(data), zlib.crc32(data) ^ 1):
        source = InflateSource(lambda offset, size: packed[offset : offset + size], len(data), crc)
        source.read(3 << 20, 64)
        if crc == zlib.crc32(data):
            assert source.read(0, 64) == data[:64]
            assert source.packed_at(len(data)) == len(packed)
        else:
            with pytest.raises(BadInputError, match="checksum"):
                source.read(0, 64)


def corrupt(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def test_a_wrong_checksum_is_noticed(tmp_path: Path) -> None:
    data = (FIXTURES / "size.so").read_bytes()
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        wheel = make_wheel(tmp_path / "x.whl", {"x.so": data}, method)
        (member,) = list_members(wheel)
        corrupt(wheel, struct.pack("<I", member.crc), struct.pack("<I", member.crc ^ 1))
        (member,) = list_members(wheel)
        with pytest.raises(BadInputError, match="checksum"):
            scan_member(wheel, member)


@pytest.mark.parametrize("change", [-1, 1, -4096])
def test_a_wrong_size_is_noticed(tmp_path: Path, change: int) -> None:
    data = (FIXTURES / "size.so").read_bytes()
    wheel = make_wheel(tmp_path / "x.whl", {"x.so": data})
    corrupt(wheel, struct.pack("<I", len(data)), struct.pack("<I", len(data) + change))
    (member,) = list_members(wheel)
    with pytest.raises(BadInputError):
        scan_member(wheel, member)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_damaged_packed_bytes_never_crash(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    wheel = make_wheel(tmp_path_factory.mktemp("w") / "x.whl", {"x.so": (FIXTURES / "linked.so").read_bytes()})
    image = bytearray(wheel.read_bytes())
    for position in data.draw(st.lists(st.integers(0, len(image) - 1), min_size=1, max_size=5)):
        image[position] ^= data.draw(st.integers(1, 255))
    wheel.write_bytes(image)
    try:
        for member in list_members(wheel):
            scan_member(wheel, member)
    except BadInputError as error:
        assert str(wheel) in error.message


def test_a_zip_bomb_is_refused_without_unpacking(tmp_path: Path) -> None:
    path = make_wheel(tmp_path / "x.whl", {"a.so": bytes(5000)})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    name_size, extra_size = struct.unpack_from("<HH", data, at + 28)
    struct.pack_into("<I", data, at + 24, 0xFFFFFFFE)  # 4 GB from a few bytes: below the limit
    path.write_bytes(data)
    with pytest.raises(BadInputError):
        for member in list_members(path):
            scan_member(path, member)
    assert extra_size == 0
    zip64 = struct.pack("<HHQ", 1, 8, 5 << 30)  # 5 GB, in the field for large sizes
    struct.pack_into("<I", data, at + 24, 0xFFFFFFFF)
    struct.pack_into("<H", data, at + 30, len(zip64))
    insert = at + 46 + name_size
    data[insert:insert] = zip64
    end = data.rindex(b"PK\x05\x06")
    (size,) = struct.unpack_from("<I", data, end + 12)
    struct.pack_into("<I", data, end + 12, size + len(zip64))
    path.write_bytes(data)
    with pytest.raises(BadInputError, match="unpacks from"):
        list_members(path)

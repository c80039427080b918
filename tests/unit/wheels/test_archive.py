"""Wheels are read strictly: every way in which a zip can lie is refused before it is unpacked."""

from __future__ import annotations

import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.wheels.builder import build_wheel
from torchtailor.errors import BadInputError
from torchtailor.wheels.archive import WheelArchive, check_name
from torchtailor.wheels.distribution import WheelDistribution


def open_wheel(path: Path) -> None:
    """Read a wheel wholly, as tailoring does."""
    with WheelArchive(path) as archive:
        wheel = WheelDistribution.of(archive)
        for member in archive.files:
            wheel.check(member)


def test_a_good_wheel(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, {"demo/": b"", "demo/a.py": b"x = 1\n" * 1000, "demo/empty": b""})
    open_wheel(path)
    with WheelArchive(path) as archive:
        assert archive.read("demo/a.py") == b"x = 1\n" * 1000
        assert archive.begins_with(archive.members["demo/a.py"], b"x = ")
        assert not archive.begins_with(archive.members["demo/empty"], b"x")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    st.integers(0, 3 << 20),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    st.binary(min_size=1, max_size=9),
)
def test_bytes_come_out_whole(tmp_path: Path, size: int, method: int, pattern: bytes) -> None:
    """Highly packed data unpacks in bounded pieces and still completely."""
    data = (pattern * (size // len(pattern) + 1))[:size]
    with WheelArchive(build_wheel(tmp_path, {"demo/a": data}, method=method)) as archive:
        chunks = list(archive.chunks(archive.members["demo/a"]))
    assert b"".join(chunks) == data
    assert max(map(len, chunks), default=0) <= 1 << 20


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../b", "a\\b", "C:evil", "a//b", "./a", "a\0b", ""])
def test_names_outside_the_wheel(name: str) -> None:
    with pytest.raises(BadInputError):
        check_name("x.whl", name)


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil", "demo/../../evil"])
def test_traversal_in_a_wheel(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInputError, match="outside the wheel"):
        open_wheel(build_wheel(tmp_path, {name: b"1"}))


def test_duplicate_entries(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, {"demo/a.py": b"1"})
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr("demo/a.py", b"2")
    with pytest.raises(BadInputError, match="twice"):
        open_wheel(path)


def test_symbolic_link(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, {"demo/a": b"/etc/passwd"}, modes={"demo/a": stat.S_IFLNK | 0o777})
    with pytest.raises(BadInputError, match="symbolic link"):
        open_wheel(path)


def test_device_node(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, {"demo/a": b""}, modes={"demo/a": stat.S_IFCHR | 0o666})
    with pytest.raises(BadInputError, match="neither a file nor a folder"):
        open_wheel(path)


def test_bomb_in_one_member(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="unpacks from"):
        open_wheel(build_wheel(tmp_path, {"demo/zeros": bytes(80 << 20)}))


def test_bomb_of_many_members(tmp_path: Path) -> None:
    files = {f"demo/{number}": bytes(40 << 20) for number in range(4)}
    with pytest.raises(BadInputError, match="unpacks from"):
        open_wheel(build_wheel(tmp_path, files))


def test_bomb_of_overlapping_members(tmp_path: Path) -> None:
    """Two names for the same packed bytes: the trick of the bombs that need no nesting."""
    path = build_wheel(tmp_path, {"demo/a.py": b"1" * 999, "demo/b.py": b"1" * 999})
    data = bytearray(path.read_bytes())
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 4)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]  # offset of the local header
    path.write_bytes(data)
    with pytest.raises(BadInputError):
        open_wheel(path)


def lie(field: int, size: int, change: Callable[[int], int], *, local: bool = False) -> Callable[[bytearray], None]:
    """A change of one field in the first central (or local) header."""

    def apply(data: bytearray) -> None:
        at = data.index(b"PK\x03\x04" if local else b"PK\x01\x02") + field
        value = int.from_bytes(data[at : at + size], "little")
        data[at : at + size] = change(value).to_bytes(size, "little")

    return apply


@pytest.mark.parametrize(
    ("apply", "said"),
    [
        (lie(8, 2, lambda flags: flags | 1), "encrypted"),
        (lie(10, 2, lambda method: 12), "method 12"),
        (lie(16, 4, lambda crc: crc ^ 1), "checksum"),
        (lie(24, 4, lambda size: size - 1), "bytes long and RECORD"),
        (lie(42, 4, lambda offset: offset + 1), "table says|another name|overlaps"),
        (lie(20, 4, lambda size: size + (1 << 30)), "ends after|overlaps"),
        (lie(30, 1, lambda letter: letter ^ 1, local=True), "another name"),
    ],
)
def test_lying_headers(tmp_path: Path, apply: Callable[[bytearray], None], said: str) -> None:
    path = build_wheel(tmp_path, {"demo/a.py": b"abc" * 100, "demo/b.py": b"1"})
    data = bytearray(path.read_bytes())
    apply(data)
    path.write_bytes(data)
    with pytest.raises(BadInputError, match=said):
        open_wheel(path)


def test_bytes_that_unpack_to_more_than_said(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, {"demo/a.py": b"abc" * 100})
    data = bytearray(path.read_bytes())
    lie(24, 4, lambda size: size - 1)(data)
    path.write_bytes(data)
    with WheelArchive(path) as archive, pytest.raises(BadInputError, match="more than"):
        archive.read("demo/a.py")


@pytest.mark.parametrize("size", [0, 3, 100, -1])
def test_truncated(tmp_path: Path, size: int) -> None:
    path = build_wheel(tmp_path, {"demo/a.py": b"abc" * 100})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BadInputError):
        open_wheel(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="does not exist"):
        open_wheel(tmp_path / "none-1-py3-none-any.whl")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.data())
def test_any_flipped_byte_is_refused_in_words_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    path = build_wheel(tmp_path, {"demo/a.py": b"abc" * 50, "demo/b.so": bytes(range(256))})
    content = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        open_wheel(path)
    except BadInputError as error:
        assert error.message


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("demo/a.py,,\n", "no hash of demo/a.py"),
        ("", "no hash of demo/a.py"),
        ("{good}demo/ghost.py,,\n", "lists demo/ghost.py"),
        ("{good}demo/a.py,,\n", "twice"),
    ],
)
def test_wrong_record(tmp_path: Path, record: str, said: str) -> None:
    good_wheel = build_wheel(tmp_path, {"demo/a.py": b"1"})
    with WheelArchive(good_wheel) as archive:
        good = archive.read("demo-1.0.dist-info/RECORD").decode()
    with pytest.raises(BadInputError, match=said):
        open_wheel(build_wheel(tmp_path, {"demo/a.py": b"1"}, record=record.format(good=good)))


def test_record_with_a_wrong_hash(tmp_path: Path) -> None:
    with WheelArchive(build_wheel(tmp_path, {"demo/a.py": b"1"})) as archive:
        record = archive.read("demo-1.0.dist-info/RECORD").decode()
    with pytest.raises(BadInputError, match="does not have the hash"):
        open_wheel(build_wheel(tmp_path, {"demo/a.py": b"2"}, record=record))


def test_missing_parts(tmp_path: Path) -> None:
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo/a.py", b"1")
    with pytest.raises(BadInputError, match=r"0 \.dist-info folders"):
        open_wheel(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("demo-1.0.dist-info/METADATA", b"Name: demo\nVersion: 1.0\n")
    with pytest.raises(BadInputError, match="no WHEEL"):
        open_wheel(path)


def test_name_that_disagrees_with_metadata(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, {"demo/a.py": b"1"})
    other = path.rename(tmp_path / "demo-1.1-py3-none-any.whl")
    with pytest.raises(BadInputError, match=r"holds demo 1\.0"):
        open_wheel(other)


def test_zip64_is_read(tmp_path: Path) -> None:
    """A member with 64-bit sizes although it is small, as some writers make them."""
    path = build_wheel(tmp_path, {"demo/a.py": b"1"})
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data)
    assert struct.pack("<HH", 1, 16) in path.read_bytes()
    open_wheel(path)

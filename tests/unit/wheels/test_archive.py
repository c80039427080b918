"""Wheels are read strictly: every way in which a zip can lie is refused before it is unpacked."""

from __future__ import annotations

import os
import random
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.wheels.builder import build_wheel
from tests.unit.wheels.hostile import LIBRARIES, TABLES, Hostile, lie
from torchtailor.core.errors import BadInputError, NoMatchError
from torchtailor.trees.wheels.archive import WheelArchive, check_name
from torchtailor.trees.wheels.distribution import WheelDistribution


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
        assert archive.head(archive.members["demo/a.py"], 4) == b"x = "
        assert archive.head(archive.members["demo/empty"], 4) == b""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25), deadline=None)
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


@pytest.mark.parametrize("size", [(1 << 20) + 1, (2 << 20) + 1, 3 << 20])
def test_the_last_byte_may_wait_in_the_decompressor(tmp_path: Path, size: int) -> None:
    """All input is read already when it is asked for the byte behind a window."""
    with WheelArchive(build_wheel(tmp_path, {"demo/a": bytes(size)})) as archive:
        assert archive.read("demo/a") == bytes(size)


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../b", "a\\b", "C:evil", "a//b", "./a", "a\0b", ""])
def test_names_outside_the_wheel(name: str) -> None:
    with pytest.raises(BadInputError):
        check_name("x.whl", name)


@pytest.mark.parametrize("hostile", [*TABLES.values(), *LIBRARIES.values()], ids=[*TABLES, *LIBRARIES])
def test_hostile_wheels(tmp_path: Path, hostile: Hostile) -> None:
    with pytest.raises(BadInputError, match=rf"{hostile.said}|bytes long and RECORD"):
        open_wheel(hostile.make(tmp_path))


def test_bytes_that_unpack_to_more_than_said(tmp_path: Path) -> None:
    with (
        WheelArchive(LIBRARIES["more than said"].make(tmp_path)) as archive,
        pytest.raises(BadInputError, match="more"),
    ):
        archive.read("demo/libx.so")


@pytest.mark.parametrize("crc", [1, 0])
def test_a_file_that_is_said_to_be_empty(tmp_path: Path, crc: int) -> None:
    path = build_wheel(tmp_path, {"demo/empty": b"" if crc else b"something"})
    data = bytearray(path.read_bytes())
    lie(16, 4, lambda _: crc)(data)
    lie(24, 4, lambda _: 0)(data)
    path.write_bytes(data)
    with WheelArchive(path) as archive, pytest.raises(BadInputError, match=r"checksum|more than"):
        archive.read("demo/empty")


def test_extracting(tmp_path: Path) -> None:
    """Executables stay executable; everything else is as the umask has it."""
    files = {"demo/": b"", "demo/bin/tool": b"#!", "demo/a.py": b"x = 1\n" * 1000}
    modes = {"demo/": stat.S_IFDIR | 0o755, "demo/bin/tool": stat.S_IFREG | 0o755}
    with WheelArchive(build_wheel(tmp_path, files, modes=modes)) as archive:
        archive.extract(tmp_path / "out")
    out = tmp_path / "out" / "demo"
    assert (out / "a.py").read_bytes() == files["demo/a.py"]
    assert os.access(out / "bin" / "tool", os.X_OK) and not (out / "a.py").stat().st_mode & 0o111


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\x05\x06" + bytes(18)[:10], b"not a zip at all" * 10])
def test_what_is_no_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(data)
    with pytest.raises(BadInputError, match="not a readable wheel"):
        open_wheel(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.whl")
    with pytest.raises(BadInputError, match="not a plain file"):
        open_wheel(tmp_path / "x.whl")


@pytest.mark.parametrize("size", [0, 3, 100, -1])
def test_truncated(tmp_path: Path, size: int) -> None:
    path = build_wheel(tmp_path, {"demo/a.py": b"abc" * 100})
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BadInputError):
        open_wheel(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NoMatchError, match="does not exist"):
        open_wheel(tmp_path / "none-1-py3-none-any.whl")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(150), deadline=None)
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


@pytest.mark.parametrize(("name", "size"), [("METADATA", 20 << 20), ("RECORD", 80 << 20), ("WHEEL", 80 << 20)])
def test_what_is_read_whole_has_a_limit(tmp_path: Path, name: str, size: int) -> None:
    """A few kilobytes of METADATA would otherwise take gigabytes of memory."""
    path = tmp_path / "big-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive:  # random bytes do not pack
        archive.writestr(f"big-1.0.dist-info/{name}", random.Random(1).randbytes(1 << 20) * (size >> 20))
    with WheelArchive(path) as archive, pytest.raises(BadInputError, match="as no real one does"):
        archive.read(f"big-1.0.dist-info/{name}")


def test_names_are_checked_the_quick_way_and_the_slow_way() -> None:
    for name in ("a/b.py", "a-1.0.dist-info/RECORD", "_x/", "a/.hidden", "A+b/c_d"):
        check_name("wheel", name)
    outside = ("..", "../x", "a/../b", "a/..", ".", "./a", "a/.", "a//b", "/a", "", "a/./b", "c:x", "a\\b", "a\0b")
    for name in (*outside, "a../.."):
        with pytest.raises(BadInputError):
            check_name("wheel", name)

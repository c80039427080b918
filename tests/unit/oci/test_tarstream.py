"""Tars of all formats: what is not changed is the same bytes, and what is changed differs where it should."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.oci.builder import TarFile, tar_of
from torchtailor.core.errors import BadInputError
from torchtailor.oci.tarstream import BLOCK, LayerMember, TarReader, _record, with_size
from torchtailor.oci.transports.tarball import TarFiles

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
KINDS = (tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE)

names = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=40)
paths = st.lists(names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=8).map("/".join)
members = st.builds(
    TarFile,
    name=st.one_of(paths, paths.map(lambda path: f"{path}/")),
    data=st.binary(max_size=3000),
    kind=st.sampled_from(KINDS),
    link=paths,
    mode=st.integers(0, 0o7777),
    uid=st.integers(0, 1 << 40),
    pax=st.dictionaries(st.sampled_from(["SCHILY.xattr.user.x", "comment"]), st.text("abc=\n 1", max_size=30)),
)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def copied(data: bytes, size: int, changes: dict[int, bytes] | None = None) -> tuple[list[LayerMember], bytes]:
    reader = TarReader(pieces(data, size), "A layer")
    found, out = [], []
    for member in reader:
        found.append(member)
        new = (changes or {}).get(member.number)
        if new is None:
            out += [member.blocks, *reader.data(), reader.padding()]
        else:
            out += [with_size(member, len(new)), new, bytes(-len(new) % 512)]
    out += reader.trailer()
    return found, b"".join(out)


def made(files: list[TarFile], format: int) -> bytes | None:
    try:
        return tar_of(files, format)
    except (ValueError, UnicodeEncodeError):  # what a format cannot say
        return None


@settings(max_examples=examples(60))
@given(st.lists(members, max_size=6), st.sampled_from(FORMATS), st.integers(1, 5000))
def test_nothing_changed_is_the_same_bytes(files: list[TarFile], format: int, size: int) -> None:
    data = made(files, format)
    if data is None:
        return
    found, out = copied(data, size)
    assert out == data
    with tarfile.open(fileobj=io.BytesIO(data), errorlevel=2) as archive:
        seen = [(info.name.rstrip("/"), info.linkname, info.size if info.isreg() else 0) for info in archive]
    mine = [
        (
            os.fsdecode(member.name).rstrip("/"),
            os.fsdecode(member.link) if member.kind in (b"1", b"2") else "",
            member.size if member.is_file else 0,
        )
        for member in found
    ]
    assert [(name, size) for name, _, size in mine] == [(name, size) for name, _, size in seen]


@settings(max_examples=examples(60))
@given(st.lists(members, min_size=1, max_size=6), st.sampled_from(FORMATS), st.binary(max_size=2000), st.data())
def test_a_changed_member_has_another_size_and_nothing_else(
    files: list[TarFile], format: int, new: bytes, data: st.DataObject
) -> None:
    tar = made(files, format)
    regular = [
        number for number, file in enumerate(files) if file.kind == tarfile.REGTYPE and not file.name.endswith("/")
    ]
    if tar is None or not regular:
        return
    chosen = data.draw(st.sampled_from(regular))
    _, out = copied(tar, 700, {chosen: new})
    with (
        tarfile.open(fileobj=io.BytesIO(tar), errorlevel=2) as before,
        tarfile.open(fileobj=io.BytesIO(out), errorlevel=2) as after,
    ):
        for number, (old, now) in enumerate(zip(before, after, strict=True)):
            left, right = old.get_info(), now.get_info()
            skipped = {"size", "chksum"} if number == chosen else {"chksum"}
            assert {k: v for k, v in left.items() if k not in skipped} == {
                k: v for k, v in right.items() if k not in skipped
            }
            assert old.pax_headers == now.pax_headers
            if now.isreg():
                file, stock = after.extractfile(now), before.extractfile(old)
                assert file is not None and stock is not None
                assert file.read() == (new if number == chosen else stock.read())


def test_large_sizes_in_every_form() -> None:
    """A size that octal digits cannot say, in GNU's binary form and as a PAX record."""
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("big")
        info.size = 9 << 30
        member = next(iter(TarReader(iter((info.tobuf(format),)), "A layer")))
        assert member.size == 9 << 30
        with tarfile.open(fileobj=io.BytesIO(with_size(member, 5) + b"12345" + bytes(507 + 1024))) as archive:
            assert archive.getmember("big").size == 5
        with tarfile.open(fileobj=io.BytesIO(with_size(member, 10 << 30)), ignore_zeros=True) as archive:
            first = archive.next()
            assert first is not None and first.size == 10 << 30


GNU_TAR = ["--format=v7", "--format=oldgnu", "--format=gnu", "--format=ustar", "--format=posix"]
SPARSE = ["--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"]


@pytest.mark.parametrize(
    "options",
    [[one] for one in GNU_TAR] + [["--format=posix", "-S", one] for one in SPARSE] + [["--format=gnu", "-S"]],
)
def test_gnu_tar(tmp_path: Path, options: list[str]) -> None:
    """Hard links, holes and long names as GNU tar writes them; its own reading of the copy is the same."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "plain").write_bytes(b"x" * 1000)
    (tree / "second").hardlink_to(tree / "plain")
    (tree / "link").symlink_to("plain")
    if options != ["--format=v7"]:
        os.mkfifo(tree / "pipe")
    with (tree / "holes").open("wb") as file:
        for number in range(40):  # more than fit into one header
            file.seek(number << 16)
            file.write(b"data")
        file.truncate(40 << 16)
    if "v7" not in options[0]:
        (tree / ("n" * 90) / ("m" * 60)).mkdir(parents=True)
        (tree / ("n" * 90) / ("m" * 60) / "deep").write_bytes(b"deep")
    if options[0] in ("--format=gnu", "--format=posix"):
        (tree / ("l" * 200)).write_bytes(b"long")
    (tree / "zz-last").write_bytes(b"last")
    made = subprocess.run(
        ["tar", "-cf", "-", *options, "--sort=name", "-C", tree, "."], capture_output=True, check=True
    )
    found, out = copied(made.stdout, 1000)
    assert out == made.stdout
    numbers = {member.name.rpartition(b"/")[2]: member.number for member in found}
    assert [member.sparse for member in found if member.name.endswith(b"holes")] == ["-S" in options]
    _, changed = copied(made.stdout, 1000, {numbers[b"zz-last"]: b"changed"})
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xf", "-", "-C", tmp_path / "out"], input=changed, check=True)
    assert (tmp_path / "out" / "zz-last").read_bytes() == b"changed"
    assert (tmp_path / "out" / "holes").read_bytes() == (tree / "holes").read_bytes()
    assert (tmp_path / "out" / "second").samefile(tmp_path / "out" / "plain")


def test_names_that_are_no_text() -> None:
    text = tar_of([TarFile("new\nline"), TarFile("x")], tarfile.GNU_FORMAT)
    data = bytearray(text.replace(b"x\0\0\0", b"\xff\0\0\0", 1))
    header = data[512:1024]  # the checksum of the member that was changed
    header[148:156] = b" " * 8
    data[512 + 148 : 512 + 156] = b"%06o\0 " % sum(header)
    found, out = copied(bytes(data), 512)
    assert [member.name for member in found] == [b"new\nline", b"\xff"]
    assert out == bytes(data)


def test_a_global_header_goes_along() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "all"}) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    found, out = copied(buffer.getvalue(), 100)
    assert out == buffer.getvalue()
    assert [member.kind for member in found] == [b"g", b"0"]


KEYS = st.sampled_from(["path", "linkpath", "size", "GNU.sparse.name", "GNU.sparse.major", "comment"])
RECORDS = st.dictionaries(KEYS, st.sampled_from(["evil", "../evil", "7", "-7", "0"]), min_size=1)


@given(st.lists(RECORDS, min_size=1, max_size=3), st.sampled_from([100, 512, 4096]))
def test_a_global_header_renames_and_resizes_nothing(headers: list[dict[str, str]], piece: int) -> None:
    files = {"a": b"1" * 600, "folder/" + "b" * 120: b"2"}
    data = b"".join(global_header(records) for records in headers) + tar_of(files)
    found, out = copied(data, piece)
    assert out == data
    assert [(one.name.decode(), one.size, one.sparse) for one in found if one.kind != b"g"] == [
        (name, len(content), False) for name, content in files.items()
    ]
    assert placed(data) == files


@given(st.integers(1, 1 << 60), st.sampled_from(["octal", "binary", "record"]))
def test_negative_sizes_are_refused(size: int, form: str) -> None:
    info = tarfile.TarInfo("x")
    if form == "record":
        info.pax_headers = {"size": f"-{size}"}
    header = bytearray(info.tobuf(tarfile.PAX_FORMAT))
    if form != "record":
        header[124:136] = b"-%010o\0" % (size % 8**10) if form == "octal" else (-size).to_bytes(12, "big", signed=True)
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    refused(bytes(header) + bytes(1024))


@given(st.binary(min_size=1, max_size=40), st.sampled_from([tarfile.XHDTYPE, tarfile.XGLTYPE]))
def test_records_that_are_none_are_refused(noise: bytes, kind: bytes) -> None:
    """What is no list of `length key=value` lines; zeros at its end are padding."""
    assume(noise.strip(b"\0"))
    assume(not re.match(rb"\d+ ", noise))
    refused(extended_header(noise, kind) + tar_of({"a": b"1"}))


@pytest.mark.parametrize(
    "record", [b"11 path=x\n", b"8 path=x\n", b"9 path x\n", b"5 =x\n", b"-9 path=x\n", b"8 path=x", b"0 path=x\n"]
)
def test_records_whose_length_or_key_is_wrong_are_refused(record: bytes) -> None:
    refused(extended_header(record, tarfile.XHDTYPE) + tar_of({"a": b"1"}))


def refused(data: bytes) -> None:
    """By both who read archives: of layers as they come, and of images where they lie."""
    with pytest.raises(BadInputError):
        copied(data, 512)
    with pytest.raises(BadInputError):
        placed(data)


def placed(data: bytes) -> dict[str, bytes]:
    """The files of an archive that is read where it lies."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        files = TarFiles(file, "An archive")
        return {name: files.start(name, files.size(name) or 0) for name in files._members}


def extended_header(data: bytes, kind: bytes) -> bytes:
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % BLOCK)


def global_header(records: dict[str, str]) -> bytes:
    lines = b"".join(_record(key.encode(), value.encode()) for key, value in records.items())
    return extended_header(lines, tarfile.XGLTYPE)


def test_archives_without_an_end() -> None:
    data = tar_of({"a": b"1" * 600})
    assert copied(data[: 512 + 1024], 100)[1] == data[: 512 + 1024]
    for size in (100, 512, 700, 512 + 600, 512 + 1023):
        with pytest.raises(BadInputError, match=r"ends in the middle|is not a tar"):
            copied(data[:size], 100)


@pytest.mark.parametrize(
    "data",
    [
        b"not a tar" * 100,
        tar_of({"a": b""})[:124] + b"77777777777\0" + tar_of({"a": b""})[136:],
        b"\xff" * 2048,
    ],
)
def test_damaged(data: bytes) -> None:
    with pytest.raises(BadInputError):
        copied(data, 300)


@settings(max_examples=examples(100))
@given(st.binary(max_size=3000), st.integers(0, 2000))
def test_any_bytes_are_a_sentence_or_an_archive(noise: bytes, place: int) -> None:
    data = bytearray(tar_of({"a": b"1" * 300, "b" * 150: b"2"}))
    data[place : place + len(noise)] = noise
    try:
        _, out = copied(bytes(data), 333)
    except BadInputError:
        return
    assert out == bytes(data)


def test_endless_headers() -> None:
    def endless() -> Iterator[bytes]:
        info = tarfile.TarInfo("x")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 20
        while True:
            yield info.tobuf(tarfile.GNU_FORMAT)
            yield b"n" * (1 << 20)

    with pytest.raises(BadInputError, match="headers before one file"):
        list(TarReader(endless(), "A layer"))

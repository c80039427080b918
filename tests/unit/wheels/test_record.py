"""RECORD survives a round trip, and what is wrong in it is said."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.core.errors import BadInputError
from torchtailor.trees.wheels.record import FileHash, Record, RecordRow, UnusualRecordError

paths = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
hashes = st.one_of(
    st.none(),
    st.builds(FileHash, st.just("sha256"), st.binary(min_size=32, max_size=32)),
    st.builds(FileHash, st.just("sha512"), st.binary(min_size=64, max_size=64)),
)
rows = st.builds(RecordRow, paths, hashes, st.one_of(st.none(), st.integers(0, 2**50)))


@given(st.lists(rows, unique_by=lambda row: row.path))
def test_round_trip(table: list[RecordRow]) -> None:
    record = Record(table)
    assert list(Record.parse(record.encode())) == table
    assert Record.parse(record.encode()).encode() == record.encode()


@given(st.lists(rows, unique_by=lambda row: row.path))
def test_other_readers_see_the_same(table: list[RecordRow]) -> None:
    text = Record(table).encode().decode()
    read = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    assert [row[0] for row in read] == [row.path for row in table]


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused_in_words(data: bytes) -> None:
    try:
        Record.parse(data)
    except BadInputError as error:
        assert error.message and error.hint


def test_hash_spelling_is_urlsafe_without_padding() -> None:
    assert str(FileHash.of(b"")) == "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    assert FileHash.from_hex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855") == FileHash.of(b"")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n", "path,hash,size"),
        (",,\n", "path,hash,size"),
        ("a,md5=00,1\n", "none of sha256"),
        ("a,sha256=!!,1\n", "unreadable"),
        ("a,sha256=AAAA,1\n", "wrong length"),
        ("a,,-1\n", "size"),
        ("a,,1\na,,2\n", "twice"),
        ('"a,,1\n', "no table"),
    ],
)
def test_wrong_lines(text: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        Record.parse(text.encode())


def test_not_text() -> None:
    with pytest.raises(BadInputError, match="UTF-8"):
        Record.parse(b"\xff\xfe,,\n")


def test_update_keeps_order_and_puts_new_rows_before_the_last() -> None:
    record = Record.parse(b"b.py,,\na.so,,\nx.dist-info/RECORD,,\n")
    changed = record.updated(
        {"a.so": RecordRow("a.so", FileHash.of(b"1"), 1), "m.json": RecordRow("m.json", FileHash.of(b""), 0)}
    )
    assert [row.path for row in changed] == ["b.py", "a.so", "m.json", "x.dist-info/RECORD"]
    assert [row.path for row in changed.updated({"m.json": None})] == ["b.py", "a.so", "x.dist-info/RECORD"]


def test_a_hash_without_its_algorithm_is_read_and_stays_so() -> None:
    """mlx-cuda writes the hash of its library so; it is the SHA-256, and is checked like any other."""
    data = b"x.so,2k9iIa9rJzsSUkj1FM_sF1DMGwQKudaeRe48zs3OqHc,3\nx.py,,\n"
    record = Record.parse(data)
    row = record.get("x.so")
    assert row is not None
    assert row.hash == FileHash.parse("sha256=2k9iIa9rJzsSUkj1FM_sF1DMGwQKudaeRe48zs3OqHc")
    assert record.encode() == data


@pytest.mark.parametrize("text", ["a" * 64, "sha256=" + "0f" * 32, "md5=abc", "T" * 42])
def test_hashes_in_a_form_of_their_own(text: str) -> None:
    """Debian writes hex digits: nothing is damaged, and nothing can be written anew."""
    with pytest.raises(UnusualRecordError, match="in base64"):
        Record.parse(f"x.py,{text},1\n".encode())

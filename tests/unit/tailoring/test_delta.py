"""What was cut out is enough to make the stock library again, whatever the cut did."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.unit.tailoring.conftest import FIXTURES
from tests.unit.tailoring.helpers import options
from torchtailor.core.errors import BadInputError, CheckFailedError
from torchtailor.surgery.library import tailor_library
from torchtailor.tailoring.delta import rebuild, write_delta


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("recompress", [False, True])
@pytest.mark.parametrize(
    ("name", "strip"),
    [
        *(("raw.so", False), ("raw.so", True), ("speed.so", False), ("speed.so", True)),
        *(("linked.so", True), ("wide", False), ("wide", True)),  # unstripped, no page of linked.so gets free
    ],
)
def test_round_trip(tmp_path: Path, wide: bytes, name: str, strip: bool, recompress: bool) -> None:
    stock, cut, removed = (tmp_path / part for part in ("stock.so", "cut.so", "removed"))
    stock.write_bytes(wide if name == "wide" else (FIXTURES / name).read_bytes())
    how = options(strip=strip, recompress=recompress, level=3, image_cache=tmp_path / "cache")
    result = tailor_library(stock, cut, how)
    assert result.status.changed
    write_delta(stock, cut, removed, result.sha256_in)
    assert sha256(b"".join(rebuild(cut, removed))) == sha256(stock.read_bytes())
    assert removed.stat().st_size < stock.stat().st_size


def test_little_is_kept_where_little_was_cut(tmp_path: Path, wide: bytes) -> None:
    """Kept images and host code come from the cut file; only what was cut out is stored."""
    stock, cut, removed = (tmp_path / part for part in ("stock.so", "cut.so", "removed"))
    stock.write_bytes(wide)
    result = tailor_library(stock, cut, options("7.5,8.0,9.0", strip=True))
    write_delta(stock, cut, removed, result.sha256_in)
    assert removed.stat().st_size < result.saved + 10_000


def test_a_wrong_hash_leaves_nothing(tmp_path: Path, fat: bytes) -> None:
    stock, cut, removed = (tmp_path / part for part in ("stock.so", "cut.so", "removed"))
    stock.write_bytes(fat)
    tailor_library(stock, cut, options(strip=True))
    with pytest.raises(CheckFailedError):
        write_delta(stock, cut, removed, sha256(b"something else"))
    assert not removed.exists()


@pytest.mark.parametrize("size", [0, 10, 28, 60, -1])
def test_cut_off(tmp_path: Path, fat: bytes, size: int) -> None:
    stock, cut, removed = (tmp_path / part for part in ("stock.so", "cut.so", "removed"))
    stock.write_bytes(fat)
    result = tailor_library(stock, cut, options(strip=True))
    write_delta(stock, cut, removed, result.sha256_in)
    removed.write_bytes(removed.read_bytes()[:size])
    with pytest.raises(BadInputError):
        list(rebuild(cut, removed))

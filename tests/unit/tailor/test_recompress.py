"""Recompression: smaller, the same after decompression, done once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import BASE_FLAGS, Entry
from tests.unit.tailor.checks import policy
from tests.unit.tailor.libraries import Recipe, library
from torchtailor.errors import CheckFailedError, ImpossibleError
from torchtailor.gpucode.fatbin import decompress
from torchtailor.gpucode.scan import scan_source
from torchtailor.gpucode.source import BufferSource
from torchtailor.tailor.library import Recompress, tailor_library
from torchtailor.tailor.result import LibraryResult, Status

DICE = random.Random(3)
WORDS = [DICE.randbytes(8) for _ in range(40)]


def code(size: int = 40_000) -> bytes:
    """Bytes that compress like code: few different words."""
    return b"".join(DICE.choice(WORDS) for _ in range(size // 8))


def recipe() -> Recipe:
    shared = code()
    return Recipe(
        wrapped=[
            (Entry(shared, compression="lz4"), Entry(code(), sm=80, compression="lz4")),
            (Entry(shared, compression="lz4"), Entry(code(), kind=1, sm=90)),
            (Entry(code()),),  # raw
            (Entry(code(), compression="zstd"),),
            (Entry(DICE.randbytes(5000)),),  # cannot get smaller
            (Entry(code(), kind=8, compression="lz4"),),  # LTO-IR
            (Entry(code(), flags=BASE_FLAGS | 0x10000, compression="lz4"),),  # scrambled
            (Entry(b"tiny"),),
        ]
    )


def run(folder: Path, how: Recompress, targets: str = "9.0") -> LibraryResult:
    source = folder / "libtest.so"
    if not source.exists():
        source.write_bytes(library(recipe()))
    return tailor_library(source, folder / "out.so", policy(targets), recompress=how)


def test_smaller_and_the_same(tmp_path: Path) -> None:
    how = Recompress(level=5, cache=tmp_path / "cache")
    result = run(tmp_path, how)
    plain = tailor_library(tmp_path / "libtest.so", tmp_path / "plain.so", policy("9.0"))
    assert result.status is Status.TAILORED
    assert result.size_after < plain.size_after
    assert result.recompressed is not None
    assert (result.recompressed.images, result.recompressed.from_cache) == (3, 0)
    before, after = (
        [
            (image.label, image.compression, bytes(b"" if image.scrambled else decompress(source, image)))
            for image in scan_source(source).images
        ]
        for source in map(BufferSource, ((tmp_path / "plain.so").read_bytes(), (tmp_path / "out.so").read_bytes()))
    )
    assert [(label, data) for label, _, data in before] == [(label, data) for label, _, data in after]
    assert [compression.value for _, compression, _ in after] == (
        ["zstd", "zstd", "zstd", "zstd", "none", "lz4", "lz4", "none"]
    )


def test_the_second_time_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = Recompress(level=5, cache=tmp_path / "cache")
    run(tmp_path, how)
    first = (tmp_path / "out.so").read_bytes()
    monkeypatch.setattr("zstandard.ZstdCompressor", None)  # would fail if called
    result = run(tmp_path, how)
    assert result.recompressed is not None
    assert result.recompressed.from_cache == result.recompressed.images + 1  # and the one that gets no smaller
    assert (tmp_path / "out.so").read_bytes() == first


def test_damaged_cache_is_made_anew(tmp_path: Path) -> None:
    how = Recompress(level=5, cache=tmp_path / "cache")
    run(tmp_path, how)
    first = (tmp_path / "out.so").read_bytes()
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-1] + b"?")
    result = run(tmp_path, how)
    assert result.recompressed is not None
    assert result.recompressed.from_cache == 0
    assert (tmp_path / "out.so").read_bytes() == first


def test_level_is_part_of_the_key(tmp_path: Path) -> None:
    run(tmp_path, Recompress(level=1, cache=tmp_path / "cache"))
    result = run(tmp_path, Recompress(level=2, cache=tmp_path / "cache"))
    assert result.recompressed is not None
    assert result.recompressed.from_cache == 0


@pytest.mark.parametrize("driver", ["550.53", "535.183.01", "470"])
def test_old_drivers_cannot_read_it(tmp_path: Path, driver: str) -> None:
    with pytest.raises(ImpossibleError, match=r"550\.54"):
        run(tmp_path, Recompress(driver=driver, cache=tmp_path / "cache"))
    assert not (tmp_path / "out.so").exists()


@pytest.mark.parametrize("driver", ["550.54", "550.54.14", "580.65.06", None])
def test_new_drivers_can(tmp_path: Path, driver: str | None) -> None:
    run(tmp_path, Recompress(level=1, driver=driver, cache=tmp_path / "cache"))
    assert (tmp_path / "out.so").exists()


def test_a_wrong_payload_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that decompresses to something else never gets out."""
    import zstandard

    real = zstandard.ZstdCompressor

    class Wrong:
        def __init__(self, **options: object) -> None:
            self._real = real(level=1)

        def compress(self, data: bytes) -> bytes:
            return self._real.compress(data[:-1] + b"?")

    monkeypatch.setattr("zstandard.ZstdCompressor", Wrong)
    with pytest.raises(CheckFailedError, match="not the stock one"):
        run(tmp_path, Recompress(level=1, cache=tmp_path / "cache"))
    assert not (tmp_path / "out.so").exists()

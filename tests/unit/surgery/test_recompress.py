"""Recompression: smaller, the same after decompression, done once."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, Semaphore

import pytest

from tests.unit.gpucode.builders import BASE_FLAGS, Entry
from tests.unit.surgery.checks import options
from tests.unit.surgery.libraries import Recipe, library
from torchtailor.code.binary.source import BufferSource
from torchtailor.code.gpucode.fatbin import Compression, decompress
from torchtailor.code.gpucode.scan import scan_source
from torchtailor.core.errors import BadInputError, CheckFailedError, ImpossibleError
from torchtailor.core.processes import run_all
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.files import FileSource
from torchtailor.surgery.image_cache import ImageCache, Replacement, StockPayloads
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.plan import KeptImages
from torchtailor.surgery.recompress import Recompression, _compress, _header, recompress_images
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.surgery.write import Surgery, write

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


def run(folder: Path, how: Cut) -> LibraryResult:
    source = folder / "libtest.so"
    if not source.exists():
        source.write_bytes(library(recipe()))
    return tailor_library(source, folder / "out.so", how)


def test_smaller_and_the_same(tmp_path: Path) -> None:
    how = options(recompress=True, level=5, image_cache=tmp_path / "cache")
    result = run(tmp_path, how)
    plain = tailor_library(tmp_path / "libtest.so", tmp_path / "plain.so", options("9.0"))
    assert result.status is LibraryStatus.CUT
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
    how = options(recompress=True, level=5, image_cache=tmp_path / "cache")
    run(tmp_path, how)
    first = (tmp_path / "out.so").read_bytes()
    monkeypatch.setattr("zstandard.ZstdCompressor", None)  # would fail if called
    monkeypatch.setattr("zstandard.ZstdDecompressor", None)
    result = run(tmp_path, how)
    assert result.recompressed is not None
    assert result.recompressed.from_cache == result.recompressed.images + 1  # and the one that gets no smaller
    assert (tmp_path / "out.so").read_bytes() == first


def flipped(data: bytes, at: int) -> bytes:
    return bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]])


def files_of(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("damage", "read_from_cache"),
    [
        (lambda data: flipped(data, 0), 1),  # the pair digest; the image that gets no smaller is never read
        (lambda data: flipped(data, len(data) - 1), 1),
        (lambda data: flipped(data, len(data) // 2), 1),
        (lambda data: flipped(data, 33), 0),  # the size
        (lambda data: data[:-1], 0),
        (lambda data: data + b"?", 0),
        (lambda data: data[:20], 0),
        (lambda _: b"", 0),
    ],
)
def test_damaged_cache_is_made_anew(tmp_path: Path, damage: Callable[[bytes], bytes], read_from_cache: int) -> None:
    how = options(recompress=True, level=5, image_cache=tmp_path / "cache")
    run(tmp_path, how)
    first = (tmp_path / "out.so").read_bytes()
    (tmp_path / "out.so").unlink()
    for file in files_of(tmp_path / "cache"):
        file.write_bytes(damage(file.read_bytes()))
    result = run(tmp_path, how)
    assert result.recompressed is not None
    assert result.recompressed.from_cache == read_from_cache
    assert (tmp_path / "out.so").read_bytes() == first
    again = run(tmp_path, how)
    assert again.recompressed is not None
    assert again.recompressed.from_cache == 4


def test_a_file_of_the_cache_under_the_name_of_another(tmp_path: Path) -> None:
    """It is whole, and the payload of another image: the digest is of both sides."""
    how = options(recompress=True, level=5, image_cache=tmp_path / "cache")
    run(tmp_path, how)
    first = (tmp_path / "out.so").read_bytes()
    files = files_of(tmp_path / "cache")
    contents = [file.read_bytes() for file in files]
    for file, other in zip(files, [*contents[1:], contents[0]], strict=True):
        file.write_bytes(other)
    run(tmp_path, how)
    assert (tmp_path / "out.so").read_bytes() == first


def test_a_byte_that_was_written_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any byte of a recompressed image: header, payload, padding; the cache is whole and stays."""
    how = options(recompress=True, level=5, image_cache=tmp_path / "cache")
    run(tmp_path, how)
    stock, first = (BufferSource((tmp_path / name).read_bytes()) for name in ("libtest.so", "out.so"))
    already = {image.compression for image in scan_source(stock).images}
    assert Compression.ZSTD in already  # one image was zstd before, and is compared as it is stored
    images = [image for image in scan_source(first).images if image.compression is Compression.ZSTD]
    kept = {file: file.read_bytes() for file in files_of(tmp_path / "cache")}
    dice = random.Random(1)
    places = [dice.randrange(image.offset, image.end) for image in images for _ in range(6)]
    places += [image.payload_offset for image in images]
    places += [image.end - 1 for image in images]  # padding, mostly
    assert any(image.padded_size > image.payload_size for image in images)
    (tmp_path / "out.so").unlink()
    for at in places:

        def wrong(surgery: Surgery, source: FileSource, fd: int, at: int = at) -> None:
            write(surgery, source, fd)
            os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)

        monkeypatch.setattr("torchtailor.surgery.library.write", wrong)
        with pytest.raises(CheckFailedError):
            run(tmp_path, how)
    assert not (tmp_path / "out.so").exists()
    assert {file: file.read_bytes() for file in files_of(tmp_path / "cache")} == kept


def test_an_image_in_the_place_of_another_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two payloads of the cache, both proven, are exchanged: the proof looks each up by what stock has there."""

    def exchanged(stock: StockPayloads, keep: KeptImages, how: Cut) -> Recompression:
        right = recompress_images(stock, keep, how)
        (one, first), *_, (other, second) = right.new.items()
        images = {image.offset: image for kept in keep.values() for image in kept}
        new = dict(right.new)
        new[one] = Replacement(_header(stock, images[one], second.stored), second.stored)
        new[other] = Replacement(_header(stock, images[other], first.stored), first.stored)
        return replace(right, new=new)

    monkeypatch.setattr("torchtailor.surgery.library.recompress_images", exchanged)
    with pytest.raises(CheckFailedError, match="not the stock one"):
        run(tmp_path, options(recompress=True, level=5, image_cache=tmp_path / "cache"))
    assert not (tmp_path / "out.so").exists()


def test_a_library_that_changes_meanwhile_does_not_spoil_the_cache(tmp_path: Path) -> None:
    source = BufferSource(library(recipe()))
    image = next(image for image in scan_source(source).images if image.compression is Compression.LZ4)
    with pytest.raises(BadInputError, match="changed while it was read"):
        _compress(StockPayloads(source), image, 1, ImageCache(tmp_path / "cache"), bytes(32))
    assert not files_of(tmp_path)


class Turns:
    """Counts how many hold a slot at once."""

    def __init__(self, count: int) -> None:
        self._slots, self._lock = Semaphore(count), Lock()
        self.held = self.most = self.taken = 0

    def acquire(self) -> bool:
        self._slots.acquire()
        with self._lock:
            self.held += 1
            self.taken += 1
            self.most = max(self.most, self.held)
        return True

    def release(self) -> None:
        with self._lock:
            self.held -= 1
        self._slots.release()


def test_compression_waits_for_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(1)
    monkeypatch.setattr("torchtailor.core.processes._shared", [turns])
    how = options(recompress=True, level=5, image_cache=tmp_path / "cache", processes=4)
    run(tmp_path, how)
    assert (turns.taken, turns.most, turns.held) == (3, 1, 0)  # two of the four are the same
    run(tmp_path, how)
    assert turns.taken == 3  # what is in the cache needs none


def cut_in_process(job: CutJob) -> LibraryResult:
    assert os.getpid() != job.parent
    return tailor_library(job.source, job.source.with_suffix(".cut"), job.how)


@dataclass(frozen=True)
class CutJob:
    source: Path
    how: Cut
    parent: int
    size: int = 1


def test_libraries_in_processes_share_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes as alone, whether the cache is empty or full."""
    run(tmp_path, options(recompress=True, level=5, image_cache=tmp_path / "alone"))
    alone = (tmp_path / "out.so").read_bytes()
    monkeypatch.setattr("torchtailor.core.processes._WORTH_PROCESSES", 0)
    how = options(recompress=True, level=5, image_cache=tmp_path / "cache")
    for cached in (None, 4):
        jobs = []
        for index in range(3):
            path = tmp_path / f"libtest{index}.so"
            path.write_bytes((tmp_path / "libtest.so").read_bytes())
            jobs.append(CutJob(path, how, os.getpid()))
        for job, result in run_all(cut_in_process, jobs, processes=2):
            assert job.source.with_suffix(".cut").read_bytes() == alone
            assert result.recompressed is not None
            assert cached in (None, result.recompressed.from_cache)


def test_level_is_part_of_the_key(tmp_path: Path) -> None:
    run(tmp_path, options(recompress=True, level=1, image_cache=tmp_path / "cache"))
    result = run(tmp_path, options(recompress=True, level=2, image_cache=tmp_path / "cache"))
    assert result.recompressed is not None
    assert result.recompressed.from_cache == 0


@pytest.mark.parametrize("driver", ["550.53", "535.183.01", "470"])
def test_old_drivers_cannot_read_it(tmp_path: Path, driver: str) -> None:
    with pytest.raises(ImpossibleError, match=r"550\.54"):
        run(tmp_path, options(recompress=True, driver=driver, image_cache=tmp_path / "cache"))
    assert not (tmp_path / "out.so").exists()


@pytest.mark.parametrize("driver", ["550.54", "550.54.14", "580.65.06", None])
def test_new_drivers_can(tmp_path: Path, driver: str | None) -> None:
    run(tmp_path, options(recompress=True, level=1, driver=driver, image_cache=tmp_path / "cache"))
    assert (tmp_path / "out.so").exists()


@pytest.mark.parametrize("end", [b"?", b"", b"??"], ids=["other", "shorter", "longer"])
def test_a_wrong_payload_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    """An image that decompresses to something else never gets out."""
    import zstandard

    real = zstandard.ZstdCompressor

    class Wrong:
        def __init__(self, **options: object) -> None:
            self._real = real(level=1)

        def compress(self, data: bytes) -> bytes:
            return self._real.compress(data[:-1] + end)

    monkeypatch.setattr("zstandard.ZstdCompressor", Wrong)
    with pytest.raises(CheckFailedError, match="not the stock one"):
        run(tmp_path, options(recompress=True, level=1, image_cache=tmp_path / "cache"))
    assert not (tmp_path / "out.so").exists()
    assert not files_of(tmp_path / "cache")

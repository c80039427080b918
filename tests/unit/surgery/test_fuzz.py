"""A long mutation fuzz of scan, plan, surgery and proof: a clear error or a proven output, never anything else.

    pytest -m slow tests/unit/surgery/test_fuzz.py -s

The seed is printed; TORCHTAILOR_FUZZ_SEED=... repeats a run, TORCHTAILOR_FUZZ_CASES changes its length.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gpucode.builders import FIXTURES
from tests.unit.surgery.checks import options
from tests.unit.surgery.libraries import library
from tests.unit.surgery.recipes import random_recipe
from tests.waiting import not_hanging
from torchtailor.core.errors import CheckFailedError, TorchtailorError
from torchtailor.surgery.library import tailor_library

CASES = int(os.environ.get("TORCHTAILOR_FUZZ_CASES", "50000"))
WORKERS = 2
EXTREMES = (0, 1, 2, 7, 8, 0xFFF, 0x1000, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 8, 2**64 - 1)


def interesting(image: bytes) -> list[int]:
    """Offsets where a change hurts: all headers, wrappers, containers, relocations."""
    places = list(range(64))
    tables = ((32, 54, 56), (40, 58, 60))  # offset, entry size, count in the file header
    for at, size, count in tables:
        (start,) = struct.unpack_from("<Q", image, at)
        entry, number = (struct.unpack_from("<H", image, field)[0] for field in (size, count))
        places += range(start, min(start + entry * number, len(image)))
    for magic in (b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46"):
        at = image.find(magic)
        while at >= 0:
            places += range(at, min(at + 90, len(image)))
            at = image.find(magic, at + 1)
    places += range(0x200, min(0x900, len(image)))
    return places


def mutate(image: bytes, places: list[int], dice: random.Random) -> bytes:
    """One to six changes, most of them where they hurt."""
    changed = bytearray(image)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 6))):
        at = dice.choice(places) if dice.random() < 0.85 else dice.randrange(len(changed))
        at = min(at, len(changed) - 1)
        match dice.randrange(7):
            case 0 | 1:
                changed[at] ^= 1 << dice.randrange(8)
            case 2:
                at -= at % 8
                changed[at : at + 8] = dice.choice((*EXTREMES, len(changed))).to_bytes(8, "little")
            case 3:
                at -= at % 4
                changed[at : at + 4] = (dice.choice((*EXTREMES, len(changed))) & 0xFFFFFFFF).to_bytes(4, "little")
            case 4:
                at -= at % 8
                (value,) = struct.unpack_from("<Q", bytes(changed[at : at + 8]).ljust(8, b"\0"))
                step = dice.choice((-4096, -64, -16, -8, 8, 16, 24, 64, 4096))
                changed[at : at + 8] = ((value + step) % 2**64).to_bytes(8, "little")
            case 5:
                source = dice.choice(places)
                size = dice.choice((8, 16, 24, 56, 64, 200))
                piece = bytes(changed[source : source + size])
                changed[at : at + len(piece)] = piece
            case _ if dice.random() < 0.1:
                del changed[dice.randrange(64, len(changed)) :]
    return bytes(changed)


def originals() -> list[bytes]:
    found = [path.read_bytes() for path in sorted(FIXTURES.glob("*.so"))]
    seeds = [seed for seed in range(400) if not random_recipe(seed).immediate][:14]
    recipes = [random_recipe(seed) for seed in seeds]
    for recipe in recipes:
        recipe.wrapped, recipe.recorded = recipe.wrapped[:2], recipe.recorded[:3]
    found += [library(recipe) for recipe in recipes]
    return [image for image in found if len(image) < 700_000]


def attack(seed: int, cases: range) -> Counter[str]:
    """Mutate, tailor, look."""
    stock = [(image, interesting(image)) for image in originals()]
    ends: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    source, output = folder / "libfuzz.so", folder / "out.so"
    try:
        for case in cases:
            dice = random.Random(f"{seed}-{case}")
            image = mutate(*dice.choice(stock), dice)
            source.write_bytes(image)
            how: dict[str, Any] = {"recompress": dice.random() < 0.1, "level": 1, "image_cache": folder / "cache"}
            try:
                targets = dice.choice(("9.0", "8.0", "8.6,12.0"))
                with not_hanging(f"seed {seed}, case {case}"):
                    result = tailor_library(source, output, options(targets, strip=dice.random() < 0.7, **how))
                ends[result.status.value] += 1
                assert output.exists() is result.status.changed
            except TorchtailorError as error:
                assert not output.exists(), f"seed {seed}, case {case}: output of a failure"
                assert error.message.endswith("."), f"seed {seed}, case {case}: {error.message}"
                ends[type(error).__name__] += 1
                if isinstance(error, CheckFailedError):
                    ends[f"proof: {error.message.split(': ', 1)[1][:60]}"] += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}, case {case}: {error!r}") from error
            output.unlink(missing_ok=True)
            assert source.read_bytes() == image, f"seed {seed}, case {case}: the input was changed"
            assert len(list(folder.iterdir())) <= 2, f"seed {seed}, case {case}: something was left behind"
    finally:
        shutil.rmtree(folder)
    return ends


@pytest.mark.slow
def test_mutation_fuzz() -> None:
    seed = int(os.environ.get("TORCHTAILOR_FUZZ_SEED", time.time_ns() % 2**32))
    print(f"TORCHTAILOR_FUZZ_SEED={seed}")
    with ProcessPoolExecutor(WORKERS) as pool:
        shares = [range(start, CASES, WORKERS) for start in range(WORKERS)]
        ends = sum(pool.map(attack, [seed] * WORKERS, shares), Counter[str]())
    print(ends.most_common())
    check_ends(ends, CASES)


def check_ends(ends: Counter[str], cases: int) -> None:
    """Enough of both, or the mutations test nothing."""
    assert ends["cut"] > cases // 20
    assert ends["BadInputError"] > cases // 20


def test_a_short_fuzz() -> None:
    """The same with a fixed seed, so that every run of the tests has some of it."""
    check_ends(attack(1, range(60)), 60)

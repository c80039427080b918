"""A long mutation fuzz of everything that reads: BadInputError or an answer, never anything else."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.unit.gpucode.builders import FIXTURES
from tests.waiting import not_hanging
from torchtailor.code.binary.source import BufferSource
from torchtailor.code.gpucode.fatbin import decompress
from torchtailor.code.gpucode.report import summarise
from torchtailor.code.gpucode.scan import scan_source
from torchtailor.core.errors import BadInputError

CASES = 50_000


def mutate(data: bytes, dice: random.Random) -> bytes:
    """One to eight changes: flipped bits, extreme numbers, moved or repeated pieces, a cut."""
    image = bytearray(data)
    for _ in range(dice.randint(1, 8)):
        at = dice.randrange(len(image))
        if dice.random() < 0.6:  # headers are where mistakes hurt
            at = dice.choice((dice.randrange(64), dice.randrange(1024), len(image) - 1 - dice.randrange(2048)))
            at = max(0, min(at, len(image) - 9))
        match dice.randrange(6):
            case 0:
                image[at] ^= 1 << dice.randrange(8)
            case 1:
                image[at : at + 8] = dice.choice((0, 1, 2**63, 2**64 - 1, len(image), 2**32)).to_bytes(8, "little")
            case 2:
                image[at : at + 4] = dice.choice((0, 1, 2**31, 2**32 - 1, len(image))).to_bytes(4, "little")
            case 3:
                piece = bytes(image[at : at + dice.randrange(1, 256)])
                image[(to := dice.randrange(len(image))) : to + len(piece)] = piece
            case 4:
                magic = data.find(b"\x50\xed\x55\xba")
                image[min(magic + dice.randrange(200), len(image) - 1)] = dice.randrange(256)
            case _ if dice.random() < 0.2:  # a cut is refused at once: seldom
                del image[dice.randrange(len(image) // 2, len(image)) + 64 :]
    return bytes(image)


@pytest.mark.slow
def test_mutation_fuzz() -> None:
    seed = int(os.environ.get("TORCHTAILOR_FUZZ_SEED", time.time_ns() % 2**32))
    print(f"TORCHTAILOR_FUZZ_SEED={seed}")
    originals = [path.read_bytes() for path in sorted(FIXTURES.glob("*.so"))]
    answered = refused = 0
    for case in range(CASES):
        dice = random.Random(f"{seed}-{case}")
        source = BufferSource(mutate(dice.choice(originals), dice))
        try:
            with not_hanging(f"seed {seed}, case {case}"):
                code = scan_source(source)
                summarise("fuzz.so", code)
                for image in code.images:
                    decompress(source, image, max_size=1 << 24)
            answered += 1
        except BadInputError as error:
            assert error.message.endswith("."), (seed, case)
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, case {case}") from error
    assert answered > CASES // 100
    assert refused > CASES // 2

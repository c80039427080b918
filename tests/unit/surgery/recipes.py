"""Random recipes for libraries."""

from __future__ import annotations

import random
from typing import Any

from tests.unit.gpucode.builders import ARCH, BASE_FLAGS, Entry, cubin, frame
from tests.unit.surgery.libraries import Recipe

CUBIN, PTX, LTOIR = 2, 1, 8


def entry(dice: random.Random, sm: int, kind: int = CUBIN, *, size: int, suffix: int = 0) -> Entry:
    return Entry(dice.randbytes(size), kind=kind, sm=sm, flags=BASE_FLAGS | suffix)


def entries(dice: random.Random, size: int) -> tuple[Entry, ...]:
    """What nvcc puts into one container: some architectures, perhaps PTX."""
    found = [entry(dice, sm, size=dice.randrange(8, size)) for sm in (75, 80, 86, 90, 100, 120) if dice.random() < 0.5]
    if dice.random() < 0.3:
        found.append(entry(dice, 90, size=dice.randrange(8, size), suffix=ARCH))
    if dice.random() < 0.3:
        found.append(entry(dice, dice.choice((50, 90, 120)), PTX, size=dice.randrange(8, size)))
    if dice.random() < 0.2:
        found.append(entry(dice, dice.choice((50, 120)), LTOIR, size=dice.randrange(8, size)))
    return tuple(found)


def bare(dice: random.Random, machine: int, size: int) -> dict[str, Any]:
    """Cubins without a container, in some libraries."""
    if dice.random() < 0.6:
        return {}
    make = dice.choice((cubin, frame))
    archs = [dice.choice(("75", "80", "86", "90", "90a", "100", "120")) for _ in range(dice.randrange(1, 9))]
    return {
        "bare": [make(arch, dice.randrange(200, 2 * size), kernel=f"k{at}") for at, arch in enumerate(archs)],
        "bare_in": dice.choice((".data", ".rodata", *((".ldata",) if machine == 62 else ()))),
        "bare_by": dice.choice(("records", "records", "pointers", "code", "nothing")),
    }


def random_recipe(seed: int) -> Recipe:
    """A library with GPU code in some of the known places."""
    dice = random.Random(seed)
    machine = dice.choice((62, 183))
    alignment = dice.choice((0x1000, 0x10000)) if machine == 62 else 0x10000
    size = alignment // 2 + 3000

    def several(most: int) -> list[tuple[Entry, ...]]:
        return [entries(dice, size) for _ in range(dice.randrange(most))]

    recorded: list[tuple[Entry, ...] | bytes] = [*several(5)]
    for _ in range(len(recorded) // 2):
        recorded.insert(dice.randrange(len(recorded)), b"\1" + dice.randbytes(dice.randrange(8, 90) * 8 - 1))
    linked = several(2)
    return Recipe(
        wrapped=[*several(6), entries(dice, size)],
        linked=linked,
        relocatable=several(4) if linked or dice.random() < 0.3 else [],
        recorded=recorded,
        immediate=[entries(dice, 60_000) for _ in range(30)] if machine == 62 and dice.random() < 0.3 else [],
        hidden=several(4) if dice.random() < 0.5 else [],
        machine=machine,
        alignment=alignment,
        text_alignment=dice.choice((None, None, 0x200000)) if machine == 183 else None,
        container_alignment=dice.choice((8, 8, 256)),
        relr=dice.random() < 0.3,
        in_place=dice.random() < 0.7,
        phdr_slack=dice.choice((b"", b"", b"Z" * 600, bytes(600), b"stay" * 150)),
        phdr_segment=dice.random() < 0.2,
        symtab=dice.random() < 0.7,
        zeroed_segment=dice.random() < 0.3,
        seed=seed,
        **bare(random.Random(f"bare {seed}"), machine, size),
    )

"""The words of a DT_RELR table, and why a library has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.surgery.checks import options
from tests.unit.surgery.libraries import Recipe, library
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.relr import encoded


def loaded(words: list[int]) -> list[int]:
    """What a loader relocates, as the specification of the format says it."""
    found: list[int] = []
    where = 0
    for word in words:
        if word % 2 == 0:
            found.append(word)
            where = word + 8
        else:
            found += [where + 8 * bit for bit in range(63) if word >> (bit + 1) & 1]
            where += 63 * 8
    return found


@given(st.sets(st.one_of(st.integers(0, 500), st.integers(0, 2**40)).map(lambda number: number * 8)))
def test_all_addresses_come_back(places: set[int]) -> None:
    assert loaded(list(encoded(sorted(places)))) == sorted(places)


def test_a_row_of_pointers_takes_a_bit_each() -> None:
    assert list(encoded(range(0x1000, 0x1000 + 64 * 8, 8))) == [0x1000, 2**64 - 1]
    assert len(encoded(range(0, 63 * 8 * 1000, 8))) <= 1001


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (Recipe(), "fewer relative relocations than are worth it"),
        (Recipe(relr=True), "packed already"),
        (Recipe(program=True), "a program"),
    ],
    ids=["few", "packed", "program"],
)
def test_why_nothing_is_packed(tmp_path: Path, recipe: Recipe, reason: str) -> None:
    (tmp_path / "libx.so").write_bytes(library(recipe))
    for strip in (False, True):
        result = tailor_library(tmp_path / "libx.so", tmp_path / "out.so", options("9.0", relr=True, strip=strip))
        assert result.relr == 0
        assert reason in result.not_packed

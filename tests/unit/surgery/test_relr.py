"""The words of a DT_RELR table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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

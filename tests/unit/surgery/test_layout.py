"""The arithmetic: nothing overlaps, nothing moves up, every offset is congruent to its address."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from torchtailor.code.binary.elf_headers import ElfMachine, Segment
from torchtailor.surgery.layout import (
    MAX_HOLES,
    AddressMap,
    PackingItem,
    Span,
    align_up,
    choose_holes,
    common_alignment,
    merge,
    pack,
    page_size,
    place,
    split,
    subtract,
)

spans = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=12).map(
    lambda pairs: merge(Span(start, start + size) for start, size in pairs)
)


def addresses(ranges: list[Span]) -> set[int]:
    return {at for span in ranges for at in range(span.start, span.end)}


@given(spans, spans)
def test_subtract_is_set_difference(one: list[Span], other: list[Span]) -> None:
    left = subtract(one, other)
    assert addresses(left) == addresses(one) - addresses(other)
    assert all(a.end <= b.start for a, b in pairwise(left))


@given(spans)
def test_merge_leaves_no_neighbours(ranges: list[Span]) -> None:
    assert all(a.end < b.start for a, b in pairwise(merge(ranges)))


@st.composite
def containers(draw: st.DrawFn) -> list[PackingItem]:
    """Containers with gaps between them, some pinned, none growing."""
    alignment = draw(st.sampled_from((8, 32, 256)))
    at, items = alignment * 5, []
    for _ in range(draw(st.integers(1, 14))):
        old = draw(st.integers(2, 60)) * 8
        new = draw(st.integers(2, old // 8)) * 8
        items.append(PackingItem(at, old, new, draw(st.booleans())))
        at = align_up(at + old + draw(st.sampled_from((0, 0, 8, 600))), alignment)
    return items


@given(containers())
def test_packing(items: list[PackingItem]) -> None:
    room = merge(Span(item.address, item.address + item.old_size) for item in items)
    placed = pack(items, room)
    taken = [Span(at, at + item.new_size) for at, item in zip(placed, items, strict=True)]
    assert all(a.end <= b.start for a, b in pairwise(taken))  # the order stays, nothing overlaps
    assert not subtract(merge(taken), room)
    alignment = common_alignment(item.address for item in items if item.movable)
    for at, item in zip(placed, items, strict=True):
        assert at <= item.address
        assert at == item.address or (item.movable and at % alignment == 0)


def segment(
    address: int, size: int, *, flags: int = 4, zeros: int = 0, align: int = 0x1000, offset: int = 0
) -> Segment:
    return Segment(0, 1, flags, offset, address, address, size, size + zeros, align)


@given(
    st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 90_000)), max_size=8),
    st.sampled_from((0x1000, 0x10000)),
    st.integers(0, 5000),
)
def test_splitting(pairs: list[tuple[int, int]], page: int, zeros: int) -> None:
    load = segment(0x20010, 400_000, zeros=zeros, align=page, offset=0x10)
    free = merge(Span(0x20010 + 100 + start, 0x20010 + 100 + start + size) for start, size in pairs)
    holes = choose_holes(free, page)
    pieces = place(split(load, holes, page, first=False))
    covered = [Span(piece.address, piece.end) for piece in pieces]
    assert merge([*covered, *holes]) == [Span(load.address, load.address + load.file_size)]
    for one, other in pairwise(pieces):
        assert align_up(one.end, page) <= other.address // page * page  # no page is mapped twice
        assert one.offset + one.file_size <= other.offset
        assert one.memory_size == one.file_size
    assert pieces[-1].memory_size - pieces[-1].file_size == zeros
    mapping = AddressMap(pieces)
    for piece in pieces:
        assert (piece.offset - piece.address) % page == 0
        assert mapping.offset(piece.address) == piece.offset
        assert mapping.offset(piece.end - 1) == piece.offset + piece.file_size - 1
    for hole in holes:
        assert mapping.offset(hole.start) is None
        before = [piece.offset + piece.file_size for piece in pieces if piece.address < hole.start]
        assert mapping.empty_offset(hole.start) == max(before, default=0)


def test_only_the_largest_holes_are_taken() -> None:
    free = [Span(at * 0x100000, at * 0x100000 + 0x8000 + at * 0x1000) for at in range(MAX_HOLES + 50)]
    holes = choose_holes(free, 0x1000)
    assert holes == free[50:]


def test_small_ranges_are_no_holes() -> None:
    assert choose_holes([Span(0x1001, 0x4FFF), Span(0x10000, 0x10000 + 0x3FFF)], 0x1000) == []
    assert choose_holes([Span(0x10001, 0x2FFFF)], 0x10000) == []


def test_page_size_is_the_machines_unless_the_file_says_less() -> None:
    assert page_size(ElfMachine.X86_64, [segment(0, 1, align=0x200000)]) == 0x1000
    assert page_size(ElfMachine.AARCH64, [segment(0, 1, align=0x10000), segment(0, 1, align=0x200000)]) == 0x10000
    assert page_size(ElfMachine.AARCH64, [segment(0, 1, align=0x1000)]) == 0x1000


def test_first_and_executable_segments_keep_large_alignment() -> None:
    for flags, first, kept in ((5, False, 0x200000), (4, True, 0x200000), (4, False, 0x1000)):
        (piece,) = split(segment(0, 100, flags=flags, align=0x200000), [], 0x1000, first=first)
        assert piece.alignment == kept

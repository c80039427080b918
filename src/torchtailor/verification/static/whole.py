"""Libraries whose untouched pages are in packs, as they are in memory: every check reads them so."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from torchtailor.code.binary.source import open_source
from torchtailor.core.disk import copy_file, write_at
from torchtailor.core.errors import BadInputError, CheckFailedError
from torchtailor.surgery.proof.host_pages import (
    LoadedImage,
    PackedPages,
    PagesNote,
    PagesRow,
    check_segment,
    find_pages,
    read_note,
    whole_bytes,
    whole_headers,
)

_ALIGNMENT = 64 << 10


@dataclass(frozen=True)
class PagedFacts:
    """A library that was cut to touched pages, and whether its pack has the others."""

    hot: int  # bytes of its segments that are in the file
    cold: int  # bytes that are in the pack alone
    data: bool  # some of them are needed when it is loaded
    missing: bool = False  # no pack has them
    problem: str = ""  # what is wrong with library or pack


@contextmanager
def whole_library(library: Path, packs: Sequence[Path]) -> Iterator[tuple[Path, PagedFacts | None]]:
    """The library with the pages of its pack, for as long as the block runs, or itself where nothing was cut so."""
    with ExitStack() as files:
        source = files.enter_context(open_source(library))
        if bytes(source.read(0, 4)) != b"\x7fELF" or source.size < 64:
            yield library, None
            return
        image = LoadedImage(source)
        note = read_note(image)
        if note is None:
            yield library, None
            return
        try:
            hot = sum(part.size for part in image.memory)
            cold = sum(end - start for start, end in note.cold)
            facts = PagedFacts(hot, cold, any(row.flags & 0x100 for row in note.rows))
            found = _find(image, note, packs, files)
        except (BadInputError, CheckFailedError) as error:
            yield library, PagedFacts(0, 0, data=False, problem=error.message)
            return
        if found is None:
            yield library, replace(facts, missing=True)
            return
        folder = Path(files.enter_context(tempfile.TemporaryDirectory(prefix="torchtailor-whole-")))
        copy = folder / library.name
        copy_file(library, copy)
        _fill(image, found, copy)
        yield copy, facts


def _find(
    image: LoadedImage, note: PagesNote, packs: Sequence[Path], files: ExitStack
) -> dict[PagesRow, PackedPages] | None:
    """The segments of a library in the first pack that has them, all checked; None where none has."""
    for path in packs:
        pack = files.enter_context(open_source(path))
        pages: dict[PagesRow, PackedPages] = {}
        with suppress(BadInputError):  # a damaged pack is named where its containers are read
            pages = {row: own for row in note.rows if (own := find_pages(pack, row)) is not None}
        if len(pages) == len(note.rows):
            for row, own in pages.items():
                check_segment(image, note, row, own)
            return pages
    return None


def _fill(image: LoadedImage, pages: dict[PagesRow, PackedPages], copy: Path) -> None:
    end = copy.stat().st_size
    with copy.open("rb+") as file:
        places = {}
        for row, own in pages.items():
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
            places[row] = end
            for data in whole_bytes(image, row, own):
                end += write_at(file.fileno(), end, data)
        for at, data in whole_headers(image, places):
            write_at(file.fileno(), at, data)

"""A layer written again, block for block, but for the members that change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtailor.oci.compression import LayerWriter, WrittenLayer
from torchtailor.oci.filesystem import LayerFile
from torchtailor.oci.tarstream import TarReader, new_member, with_size

_PIECE = 1 << 20
_BLOCK = 512


@dataclass(frozen=True)
class LayerChanges:
    """What becomes of the members of a layer, by their numbers."""

    gone: frozenset[int]
    replaced: Mapping[int, Path | bytes]
    sizes: Mapping[int, int]  # of what replaces them
    added: Mapping[int, tuple[str, bytes]]  # files that come after a member

    def __bool__(self) -> bool:
        return bool(self.gone or self.replaced)

    def write(self, tar: Iterator[bytes], writer: LayerWriter, where: str) -> WrittenLayer:
        """Read the old layer, and write the new one."""
        reader = TarReader(tar, where)
        for member in reader:
            if member.number in self.gone:
                continue
            new = self.replaced.get(member.number)
            if new is None:
                writer.write(member.blocks)
                for piece in reader.data():
                    writer.write(piece)
                writer.write(reader.padding())
                continue
            size = self.sizes[member.number]
            writer.write(with_size(member, size))
            for piece in _content(new):
                writer.write(piece)
            writer.write(bytes(-size % _BLOCK))
            if beside := self.added.get(member.number):
                path, data = beside
                name = member.name[: member.name.rfind(b"/") + 1] + os.fsencode(path.rpartition("/")[2])
                writer.write(new_member(member, name, len(data)) + data + bytes(-len(data) % _BLOCK))
        for piece in reader.trailer():
            writer.write(piece)
        return writer.finish()

    def unpacked_after(self, before: int, files: Iterable[LayerFile]) -> int:
        """What the layer would unpack to, but for a few blocks of headers."""
        total = before
        for file in files:
            old = file.size + -file.size % _BLOCK
            if file.number in self.gone:
                total -= old + _BLOCK
            elif (size := self.sizes.get(file.number)) is not None:
                total += size + -size % _BLOCK - old
        return total + sum(_BLOCK + len(data) + -len(data) % _BLOCK for _, data in self.added.values())


def _content(new: Path | bytes) -> Iterator[bytes]:
    if isinstance(new, bytes):
        yield new
        return
    with new.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            yield piece

"""A layer written again, block for block, but for the members that change."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.oci.compression import LayerWriter, WrittenLayer
from torchtailor.oci.filesystem import LayerFile
from torchtailor.oci.tarstream import LayerMember, TarReader, new_member, with_size

_PIECE = 1 << 20
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class NewMember:
    """A file that a layer gets, or a folder, which has no content."""

    path: str
    content: Path | bytes | None = None
    size: int = 0
    cold: bool = False  # it goes to the image's last layer


@dataclass(frozen=True)
class LayerChanges:
    """What becomes of the members of a layer, by their numbers."""

    gone: frozenset[int]
    replaced: Mapping[int, Path | bytes]
    sizes: Mapping[int, int]  # of what replaces them
    added: Mapping[int, Sequence[NewMember]]  # what comes after a member
    cold: frozenset[int] = frozenset()  # what goes to the image's last layer

    def __bool__(self) -> bool:
        return bool(self.gone or self.replaced or self.cold)

    def write(self, tar: Iterator[bytes], writer: LayerWriter, where: str, cold: LayerWriter | None) -> WrittenLayer:
        """Read the old layer, and write the new one; what is cold goes to another, to which all layers add."""
        reader = TarReader(tar, where)
        for member in reader:
            if member.number not in self.gone:
                self._write_member(reader, member, cold if cold and member.number in self.cold else writer)
            for new in self.added.get(member.number, ()):
                to = cold if cold and new.cold else writer
                to.write(new_member(member, _spelled(new.path, member), new.size, folder=new.content is None))
                _write_content(new.content or b"", new.size, to)
        for piece in reader.trailer():
            writer.write(piece)
        return writer.finish()

    def _write_member(self, reader: TarReader, member: LayerMember, writer: LayerWriter) -> None:
        new = self.replaced.get(member.number)
        if new is None:
            writer.write(member.blocks)
            for piece in reader.data():
                writer.write(piece)
            writer.write(reader.padding())
        else:
            size = self.sizes[member.number]
            writer.write(with_size(member, size))
            _write_content(new, size, writer)

    def unpacked_after(self, before: int, files: Iterable[LayerFile]) -> int:
        """What the layer would unpack to, but for a few blocks of headers."""
        total = before
        for file in files:
            old = file.size + -file.size % _BLOCK
            if file.number in self.gone or file.number in self.cold:
                total -= old + _BLOCK
            elif (size := self.sizes.get(file.number)) is not None:
                total += size + -size % _BLOCK - old
        added = [new.size for several in self.added.values() for new in several if not new.cold]
        return total + sum(_BLOCK + size + -size % _BLOCK for size in added)


def _spelled(path: str, like: LayerMember) -> bytes:
    """A path as the layer spells its own, some of which begin with `./`."""
    start = b"./" if like.name.startswith(b"./") else b"/" if like.name.startswith(b"/") else b""
    return start + os.fsencode(path)


def _write_content(new: Path | bytes, size: int, writer: LayerWriter) -> None:
    if isinstance(new, bytes):
        writer.write(new)
    else:
        with new.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                writer.write(piece)
    writer.write(bytes(-size % _BLOCK))

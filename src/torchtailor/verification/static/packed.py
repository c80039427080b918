"""The packs of an artifact: what is left in a library, together with what was moved out of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.fatbin import Image
from torchtailor.code.gpucode.scan import FoundContainer, LibraryCode
from torchtailor.core.errors import BadInputError
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind
from torchtailor.trees.wheels.archive import WheelArchive, open_member
from torchtailor.workload.pack import PACK_FOLDER, PACK_SUFFIX, PACK_VARIABLE, Pack, open_pack


class PackedImage(NamedTuple):
    """An image in a pack; `target` is the label of the GPUs of a split's pack."""

    image: Image
    target: str = ""


@dataclass(frozen=True)
class PackedCode:
    """What was moved out of one library, as far as packs have it."""

    containers: int = 0
    missing: int = 0  # containers that no pack has
    stored: int = 0  # bytes in packs
    images: tuple[PackedImage, ...] = ()
    problems: tuple[str, ...] = ()  # packs and containers that are damaged


NOTHING_PACKED = PackedCode()


@contextmanager
def packs_of(artifact: Artifact) -> Iterator[tuple[Path, ...]]:
    """The packs of an artifact as files, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="torchtailor-packs-") as folder:
        found = [*_named(), *_beside(artifact)]
        for wheel in artifact.wheels:
            with WheelArchive(wheel) as archive:
                for member in archive.files:
                    if member.name.startswith(f"{PACK_FOLDER}/") and member.name.endswith(PACK_SUFFIX):
                        place = Path(folder, str(len(found)), Path(member.name).name)
                        place.parent.mkdir()
                        with open_member(wheel, member) as source, place.open("wb") as file:
                            for chunk in source.chunks():
                                file.write(chunk)
                        found.append(place)
        yield tuple(found)


def _named() -> Iterator[Path]:
    """The packs of TORCHTAILOR_PACK, where the hook looks first."""
    for part in os.environ.get(PACK_VARIABLE, "").split(":"):
        if part and Path(part).is_dir():
            yield from sorted((*Path(part).glob(f"*{PACK_SUFFIX}"), *Path(part).glob(f"*/*{PACK_SUFFIX}")))
        elif part and Path(part).is_file():
            yield Path(part)


def _beside(artifact: Artifact) -> Iterator[Path]:
    if artifact.wheels:
        return
    if artifact.kind is ArtifactKind.LIBRARY:
        roots: Sequence[Path] = (artifact.path.parent / PACK_FOLDER,)
    else:
        roots = artifact.site_packages or (artifact.path,)
    for root in roots:
        for place, folders, names in os.walk(root):
            folders.sort()
            if PACK_FOLDER in Path(place).parts:
                yield from (Path(place, name) for name in sorted(names) if name.endswith(PACK_SUFFIX))


class OpenPacks:
    """Packs that are open for reading; a damaged one is named and has nothing."""

    def __init__(self, packs: Sequence[Pack], problems: Sequence[str]) -> None:
        self._packs = packs
        self._problems = tuple(problems)

    @classmethod
    @contextmanager
    def of(cls, paths: Sequence[Path]) -> Iterator[OpenPacks]:
        packs, problems = [], []
        with ExitStack() as files:
            for path in paths:
                try:
                    packs.append(files.enter_context(open_pack(path)))
                except BadInputError as error:
                    problems.append(error.message.replace(str(path), path.name))
            yield cls(packs, problems)

    def code(self, code: LibraryCode, own: ByteSource) -> tuple[list[tuple[FoundContainer, ByteSource]], PackedCode]:
        """Each container of a library, with the file that has its code; and what was moved."""
        containers: list[tuple[FoundContainer, ByteSource]] = []
        moved = missing = stored = 0
        images: list[PackedImage] = []
        problems = list(self._problems)
        for found in code.containers:
            key = found.container.ticket
            if not key:
                containers.append((found, own))
                continue
            moved += 1
            places: list[tuple[FoundContainer, ByteSource]] = []
            for pack in self._packs:  # the hook hands out what all of them have, one for each kind of GPU
                row = pack.find(key)
                if row is None:
                    continue
                try:
                    container = pack.container(row)
                except BadInputError as error:
                    problems.append(error.message.replace("The pack", _in_words(pack), 1))
                    continue
                places.append((found._replace(container=container), pack.source))
                stored += row.size
                images += (PackedImage(image, _split_target(pack)) for image in container.entries)
            missing += not places
            containers += places or [(found, own)]
        problems = problems if moved else []
        return containers, PackedCode(moved, missing, stored, tuple(images), tuple(problems))


def _in_words(pack: Pack) -> str:
    library, target = (pack.description.get(word, "") for word in ("library", "target"))
    return f"The pack of {library} for {target}" if library and target else "The pack"


def _split_target(pack: Pack) -> str:
    return str(pack.description.get("target", "")) if pack.description.get("split") is True else ""

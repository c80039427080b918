"""The files of all layers together: which version of a path is seen in the end, and which layer hides the others.

view = MergedView()
view.add_layer(0, [LayerFile(0, 0, "opt/x", MemberKind.FILE, 10)], Whiteouts())
view.add_layer(1, [], Whiteouts(paths=("opt/x",)))
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from torchtailor.core.errors import BadInputError

Content = tuple[int, int]  # the layer and the number of the member that has the bytes

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_MOST_LINKS = 40  # followed on one path, as the kernel does
_MOST_FILES = 2_000_000  # of an image: what fits into memory, and ten times what large ones have


class MemberKind(Enum):
    """What a member of a layer is, besides folders."""

    FILE = "file"
    SPARSE = "sparse file"  # whose data are not its content byte for byte
    HARD_LINK = "hard link"
    SYMLINK = "symlink"
    OTHER = "other"  # devices, pipes, what tar formats have besides


@dataclass(eq=False, slots=True)
class LayerFile:
    """One version of a path: a member of one layer."""

    layer: int
    number: int
    path: str
    kind: MemberKind
    size: int = 0
    crc: int = 0
    link: str = ""
    content: Content = (-1, -1)  # whose bytes it has: its own, or those of the file that it is a hard link to
    hidden_by: int | None = None  # the layer that replaces or deletes it; its own where a later member does


@dataclass(frozen=True, slots=True)
class Whiteouts:
    """What a layer hides of the layers below it: paths with all below them, and the former contents of folders."""

    paths: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()


@dataclass
class MergedView:
    """The tree of an image, layer on layer."""

    files: list[LayerFile] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)  # where the files of each layer begin
    _tree: dict[str, object] = field(default_factory=dict)  # names to LayerFile, or to such a dict for a folder

    def add_layer(
        self, layer: int, members: Sequence[LayerFile], whiteouts: Whiteouts, folders: Iterable[str] = ()
    ) -> None:
        """Put a layer on top; its whiteouts count for the layers below it only."""
        for path in whiteouts.paths:
            self._hide(path, layer)
        for path in whiteouts.opaque:
            folder = self._find(path)
            if isinstance(folder, dict):
                _hide_all(folder, layer)
                folder.clear()
        for path in folders:
            self._folder(path, layer)
        own: dict[str, LayerFile] = {}
        for file in members:
            file.content = (file.layer, file.number)
            if file.kind is MemberKind.HARD_LINK:
                target = own.get(file.link) or self._find(file.link)
                if isinstance(target, LayerFile):
                    file.content = target.content
            self._put(file)
            own[file.path] = file
        self._starts.append(len(self.files))
        self.files += members
        if len(self.files) > _MOST_FILES:
            raise BadInputError(
                f"The image has more than {_MOST_FILES} files.", "Merge its layers, or cut the wheels it is made from."
            )

    def resolve(self, path: str) -> str:
        """The path without symbolic links in it; the same path where it leads nowhere."""
        parts = path.split("/")[::-1]
        done: list[str] = []
        node: object = self._tree
        follows = 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = done[:-1]
                node = self._find("/".join(done)) if done else self._tree
                continue
            node = node.get(part) if isinstance(node, dict) else None
            if isinstance(node, LayerFile) and node.kind is MemberKind.SYMLINK:
                follows += 1
                if follows > _MOST_LINKS:
                    return path
                if node.link.startswith("/"):
                    done = []
                parts += node.link.split("/")[::-1]
                node = self._find("/".join(done)) if done else self._tree
                continue
            done.append(part)
        return "/".join(done)

    def at(self, path: str) -> LayerFile | None:
        """The version of a path that is seen in the end."""
        found = self._find(path)
        return found if isinstance(found, LayerFile) else None

    def of_layer(self, layer: int) -> list[LayerFile]:
        return self.files[self._starts[layer] : self._starts[layer + 1] if layer + 1 < len(self._starts) else None]

    def visible(self) -> Iterator[LayerFile]:
        return (file for file in self.files if file.hidden_by is None)

    def live_contents(self) -> set[Content]:
        """The bytes that some visible name has."""
        return {file.content for file in self.visible()}

    def _find(self, path: str) -> object:
        node: object = self._tree
        for part in path.split("/") if path else ():
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def _folder(self, path: str, layer: int) -> dict[str, object]:
        """The folder at a path, made where it is missing; a file in its place is replaced by it."""
        node = self._tree
        for part in path.split("/") if path else ():
            below = node.get(part)
            if not isinstance(below, dict):
                if isinstance(below, LayerFile):
                    below.hidden_by = layer
                below = node[part] = {}
            node = below
        return node

    def _put(self, file: LayerFile) -> None:
        above, _, name = file.path.rpartition("/")
        folder = self._folder(above, file.layer)
        before = folder.get(name)
        if before is not None:
            _hide_all({name: before}, file.layer)
        folder[name] = file

    def _hide(self, path: str, layer: int) -> None:
        above, _, name = path.rpartition("/")
        folder = self._find(above)
        if isinstance(folder, dict) and name in folder:
            _hide_all({name: folder.pop(name)}, layer)


def _hide_all(folder: dict[str, object], layer: int) -> None:
    waiting: list[object] = list(folder.values())
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            waiting.extend(node.values())
        elif isinstance(node, LayerFile):
            node.hidden_by = layer


def clean_path(name: str, where: str) -> str:
    """A member's path from the root of the image: absolute ones are below it too; one that leads out is refused."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadInputError(
            f"{where} has the path {name[:100]!r}, which leads out of it.",
            "No image needs that: build it again.",
        )
    return "/".join(parts)


def whiteout_of(path: str) -> tuple[str, bool] | None:
    """What a whiteout deletes, and whether it is a folder's whole former content; None for any other file."""
    above, _, name = path.rpartition("/")
    if not name.startswith(_WHITEOUT):
        return None
    if name == _OPAQUE:
        return above, True
    return posixpath.join(above, name.removeprefix(_WHITEOUT)), False


def is_marker(path: str) -> bool:
    """Whether a path is bookkeeping of a union file system (`.wh..wh.aufs`), which hides nothing."""
    name = path.rpartition("/")[2]
    return name.startswith(".wh..wh.") and name != _OPAQUE

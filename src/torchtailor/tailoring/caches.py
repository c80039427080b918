"""The compile caches of a program in an environment: packed, with what gives them to programs when these start."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from torchtailor.core.documents import Bytes
from torchtailor.core.errors import NoMatchError
from torchtailor.surgery.cut import Cut
from torchtailor.tailoring.left_out import START_LINE
from torchtailor.tailoring.packs import folder_name, folder_of
from torchtailor.tailoring.tree import FileState, FileTree, NewFile, Package
from torchtailor.workload.caches import Caches, compile_caches

_SCRIPT = "caches.py"
_TABLE, _PACKED = '{"VARIABLE": "folder"}', '"caches.zip"'
_DIGITS = 16  # of the digest, in the name of the copy that each user gets


@dataclass(frozen=True, slots=True)
class BakedCaches:
    """Compile caches that came into an environment."""

    path: str
    files: int
    size: Annotated[Bytes, Meta(description="unpacked")]


@dataclass(frozen=True, slots=True)
class MadeCaches:
    """Caches, and the files that they consist of: the packed ones first."""

    caches: BakedCaches
    files: tuple[NewFile, ...]


def baked_caches(tree: FileTree, cut: Cut) -> tuple[MadeCaches, ...]:
    """What comes into each environment of a tree that has torch; caches that are for another one are refused."""
    if cut.caches is None:
        return ()
    owners = {package.dist_info: package for package in _installed(tree, "torch")}
    if not owners:
        raise NoMatchError("There is no torch that would start with these caches.", "Leave --bake-caches out.")
    triton = {package.site: package.metadata.version for package in _installed(tree, "triton")}
    gpus = tuple(map(str, cut.targets.devices))
    for torch in owners.values():
        version = torch.metadata.version
        cut.caches.check(torch=version, triton=triton.get(torch.site, ""), gpus=gpus, driver=cut.driver)
    content = b"" if cut.dry_run else cut.caches.packed()
    return tuple(_made(torch, cut.caches, content) for torch in owners.values())


def _installed(tree: FileTree, name: str) -> Iterator[Package]:
    for path in tree.sizes:
        if path == f"{name}/__init__.py" or path.endswith(f"/{name}/__init__.py"):
            yield from (package for package in tree.packages(path) if folder_name(package.metadata.name) == name)


def _made(torch: Package, caches: Caches, content: bytes) -> MadeCaches:
    folder, packed = folder_of(torch), f"{caches.digest[:_DIGITS]}.zip"
    script = (Path(__file__).parent.parent / "workload" / "baked_caches.py").read_text("utf-8")
    table = {cache.variable: cache.name for cache in compile_caches()}
    contents = {
        f"{folder}/{packed}": content,
        f"{folder}/{_SCRIPT}": script.replace(_TABLE, repr(table), 1).replace(_PACKED, repr(packed), 1).encode(),
        "torchtailor-caches.pth": START_LINE.format(place=f"{folder}/{_SCRIPT}", name="torchtailor_caches").encode(),
    }
    files = tuple(
        NewFile(posixpath.normpath(f"{torch.site}/{path}"), data, FileState.of_bytes(data), torch)
        for path, data in contents.items()
    )
    return MadeCaches(BakedCaches(files[0].path, len(caches.files), Bytes(caches.size)), files)

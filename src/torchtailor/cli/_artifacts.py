"""What a word on the command line names: a path, or an image in a registry, a folder or an archive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torchtailor.core.progress import Progress

if TYPE_CHECKING:
    from torchtailor.trees.artifact.artifact import Artifact


@contextmanager
def artifact_named(
    name: str,
    *,
    platform: str | None = None,
    insecure: bool = False,
    packs: bool = False,
    progress: Progress | None = None,
) -> Iterator[Artifact]:
    """The artifact for as long as the block runs; of an image what matters is unpacked meanwhile, packs if wanted."""
    from torchtailor.oci.reference import is_image_name

    if not is_image_name(name):
        from torchtailor.trees.artifact.conda import opened_artifact

        opened = opened_artifact(Path(name))
    else:
        from torchtailor.tailoring.image.opened import opened_image

        opened = opened_image(name, platform=platform, insecure=insecure, packs=packs, progress=progress)
    with opened as artifact:
        yield artifact

"""What a word of `diff` and `sizes` names: a path, an image, or a release on an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torchtailor.core.progress import Progress

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from torchtailor.fetch.finder import Finder
    from torchtailor.fetch.target import Target
    from torchtailor.verification.inspection.measure import Sizes, Wanted


@dataclass(frozen=True)
class SizeSources:
    """Where to look for what is measured."""

    python: str | None = None
    platform: str | None = None
    insecure: bool = False
    index_url: str | None = None
    extra_index_urls: Sequence[str] = ()
    find_links: Sequence[str] = ()
    index_strategy: str | None = None
    offline: bool = False
    progress: Progress = field(default_factory=Progress)

    def measured(self, name: str, wanted: Wanted) -> Sizes:
        """The sizes of what a word names; a path that exists counts first."""
        from torchtailor.cli._artifacts import artifact_named
        from torchtailor.verification.inspection.measure import measure
        from torchtailor.verification.sizes.released import measure_released, released_wheel

        if asked := self.requirement(name):
            file = released_wheel(self.finder, asked, self.target)
            return measure_released(self.finder, file, wanted, progress=self.progress)
        with artifact_named(name, platform=self.platform, insecure=self.insecure, progress=self.progress) as artifact:
            return measure(artifact, wanted, progress=self.progress)

    def requirement(self, name: str) -> Requirement | None:
        """What a word asks an index for; None where it names a path or an image."""
        from torchtailor.verification.sizes.released import requirement

        return None if Path(name).exists() or "/" in name or name.endswith(".whl") else requirement(name)

    @cached_property
    def finder(self) -> Finder:
        """Of the indexes of the command line, pip and uv."""
        from torchtailor.fetch.cache import Cache
        from torchtailor.fetch.finder import Finder
        from torchtailor.fetch.settings import read_settings

        settings = read_settings(
            index_url=self.index_url,
            extra_index_urls=self.extra_index_urls,
            find_links=self.find_links,
            offline=self.offline,
            strategy=self.index_strategy,
        )
        return Finder(settings, Cache())

    @cached_property
    def target(self) -> Target:
        """Linux on this machine's architecture, or on that of --platform."""
        import platform

        from torchtailor.core.pythons import running_python
        from torchtailor.fetch.target import Target
        from torchtailor.oci.imagespec import ARCHITECTURES

        names = {value: key for key, value in ARCHITECTURES.items()}
        arch = (self.platform or "").rpartition("/")[2]
        return Target(self.python or running_python(), names.get(arch, arch) or platform.machine())

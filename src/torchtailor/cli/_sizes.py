"""What a word of `diff` and `sizes` names: a path, an image, or a release on an index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtailor.cli import _options
from torchtailor.core.errors import NoMatchError
from torchtailor.fetch.options import IndexOptions

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from torchtailor.core.progress import Progress
    from torchtailor.fetch.finder import Finder
    from torchtailor.fetch.pages import WheelFile
    from torchtailor.fetch.target import Target
    from torchtailor.verification.inspection.measure import Sizes


@dataclass(frozen=True)
class SizeSources:
    """Where to look for what is measured."""

    indexes: IndexOptions
    python: str | None = None
    platform: str | None = None
    insecure: bool = False

    def measured(self, name: str, progress: Progress, *, kernels: bool = False) -> Sizes:
        """The sizes of what a word names; a path that exists counts first."""
        from torchtailor.cli._artifacts import artifact_named
        from torchtailor.verification.inspection.measure import measure
        from torchtailor.verification.sizes.released import measure_released

        if asked := self.requirement(name):
            return measure_released(self.finder, self._released(asked), kernels=kernels, progress=progress)
        with artifact_named(name, platform=self.platform, insecure=self.insecure, progress=progress) as artifact:
            return measure(artifact, kernels=kernels, progress=progress)

    def _released(self, asked: Requirement) -> WheelFile:
        """A wheel of the first index that has the project, or else of another: what is measured is never run."""
        from torchtailor.cli.ui import err
        from torchtailor.verification.sizes.released import released_wheel

        try:
            return released_wheel(self.finder, asked, self.target)
        except NoMatchError:
            if self.indexes.index_strategy or not self.finder.elsewhere(asked.name):
                raise
        file = released_wheel(self.finder.of_all_indexes(), asked, self.target)
        where = f"{file.filename} is measured as {file.source.shown} has it"
        err().print(f"{where}: the first index that has {asked.name} has no {asked}.", markup=False)
        return file

    def requirement(self, name: str) -> Requirement | None:
        """What a word asks an index for; None where it names a path or an image."""
        from torchtailor.verification.sizes.released import requirement

        return None if Path(name).exists() or "/" in name or name.endswith(".whl") else requirement(name)

    @cached_property
    def finder(self) -> Finder:
        from torchtailor.fetch.finder import Finder

        return Finder.of(self.indexes)

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


def _sources(given: dict[str, Any]) -> SizeSources:
    own = {name: given.pop(name) for name in ("platform", "insecure") if name in given}
    python = _options.only("--python", given.pop("python", None))
    return SizeSources(_options.index_options(given), python, **own)


# Gives a command, in the place of its parameter `sources`, the options of all that may be measured.
takes_sources = _options.takes(
    "sources",
    [
        _options.parameter("python", _options.Python),
        _options.parameter("platform", _options.ImagePlatform),
        _options.parameter("insecure", _options.ImageInsecure),
        *_options.INDEX_PARAMETERS,
    ],
    _sources,
)

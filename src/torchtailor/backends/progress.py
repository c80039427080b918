"""The progress of a build, whatever the method: stages, downloads, bytes cut, files compiled, Nix builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torchtailor.fetch.download import DownloadProgress, NoDownloadProgress
from torchtailor.progress import NoProgress, Progress

if TYPE_CHECKING:
    from torchtailor.backends.source.progress import CompileProgress
    from torchtailor.recipes.nixlog import NixProgress


class BuildProgress(DownloadProgress, Progress, Protocol):
    """Receives the progress of a build."""

    def stage(self, text: str) -> None:
        """Another part of the work begins."""

    def compiling(self, progress: CompileProgress) -> None:
        """A build from source has advanced."""

    def nix_progress(self, progress: NixProgress) -> None:
        """A build with Nix has advanced."""


class NoBuildProgress(NoDownloadProgress, NoProgress):
    """Build progress that nobody watches."""

    def stage(self, text: str) -> None:
        pass

    def compiling(self, progress: CompileProgress) -> None:
        pass

    def nix_progress(self, progress: NixProgress) -> None:
        pass

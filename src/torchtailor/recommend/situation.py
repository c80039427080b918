"""What a recommendation is made for: a machine, the GPUs that count, and the wishes of its user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import Build, Release
from torchtailor.host.model import GpuDevice, Host
from torchtailor.recommend.drivers import DriverVerdict, judge_driver
from torchtailor.recommend.isas import IsaRanking, rank_isas
from torchtailor.recommend.request import Request
from torchtailor.variants import Matrix


@dataclass(frozen=True)
class Situation:
    """All that is known before anything is judged; `devices` are the GPUs to run on, none for the CPU alone."""

    matrix: Matrix
    host: Host
    request: Request
    isas: IsaRanking
    devices: tuple[GpuDevice, ...]

    @classmethod
    def of(cls, matrix: Matrix, host: Host, request: Request) -> Situation:
        """A machine with all its visible GPUs."""
        request.check(matrix.catalog)
        isas = rank_isas(matrix.catalog.isas.values(), host.cpu.arch, host.cpu.flags, request.workload)
        return cls(matrix, host, request, isas, tuple(gpu for gpu in host.visible_gpus if gpu.compute is not None))

    @property
    def catalog(self) -> Catalog:
        return self.matrix.catalog

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases that may be chosen from, newest first: those asked for, and offered for the Python."""
        wanted = self.request.release
        releases = [self.catalog.release(wanted)] if wanted else list(self.catalog.releases.values())
        offered = [release for release in releases if self.request.wanted_python in release.pythons]
        return tuple(sorted(offered, key=lambda release: release.version, reverse=True))

    def on(self, devices: Sequence[GpuDevice]) -> Situation:
        """The same with other GPUs to run on."""
        return replace(self, devices=tuple(devices))

    def driver(self, device: GpuDevice, build: Build) -> DriverVerdict:
        return judge_driver(self.catalog, self.host, device, build)

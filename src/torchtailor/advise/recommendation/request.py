"""What a recommendation is made for: a machine, what its CPU runs, the GPUs that count, and the user's choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from torchtailor.advise.host.model import GpuDevice, Host
from torchtailor.advise.recommendation.drivers import DriverVerdict, judge_driver
from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import DEFAULT_PYTHON, Build, Release
from torchtailor.catalog.schema import python_key
from torchtailor.catalog.variants import Matrix
from torchtailor.core.errors import NoMatchError


class Workload(Enum):
    """What the CPU mostly has to do; it decides between instruction sets that the CPU runs equally."""

    GENERAL = "general"
    BF16_TRAINING = "bf16-training"
    INT8_INFERENCE = "int8-inference"


USUAL_ENVIRONMENT = ".venv"  # where the commands that are shown install to, if nothing else is known


@dataclass(frozen=True, slots=True)
class Request:
    """The user's choices; None leaves one open."""

    workload: Workload = Workload.GENERAL
    python: str | None = None
    release: str | None = None
    method: str | None = None  # a build method's name
    into: str | None = None  # the environment to install into, for the command that is shown
    here: bool = False  # the command runs on this machine, where `install` itself finds what fits and can be had

    @property
    def wanted_python(self) -> str:
        return self.python or DEFAULT_PYTHON

    def check(self, catalog: Catalog) -> None:
        """Refuse a release that does not exist and a Python that is not available."""
        named = [catalog.release(self.release)] if self.release else list(catalog.releases.values())
        releases = [catalog.for_python(release, self.wanted_python) for release in named]
        offered = sorted({python for release in releases for python in release.pythons}, key=python_key)
        if self.wanted_python not in offered:
            where = (
                f"PyTorch {releases[0].version} (release {self.release})"
                if self.release
                else "any release that torchtailor knows (2.0 and newer)"
            )
            raise NoMatchError(
                f"Python {self.wanted_python} is not supported by {where}.", f"Supported are {', '.join(offered)}."
            )


@dataclass(frozen=True, slots=True)
class IsaRanking:
    """The instruction sets of a CPU's platform: those it runs, best first, and those it does not."""

    runnable: tuple[Isa, ...]
    lacking: tuple[tuple[Isa, tuple[str, ...]], ...]

    def rank(self, isa: Isa) -> int:
        """0 for the best; those that do not run come last, the least demanding of them first."""
        if isa in self.runnable:
            return self.runnable.index(isa)
        return len(self.runnable) + [one for one, _ in reversed(self.lacking)].index(isa)

    def runs(self, isa: Isa) -> bool:
        return isa in self.runnable


def rank_isas(isas: Iterable[Isa], arch: str, flags: Iterable[str], workload: Workload) -> IsaRanking:
    """Those made for the workload first, then by the general instruction set that each is or builds on."""
    words = frozenset(flags)
    ours = [isa for isa in isas if isa.arch == arch]
    places = {isa.name: place for place, isa in enumerate(ours)}

    def demand(isa: Isa) -> tuple[int, int]:
        return (len(isa.requires), places[isa.name])

    def preference(isa: Isa) -> tuple[object, ...]:
        special = workload is not Workload.GENERAL and workload.value in isa.workloads
        base = max((other for other in ours if _general(other) and isa.includes(other)), key=demand, default=isa)
        return (special, demand(base), _general(isa), demand(isa))

    runnable = sorted((isa for isa in ours if isa.runs_on(words)), key=preference, reverse=True)
    lacking = sorted((isa for isa in ours if not isa.runs_on(words)), key=demand, reverse=True)
    return IsaRanking(tuple(runnable), tuple((isa, isa.missing_from(words)) for isa in lacking))


def _general(isa: Isa) -> bool:
    return Workload.GENERAL.value in isa.workloads


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
        """The releases that may be chosen from, newest first: those asked for, and available for the Python."""
        wanted = self.request.release
        releases = [self.catalog.release(wanted)] if wanted else list(self.catalog.releases.values())
        python = self.request.wanted_python
        fitting = [self.catalog.for_python(release, python) for release in releases]
        offered = [release for release in fitting if python in release.pythons]
        return tuple(sorted(offered, key=lambda release: release.version, reverse=True))

    def for_python(self, python: str) -> Situation:
        """The same with another Python."""
        return replace(self, request=replace(self.request, python=python))

    def on(self, devices: Sequence[GpuDevice]) -> Situation:
        """The same with other GPUs to run on."""
        return replace(self, devices=tuple(devices))

    @cached_property
    def kinds(self) -> tuple[GpuDevice, ...]:
        """The first GPU of each kind; others of it are judged alike."""
        return tuple({(device.compute, device.integrated): device for device in reversed(self.devices)}.values())

    def driver(self, device: GpuDevice, build: Build) -> DriverVerdict:
        key = (id(device), id(build))
        if key not in self._verdicts:
            self._verdicts[key] = (device, build, judge_driver(self.catalog, self.host, device, build))
        return self._verdicts[key][2]

    @cached_property
    def _verdicts(self) -> dict[tuple[int, int], tuple[GpuDevice, Build, DriverVerdict]]:
        """Thousands of variants ask about a few dozen builds; both are kept, so that no other gets their id."""
        return {}

    @cached_property
    def code_refusals(self) -> dict[tuple[int, int, int | str], str | None]:
        """Why a GPU of `kinds` does not run the code of a build for another; by their ids, for the same reason."""
        return {}

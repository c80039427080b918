"""The plan of a build from official wheels: what is fetched and cut, and what it costs; made without downloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct
from packaging.utils import canonicalize_name

from torchtailor.building.base import Unavailable, UnavailableVariant, unavailable_rows
from torchtailor.building.choose import VariantChoice
from torchtailor.building.ledger.rates import Rates
from torchtailor.building.shown import Line, Rows, Shown
from torchtailor.building.wheel.options import WheelOptions, WheelOptionsDocument
from torchtailor.catalog import NIX, SOURCE, WHEEL, Catalog, Fit
from torchtailor.catalog.variants import Variant, coverage
from torchtailor.code.gpucode.targets import NO_GPU
from torchtailor.core.documents import Bytes, Seconds, document
from torchtailor.core.errors import NetworkError, NoMatchError, TorchtailorError, UsageError
from torchtailor.core.format import counted, human_bytes, human_seconds
from torchtailor.core.room import DiskNeed, check_room, device_of, disk_needs
from torchtailor.fetch.download import Downloader
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.pages import WheelFile
from torchtailor.fetch.resolve import Resolved, resolve
from torchtailor.fetch.target import Target
from torchtailor.fetch.torch import TorchChoice, choose_cuda_torch, choose_torch, closure_requirements
from torchtailor.wheelhouse.variants_index import FOLDER as VARIANTS_FOLDER

if TYPE_CHECKING:
    from torchtailor.building.planned_jobs import JobPlace, PlannedJobs

# About a quarter of a wheel with GPU code is host code; unpacked, while it is cut, it is larger.
HOST_SHARE = 0.25
_WITHOUT_GPU_SHARE = 0.4  # without any of it, with all host code
_UNPACKED = 2.6
_MEMORY = 500_000_000
# Other packages that contain libraries of NVIDIA's: Triton has its own CUPTI.
_CARRIES_NVIDIA = frozenset({"triton"})
SPARE_DISK = 500_000_000
_WITHOUT_GPU = (
    "The official {label} wheel of PyTorch {variant.release.version} for {variant.arch} without its GPU code "
    "selects its CPU kernels at run time."
)


class Treatment(Enum):
    """What is done to a wheel."""

    CUT = "cut"
    UNCHANGED = "unchanged"
    NEEDS_NVIDIA_OPTION = "unchanged without --nvidia"  # which cuts it where it holds GPU code


class PlannedWheelDocument(Struct):
    """An official wheel that a variant is made of."""

    name: str
    version: str
    filename: str
    origin: str = msgspec.field(name="from")
    size: Bytes
    download: Bytes
    treatment: Treatment
    required_by: tuple[str, ...]


class PlannedVariantDocument(Struct):
    """How one variant will be built."""

    name: str = msgspec.field(name="variant")
    pytorch: str
    label: str = msgspec.field(name="build")
    python: str
    arch: str
    gpu: Annotated[str | None, Meta(description="the compute capability; several with commas")]
    without_gpu: Annotated[bool, Meta(description="from a CUDA build, whose GPU code is removed")]
    gives: str
    other_methods: Annotated[tuple[str, ...], Meta(description="what only another build method gives")]
    notes: tuple[str, ...]
    wheels: tuple[PlannedWheelDocument, ...] = msgspec.field(name="inputs")
    input_bytes: int
    output_size: int = msgspec.field(name="output_bytes_expected")


class WheelPlanDocument(Struct):
    """What a build needs, and how each variant will be built."""

    out: Path
    options: WheelOptionsDocument
    variants: tuple[PlannedVariantDocument, ...]
    download: Bytes
    disk: Bytes
    disk_free: Bytes
    memory: Bytes
    seconds: Seconds
    unavailable: tuple[UnavailableVariant, ...]


@dataclass(frozen=True)
class PlannedWheel:
    """One official wheel that a variant is made of."""

    file: WheelFile
    size: int
    download: int
    treatment: Treatment
    required_by: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.file.name)

    @property
    def download_text(self) -> str:
        if not self.download:
            return "cached"
        return human_bytes(self.download) + (" (rest)" if self.download < self.size else "")

    @property
    def document(self) -> PlannedWheelDocument:
        file = self.file
        return document(
            PlannedWheelDocument, self, version=str(file.version), filename=file.filename, origin=file.source.origin
        )


@dataclass(frozen=True)
class VariantPlan:
    """How one variant will be built."""

    variant: Variant
    target: Target
    label: str
    wheels: tuple[PlannedWheel, ...]
    gives: str
    other_methods: tuple[str, ...]  # what only another build method gives
    notes: tuple[str, ...]
    output_size: int
    without_gpu: bool = False  # from a CUDA build, whose GPU code is removed

    @property
    def cut_for(self) -> str | None:
        """What wheels are cut for: a capability, several with commas, or `none` for machines without a GPU.

        None where nothing is cut.
        """
        if self.variant.gpu:
            return ",".join(str(gpu.capability) for gpu in self.variant.gpus)
        return NO_GPU if self.without_gpu else None

    @property
    def name(self) -> str:
        return self.variant.unique_name

    @property
    def torch(self) -> PlannedWheel:
        return next(wheel for wheel in self.wheels if wheel.name == "torch")

    @property
    def document(self) -> PlannedVariantDocument:
        variant = self.variant
        return document(
            PlannedVariantDocument,
            self,
            pytorch=str(variant.release.version),
            python=variant.python,
            arch=variant.arch,
            gpu=self.cut_for if variant.gpu else None,
            wheels=[wheel.document for wheel in self.wheels],
            input_bytes=sum(wheel.size for wheel in self.wheels),
        )


@dataclass(frozen=True)
class WheelCost:
    """What a build needs."""

    download: int
    needs: tuple[DiskNeed, ...]  # the scarcest disk first
    memory: int
    seconds: float
    made: int = 0  # of what is written, cut wheels
    scratch: int = 0  # while they are cut

    @property
    def disk(self) -> int:
        return self.needs[0].size

    @property
    def disk_free(self) -> int:
        return self.needs[0].free


@dataclass(frozen=True)
class WheelPlan:
    """All variants of one build; wheels that several share count once."""

    plans: tuple[VariantPlan, ...]
    options: WheelOptions
    out: Path
    cost: WheelCost
    unavailable: Unavailable = field(default_factory=dict)

    @property
    def variants(self) -> tuple[Variant, ...]:
        return tuple(plan.variant for plan in self.plans)

    @property
    def places(self) -> tuple[Path, ...]:
        index = (VARIANTS_FOLDER,) if self.options.variants else ()
        return tuple(self.out / name for name in (*(plan.name for plan in self.plans), *index))

    @property
    def files(self) -> tuple[WheelFile, ...]:
        """Every official wheel once."""
        distinct = {wheel.file.url: wheel.file for plan in self.plans for wheel in plan.wheels}
        return tuple(distinct.values())

    @property
    def input_bytes(self) -> int:
        return sum(file.size or 0 for file in self.files)

    @property
    def cost_text(self) -> str:
        expected = sum(plan.output_size for plan in self.plans)
        cost = self.cost
        return (
            f"Download {human_bytes(cost.download)}, output about {human_bytes(expected)} in {self.out}, "
            f"disk {human_bytes(cost.disk)} of {human_bytes(cost.disk_free)} free, "
            f"memory {human_bytes(cost.memory)}, about {human_seconds(cost.seconds)}."
        )

    @property
    def document(self) -> WheelPlanDocument:
        return document(
            WheelPlanDocument,
            self.cost,
            out=self.out,
            options=self.options.document,
            variants=[plan.document for plan in self.plans],
            seconds=round(self.cost.seconds, 1),
            unavailable=unavailable_rows(self.unavailable),
        )

    def lines(self, *, dry_run: bool) -> Iterator[Shown]:
        """Each variant with what it gives, the wheels of the first, and the cost, then what else is to be known of
        them; on stderr also in a dry run."""
        for item in self.plans:
            variant = item.variant
            release = f"PyTorch {variant.release.version} ({item.label}), Python {variant.python}, {variant.arch}"
            yield Line(f"{item.name}: {release}")
            yield Line(f"  {item.gives}")
        rows = [
            (
                wheel.name,
                str(wheel.file.version),
                human_bytes(wheel.size),
                wheel.download_text,
                wheel.treatment.value,
                wheel.file.source.origin,
            )
            for wheel in self.plans[0].wheels
        ]
        yield Rows(("wheel", "version", "size", "download", "treatment", "from"), rows)
        yield Line(self.cost_text)
        for text in dict.fromkeys(text for item in self.plans for text in (*item.notes, *item.other_methods)):
            yield Line(f"note: {text}")

    def jobs_on(self, place: JobPlace) -> PlannedJobs:
        """The jobs of this plan on many machines."""
        from torchtailor.building.wheel.farmed import wheel_jobs_on

        return wheel_jobs_on(self, place)

    def check(self) -> None:
        """Refuse before anything is downloaded where the disk is too small."""
        check_room("This build", self.cost.needs)


def _of_all(choice: VariantChoice, first: TorchtailorError) -> TorchtailorError:
    """A problem, with what was tried after it; of a name that nothing stands in for, how to let something."""
    if isinstance(first, UsageError):
        return first
    if older := choice.fallbacks:
        oldest = min(older, key=lambda variant: variant.release.version).release.version
        others = counted(len(older), "other build")
        tried = f"Nor is any of the {others} of {choice.variant.short_name}, down to PyTorch {oldest}."
        first.message = f"{first.message} {tried}"
        first.args = (first.message,)
    elif choice.named:
        name = choice.variant.short_name
        hint = f"Only {choice.variant.unique_name} was looked for; `torchtailor build {name} --dry-run`, which names "
        hint += "neither release nor toolkit, finds the newest that the indexes have."
        first.hint = f"{hint} {first.hint}".rstrip()
    return first


class Planner:
    """Makes plans from the metadata of indexes; downloads no wheels."""

    def __init__(self, catalog: Catalog, finder: Finder, options: WheelOptions, rates: Rates | None = None) -> None:
        self._catalog, self._finder, self._options = catalog, finder, options
        self._rates = rates or Rates()
        self._downloader = Downloader(finder.client, finder.cache)
        self._resolved: dict[tuple[object, ...], tuple[TorchChoice, tuple[Resolved, ...]]] = {}

    def plan(self, choices: Sequence[VariantChoice], out: Path) -> WheelPlan:
        plans: list[VariantPlan] = []
        problems: list[TorchtailorError] = []
        unavailable: dict[str, tuple[str, ...]] = {}
        for choice in choices:
            try:
                plans.append(self._plan_choice(choice))
            except (NoMatchError, NetworkError) as error:
                if not choice.optional:
                    raise
                problems.append(error)
                unavailable[error.message] = (*unavailable.get(error.message, ()), choice.variant.unique_name)
        if not plans:
            raise problems[0]
        return WheelPlan(tuple(plans), self._options, out, self._cost(plans, out), unavailable)

    def _plan_choice(self, choice: VariantChoice) -> VariantPlan:
        """The first of a choice's variants whose wheel is available; for the CPU, else a CUDA build whose GPU code is
        removed: a CPU build of an older release comes before that.
        """
        if self._options.without_gpu and choice.variant.gpu is not None:
            raise UsageError(
                f"--gpu none is for variants of the CPU, and {choice.variant.unique_name} is for a GPU.",
                "Name a variant such as cpu-avx2, or leave --gpu none out.",
            )
        if self._options.variants and choice.variant.also:
            raise UsageError(
                f"A wheel variant is for one GPU, and {choice.variant.unique_name} is for several.",
                "Leave --variants out, or name a variant of each GPU.",
            )
        if self._options.without_gpu:
            from torchtailor.tailoring.choices import check_without_gpu

            check_without_gpu(self._options.cut)
        ways = (self._options.without_gpu, True) if choice.variant.gpu is None else (False,)
        problems: list[TorchtailorError] = []
        for without_gpu in dict.fromkeys(ways):
            for variant in (choice.variant, *choice.fallbacks):
                try:
                    found = self._plan_variant(variant, without_gpu=without_gpu)
                except (NoMatchError, NetworkError) as error:
                    problems.append(error)
                    continue
                notes = [*choice.notes]
                if variant is not choice.variant:
                    notes.append(f"{choice.variant.unique_name} is not available: {problems[0].message}")
                    notes.append(f"The newest available is {variant.unique_name} (PyTorch {variant.release.version}).")
                return replace(found, notes=(*notes, *found.notes))
        raise self._nothing_available(choice, problems)

    def _nothing_available(self, choice: VariantChoice, problems: Sequence[TorchtailorError]) -> TorchtailorError:
        """The problem with the newest release, and what else was looked for."""
        first, unseen = problems[0], next((problem for problem in problems if isinstance(problem, NetworkError)), None)
        if choice.variant.gpu is not None or self._options.without_gpu or first is unseen:
            return _of_all(choice, first)
        if unseen is not None:
            return NetworkError(f"{first.message} {unseen.message}", unseen.hint)
        older = [str(fallback.release.version) for fallback in choice.fallbacks]
        releases = f", nor any build of PyTorch {', '.join(dict.fromkeys(older))}" if older else ""
        message = f"{first.message} There is no CUDA build either, to remove the GPU code from{releases}."
        return NoMatchError(message, first.hint)

    def _plan_variant(self, variant: Variant, *, without_gpu: bool) -> VariantPlan:
        target = Target(variant.python, variant.arch, self._options.glibc_version)
        choice, closure = self._resolve(variant, target, without_gpu=without_gpu)
        wheels = tuple(self._wheel(item, variant, without_gpu=without_gpu) for item in closure)
        given = coverage(self._catalog, variant, WHEEL)
        return VariantPlan(
            variant=variant,
            target=target,
            label=choice.label,
            wheels=wheels,
            gives=_WITHOUT_GPU.format(label=choice.label, variant=variant) if without_gpu else given.text,
            other_methods=tuple(self._other_methods(variant, given.fit)),
            notes=(*choice.notes, *self._finder.notes(item.name for item in closure)),
            output_size=sum(self._expected(wheel, variant) for wheel in wheels),
            without_gpu=without_gpu,
        )

    def _resolve(
        self, variant: Variant, target: Target, *, without_gpu: bool
    ) -> tuple[TorchChoice, tuple[Resolved, ...]]:
        """The closure; variants that differ only in GPU or ISA share it."""
        key = (variant.release.name, variant.build.label, target, without_gpu)
        if key not in self._resolved:
            if without_gpu:
                choice = choose_cuda_torch(self._finder, variant, target)
            else:
                choice = choose_torch(self._finder, variant, target, self._catalog.wheel_index)
            wanted = closure_requirements(choice, self._options.companions)
            pinned = {canonicalize_name("torch"): choice.file}
            closure = resolve(wanted, choice.finder, target, pinned, choice.label, without_gpu=without_gpu)
            self._resolved[key] = (choice, closure)
        return self._resolved[key]

    def _wheel(self, item: Resolved, variant: Variant, *, without_gpu: bool) -> PlannedWheel:
        file = replace(item.file, size=item.size)
        cached = not self._downloader.missing([file])
        return PlannedWheel(
            file=file,
            size=item.size,
            download=0 if cached else item.size - min(item.size, self._downloader.resumable(file)),
            treatment=self._treatment(item, variant, without_gpu=without_gpu),
            required_by=item.required_by,
        )

    def _treatment(self, item: Resolved, variant: Variant, *, without_gpu: bool) -> Treatment:
        """torch, its companions and NVIDIA's libraries hold GPU code; a CPU variant has nothing to cut."""
        if (variant.gpu is None and not without_gpu) or item.file.filename.endswith("-none-any.whl"):
            return Treatment.UNCHANGED
        if item.name == "torch" or item.name in self._options.companion_extras:
            return Treatment.CUT
        if without_gpu:  # of NVIDIA's only the CUDA runtime is left, which holds none
            return Treatment.UNCHANGED
        if item.name in _CARRIES_NVIDIA:
            return Treatment.CUT if self._options.cut.nvidia else Treatment.NEEDS_NVIDIA_OPTION
        if not item.name.startswith("nvidia-"):
            return Treatment.UNCHANGED
        from torchtailor.trees.licences import needs_nvidia_option
        from torchtailor.trees.wheels.metadata import Metadata

        free = not needs_nvidia_option(item.name, Metadata.parse(item.facts.text, item.file.filename))
        return Treatment.CUT if free or self._options.cut.nvidia else Treatment.NEEDS_NVIDIA_OPTION

    def _expected(self, item: PlannedWheel, variant: Variant) -> int:
        if item.treatment is not Treatment.CUT:
            return item.size
        if variant.gpu is None:
            return round(item.size * _WITHOUT_GPU_SHARE)
        codes = variant.build.wheel_codes(variant.arch) or (None,)
        kept = len(variant.gpus)
        if item.name != "torch":
            kept = max(kept, len(codes) // 3)  # NVIDIA's also keep lower minor versions
        return round(item.size * (HOST_SHARE + (1 - HOST_SHARE) * min(1.0, kept / len(codes))))

    def _other_methods(self, variant: Variant, fit: Fit) -> Iterable[str]:
        """What only a build from source or with Nix gives, in a sentence each."""
        others = [method for method in (SOURCE, NIX) if coverage(self._catalog, variant, method).available]
        if not others:
            return
        methods = " or ".join(f"`torchtailor build {variant.unique_name} --via {method}`" for method in others)
        if variant.gpu is not None and fit is not Fit.NATIVE:
            yield f"Optional: code compiled for {variant.gpu.sm.upper()} itself, with {methods}."
        flags = " ".join(variant.isa.compile_flags)
        if flags:
            yield (
                f"Optional: host code compiled for {variant.isa.label} alone ({flags}), with {methods}; wheels choose "
                "at run time."
            )

    def _cost(self, plans: Sequence[VariantPlan], out: Path) -> WheelCost:
        wheels = {wheel.file.url: wheel for plan in plans for wheel in plan.wheels}
        download = sum(wheel.download for wheel in wheels.values())
        cuts = {
            (item.file.url, plan.cut_for): (item, plan.variant)
            for plan in plans
            for item in plan.wheels
            if item.treatment is Treatment.CUT
        }
        made = sum(self._expected(item, variant) for item, variant in cuts.values())
        scratch = max((round(item.size * _UNPACKED) for item, _ in cuts.values()), default=0) + made
        cut_bytes = sum(item.size for item, _ in cuts.values())
        cache = self._finder.cache.root
        sizes = [(cache, download + made + scratch + SPARE_DISK)]
        if device_of(cache) != device_of(out):  # else the output shares the blocks of the cache
            sizes.append((out, sum(plan.output_size for plan in plans) + SPARE_DISK))
        seconds = download / self._rates.fetch + cut_bytes / self._rates.cut + 2.0
        memory = _MEMORY if cuts else _MEMORY // 5
        return WheelCost(download, disk_needs(sizes), memory, seconds, made, scratch)

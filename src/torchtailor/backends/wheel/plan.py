"""The plan of a build: what is fetched, what is cut, what comes out, and what it costs; made without downloading."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from packaging.utils import canonicalize_name

from torchtailor.backends.choose import Choice
from torchtailor.backends.wheel.options import Options
from torchtailor.catalog import Catalog, Fit, Method
from torchtailor.disk import CACHE_VARIABLE, existing_parent
from torchtailor.errors import EnvironmentProblem, NetworkError, NoMatchError, TorchtailorError
from torchtailor.fetch.download import Downloader
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.pages import WheelFile
from torchtailor.fetch.resolve import Resolved, resolve
from torchtailor.fetch.target import Target
from torchtailor.fetch.torch import TorchChoice, choose_torch, closure_requirements
from torchtailor.ledger.rates import Rates
from torchtailor.variants import Variant, coverage

# Of a wheel with GPU code, about a quarter is something else; what is unpacked while it is cut is larger than it.
_HOST_SHARE = 0.25
_UNPACKED = 2.6
_MEMORY = 500_000_000
# Packages of others with NVIDIA's libraries inside: Triton brings its own CUPTI.
_CARRIES_NVIDIA = frozenset({"triton"})
_SPARE_DISK = 500_000_000


class Treatment(Enum):
    """What happens to a wheel on its way into the wheelhouse."""

    CUT = "cut"
    AS_IT_IS = "as it is"
    LEFT_TO_CONSENT = "as it is (--nvidia would cut it)"


@dataclass(frozen=True)
class Input:
    """One official wheel that a variant is made of."""

    file: WheelFile
    size: int
    download: int
    treatment: Treatment
    required_by: tuple[str, ...]
    metadata: bytes

    @property
    def name(self) -> str:
        return str(self.file.name)

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "version": str(self.file.version),
            "filename": self.file.filename,
            "from": self.file.source.origin,
            "size": self.size,
            "download": self.download,
            "treatment": self.treatment.value,
            "required_by": list(self.required_by),
        }


@dataclass(frozen=True)
class VariantPlan:
    """How one variant will be made."""

    variant: Variant
    target: Target
    label: str
    inputs: tuple[Input, ...]
    gives: str
    elsewhere: tuple[str, ...]
    notes: tuple[str, ...]
    output_size: int

    @property
    def name(self) -> str:
        return self.variant.unique_name

    @property
    def torch(self) -> Input:
        return next(item for item in self.inputs if item.name == "torch")

    def to_json(self) -> dict[str, object]:
        return {
            "variant": self.name,
            "pytorch": str(self.variant.release.version),
            "build": self.label,
            "python": self.variant.python,
            "arch": self.variant.arch,
            "gpu": str(self.variant.gpu.capability) if self.variant.gpu else None,
            "gives": self.gives,
            "only_by_other_ways": list(self.elsewhere),
            "notes": list(self.notes),
            "inputs": [item.to_json() for item in self.inputs],
            "input_bytes": sum(item.size for item in self.inputs),
            "output_bytes_expected": self.output_size,
        }


@dataclass(frozen=True)
class Cost:
    """What a build takes."""

    download: int
    disk: int
    disk_free: int
    memory: int
    seconds: float


@dataclass(frozen=True)
class BuildPlan:
    """All variants of one command; inputs that several share count once."""

    plans: tuple[VariantPlan, ...]
    options: Options
    out: Path
    cost: Cost

    @property
    def files(self) -> tuple[WheelFile, ...]:
        """Every input once."""
        distinct = {item.file.url: item.file for plan in self.plans for item in plan.inputs}
        return tuple(distinct.values())

    @property
    def input_bytes(self) -> int:
        return sum(file.size or 0 for file in self.files)

    def to_json(self) -> dict[str, object]:
        return {
            "out": str(self.out),
            "options": self.options.to_json(),
            "variants": [plan.to_json() for plan in self.plans],
            "download": self.cost.download,
            "disk": self.cost.disk,
            "disk_free": self.cost.disk_free,
            "memory": self.cost.memory,
            "seconds": round(self.cost.seconds, 1),
        }

    def check(self) -> None:
        """Refuse before anything is fetched when the disk is too small."""
        from torchtailor.ui.format import human_bytes

        if self.cost.disk > self.cost.disk_free:
            raise EnvironmentProblem(
                f"This build needs about {human_bytes(self.cost.disk)} of disk, and {human_bytes(self.cost.disk_free)} "
                f"are free for {self.out}.",
                f"Free some space (`torchtailor cache prune`), choose another -o, or set {CACHE_VARIABLE}.",
            )


class Planner:
    """Makes plans: resolves, and asks indexes for sizes; downloads nothing."""

    def __init__(self, catalog: Catalog, finder: Finder, options: Options, rates: Rates | None = None) -> None:
        self._catalog, self._finder, self._options = catalog, finder, options
        self._rates = rates or Rates()
        self._downloader = Downloader(finder.client, finder.cache)
        self._resolved: dict[tuple[object, ...], tuple[TorchChoice, tuple[Resolved, ...]]] = {}

    def plan(self, choices: Sequence[Choice], out: Path) -> BuildPlan:
        plans = tuple(self._plan_choice(choice) for choice in choices)
        return BuildPlan(plans, self._options, out, self._cost(plans, out))

    def _plan_choice(self, choice: Choice) -> VariantPlan:
        """The first of a choice's variants whose wheel can be had."""
        problems: list[TorchtailorError] = []
        for variant in (choice.variant, *choice.fallbacks):
            try:
                found = self._plan_variant(variant)
            except (NoMatchError, NetworkError) as error:
                problems.append(error)
                continue
            notes = [*choice.notes]
            if problems:
                notes.append(f"{choice.variant.unique_name} cannot be had: {problems[0].message}")
                notes.append(f"The newest that can is {variant.unique_name} (PyTorch {variant.release.version}).")
            return replace(found, notes=(*notes, *found.notes))
        raise problems[0]

    def _plan_variant(self, variant: Variant) -> VariantPlan:
        target = Target(variant.python, variant.arch, self._options.glibc)
        choice, closure = self._resolve(variant, target)
        inputs = tuple(self._input(item, variant) for item in closure)
        given = coverage(self._catalog, variant, Method.WHEEL)
        return VariantPlan(
            variant=variant,
            target=target,
            label=choice.label,
            inputs=inputs,
            gives=given.text,
            elsewhere=tuple(self._elsewhere(variant, given.fit)),
            notes=choice.notes,
            output_size=sum(self._expected(item, variant) for item in inputs),
        )

    def _resolve(self, variant: Variant, target: Target) -> tuple[TorchChoice, tuple[Resolved, ...]]:
        """The closure; variants that differ only in GPU or ISA share it."""
        key = (variant.release.name, variant.build.label, target)
        if key not in self._resolved:
            choice = choose_torch(self._finder, variant, target, self._catalog.wheel_index)
            wanted = closure_requirements(choice, self._options.companions)
            closure = resolve(wanted, choice.finder, target, {canonicalize_name("torch"): choice.file})
            self._resolved[key] = (choice, closure)
        return self._resolved[key]

    def _input(self, item: Resolved, variant: Variant) -> Input:
        file = replace(item.file, size=item.size)
        here = not self._downloader.missing([file])
        return Input(
            file=file,
            size=item.size,
            download=0 if here else item.size - min(item.size, self._downloader.resumable(file)),
            treatment=self._treatment(item, variant),
            required_by=item.required_by,
            metadata=item.facts.text,
        )

    def _treatment(self, item: Resolved, variant: Variant) -> Treatment:
        """torch, its companions and NVIDIA's libraries hold GPU code; a CPU variant has nothing to cut."""
        if variant.gpu is None or item.file.filename.endswith("-none-any.whl"):
            return Treatment.AS_IT_IS
        companions = {canonicalize_name(word.partition("=")[0].strip("<>!~ ")) for word in self._options.companions}
        if item.name == "torch" or item.name in companions:
            return Treatment.CUT
        if item.name in _CARRIES_NVIDIA:
            return Treatment.CUT if self._options.nvidia else Treatment.LEFT_TO_CONSENT
        if not item.name.startswith("nvidia-"):
            return Treatment.AS_IT_IS
        from torchtailor.licences import needs_nvidia_option
        from torchtailor.wheels.metadata import Metadata

        free = not needs_nvidia_option(item.name, Metadata.parse(item.facts.text, item.file.filename))
        return Treatment.CUT if free or self._options.nvidia else Treatment.LEFT_TO_CONSENT

    def _expected(self, item: Input, variant: Variant) -> int:
        if item.treatment is not Treatment.CUT or variant.gpu is None:
            return item.size
        codes = variant.build.wheel_codes(variant.arch) or (None,)
        kept = 1 if item.name == "torch" else max(1, len(codes) // 3)  # NVIDIA's keep lower minors too
        return round(item.size * (_HOST_SHARE + (1 - _HOST_SHARE) * min(1.0, kept / len(codes))))

    def _elsewhere(self, variant: Variant, fit: Fit) -> Iterable[str]:
        """What only a build from source or with Nix gives, in a sentence each."""
        others = [way for way in (Method.SOURCE, Method.NIX) if coverage(self._catalog, variant, way).available]
        if not others:
            return
        ways = " or ".join(f"--via {way.value}" for way in others)
        if variant.gpu is not None and fit is not Fit.NATIVE:
            yield f"Code compiled for {variant.gpu.sm.upper()} itself: {ways}."
        flags = " ".join(variant.isa.compile_flags)
        if flags:
            yield f"Host code compiled for {variant.isa.label} ({flags}): {ways}; wheels choose at run time."

    def _cost(self, plans: Sequence[VariantPlan], out: Path) -> Cost:
        inputs = {item.file.url: item for plan in plans for item in plan.inputs}
        download = sum(item.download for item in inputs.values())
        cuts = {
            (item.file.url, plan.variant.gpu.capability): (item, plan.variant)
            for plan in plans
            for item in plan.inputs
            if item.treatment is Treatment.CUT and plan.variant.gpu
        }
        made = sum(self._expected(item, variant) for item, variant in cuts.values())
        scratch = max((round(item.size * _UNPACKED) for item, _ in cuts.values()), default=0) + made
        cut_bytes = sum(item.size for item, _ in cuts.values())
        cache_root, place = self._finder.cache.root, existing_parent(out)
        disk = download + made + scratch + _SPARE_DISK
        if cache_root.stat().st_dev != place.stat().st_dev:
            disk = sum(plan.output_size for plan in plans) + scratch + _SPARE_DISK  # nothing can be shared
        seconds = download / self._rates.fetch + cut_bytes / self._rates.cut + 2.0
        memory = _MEMORY if cuts else _MEMORY // 5
        return Cost(download, disk, shutil.disk_usage(place).free, memory, seconds)

"""The graph of a build from official wheels: fetch each wheel once, cut it for all GPUs, pack and prove variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import json

from torchtailor.building.graph.graph import GraphJob, JobGraph, JobWeight
from torchtailor.building.ledger.rates import Rates
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.building.wheel.plan import HOST_SHARE, PlannedWheel, Treatment, VariantPlan, WheelPlan
from torchtailor.building.wheel_jobs import CutForGpus, FetchWheel, PackedWheel, PackVariant, ProveVariant, SplitWheel
from torchtailor.catalog import WHEEL
from torchtailor.core.disk import hash_file
from torchtailor.core.urls import without_login
from torchtailor.surgery.cut_document import JobCut
from torchtailor.wheelhouse.entry import WheelhouseDescription

_CUT_MEMORY = 500_000_000
_CUT_SHARE = 0.4  # of a wheel that is left for one GPU
SENT = 100e6  # bytes per second between a machine and a store that is not its own disk
COPIED = 400e6  # bytes per second that are read, hashed and linked or copied
_PROVED = 60e6  # bytes of wheels per second that are verified
_READ_CODE = 6e6  # bytes of wheels with host code per second: every function is read for its instruction set
_STARTED = 0.05  # seconds of any job
_WHY_NOT_CUT = {Treatment.NEEDS_NVIDIA_OPTION: "NVIDIA's licence: cut only with --nvidia"}


def wheel_graph(
    plan: WheelPlan,
    *,
    rates: Rates | None = None,
    workers: int = 1,
    prove: bool = False,
    rows: str = "",
    away: Away | None = None,
) -> JobGraph:
    """The jobs of a plan; with more workers, a wheel's GPUs are cut in more pieces, which have the same outputs.

    `rows` is a digest of the user's rows of the catalog, which proofs go by; `away` says what is not on this machine.
    """
    return JobGraph(_jobs(plan, rates or Rates(), workers, rows, away or Away(), prove=prove))


@dataclass(frozen=True)
class Away:
    """What of a farm is reached over a network: it decides how long jobs take, not what they make."""

    workers: bool = False
    store: bool = False

    def sent(self, size: float) -> float:
        """Seconds that so many bytes take from or to the store, beside reading and hashing them."""
        return size / SENT if self.workers or self.store else 0.0

    def downloaded(self, wheel: PlannedWheel) -> int:
        """Bytes of a wheel that come from the index: what this machine's cache has, other machines do not have."""
        local = wheel.file.local_path is not None
        return wheel.size if self.workers and not local else wheel.download


def with_hashes(plan: WheelPlan) -> WheelPlan:
    """The plan with the hash of every local wheel: a folder lists none, and a wheel may be built again by its name."""
    known = {
        file.url: replace(file, hashes={"sha256": hash_file(path)})
        for file in plan.files
        if file.best_hash is None and (path := file.local_path) is not None
    }

    def hashed(variant: VariantPlan) -> VariantPlan:
        wheels = (replace(wheel, file=known.get(wheel.file.url, wheel.file)) for wheel in variant.wheels)
        return replace(variant, wheels=tuple(wheels))

    return replace(plan, plans=tuple(map(hashed, plan.plans)))


def _jobs(plan: WheelPlan, rates: Rates, workers: int, rows: str, away: Away, *, prove: bool) -> Iterator[GraphJob]:
    """Wheels are told apart by their content: two indexes may list the same one."""
    users: dict[str, list[str]] = {}  # by key, the variants that need a wheel
    # by key, options and what is split beside it, then by GPU, the variants that need a cut
    cuts: dict[tuple[str, JobCut, tuple[SplitWheel, ...]], dict[str, list[str]]] = {}
    wheels: dict[str, PlannedWheel] = {}
    for variant in plan.plans:
        for wheel in variant.wheels:
            key = wheel.file.key
            wheels.setdefault(key, wheel)
            users.setdefault(key, []).append(variant.name)
            if (gpu := variant.cut_for) and (cut := cut_of(plan, variant, wheel)):
                beside = split_beside(plan, variant, wheel)
                cuts.setdefault((key, cut, beside), {}).setdefault(gpu, []).append(variant.name)
    for key, wheel in wheels.items():
        line = away.downloaded(wheel) / rates.fetch
        weight = JobWeight(_STARTED + line + wheel.size / COPIED + away.sent(wheel.size), line=line)
        here = wheel.file.local_path is not None
        label = f"fetch {wheel.name} {wheel.file.version}"
        yield GraphJob(FetchWheel(wheel.file.address), label, weight, tuple(users[key]), here=here)
    total = sum(_cut_seconds(wheels[key].size, len(gpus), rates) for (key, *_), gpus in cuts.items())
    for (key, options, beside), gpus in cuts.items():
        wheel = wheels[key]
        share = _cut_seconds(wheel.size, len(gpus), rates) / total * workers if total else 1.0
        for some in _pieces(sorted(gpus), round(share)):
            names = tuple(dict.fromkeys(name for gpu in some for name in gpus[gpu]))
            moved = away.sent(wheel.size * (1 + len(some) * _CUT_SHARE))
            weight = JobWeight(_STARTED + _cut_seconds(wheel.size, len(some), rates) + moved, _CUT_MEMORY)
            job = CutForGpus(key, wheel.file.filename, some, options, beside)
            yield GraphJob(job, f"cut {wheel.name} for {', '.join(some)}", weight, names)
    for variant in plan.plans:
        pack = pack_of(plan, variant)
        weight = JobWeight(_STARTED + variant.output_size / COPIED + away.sent(variant.output_size))
        yield GraphJob(pack, f"pack {variant.name}", weight, (variant.name,))
        if prove:
            (key,) = pack.gives
            weight = JobWeight(_STARTED + _prove_seconds(variant) + away.sent(variant.output_size), _CUT_MEMORY)
            proof = ProveVariant(key, variant.name, pack.description.gpu, rows)
            yield GraphJob(proof, f"prove {variant.name}", weight, (variant.name,))


def pack_of(plan: WheelPlan, variant: VariantPlan) -> PackVariant:
    """The job that packs one variant."""
    wheels = tuple(
        PackedWheel(
            filename=wheel.file.filename,
            size=wheel.size,
            source=wheel.file.key,
            url=without_login(wheel.file.url) if wheel.file.local_path is None else "",
            required_by=wheel.required_by,
            cut=cut_of(plan, variant, wheel),
            beside=split_beside(plan, variant, wheel),
            why=_WHY_NOT_CUT.get(wheel.treatment, ""),
        )
        for wheel in variant.wheels
    )
    return PackVariant(describe_variant(variant, plan.options), wheels)


def describe_variant(variant: VariantPlan, options: WheelOptions) -> WheelhouseDescription:
    """What the manifest says of a variant."""
    details: dict[str, object] = {"options": json.decode(json.encode(options.document)), "gives": variant.gives}
    if variant.without_gpu:
        details["without_gpu"] = True
    packs = tuple(gpu.sm for gpu in variant.variant.gpus) if options.cut.split else ()
    requested = tuple(
        f"{name}[{','.join(sorted((*extras, *packs)))}]" if extras or packs else name
        for name, extras in {"torch": (), **options.companion_extras}.items()
    )
    return WheelhouseDescription.of(variant.variant, WHEEL, details, build=variant.label, requested=requested)


def cut_of(plan: WheelPlan, variant: VariantPlan, wheel: PlannedWheel) -> JobCut | None:
    """How a wheel of a variant is cut; None where it stays as it is."""
    gpu = variant.cut_for
    return plan.options.cut_for(gpu) if gpu and wheel.treatment is Treatment.CUT else None


def split_beside(plan: WheelPlan, variant: VariantPlan, wheel: PlannedWheel) -> tuple[SplitWheel, ...]:
    """Of torch, where it is split: NVIDIA's libraries that are split too, whose packs its extras bring."""
    if wheel.name != "torch" or not plan.options.cut.split or cut_of(plan, variant, wheel) is None:
        return ()
    others = sorted((wheel for wheel in variant.wheels if wheel.name.startswith("nvidia-")), key=lambda one: one.name)
    return tuple(
        SplitWheel(other.name, other.file.key, other.file.filename) for other in others if cut_of(plan, variant, other)
    )


def _prove_seconds(variant: VariantPlan) -> float:
    """By the bytes to verify: host code takes ten times as long as all else."""
    compiled = sum(wheel.size for wheel in variant.wheels if not wheel.file.filename.endswith("-none-any.whl"))
    host = compiled * (HOST_SHARE if variant.variant.gpu else 1.0)
    return variant.output_size / _PROVED + host / _READ_CODE


def _cut_seconds(size: int, gpus: int, rates: Rates) -> float:
    """Half of the work for one GPU is done once for all: reading the wheel and finding its code."""
    return size * (1 + gpus) / (2 * rates.cut)


def _pieces(gpus: Sequence[str], wanted: int) -> Iterator[tuple[str, ...]]:
    """The GPUs in so many pieces of about the same length."""
    count = max(1, min(wanted, len(gpus)))
    for number in range(count):
        yield tuple(gpus[number::count])

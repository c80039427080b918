"""Level 3: the op suite on the GPU, bit for bit against stock, and what it costs to start and to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torchtailor.advise.host.model import GpuDevice, Host
from torchtailor.catalog import Capability, Catalog, Fit
from torchtailor.core.errors import CheckFailedError
from torchtailor.core.format import human_bytes
from torchtailor.trees.artifact.launch import Launch, NotFinishedError
from torchtailor.verification.compare import CaseVerdict, Comparison, compare, fails_in_stock, usable_runs
from torchtailor.verification.imports import run_suite, suite_check
from torchtailor.verification.inspection.torch_code import MAIN_LIBRARY, TorchCode, read_torch, suitable_gpus
from torchtailor.verification.measures import Measures, Ratio, measure, ratios
from torchtailor.verification.result import Check, Level
from torchtailor.verification.suite_results import SuiteResults

# A build that does the same work with the same kernels is called slower from this much beyond the noise.
SLOWER = 0.10
_SHOWN = 5
_GPU_NAME = "GPU of this machine"
# Topics of notes that say why a machine has no GPU to offer.
_NO_GPU = frozenset({"no-gpu", "unsupported-gpu", "no-driver", "container-without-gpu"})

Progress = Callable[[str], None]


def verify_on_gpu(
    launch: Launch,
    host: Host,
    catalog: Catalog,
    *,
    wanted: Sequence[Capability] = (),
    against: Launch | None = None,
    timing: bool = True,
    progress: Progress | None = None,
) -> tuple[Check, ...]:
    """All checks of level 3; `against` is the stock build, `timing` measures starts and throughput too."""
    say = progress or (lambda _: None)
    torch = launch.torch_folder()
    if torch is None:
        reason = "there is no torch to run"
        return (Check.of(Level.GPU, "op suite", False, reason),)
    say("Reading GPU code")
    present = presence_checks(host, read_torch(torch), catalog, wanted)
    if not any(check.outcome.value == "pass" for check in present):
        return (*present, Check.not_applicable(Level.GPU, "op suite", "no GPU of this machine runs this torch"))
    say("Running the op suite on the GPU")
    results = run_suite(launch, "cuda")
    stock: tuple[SuiteResults, ...] = ()
    if against is not None:
        say("Running the op suite on the stock build, twice")
        stock = (run_suite(against, "cuda"), run_suite(against, "cuda"))
    comparison = compare(stock, results) if usable_runs(stock) else None
    checks = [*present, *gpu_checks(results, stock)]
    checks += comparison_checks(comparison) if comparison else ()
    unusable = [run.unusable for run in stock if run.unusable is not None]
    checks += [stock_not_run(unusable[0])] if unusable else ()
    if timing and results.unusable is None:
        say("Measuring starts and throughput")
        builds = {"this": launch, **({"stock": against} if against is not None and not unusable else {})}
        try:
            both = measure(builds, "cuda")
        except (CheckFailedError, NotFinishedError) as error:
            checks.append(Check.of(Level.GPU, "start and throughput", False, error.message))
        else:
            checks += measure_checks(both["this"], both.get("stock"))
    return tuple(checks)


def stock_not_run(why: str) -> Check:
    """The line for a stock build that does not run here, which says nothing of the target."""
    return Check.not_applicable(Level.GPU, "as stock", f"the stock build could not be run: {why.rstrip('.')}")


def presence_checks(
    host: Host, code: TorchCode, catalog: Catalog, wanted: Sequence[Capability] = ()
) -> tuple[Check, ...]:
    """One line for each visible GPU: whether this torch has code for it, and what would work where it has not."""
    if code.main is None:
        reason = f"this torch has no {MAIN_LIBRARY}: it was built without CUDA"
        return (Check.not_applicable(Level.GPU, _GPU_NAME, reason),)
    devices = [device for device in host.visible_gpus if device.compute is not None]
    if not devices:
        return (Check.not_applicable(Level.GPU, _GPU_NAME, _why_no_gpu(host, code, catalog)),)
    return tuple(_device_check(device, code, catalog, wanted) for device in devices)


def _why_no_gpu(host: Host, code: TorchCode, catalog: Catalog) -> str:
    hidden = [gpu.label for gpu in host.gpus if not gpu.visible]
    if hidden:
        return f"{', '.join(hidden)} is hidden by CUDA_VISIBLE_DEVICES={host.cuda_visible_devices}"
    notes = [note.text.rstrip(".") for note in host.notes if note.topic in _NO_GPU]
    why = "; ".join(notes) or "there is no NVIDIA GPU in this machine"
    return f"{why}; this torch runs on {suitable_gpus(code.targets, catalog)}"


def _device_check(device: GpuDevice, code: TorchCode, catalog: Catalog, wanted: Sequence[Capability]) -> Check:
    assert device.compute is not None
    fit = code.fit(device.compute, catalog)
    assert fit is not None
    name = _GPU_NAME if device.index == 0 else f"{_GPU_NAME} ({device.index})"
    held = ", ".join(map(str, code.targets)) or "nothing"
    what = f"{device.name} ({device.compute})"
    details = {"gpu": device.name, "capability": str(device.compute), "code": [str(target) for target in code.targets]}
    if not fit.fit.runs and code.runs_from_packs(device.compute, catalog):
        return Check.of(Level.GPU, name, True, f"{what} runs this torch: its code is in packs", **details)
    if not fit.fit.runs:
        reason = (
            f"{what} runs none of the code in this torch ({held}): every kernel would fail with 'no kernel image is "
            f"available'. It runs on {suitable_gpus(code.targets, catalog)}; for this GPU tailor the stock torch with "
            f"--gpu {device.compute}"
        )
        return Check.of(Level.GPU, name, False, reason, **details)
    empty = code.empty_for(device.compute, catalog)
    details["libraries_without_code"] = list(empty)
    reason = f"{what} runs this torch: {fit.verdict}"
    if wanted and device.compute not in wanted:
        reason += f" (the variant is for {', '.join(map(str, wanted))})"
    if fit.fit is Fit.JIT:
        reason += "; the driver compiles each kernel at its first use, which takes minutes once"
    if empty:
        libraries = "1 library holds" if len(empty) == 1 else f"{len(empty)} libraries hold"
        reason += f"; {libraries} nothing for it: {', '.join(Path(one).name for one in empty[:4])}"
    return Check.of(Level.GPU, name, True, reason, **details)


def gpu_checks(results: SuiteResults, stock: Sequence[SuiteResults] = ()) -> Iterator[Check]:
    """One line for each library: its cases against their references.

    What fails in stock in the same way is the GPU's or torch's, not this build's, and does not count against it.
    """
    if results.unusable is not None:
        yield Check.of(Level.GPU, "op suite", False, f"The GPU cannot be used: {results.unusable}")
        return
    inherited = [case.name for case in results.cases if case.applies and fails_in_stock(case, stock)]
    for library in results.libraries:
        cases = tuple(case for case in results.of(library) if case.name not in inherited)
        if cases:
            yield suite_check(Level.GPU, f"GPU ops ({library})", cases)
    if inherited:
        reason = f"{len(inherited)} cases fail in the stock build too: {', '.join(inherited[:_SHOWN])}"
        yield Check.not_applicable(Level.GPU, "GPU ops that stock fails", reason, cases=inherited)


def comparison_checks(comparison: Comparison) -> Iterator[Check]:
    """One line for each library: its cases bit for bit against stock."""
    for library in comparison.libraries:
        cases = comparison.of(library)
        counts = {verdict.value: sum(case.verdict is verdict for case in cases) for verdict in CaseVerdict}
        summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        bad = [case for case in cases if case.verdict.bad]
        name = f"as stock ({library})"
        details: dict[str, Any] = {"verdicts": counts, "bad": [[case.name, case.reason] for case in bad]}
        if bad:
            named = "; ".join(f"{case.name}: {case.reason}" for case in bad[:_SHOWN])
            yield Check.of(Level.GPU, name, False, f"{summary}: {named}", **details)
        elif counts[CaseVerdict.IDENTICAL.value] or counts[CaseVerdict.CLOSE.value]:
            yield Check.of(Level.GPU, name, True, summary, **details)
        else:
            yield Check.not_applicable(Level.GPU, name, f"{summary}: {cases[0].reason}", **details)


def measure_checks(measured: Measures, stock: Measures | None) -> Iterator[Check]:
    """Lines for start, memory and throughput; held against stock where there is one."""
    for state in ("cold", "warm"):
        figures = getattr(measured, state)
        if not figures:
            continue
        shown = ", ".join(f"{name} {_show(name, figure.median)}" for name, figure in figures.items())
        compared = ratios(getattr(stock, state), figures) if stock else ()
        reason = _compared(compared) if compared else shown
        yield Check.of(Level.GPU, f"start, {state}", True, reason, **_details(compared), caches=measured.caches)
    if not measured.throughput:
        return
    if stock is None:
        shown = ", ".join(f"{name} {figure.median * 1e6:.0f} us" for name, figure in measured.throughput.items())
        yield Check.of(Level.GPU, "throughput", True, f"{shown} a call")
        return
    compared = ratios(stock.throughput, measured.throughput)
    slow = [ratio for ratio in compared if ratio.value > 1 + ratio.noise + SLOWER]
    reason = _compared(slow or compared)
    if slow:
        reason += ": slower than the noise explains; for information, since other work on the machine does that too"
    yield Check.of(Level.GPU, "throughput", True, reason, **_details(compared), slower=[ratio.name for ratio in slow])


def _compared(compared: Sequence[Ratio]) -> str:
    return ", ".join(f"{ratio.name} {ratio.value:.2f} x stock (noise {ratio.noise:.0%})" for ratio in compared)


def _details(compared: Sequence[Ratio]) -> dict[str, Any]:
    return {
        "ratios": {
            ratio.name: {"stock": ratio.stock, "tailored": ratio.tailored, "ratio": ratio.value, "noise": ratio.noise}
            for ratio in compared
        }
    }


def _show(name: str, value: float) -> str:
    return human_bytes(value) if "memory" in name else f"{value:.2f} s"

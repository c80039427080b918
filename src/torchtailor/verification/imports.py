"""Level 2: torch is imported in a fresh process, reports what it is, and computes correctly on the CPU."""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchtailor.catalog.makers import maker_of
from torchtailor.core.format import human_bytes
from torchtailor.trees.artifact.launch import FinishedProcess, Launch, NotFinishedError, op_suite
from torchtailor.verification.failures.process import how_it_ended, missing_dependency
from torchtailor.verification.result import Check, Level
from torchtailor.verification.suite_results import FORMAT, CaseResult, SuiteResults, load_results

STARTS = 3
IMPORT_SECONDS = 300.0
SUITE_SECONDS = 1800.0
_SHOWN = 5
_CUDA_IN_CONFIGURATION = re.compile(r"(?:CUDA Runtime |\bCUDA_VERSION=)(\d+\.\d+)")

Progress = Callable[[str], None]


def verify_imports(launch: Launch, progress: Progress | None = None, *, only: str = "") -> tuple[Check, ...]:
    """All checks of level 2; `only` restricts the op suite to cases whose name contains it."""
    return tuple(_verify(launch, progress or (lambda _: None), only))


def _verify(launch: Launch, progress: Progress, only: str) -> Iterator[Check]:
    progress("Importing torch")
    try:
        with op_suite(launch.root) as folder:
            starts = _starts(launch, folder / "importing.py")
        refused = _refused(launch, starts)
    except NotFinishedError as error:
        refused = Check.of(Level.IMPORT, "import torch", False, error.message)
    if launch.root is not None and (refused is None or refused.failed):
        reason = f"{launch.root.name} in {launch.root.folder}, not this machine's own"
        yield Check.of(Level.IMPORT, "system", True, reason, root=str(launch.root.folder), name=launch.root.name)
    if refused is not None:
        yield refused
        return
    infos = [ran.answer for ran in starts if ran.answer is not None]
    info = infos[0]
    yield Check.of(
        Level.IMPORT, "import torch", True, f"torch {info['version']} from {Path(info['file']).parent}", **_facts(info)
    )
    yield _versions(info)
    yield _configuration(info)
    yield _costs(infos)
    progress("Computing on the CPU")
    yield from cpu_checks(run_suite(launch, "cpu", only=only))


def _starts(launch: Launch, script: Path) -> list[FinishedProcess]:
    """The first import, and where that went well some more."""
    first = launch.run([script], timeout=IMPORT_SECONDS)
    more = STARTS - 1 if first.answer is not None else 0
    return [first, *(launch.run([script], timeout=IMPORT_SECONDS) for _ in range(more))]


def _refused(launch: Launch, starts: list[FinishedProcess]) -> Check | None:
    """Why torch is not imported, or not each time; None where it is."""
    failed = [ran for ran in starts if ran.answer is None]
    if not failed:
        return None
    if len(starts) == 1:
        return _not_imported(launch, failed[0])
    return _failed_import(failed[0], f"{len(failed)} of {len(starts)} imports failed. ")


def run_suite(launch: Launch, device: str, *, only: str = "", keep: Path | None = None) -> SuiteResults:
    """Run the op suite in the target's Python; `keep` is where its result file stays."""
    shared = launch.root.shared if launch.root else None
    with tempfile.TemporaryDirectory(prefix="torchtailor-", dir=shared) as name, op_suite(launch.root) as folder:
        out = keep or Path(name, "results.json")
        options = ["--device", device, "--out", str(out.absolute()), "--only", only, "--quiet"]
        try:
            ran = launch.run([folder / "suite.py", *options], timeout=SUITE_SECONDS)
        except NotFinishedError as error:
            return SuiteResults(FORMAT, {}, error.message, ())
        if not out.is_file():
            return SuiteResults(FORMAT, {}, f"the op suite could not be run: {ran.last_words}", ())
        return load_results(out)


def cpu_checks(results: SuiteResults) -> Iterator[Check]:
    """One line for each kind of work; a wrong number anywhere in it fails it."""
    if results.unusable is not None:
        yield Check.of(Level.IMPORT, "CPU ops", False, results.unusable)
        return
    gpu_only = 0
    for library in results.libraries:
        cases = results.of(library)
        if any(case.applies for case in cases):
            yield suite_check(Level.IMPORT, f"CPU ops ({_KINDS.get(library, library)})", cases)
        else:
            gpu_only += len(cases)
    if gpu_only:
        reason = f"{gpu_only} cases are for libraries of the GPU only"
        yield Check.not_applicable(Level.IMPORT, "CPU ops (GPU libraries)", reason)


# On the CPU other libraries do the work that a GPU library's cases exercise.
_KINDS = {
    "aten": "kernels of torch",
    "cublas": "matrix products",
    "cublaslt": "linear layers",
    "cudnn": "convolutions and recurrent networks",
    "cufft": "Fourier transforms",
    "cusolver": "linear algebra",
    "cusparse": "sparse matrices",
    "flash-attention": "attention",
    "efficient-attention": "masked attention",
    "nvrtc": "special functions",
}


def suite_check(level: Level, name: str, cases: tuple[CaseResult, ...]) -> Check:
    """One line for many cases of the suite, with the failed ones named."""
    failed = [case for case in cases if case.outcome == "fail"]
    passed = sum(case.passed for case in cases)
    skipped = [case for case in cases if not case.applies]
    details: dict[str, Any] = {"passed": passed, "failed": [[case.name, case.reason] for case in failed]}
    if skipped:
        details["not_applicable"] = [[case.name, case.reason] for case in skipped]
    if failed:
        named = "; ".join(f"{case.name}: {case.reason}" for case in failed[:_SHOWN])
        more = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        return Check.of(level, name, False, f"{len(failed)} of {len(failed) + passed} failed: {named}{more}", **details)
    if not passed:
        reasons = "; ".join(dict.fromkeys(case.reason for case in skipped))
        return Check.not_applicable(level, name, reasons, **details)
    worst = max((case.error / case.limit for case in cases if _measured(case)), default=0.0)  # type: ignore[operator]
    apart = f", {len(skipped)} do{'es' if len(skipped) == 1 else ''} not apply" if skipped else ""
    agree = "1 case agrees with its reference" if passed == 1 else f"{passed} cases agree with their references"
    reason = f"{agree}{apart}; the worst uses {worst:.0%} of its tolerance"
    return Check.of(level, name, True, reason, **details)


def _measured(case: CaseResult) -> bool:
    return case.passed and isinstance(case.error, float) and bool(case.limit)


def _not_imported(launch: Launch, ran: FinishedProcess) -> Check:
    missing = missing_dependency(ran)
    # a bare system is asked whether a wheel brings its libraries: only NVIDIA's come in other wheels
    own = launch.root is not None and missing is not None and ".so" in missing and maker_of(missing) is None
    if missing is not None and not launch.whole and not own:
        reason = f"torch needs {missing}, which is not included: verify an environment with all dependencies"
        return Check.not_applicable(Level.IMPORT, "import torch", reason)
    return _failed_import(ran)


def _failed_import(ran: FinishedProcess, how_often: str = "") -> Check:
    details = {"stderr": ran.errors[-4000:], "exit_code": ran.code}
    return Check.of(Level.IMPORT, "import torch", False, f"{how_often}{how_it_ended(ran)}", **details)


def _facts(info: dict[str, Any]) -> dict[str, Any]:
    return {key: info[key] for key in ("version", "git_commit", "cuda", "python", "cpu_capability", "arch_list")}


def _versions(info: dict[str, Any]) -> Check:
    """The version that torch reports must be that of its metadata, local label apart."""
    version, installed = info["version"], info["installed_version"]
    if installed is None:
        return Check.not_applicable(Level.IMPORT, "versions", "torch has no package metadata")
    same = version.split("+")[0] == installed.split("+")[0]
    reason = f"torch reports {version}, {'as' if same else 'but'} its metadata has {installed}"
    return Check.of(Level.IMPORT, "versions", same, reason, torch=version, metadata=installed)


def _configuration(info: dict[str, Any]) -> Check:
    """torch.__config__ must name the CUDA that torch.version names; without a GPU only its build settings do."""
    shown, cuda = info["configuration"], info["cuda"]
    agrees = bool(shown.strip()) and set(_CUDA_IN_CONFIGURATION.findall(shown)) == ({cuda} if cuda else set())
    kernels = f"CPU kernels for {info['cpu_capability']}, {info['threads']} threads"
    reason = f"{'CUDA ' + cuda if cuda else 'no CUDA'}; {kernels}"
    if not agrees:
        reason = f"torch.__config__ does not agree with torch.version.cuda ({cuda})"
    return Check.of(Level.IMPORT, "configuration", agrees, reason, configuration=shown, parallel=info["parallel"])


def _costs(starts: list[dict[str, Any]]) -> Check:
    seconds = statistics.median(start["seconds"] for start in starts)
    resident = int(statistics.median(start["resident"] for start in starts))
    return Check.of(
        Level.IMPORT,
        "time and memory",
        True,
        f"importing takes {seconds:.2f} s and {human_bytes(resident)} (median of {len(starts)})",
        import_seconds=[start["seconds"] for start in starts],
        resident_bytes=[start["resident"] for start in starts],
    )

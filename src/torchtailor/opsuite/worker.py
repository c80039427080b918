"""Runs cases in this process and writes one JSON line for each; `suite.py` watches over it."""

from __future__ import annotations

import contextlib
import json
import platform
import sys
import time
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import torch

from .case import REGISTRY, Case, NotApplicable, SuiteMachine
from .judge import HashedOutput, describe, flatten, relative_error
from .sites import Site

BROKEN_DEVICE = 75  # exit code: the device no longer answers in this process, go on in a fresh one
SEED = 20_260


class CaseJournal:
    """The lines written so far; flushed at once, since any case may end the process."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, kind: str, value: Any) -> None:
        self._file.write(json.dumps({kind: value}) + "\n")
        self._file.flush()


def main(device: str, journal_path: str, containing: str, done: Iterable[str]) -> int:
    """Run all selected cases that are not done; returns the exit code of the process."""
    warnings.simplefilter("ignore")
    finished = set(done)
    with Path(journal_path).open("a", encoding="utf-8") as file:
        journal = CaseJournal(file)
        journal.write("environment", environment(device))
        if (reason := _unusable(device)) is not None:
            journal.write("unusable", reason)
        from . import cases as _all  # noqa: F401  (fills the registry)

        selected = REGISTRY.select(containing=containing)
        journal.write("cases", [{"name": case.name, "library": case.library} for case in selected])
        if reason is not None:
            return 0
        machine = SuiteMachine.current(device)
        for case in selected:
            if case.name in finished:
                continue
            journal.write("started", case.name)
            result = evaluate(case, machine)
            journal.write("result", result)
            if result["outcome"] == "fail" and _unusable(device) is not None:
                return BROKEN_DEVICE
    return 0


def evaluate(case: Case, machine: SuiteMachine) -> dict[str, Any]:
    """Run a case twice, compare the two runs and the reference; never raises."""
    result: dict[str, Any] = {"name": case.name, "library": case.library}
    if (reason := case.why_not(machine)) is not None:
        return {**result, "outcome": "not-applicable", "reason": reason}
    try:
        first, first_seconds = _run(case, machine.device)
        hashes = [describe(tensor) for tensor in flatten(first)]
        again, again_seconds = _run(case, machine.device)
        repeated = [describe(tensor) for tensor in flatten(again)] == hashes
        error = _error(case, machine.device, first)
    except NotApplicable as unfit:
        return {**result, "outcome": "not-applicable", "reason": str(unfit)}
    except Exception as failure:  # a case may fail in any way, and the rest must still run
        if case.refused(failure):
            return {**result, "outcome": "not-applicable", "reason": _sentence(failure)}
        return {**result, "outcome": "fail", "reason": _sentence(failure), "exception": type(failure).__name__}
    limit = case.tolerance.limit(case.dtype)
    close = error <= limit
    return {
        **result,
        "outcome": "pass" if close else "fail",
        "reason": "" if close else f"differs from the reference by {error:.2g}, at most {limit:.2g} is right",
        "deterministic": repeated and not case.timed_choice,
        "error": error if error != float("inf") else "inf",
        "limit": limit,
        "seconds": [round(first_seconds, 6), round(again_seconds, 6)],
        "outputs": _as_rows(hashes),
    }


def _run(case: Case, device: str) -> tuple[Any, float]:
    seed = SEED + zlib.crc32(case.name.encode()) % 1_000_000
    torch.manual_seed(seed)
    started = time.perf_counter()
    outputs = case.run(Site(device, case.dtype, seed))
    if device == "cuda":
        torch.cuda.synchronize()
    return outputs, time.perf_counter() - started


def _error(case: Case, device: str, outputs: Any) -> float:
    seed = SEED + zlib.crc32(case.name.encode()) % 1_000_000
    torch.manual_seed(seed)
    site = Site(device, case.dtype, seed, reference=True)
    expected = (case.reference or case.run)(site)
    if device == "cpu" and case.reference is None and not site.differs:
        raise NotApplicable("no independent reference: on the CPU it would be the same computation")
    if case.derive is not None:
        outputs = case.derive(outputs)
        expected = expected if case.reference else case.derive(expected)
    return relative_error(list(flatten(outputs)), list(flatten(expected)))


def _as_rows(outputs: Iterable[HashedOutput]) -> list[dict[str, Any]]:
    return [{**asdict(output), "shape": list(output.shape)} for output in outputs]


def _sentence(failure: BaseException) -> str:
    """The first lines of a message; CUDA's go on with advice about debugging."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return " ".join(lines[:3])[:500] or type(failure).__name__


def _unusable(device: str) -> str | None:
    """Why the device cannot run anything at all, from the simplest kernel there is."""
    if device == "cpu":
        return None
    try:
        if not torch.cuda.is_available():
            torch.cuda.init()  # says why
        total = (torch.ones(64, device=device) + 1).sum().item()
    except Exception as failure:
        return _sentence(failure)
    return None if total == 128 else f"adding 1 to 64 ones on the GPU gave {total}"


def environment(device: str) -> dict[str, Any]:
    """What is being tested: torch, its libraries, the device."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "torch_file": torch.__file__,
        "git_commit": torch.version.git_version,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "device": device,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    with contextlib.suppress(Exception):
        facts["cudnn"] = torch.backends.cudnn.version()
    if device != "cpu":
        with contextlib.suppress(Exception):
            properties = torch.cuda.get_device_properties(0)
            facts["gpu"] = properties.name
            facts["capability"] = f"{properties.major}.{properties.minor}"
            facts["arch_list"] = torch.cuda.get_arch_list()
        with contextlib.suppress(Exception):
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return facts

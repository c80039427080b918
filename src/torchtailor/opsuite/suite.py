"""Runs the op suite in a child process, and in a fresh one again after a crash; writes one JSON file.

Standard library only, and run by its path in an environment that has torch: see this folder's `__init__.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = "torchtailor_opsuite"
FORMAT = 1
BROKEN_DEVICE = 75
STARTUP_SECONDS = 300.0


@dataclass
class State:
    """What is in the workers' journal so far."""

    environment: dict[str, Any] = field(default_factory=dict)
    unusable: str | None = None
    cases: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: str | None = None
    workers: int = 0

    def read(self, journal: Path) -> None:
        """Take in every whole line of the journal."""
        self.running, self.unusable, self.workers = None, None, 0
        for line in journal.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # cut off by a crash
            if "environment" in entry:
                self.environment = entry["environment"]
                self.workers += 1
            elif "unusable" in entry:
                self.unusable = entry["unusable"]
            elif "cases" in entry:
                self.cases = {case["name"]: case["library"] for case in entry["cases"]}
            elif "started" in entry:
                self.running = entry["started"]
            else:
                self.results[entry["result"]["name"]] = entry["result"]
                self.running = None

    @property
    def missing(self) -> list[str]:
        return [name for name in self.cases if name not in self.results]


def load_package() -> None:
    """Make this folder importable as a package of its own, without its modules' names on the path."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    spec = importlib.util.spec_from_file_location(PACKAGE, HERE / "__init__.py", submodule_search_locations=[str(HERE)])
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


def work(options: argparse.Namespace) -> int:
    load_package()
    from importlib import import_module

    done = json.loads(Path(options.done).read_text(encoding="utf-8"))
    code: int = import_module(f"{PACKAGE}.worker").main(options.device, options.journal, options.only, done)
    return code


def supervise(options: argparse.Namespace) -> int:
    started = time.perf_counter()
    state = State()
    crashes: list[str] = []
    said: dict[str, None] = {}
    with tempfile.TemporaryDirectory(prefix="opsuite-") as folder:
        journal, done, errors = (Path(folder, name) for name in ("journal", "done", "stderr"))
        journal.touch()
        while True:
            before = len(state.results)
            done.write_text(json.dumps(sorted(state.results)), encoding="utf-8")
            ended = _run_worker(options, journal, done, errors, state)
            state.read(journal)
            said |= dict.fromkeys(_own_lines(errors))
            if state.running is not None:
                _fail(state, state.running, ended or "the process ended in the middle of this case")
                _append(journal, state.results[state.running])
                crashes.append(f"{state.running}: {ended}")
            if state.unusable is not None:
                for name in state.missing:
                    _fail(state, name, f"the device cannot be used: {state.unusable}")
            if state.cases and not state.missing:
                break
            if len(state.results) == before:  # it dies before it gets to a case
                text = errors.read_text(encoding="utf-8", errors="replace").strip()
                state.unusable = f"{ended or 'the suite could not start'}: {_tail(text)}"
                for name in state.missing:
                    _fail(state, name, state.unusable)
                break
    _write(options.out, state, crashes, time.perf_counter() - started)
    counts = _counts(state)
    sys.stderr.writelines(f"{line}\n" for line in said)
    sys.stderr.write("op suite: " + ", ".join(f"{number} {word}" for word, number in counts.items()) + "\n")
    return 1 if counts["fail"] or not state.cases else 0


def _own_lines(errors: Path) -> list[str]:
    """What the hook of a cut library said of GPU code that is not there."""
    lines = errors.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.startswith("torchtailor:")]


def _run_worker(options: argparse.Namespace, journal: Path, done: Path, errors: Path, state: State) -> str | None:
    """Start a worker and wait for it; returns how it ended where that was not by itself."""
    command = [sys.executable, str(HERE / "suite.py"), "--device", options.device, "--only", options.only]
    command += ["--journal", str(journal), "--done", str(done)]
    # Code compiled by an earlier run must not stand in for code that this one cannot compile.
    caches = {name: str(journal.parent / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    environment = {**os.environ, **caches, "USE_PYTORCH_KERNEL_CACHE": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environment) as worker,
    ):
        seen, last_change = -1, time.monotonic()
        while worker.poll() is None:
            time.sleep(0.05)
            size = journal.stat().st_size
            if size != seen:
                seen, last_change = size, time.monotonic()
                state.read(journal)
                _show(state, options.quiet)
            waited = time.monotonic() - last_change
            limit = options.case_timeout if state.running else max(options.case_timeout, STARTUP_SECONDS)
            if waited > limit:
                worker.kill()
                worker.wait()
                return f"stopped after {limit:.0f} s without an answer"
    code = worker.returncode
    if code in (0, BROKEN_DEVICE):
        return None
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}"


def _show(state: State, quiet: bool) -> None:
    if not quiet and state.cases and sys.stderr.isatty():
        sys.stderr.write(f"\r{len(state.results)}/{len(state.cases)} {(state.running or '')[:60]:60}\r")
        sys.stderr.flush()


def _fail(state: State, name: str, reason: str) -> None:
    state.results[name] = {"name": name, "library": state.cases.get(name, ""), "outcome": "fail", "reason": reason}


def _append(journal: Path, result: dict[str, Any]) -> None:
    with journal.open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps({"result": result}) + "\n")


def _tail(text: str) -> str:
    return " ".join(text.splitlines()[-3:])[-600:] or "it printed nothing"


def _counts(state: State) -> dict[str, int]:
    outcomes = [result["outcome"] for result in state.results.values()]
    return {word: outcomes.count(word) for word in ("pass", "fail", "not-applicable")}


def _write(out: str, state: State, crashes: list[str], seconds: float) -> None:
    document = {
        "format": FORMAT,
        "environment": state.environment,
        "unusable": state.unusable,
        "counts": _counts(state),
        "workers": state.workers,
        "crashes": crashes,
        "seconds": round(seconds, 3),
        "cases": [state.results[name] for name in state.cases],
    }
    beside = Path(f"{out}.part")
    beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    beside.replace(out)


def main() -> int:
    parser = argparse.ArgumentParser(prog="suite.py", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--out", help="the JSON file to write")
    parser.add_argument("--only", default="", help="run only cases whose name contains this")
    parser.add_argument("--case-timeout", type=float, default=180.0, help="seconds for one case (180)")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--journal", help=argparse.SUPPRESS)
    parser.add_argument("--done", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.journal:
        return work(options)
    if not options.out:
        parser.error("--out is needed")
    return supervise(options)


if __name__ == "__main__":
    sys.exit(main())

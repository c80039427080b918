"""How quickly torch starts, how much memory it takes and how fast it is, cold and warm, with the noise."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtailor.core.errors import CheckFailedError
from torchtailor.trees.artifact.launch import Launch, op_suite

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
# Numbers of one start, by their place in what measure.py prints.
START_FIGURES = {
    "import time, s": ("import_seconds",),
    "first kernel, s": ("first_kernel_seconds",),
    "first use of libraries, s": ("libraries_seconds",),
    "host memory after import (RSS)": ("imported", "rss"),
    "host memory after libraries (RSS)": ("libraries", "rss"),
    "host memory after libraries (PSS)": ("libraries", "pss"),
    "device memory after first kernel": ("first_kernel", "device"),
    "device memory after libraries": ("libraries", "device"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: every value that was seen."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def noise(self) -> float:
        """Half the distance between the largest and the smallest, relative to the median."""
        return (max(self.values) - min(self.values)) / 2 / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Measures:
    """What was measured of one build: starts cold and warm, and seconds per call of a few ops."""

    cold: Mapping[str, Figure]
    warm: Mapping[str, Figure]
    throughput: Mapping[str, Figure]
    caches: str  # how the cold starts were made cold


@dataclass(frozen=True, slots=True)
class Ratio:
    """A quantity of the tailored build relative to stock, with the noise of both together."""

    name: str
    stock: float
    tailored: float
    noise: float

    @property
    def value(self) -> float:
        return self.tailored / self.stock if self.stock else float("nan")


def measure(
    builds: Mapping[str, Launch], device: str, *, cold: int = 3, warm: int = 5, throughput: int = 2
) -> dict[str, Measures]:
    """Start each build several times in each state, in turn, so that a drift of the machine falls on all alike.

    `throughput` processes of each build time a few ops many times.
    """
    how = "not measured"
    seen: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {"cold": [], "warm": [], "throughput": []} for name in builds
    }
    with op_suite(next(iter(builds.values())).root) as folder:
        script = folder / "measure.py"
        libraries = {name: _libraries(launch) for name, launch in builds.items()} if cold else {}
        for _ in range(cold):
            for name, launch in builds.items():
                how = drop_caches(libraries[name])
                seen[name]["cold"].append(_start(launch, script, device))
        for turn in range(warm + 1 if warm else 0):
            for name, launch in builds.items():
                started = _start(launch, script, device)
                if turn:  # the first one fills the page cache
                    seen[name]["warm"].append(started)
        for _ in range(throughput):
            for name, launch in builds.items():
                seen[name]["throughput"].append(_start(launch, script, device, "--throughput")["throughput"])
    return {
        name: Measures(_figures(runs["cold"]), _figures(runs["warm"]), _throughput(runs["throughput"]), how)
        for name, runs in seen.items()
    }


def ratios(stock: Mapping[str, Figure], tailored: Mapping[str, Figure]) -> tuple[Ratio, ...]:
    """Each quantity that both have."""
    return tuple(
        Ratio(name, stock[name].median, tailored[name].median, stock[name].noise + tailored[name].noise)
        for name in stock
        if name in tailored
    )


def drop_caches(files: Iterable[Path]) -> str:
    """Drop files from the page cache; returns how it was done."""
    try:
        os.sync()
        DROP_CACHES.write_text("3\n")
    except OSError:
        for path in files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return "posix_fadvise on the libraries"
    return "drop_caches"


def _libraries(launch: Launch) -> list[Path]:
    """Every shared library beside torch: its own and NVIDIA's."""
    torch = launch.torch_folder()
    if torch is None:
        return []
    folders = [torch, torch.parent / "nvidia", torch.parent / "triton"]
    return [path for folder in folders for path in folder.rglob("*.so*") if path.is_file()]


def _start(launch: Launch, script: Path, device: str, *more: str) -> dict[str, Any]:
    ran = launch.run([script, "--device", device, *more], timeout=300)
    if ran.answer is None:
        raise CheckFailedError(f"torch could not be measured: {ran.last_words}.", "Run the op suite to see what fails.")
    return ran.answer


def _figures(starts: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for name, place in START_FIGURES.items():
        values = [_at(start, place) for start in starts]
        known = tuple(value for value in values if value is not None)
        if known:
            found[name] = Figure(known)
    return found


def _throughput(runs: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    names = runs[0] if runs else ()
    return {name: Figure(tuple(run[name]["seconds"] for run in runs)) for name in names}


def _at(start: Mapping[str, Any], place: Sequence[str]) -> float | None:
    value: Any = start
    for key in place:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if value is not None else None

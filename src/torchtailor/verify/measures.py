"""How quickly torch starts, how much memory it takes and how fast it is, cold and warm, with the noise."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.errors import CheckFailedError
from torchtailor.verify.launch import Launch, op_suite

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

    @property
    def within_noise(self) -> bool:
        return abs(self.value - 1) <= max(self.noise, 0.02)


def measure(launch: Launch, device: str, *, cold: int = 3, warm: int = 5, throughput: int = 2) -> Measures:
    """Start torch several times in each state; `throughput` processes each time a few ops many times."""
    with op_suite() as folder:
        script = folder / "measure.py"
        libraries = _libraries(launch) if cold else []
        states = []
        for _ in range(cold):
            caches = drop_caches(libraries)
            states.append(_start(launch, script, device))
        _start(launch, script, device)  # fills the page cache
        warm_starts = [_start(launch, script, device) for _ in range(warm)]
        timed = [_start(launch, script, device, "--throughput")["throughput"] for _ in range(throughput)]
    return Measures(
        cold=_figures(states),
        warm=_figures(warm_starts),
        throughput={name: Figure(tuple(run[name]["seconds"] for run in timed)) for name in (timed[0] if timed else ())},
        caches=caches if cold else "not measured",
    )


def ratios(stock: Mapping[str, Figure], tailored: Mapping[str, Figure]) -> tuple[Ratio, ...]:
    """Each quantity that both have."""
    return tuple(
        Ratio(name, stock[name].median, tailored[name].median, stock[name].noise + tailored[name].noise)
        for name in stock
        if name in tailored
    )


def drop_caches(files: Iterable[Path]) -> str:
    """Take files out of the page cache; says how."""
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
    if ran.code:
        raise CheckFailedError(f"torch could not be measured: {ran.last_words}.", "Run the op suite to see what fails.")
    result: dict[str, Any] = msgspec.json.decode(ran.output)
    return result


def _figures(starts: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for name, place in START_FIGURES.items():
        values = [_at(start, place) for start in starts]
        known = tuple(value for value in values if value is not None)
        if known:
            found[name] = Figure(known)
    return found


def _at(start: Mapping[str, Any], place: Sequence[str]) -> float | None:
    value: Any = start
    for key in place:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if value is not None else None

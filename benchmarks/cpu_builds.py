"""Two builds of torch on this CPU, side by side: `python benchmarks/cpu_builds.py OFFICIAL/bin/python OWN/bin/python`.

Both are asked for every case of benchmarks/cpu_ops.py in turn, so that whatever else the machine does falls on both.
The ratio of a case is the median of the ratios of its turns; below 1 means that the second build is faster. `±` is half
the distance between the quartiles of these ratios; of starts, which are few, half the range. Both are started anew
several times, since the layout of memory differs from one process to the next.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torchtailor.trees.artifact.launch import Launch
from torchtailor.verification.measures import measure, ratios

OPS = Path(__file__).with_name("cpu_ops.py")
SLOWER = 1.05


class Child:
    """A process with one build, which times cases on request; where a case ends it, the next one starts it anew.

    It is stopped between its turns: the threads of LLVM's OpenMP spin for 200 ms after their work, and would take a
    core from the other build.
    """

    def __init__(self, python: Path) -> None:
        self._python = python
        self.about = self._start()

    def _start(self) -> dict[str, Any]:
        self._process = subprocess.Popen(
            [str(self._python), "-W", "ignore", str(OPS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        about = self._answer()
        if "error" in about:
            sys.exit(f"{self._python} {about['error']}.")
        return about

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.send_signal(signal.SIGCONT)
        self._process.wait()

    def seconds(self, case: str, threads: int) -> dict[str, Any]:
        if self._process.poll() is not None:
            self._start()
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{case} {threads}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return {"error": f"ended with code {self._process.wait()}"}
        self._process.send_signal(signal.SIGSTOP)
        found: dict[str, Any] = json.loads(line)
        return found


@dataclass
class Row:
    """One case with a number of threads: the seconds of each turn, by build."""

    case: str
    threads: int
    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def turns(self) -> list[float]:
        return [own / other for other, own in zip(self.first, self.second, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.turns)

    @property
    def noise(self) -> float:
        if len(self.turns) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.turns, n=4, method="inclusive")
        return (high - low) / 2

    @property
    def measured(self) -> bool:
        return bool(self.first)

    def to_json(self) -> dict[str, object]:
        result = {"ratio": round(self.ratio, 4), "noise": round(self.noise, 4)} if self.measured else {}
        return {**asdict(self), **result}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Row:
        return cls(**{one.name: row[one.name] for one in fields(cls)})


@dataclass
class Comparison:
    """Two builds and what was measured of them."""

    first: dict[str, Any]
    second: dict[str, Any]
    starts: list[dict[str, Any]]
    rows: list[Row]

    @property
    def measured(self) -> list[Row]:
        return [row for row in self.rows if row.measured]

    def to_json(self) -> dict[str, Any]:
        rows = [row.to_json() for row in self.rows]
        means = geometric_means(self.measured)
        return {
            "first": self.first,
            "second": self.second,
            "geometric_means": means,
            "starts": self.starts,
            "rows": rows,
        }

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Comparison:
        """What `--json` printed, in one or more parts; the turns of a case that is in several are put together."""
        documents = [json.loads(path.read_text("utf-8")) for path in paths]
        keys = ("python", "torch", "capability")
        builds = {tuple(one[name][key] for name in ("first", "second") for key in keys) for one in documents}
        if len(builds) > 1:
            sys.exit("These documents are about different builds.")
        rows: dict[tuple[str, int], Row] = {}
        for found in (Row.from_json(row) for document in documents for row in document["rows"]):
            row = rows.setdefault((found.case, found.threads), found)
            if row is not found:
                row.first += found.first
                row.second += found.second
                row.errors |= found.errors
        starts: list[dict[str, Any]] = next((one["starts"] for one in documents if one["starts"]), [])
        return cls(documents[0]["first"], documents[0]["second"], starts, [*rows.values()])


def compare(pythons: Sequence[Path], cases: re.Pattern[str], processes: int, turns: int) -> Comparison:
    """Time every case that the pattern finds, with one thread and with all."""
    rows: dict[tuple[str, int], Row] = {}
    about: list[dict[str, Any]] = []
    for number in range(processes):
        with ExitStack() as stack:
            first, second = children = [stack.enter_context(Child(python)) for python in pythons]
            about = [
                {"python": str(python), **{key: child.about[key] for key in ("torch", "capability", "threads")}}
                for python, child in zip(pythons, children, strict=True)
            ]
            wanted = [case for case in first.about["cases"] if cases.search(case)]
            for threads in dict.fromkeys((1, min(child.about["threads"] for child in children))):
                for done, case in enumerate(wanted, 1):
                    where = f"process {number + 1}/{processes}, {_threads(threads)}, {done}/{len(wanted)}"
                    print(f"\r\033[K{where}: {case}", end="", file=sys.stderr, flush=True)
                    _turns(rows.setdefault((case, threads), Row(case, threads)), first, second, turns)
    print("\r\033[K", end="", file=sys.stderr)
    first_about, second_about = about
    return Comparison(first_about, second_about, [], list(rows.values()))


def _turns(row: Row, first: Child, second: Child, turns: int) -> None:
    for turn in range(turns):
        # Alternately one and the other goes first: the second may find the clock lower, or the cache warm.
        order = (("first", first), ("second", second)) if turn % 2 == 0 else (("second", second), ("first", first))
        answers = {name: child.seconds(row.case, row.threads) for name, child in order}
        failed = {name: answer["error"] for name, answer in answers.items() if "error" in answer}
        if failed:
            row.errors |= failed
            return
        row.first.append(answers["first"]["seconds"])
        row.second.append(answers["second"]["seconds"])


def geometric_mean(rows: Iterable[Row]) -> float:
    return math.exp(statistics.fmean(math.log(row.ratio) for row in rows))


def geometric_means(rows: Sequence[Row]) -> dict[str, float]:
    """Of everything, by threads and by type."""
    groups = {"all": list(rows)}
    for row in rows:
        groups.setdefault(_threads(row.threads), []).append(row)
        groups.setdefault(row.case.rpartition("/")[2], []).append(row)
    return {name: round(geometric_mean(members), 4) for name, members in groups.items()}


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms"


def table(rows: Sequence[Row]) -> list[str]:
    """One line per case, with both numbers of threads beside each other."""
    threads = sorted({row.threads for row in rows})
    heads = [f"{part}, {_threads(count)}" for count in threads for part in ("first", "second", "ratio")]
    lines = [f"| case | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    by_case: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_case.setdefault(row.case, {})[row.threads] = row
    for case, found in by_case.items():
        cells: list[str] = []
        for count in threads:
            one = found.get(count)
            if one is None:
                cells += ["", "", ""]
                continue
            cells += [_time(statistics.median(values)) for values in (one.first, one.second)]
            cells.append(f"{one.ratio:.2f} ± {one.noise:.2f}")
        lines.append(f"| {case.replace('/', ', ')} | {' | '.join(cells)} |")
    return lines


def start_table(starts: Iterable[dict[str, Any]]) -> list[str]:
    lines = ["| start | first | second | ratio |", "|---|---|---|---|"]
    for start in starts:
        values = (start["first"], start["second"])
        shown = [f"{value / 1e6:,.0f} MB" if "memory" in start["name"] else f"{value:.2f}" for value in values]
        ratio = values[1] / values[0]
        noise = ratio * start["noise"]  # which is relative to both
        lines.append(f"| {start['name']} | {shown[0]} | {shown[1]} | {ratio:.2f} ± {noise:.2f} |")
    return lines


def report(found: Comparison) -> None:
    for name, about in (("first", found.first), ("second", found.second)):
        print(f"{name}: {about['python']}: torch {about['torch']}, {about['capability']}, {about['threads']} threads")
    if found.starts:
        print("\n" + "\n".join(start_table(found.starts)))
    print("\n" + "\n".join(table(found.measured)))
    means = ", ".join(f"{name} {value:.3f}" for name, value in geometric_means(found.measured).items())
    print(f"\nGeometric means of {len(found.measured)} ratios: {means}.")
    slower = [row for row in found.measured if row.ratio - row.noise > SLOWER]
    names = ", ".join(f"{row.case} with {_threads(row.threads)} ({row.ratio:.2f})" for row in slower)
    print(f"Above {SLOWER} by more than their noise: {names or 'none'}.")
    for row in found.rows:
        if row.errors:
            what = "Failed at least once" if row.measured else "Not measured"
            print(f"{what}: {row.case} with {_threads(row.threads)}: {row.errors}")


def measure_starts(pythons: Sequence[Path], count: int) -> list[dict[str, Any]]:
    builds = {name: Launch(python) for name, python in zip(("first", "second"), pythons, strict=True)}
    found = measure(builds, "cpu", cold=0, warm=count, throughput=0)
    return [
        {"name": ratio.name, "first": ratio.stock, "second": ratio.tailored, "noise": ratio.noise}
        for ratio in ratios(found["first"].warm, found["second"].warm)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", type=Path, nargs="*", metavar="PYTHON", help="two Pythons, each with a build")
    parser.add_argument("--only", default="", help="a regular expression: the cases to time")
    parser.add_argument("--processes", type=int, default=3, help="how often both are started anew")
    parser.add_argument("--turns", type=int, default=5, help="how often each case is timed in one process")
    parser.add_argument("--starts", type=int, default=3, help="how often starting is timed; 0: not")
    parser.add_argument("--json", action="store_true", help="print a document instead of tables")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="show such documents, and measure nothing")
    options = parser.parse_args()
    if options.read:
        found = Comparison.read(options.read)
    elif len(options.pythons) != 2:
        parser.error("give two Pythons, or --read")
    else:
        pythons = [python.absolute() for python in options.pythons]  # not resolved: those of environments are links
        starts = measure_starts(pythons, options.starts) if options.starts else []
        found = compare(pythons, re.compile(options.only), options.processes, options.turns)
        found.starts = starts
    if not found.measured:
        sys.exit("No case could be timed.")
    if options.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        report(found)


if __name__ == "__main__":
    main()

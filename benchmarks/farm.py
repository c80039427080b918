"""Simulates the whole matrix from source on 1 to 128 workers, with the planner and policy that a farm has.

    python benchmarks/farm.py [--write]

The seconds of host files are those of docs/results/source-build-times.tsv. Of CUDA files, only ten were measured one by
one (docs/results/cu-files.md), and of all 260 the mean, the median and the longest for one GPU; their seconds here are
drawn from a log-normal distribution with these. What is measured and what is simulated is in farm.md.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.building.choose import choose
from torchtailor.building.graph.simulate import Simulation, simulate
from torchtailor.building.source.graph import PlannedSource, SourceCosts, source_graph
from torchtailor.building.source.jobs import CompilePart, CompileShard, FetchSource
from torchtailor.building.source.options import SourceOptions
from torchtailor.building.source.plan import MatrixPlan, plan_matrix
from torchtailor.building.source.shards import part_of
from torchtailor.building.source.tables import load_tables
from torchtailor.catalog import SOURCE, Capability, Catalog, load_catalog
from torchtailor.core.format import human_seconds

ROOT = Path(__file__).parent.parent
TIMES = ROOT / "docs" / "results" / "source-build-times.tsv"
TABLE = Path(__file__).with_suffix(".md")
WORKERS = (1, 8, 32, 128)
MEMORY = 8_000_000_000  # of each worker
CUDA_FILES, CUDA_MEAN, CUDA_MEDIAN, CUDA_LONGEST = 260, 84.0, 35.0, 500.0
TOOLKIT_FILES, TOOLKIT_MEAN = 128, 9.2  # host files of libtorch_cuda
PARTS = ("device", "host", "toolkit", "link")
LINK, CUT = 180.0, 72.0


MEASURED = """\
Measured: official wheels on `local:2` ([farm_local.md](farm_local.md)); c10 and a part of ATen in two shards \
([farm.md](../docs/farm.md))."""
WHY = """\
What is shared: host files of an ISA between its build without CUDA and those with each toolkit (PyTorch's CMake \
says that libATen_cpu is invariant to USE_CUDA; in 2.12.1, two files of libtorch_cpu are compiled with a definition \
of it), and CUDA files between the ISAs of one architecture (9 of 10 hits, docs/results/cu-files.md). The first was \
read in the source and is not yet measured.

What is not: CUDA files between x86 and ARM. nvcc's steps for the GPU (cicc, ptxas) do not depend on the host, but \
what they read does: the text is preprocessed with the host's headers and macros, so that no cache of compilers \
knows that the machine code will be the same. The fat builds that this is compared with are therefore one for each \
toolkit and architecture.

The cut, the proof and the wheelhouse of a variant are one job: they wait for each other, and are 1 % of the work."""


@dataclass(frozen=True)
class Case:
    """Variants to build."""

    title: str
    release: str


CASES = (Case("recipes of release cuda-13_0", "cuda-13_0"), Case("PyTorch 2.14", "2.14"))


def host_files() -> tuple[list[float], list[float]]:
    """Seconds of the files that were compiled, and of those among them that include Python's headers."""
    host, python = [], []
    for line in TIMES.read_text("utf-8").splitlines()[1:]:
        seconds, _, output = line.split("\t")
        if output.endswith(".o"):
            host.append(float(seconds))
            if part_of(output) is CompilePart.PYTHON:
                python.append(float(seconds))
    return host, python


def cuda_files() -> list[float]:
    """260 numbers with the measured median, longest and mean."""
    rng = random.Random(0)
    drawn = [min(CUDA_LONGEST, CUDA_MEDIAN * rng.lognormvariate(0.0, 1.35)) for _ in range(CUDA_FILES - 1)]
    scale = (CUDA_MEAN * CUDA_FILES - CUDA_LONGEST) / sum(drawn)
    return [CUDA_LONGEST, *(min(CUDA_LONGEST, seconds * scale) for seconds in drawn)]


def costs() -> SourceCosts:
    host, python = host_files()
    return SourceCosts(host, python, [TOOLKIT_MEAN] * TOOLKIT_FILES, cuda_files(), LINK, CUT)


def planned(catalog: Catalog, release: str) -> tuple[MatrixPlan, PlannedSource]:
    """The graph of every variant of a release that can be built from source."""
    choices = choose(catalog, ["*"], release=release, method=SOURCE)
    matrix = plan_matrix(catalog, load_tables(), [choice.variant for choice in choices])
    tree = FetchSource("git", "pytorch", "v0", "0" * 40)
    graph = source_graph(matrix.groups, tree, SourceOptions(), costs(), toolchain="one", objects="one")
    return matrix, graph


def fat_builds(matrix: MatrixPlan) -> list[float]:
    """One library for each toolkit and architecture, with one instruction set and all GPUs: the least to compile."""
    price = costs()
    gpus: dict[tuple[str, str], set[Capability]] = {}
    for group in matrix.groups:
        variant = group.variant
        own = (variant.gpu.capability,) if variant.gpu else ()
        gpus.setdefault((variant.build.label, variant.arch), set()).update(group.gpus or own)
    once = sum(price.host) + sum(price.toolkit) + price.link
    return [once + len(some) * sum(price.device) for some in gpus.values() if some]


def report() -> str:
    catalog = load_catalog(Path("/"))
    intro = (
        "Simulated: the planner, driver and policy of `build --via source --on ...`, on workers of one core and "
        f"{MEMORY // 10**9} GB, of each architecture as many as its share of the work, with these seconds:"
    )
    lines = [
        intro,
        "",
        "| step | seconds | known from |",
        "|---|---|---|",
    ]
    price = costs()
    host, python, device = price.host, price.python, price.device
    listed = "measured, each file (docs/results/source-build-times.tsv, minimal profile)"
    counted = "counted in the source of 2.12; the mean of four that were measured (docs/results/cu-files.md)"
    drawn = "mean, median and longest measured; the distribution between them is assumed"
    lines += [
        f"| host files, one ISA | {hours(host)} | {listed} |",
        f"| of these, again for another Python or toolkit | {hours(python)} | measured |",
        f"| host files that only builds with CUDA have | {hours(price.toolkit)} | {counted} |",
        f"| CUDA files, one GPU | {hours(device)} | {drawn} |",
        f"| link and package; cut, prove and pack | {price.link:.0f}; {price.cut:.0f} | estimated |",
        "| unpack, configure and generate code, for each ISA on each worker | 60 | 45 of them measured |",
        "| objects between workers | 40 for each link | estimated: 1,600 objects of Redis in one network |",
    ]
    lines += ["", WHY]
    for case in CASES:
        lines += ["", *section(catalog, case)]
    rest = (
        "Not simulated: lost workers, slow networks, other users of the machines, CPUs of different speed, the full "
        "profile (more files, flash attention with 6 GB each)."
    )
    lines += [
        "",
        rest,
        "",
        "    python benchmarks/farm.py --write",
        "",
        MEASURED,
    ]
    return "\n".join(lines) + "\n"


def hours(files: Sequence[float]) -> str:
    return f"{len(files)} files, {sum(files) / 3600:.1f} core-hours"


def machine_shares(plan: PlannedSource) -> dict[str, float]:
    """The share of the work that each architecture has."""
    seconds: dict[str, float] = {}
    for job in plan.graph.jobs.values():
        if job.machine:
            seconds[job.machine] = seconds.get(job.machine, 0.0) + job.weight.seconds
    return {name: some / sum(seconds.values()) for name, some in seconds.items()}


def machines(shares: dict[str, float], workers: int) -> list[str]:
    """So many workers, by share; one alone is taken to run the jobs of both architectures."""
    if workers < len(shares):
        return []
    (first, share), (second, _) = sorted(shares.items())
    count = round(workers * share)
    return [first] * count + [second] * (workers - count)


def section(catalog: Catalog, case: Case) -> list[str]:
    matrix, plan = planned(catalog, case.release)
    fats = fat_builds(matrix)
    variants, fat = matrix.variants, sum(fats)
    shares = machine_shares(plan)
    runs = [simulate(plan.graph, count, memory=MEMORY, machines=machines(shares, count)) for count in WORKERS]
    work = plan.graph.cost.core_seconds
    naive = matrix.cost.naive
    arm = [machines(shares, count).count("aarch64") or "-" for count in WORKERS]
    rows = [
        f"{row(run, some)} {run.core_seconds / 3600:.0f} | {run.core_seconds / fat:.2f} x |"
        for run, some in zip(runs, arm, strict=True)
    ]
    text = (
        f"{len(plan.graph.jobs)} jobs; {work / 3600:.0f} core-hours, against {naive:.0f} one by one. The longest chain "
        f"takes {human_seconds(plan.graph.cost.critical_seconds)}. A fat build (all GPUs, one ISA) for each toolkit "
        f"and architecture takes {fat / 3600:.0f} in all ({len(fats)} builds); the largest alone takes "
        f"{max(fats) / 3600:.0f}, of which this is {work / max(fats):.2f} x."
    )
    return [
        f"## {variants} variants: {case.title}",
        "",
        text,
        "",
        *parts(matrix, plan),
        "",
        "| workers | of them ARM | time | busy | core-hours | of the fat builds |",
        "|---:|---:|---:|---:|---:|---:|",
        *rows,
    ]


def parts(matrix: MatrixPlan, plan: PlannedSource) -> list[str]:
    """Where the core-hours go, and how much of each part the fat builds have."""
    price = costs()
    gpus = {(one.variant.build.label, one.variant.arch) for one in matrix.groups if one.variant.gpu}
    devices = sum(fat_builds(matrix)) - len(gpus) * (sum(price.host) + sum(price.toolkit) + price.link)
    spent: dict[str, tuple[int, float]] = {}
    for job in plan.graph.jobs.values():
        part = job.job.part.value if isinstance(job.job, CompileShard) else job.kind
        number, seconds = spent.get(part, (0, 0.0))
        spent[part] = (number + 1, seconds + job.weight.seconds)
    rest = sum(seconds for part, (_, seconds) in spent.items() if part not in PARTS)
    isas = len({(one.variant.build.label, one.variant.isa.name) for one in matrix.groups})
    once = len({one.variant.isa.name for one in matrix.groups})
    rows = [
        (f"CUDA files: each GPU once for each toolkit and architecture ({len(gpus)})", spent["device"][1], devices),
        (f"host files: once for each of {once} ISAs", spent["host"][1], len(gpus) * sum(price.host)),
        (
            f"of these, again in the other {isas - once} builds of an ISA: what includes Python's or CUDA's headers",
            spent["toolkit"][1],
            len(gpus) * sum(price.toolkit),
        ),
        (f"links: {isas}", spent["link"][1], len(gpus) * price.link),
        ("fetch, configure, cut, prove and pack", rest, 0.0),
    ]
    total = [sum(seconds for _, seconds, _ in rows), sum(seconds for _, _, seconds in rows)]
    return [
        "| part | core-hours | in the fat builds |",
        "|---|---:|---:|",
        *(f"| {name} | {mine / 3600:.1f} | {fat / 3600:.1f} |" for name, mine, fat in rows),
        f"| in all | {total[0] / 3600:.1f} | {total[1] / 3600:.1f} |",
    ]


def row(run: Simulation, arm: object) -> str:
    return f"| {run.workers} | {arm} | {human_seconds(run.seconds)} | {run.efficiency:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    text = report()
    print(text)
    if parser.parse_args().write:
        TABLE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()

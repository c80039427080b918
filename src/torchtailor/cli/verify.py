"""`torchtailor verify`: prove an artifact, on paper and on the hardware, line by line."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.errors import ExitCode

if TYPE_CHECKING:
    from torchtailor.artifact.artifact import Artifact
    from torchtailor.catalog import Catalog
    from torchtailor.verify.result import Check, Level, Report
    from torchtailor.verify.static.expect import Expectation


class Levels(StrEnum):
    """How far to go."""

    STATIC = "static"
    IMPORT = "import"
    GPU = "gpu"
    ALL = "all"


def command(
    target: Annotated[
        Path, typer.Argument(help="A wheel, a wheelhouse, a folder, an environment, a library, a Nix result.")
    ],
    variant: Annotated[
        str, typer.Option(help="What it should be, such as sm90-avx512; a wheelhouse says it itself.")
    ] = "",
    gpu: Annotated[list[str] | None, typer.Option(help="GPUs it must run on: 9.0, sm_90 or a product name.")] = None,
    cpu: Annotated[str, typer.Option(help="The CPU instruction set it must stay within, such as avx2.")] = "",
    against: Annotated[Path | None, typer.Option(help="The stock it was made from: nothing may be lost.")] = None,
    level: Annotated[
        Levels, typer.Option(help="static: read it; import: also import it; gpu: also run it on the GPU.")
    ] = Levels.ALL,
    python: Annotated[Path | None, typer.Option(help="The Python to import with, where TARGET has none.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON (docs/verify.md has the schema).")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write one self-contained HTML page here.")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the sizes as bars.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a progress bar.")] = False,
) -> int:
    """Prove an artifact: its GPU code, host code, files, import, and results on the GPU."""
    from torchtailor.artifact.artifact import open_artifact
    from torchtailor.catalog import load_catalog
    from torchtailor.gpucode.targets import read_gpus
    from torchtailor.ui import print_json
    from torchtailor.verify.output import as_json, write_junit
    from torchtailor.verify.static.expect import expectation

    catalog = load_catalog()
    artifact = open_artifact(target)
    stock = open_artifact(against) if against else None
    expected = expectation(artifact, catalog, variant=variant, gpus=read_gpus(gpu or (), catalog), isa=cpu)
    result = _verify(artifact, stock, expected, catalog, level, python, plain=plain)
    if junit:
        write_junit(result, junit)
    if report:
        from torchtailor.report import write_report

        write_report(result, report)
    if json:
        print_json(as_json(result))
    else:
        _print(result, expected)
    if plot:
        _plot(result, on_stderr=json)
    return ExitCode.OK if result.passed else ExitCode.CHECK_FAILED


def _verify(
    artifact: Artifact,
    stock: Artifact | None,
    expected: Expectation,
    catalog: Catalog,
    level: Levels,
    python: Path | None,
    *,
    plain: bool,
) -> Report:
    import time

    from torchtailor import __version__
    from torchtailor.ui import ProgressBar
    from torchtailor.verify.levels import running_checks
    from torchtailor.verify.result import Report
    from torchtailor.verify.static.verify import verify_static

    started = time.time()
    with ProgressBar(quiet=plain) as bar:

        def progress(name: str, size: int) -> None:
            bar.advance(size)
            if plain and not size:  # nothing of it is read yet
                _say(f"Reading {name} ...", plain=True)

        bar.begin("Reading libraries", sum(library.size for library in artifact.libraries))
        proof = verify_static(artifact, expected, catalog, stock=stock, progress=progress)
    facts = {
        **proof.facts,
        "tool": {"name": "torchtailor", "version": __version__},
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
    }
    report = Report(str(artifact.path), proof.checks, facts)
    running = running_checks(
        artifact,
        expected,
        catalog,
        _levels(level),
        stock=stock,
        python=python,
        asked=level is not Levels.ALL,
        say=lambda what: _say(f"{what} ...", plain=plain),
    )
    report = report.plus(running)
    return report.plus((), total_seconds=round(time.time() - started, 3))


def _levels(level: Levels) -> frozenset[Level]:
    from torchtailor.verify.result import Level

    order = list(Level)
    last = order[-1] if level is Levels.ALL else Level(level.value)
    return frozenset(order[: order.index(last) + 1])


def _say(what: str, *, plain: bool) -> None:
    """What is being done, on stderr: to whoever watches or asked for lines."""
    from torchtailor.ui import err

    if plain or err().is_terminal:
        err().print(what, style="dim", markup=False)


def _print(report: Report, expected: Expectation) -> None:
    from rich.text import Text

    from torchtailor.ui import human_seconds, out

    wanted = [expected.name or ""]
    if expected.gpus and not expected.name:
        wanted = [f"GPU {', '.join(map(str, expected.gpus))}"]
    if expected.isa and not expected.name:
        wanted.append(expected.isa.label)
    said = f" as {', '.join(filter(None, wanted))} (said by {expected.said_by or '--cpu'})" if any(wanted) else ""
    out().print(Text(f"{report.target}{said}"))
    for level in report.levels:
        out().print(Text(f"\nLevel {level.number}: {level.value}", style="bold"))
        for check in report.at(level):
            out().print(_line(check))
    took = human_seconds(report.facts.get("total_seconds", 0))
    out().print(Text(f"\n{report.summary()} in {took}", style="bold green" if report.passed else "bold red"))


def _line(check: Check) -> object:
    from rich.text import Text

    word, style = {
        "pass": ("pass", "green"),
        "fail": ("FAIL", "bold red"),
        "not-applicable": ("n/a ", "yellow"),
    }[check.outcome.value]
    return Text.assemble("  ", (word, style), "  ", (check.name, "bold"), f": {check.reason}" if check.reason else "")


def _plot(report: Report, *, on_stderr: bool) -> None:
    from torchtailor.report.terminal import bars
    from torchtailor.ui import err, out

    console = err() if on_stderr else out()
    for line in bars(report.facts, console.width):
        console.print(line)

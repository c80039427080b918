"""`torchtailor verify`: checks of an artifact, static and on the hardware, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchtailor.cli import _options
from torchtailor.core.errors import EnvironmentProblem, ExitCode
from torchtailor.core.progress import Progress

if TYPE_CHECKING:
    from torchtailor.verification.result import Check, VerifyReport


class Levels(StrEnum):
    """How far to go."""

    STATIC = "static"
    IMPORT = "import"
    GPU = "gpu"
    ALL = "all"


def command(
    target: Annotated[
        str,
        typer.Argument(help="A wheel, a wheelhouse, a folder, an environment, a library, a Nix result, an image."),
    ],
    variant: Annotated[
        str, typer.Option(help="What it should be, such as sm90-avx512; read from the manifest of a wheelhouse.")
    ] = "",
    gpu: Annotated[list[str] | None, typer.Option(help="GPUs it must run on: 9.0, sm_90 or a product name.")] = None,
    cpu: Annotated[str, typer.Option(help="The CPU instruction set it must stay within, such as avx2.")] = "",
    against: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The stock it was made from: nothing needed may be missing."),
    ] = None,
    platform: _options.ImagePlatform = None,
    insecure: _options.ImageInsecure = False,
    level: Annotated[
        Levels, typer.Option(help="static: read it; import: also import it; gpu: also run it on the GPU.")
    ] = Levels.ALL,
    python: Annotated[Path | None, typer.Option(help="The Python to import with, where TARGET has none.")] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Import and run it in this system, such as a bare Debian, instead of this machine's."
        ),
    ] = None,
    json: _options.Json = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")] = None,
    report: _options.Report = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the sizes as bars.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a progress bar.")] = False,
) -> int:
    """Prove an artifact: its code, files, import, results on the GPU."""
    from contextlib import ExitStack

    from torchtailor.cli._artifacts import artifact_named
    from torchtailor.cli.ui import print_json
    from torchtailor.core.disk import check_output
    from torchtailor.verification.output import as_document, write_junit
    from torchtailor.verification.result import Level
    from torchtailor.verification.verify import verify

    for place in filter(None, (junit, report)):
        check_output(place)
    with _VerifyBar(plain=plain) as shown, ExitStack() as stack:
        found = stack.enter_context(
            artifact_named(target, platform=platform, insecure=insecure, packs=True, progress=shown)
        )
        stock = against and stack.enter_context(
            artifact_named(against, platform=platform, insecure=insecure, packs=True, progress=shown)
        )
        result = verify(
            found,
            variant=variant,
            gpus=gpu or (),
            cpu=cpu,
            against=stock or None,
            level="all" if level is Levels.ALL else Level(level.value),
            python=python,
            root=root,
            progress=shown,
        )
    if json:
        print_json("verify", as_document(result))
    else:
        _print(result)
    if plot:
        _plot(result, on_stderr=json)
    if junit:
        write_junit(result, junit)
    if report:
        from torchtailor.verification.report import write_report

        write_report(result, report)
    if result.passed and result.not_reached:
        raise EnvironmentProblem(
            f"Level {level.value} could not be checked here: {result.not_reached}.",
            "Run it where it can be checked; without --level, verify goes as far as it can.",
        )
    return ExitCode.OK if result.passed else ExitCode.CHECK_FAILED


class _VerifyBar(Progress):
    """A bar while libraries are read, then lines, on stderr: for whoever watches, or asked for lines."""

    def __init__(self, *, plain: bool) -> None:
        from torchtailor.cli.ui import ProgressBar

        self._plain = plain
        self._bar = ProgressBar(quiet=plain)

    def __enter__(self) -> _VerifyBar:
        self._bar.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.__exit__(*exception)

    def begin(self, what: str, total: int) -> None:
        self._bar.begin(what, total)

    def advance(self, size: int) -> None:
        self._bar.advance(size)

    def reading(self, library: str) -> None:
        if self._plain:
            self._say(f"Reading {library} ...")
        else:
            self._bar.reading(library)

    def stage(self, what: str) -> None:
        from torchtailor.cli.ui import err

        self._bar.__exit__()
        if self._plain or err().is_terminal:
            self._say(f"{what} ...")

    def _say(self, text: str) -> None:
        from torchtailor.cli.ui import err

        err().print(text, style="dim", markup=False)


def _print(report: VerifyReport) -> None:
    from rich.text import Text

    from torchtailor.cli.ui import human_seconds, out

    out().print(Text(f"{report.target}{_expected(report.facts['expected'])}"))
    for level in report.levels:
        took = human_seconds(report.facts.get("level_seconds", {}).get(level.value, 0))
        out().print(Text.assemble((f"\nLevel {level.number}: {level.value}", "bold"), (f" ({took})", "dim")))
        for check in report.at(level):
            out().print(_line(check))
    took = human_seconds(report.facts.get("total_seconds", 0))
    out().print(Text(f"\n{report.summary()} in {took}", style="bold green" if report.passed else "bold red"))


def _expected(expected: Mapping[str, Any]) -> str:
    """What it was checked to be, and where that is from."""
    gpus = f"GPU {', '.join(expected['gpus'])}" if expected["gpus"] else ""
    wanted = expected["variant"] or ", ".join(filter(None, [gpus, expected["isa"]]))
    return f" as {wanted} (from {expected['from']})" if wanted else ""


def _line(check: Check) -> object:
    from rich.text import Text

    word, style = {
        "pass": ("pass", "green"),
        "fail": ("FAIL", "bold red"),
        "not-applicable": ("n/a ", "yellow"),
    }[check.outcome.value]
    return Text.assemble("  ", (word, style), "  ", (check.name, "bold"), f": {check.reason}" if check.reason else "")


def _plot(report: VerifyReport, *, on_stderr: bool) -> None:
    from torchtailor.cli.ui import err, out
    from torchtailor.verification.report.terminal import bars

    console = err() if on_stderr else out()
    for line in bars(report.facts, console.width):
        console.print(line)

"""`torchtailor recommend`: which PyTorch fits a machine, and why others do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.advise.recommendation.request import USUAL_ENVIRONMENT, Workload
from torchtailor.catalog.methods import Basis
from torchtailor.cli import _options
from torchtailor.core.errors import ExitCode

if TYPE_CHECKING:
    from rich.text import Text

    from torchtailor.advise.recommendation.result import Alternative, Pick, Recommendation
    from torchtailor.catalog import Catalog

_POINT = "  - "


def command(
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A description from `detect --json`; `-` is standard input."),
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="A GPU by name or capability: 'RTX 4090', 9.0, none. May be repeated.")
    ] = None,
    cpu: Annotated[str | None, typer.Option(help="The CPU by name: zen4, Graviton3, i9-12900K.")] = None,
    driver: Annotated[str | None, typer.Option(help="The NVIDIA driver's version: 570.26.")] = None,
    jetpack: Annotated[str | None, typer.Option(help="The JetPack of a Jetson: 6.2, 7.2.")] = None,
    workload: Annotated[Workload, typer.Option("--cpu-work", help="What the CPU mostly has to do.")] = Workload.GENERAL,
    python: Annotated[
        list[str] | None,
        typer.Option(help="The Python; by default the environment's, or 3.13 for another machine."),
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="Environment to install into, whose Python is used; default: the active one.")
    ] = None,
    release: Annotated[list[str] | None, typer.Option(help="Only this release: 2.15, 2.10, 2.14.0.")] = None,
    via: Annotated[
        str | None,
        typer.Option(
            metavar="wheel|source|nix",
            autocompletion=_options.method_names,
            help="Only this build method; wheel is preferred.",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--why", help="Also list what else runs, and what was rejected.")] = False,
    json: _options.Json = False,
) -> int:
    """Show which PyTorch fits a machine, and why others do not."""
    from torchtailor.advise.host.store import load
    from torchtailor.advise.recommendation import recommend
    from torchtailor.catalog import load_catalog
    from torchtailor.cli._age import say_if_old
    from torchtailor.cli.ui import hanging, out, print_json
    from torchtailor.core.pythons import python_of_environment, running_python
    from torchtailor.trees.artifact.sites import active_environment
    from torchtailor.wheelhouse.install import check_free

    catalog = load_catalog()
    say_if_old(catalog)
    here = source is None and not gpu and cpu is None
    if into is not None:
        check_free(into)
    environment = into or (active_environment() if here else None)
    version, wanted = _options.only("--python", python), _options.only("--release", release)
    choices = (version, wanted, via, driver, jetpack)
    found_by_install = here and choices == (None,) * len(choices) and workload is Workload.GENERAL
    if version is None and environment is not None:
        version = python_of_environment(environment)
    if version is None and here:
        version = running_python()  # which `install` takes for a new environment
    answer = recommend(
        load(source) if source is not None else None,
        gpus=gpu or (),
        cpu=cpu,
        driver=driver,
        jetpack=jetpack,
        workload=workload,
        python=version,
        release=wanted,
        method=via,
        into=str(into) if into else USUAL_ENVIRONMENT if environment is None else None,
        here=found_by_install,
        catalog=catalog,
    )
    if json:
        print_json("recommend", answer)
    else:
        for line in _lines(answer, catalog, explain=explain):
            head = len(_POINT) if line.plain.startswith(_POINT) else 0
            out().print(hanging(line, head), soft_wrap=line.no_wrap)
    return ExitCode.OK if answer.best else ExitCode.NO_MATCH


def _lines(answer: Recommendation, catalog: Catalog, *, explain: bool) -> Iterator[Text]:
    """The answer as people read it: what to run and why, then the rest."""
    from rich.text import Text

    yield from _answer(answer, catalog)
    yield Text()
    yield Text(f"Machine: {answer.machine}")
    for note in answer.notes:
        yield Text(f"Note: {note}", style="yellow")
    if (best := answer.best) is not None:
        yield Text.assemble("Variant: ", (best.variant, "bold"))
        for reason in best.reasons[1:]:
            yield Text(f"{_POINT}{reason}")
    if answer.upgrades:
        yield from _heading("Upgrades")
        for upgrade in answer.upgrades:
            yield Text(f"{_POINT}{upgrade.text}")
    if answer.per_gpu:
        together = best is not None and len(best.gpus) > 1
        yield from _heading("Or an environment for each" if together else "Per GPU")
        yield from _picks(answer.per_gpu)
    if answer.alternatives and (explain or best is None):
        yield from _heading("Alternatives")
        for alternative in answer.alternatives:
            yield from _alternative(alternative)
    yield from _others(answer) if explain else _how_to_see_others(answer)
    if answer.stock_command:
        yield from _heading(
            "Or the official wheel as it is, with the code for all GPUs" if _cut(answer) else "Or with pip"
        )
        yield _to_copy(f"  {answer.stock_command}")


def _answer(answer: Recommendation, catalog: Catalog) -> Iterator[Text]:
    """Two lines for whoever reads no further: the command, and what it does."""
    from rich.text import Text

    best = answer.best
    if best is None:
        depends = any(alternative.kind == "jetpack" for alternative in answer.alternatives)
        text = "It depends on the JetPack: see below." if depends else "No variant in the matrix runs on this machine."
        yield Text(text, style="bold red")
        return
    assert answer.command is not None
    yield _to_copy(answer.command, "bold green")
    cuda = f"with CUDA {best.cuda}" if best.cuda else "without CUDA"
    method = catalog.method(best.method)
    which = "these GPUs run" if len(best.gpus) > 1 else "this GPU runs"
    how = f", cut to the code that {which}" if _cut(answer) else ""
    phrase = f"from the official wheel{how}" if method.basis is Basis.WHEEL else method.phrase
    why = best.reasons[0].removeprefix(f"PyTorch {best.pytorch} is ")
    yield Text(f"PyTorch {best.pytorch} {cuda} for Python {best.python}, {phrase}: {why}")
    if method.basis is Basis.WHEEL:
        here = best.variant not in answer.command
        instead = "this installs the newest release they have" if here else "--why lists older releases that run"
        yield Text(f"The indexes were not looked at: where they do not have it, {instead}.", style="dim")


def _cut(answer: Recommendation) -> bool:
    """Whether the command cuts GPU code out of the official wheel."""
    return answer.stock_command is not None and answer.best is not None and answer.best.gpu is not None


def _others(answer: Recommendation) -> Iterator[Text]:
    """What was not chosen: other variants, compiling, and variants that do not run."""
    from rich.text import Text

    if answer.other_variants:
        yield from _heading("Other variants that run")
        yield from _picks(answer.other_variants)
    if answer.compiling:
        yield from _heading("Compiling for this CPU")
        yield Text(f"{_POINT}{answer.compiling}")
    if answer.rejected:
        yield from _heading("Rejected")
        for rejection in answer.rejected:
            yield Text.assemble(_POINT, (rejection.what, "bold"), f": {rejection.reason}")


def _how_to_see_others(answer: Recommendation) -> Iterator[Text]:
    from rich.text import Text

    own = len(answer.alternatives) if answer.best else 0
    counts = [
        (len(answer.other_variants), "that also runs", "that also run"),
        (len(answer.rejected), "that does not", "that do not"),
        (own, "of your own", "of your own"),
    ]
    parts = [f"{count} {one if count == 1 else several}" for count, one, several in counts if count]
    if parts:
        yield Text()
        yield Text(f"Other variants: {', '.join(parts)}. Add --why to list them.")


def _heading(text: str) -> Iterator[Text]:
    from rich.text import Text

    yield Text()
    yield Text(f"{text}:", style="bold")


def _picks(picks: tuple[Pick, ...]) -> Iterator[Text]:
    from rich.text import Text

    for pick in picks:
        yield Text.assemble(_POINT, (pick.variant, "bold"), f" ({pick.method}): {' '.join(pick.reasons)}")


def _alternative(alternative: Alternative) -> Iterator[Text]:
    from rich.text import Text

    yield Text(f"{_POINT}{alternative.text}")
    for line in (alternative.toml or "").splitlines():
        yield _to_copy(f"      {line}")


def _to_copy(line: str, style: str = "cyan") -> Text:
    """Left in one line for whoever copies it, however narrow the window is."""
    from rich.text import Text

    return Text(line, style=style, no_wrap=True)

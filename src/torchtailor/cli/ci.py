"""`torchtailor ci`: a workflow that builds, proves and publishes variants, for GitHub or GitLab."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchtailor.catalog.methods import WHEEL
from torchtailor.cli import _cut
from torchtailor.cli import _options as options
from torchtailor.core.errors import NoMatchError, UsageError

if TYPE_CHECKING:
    from torchtailor.publish.ci.plan import CiPlan

_WHERE = "Where it runs"
_GOES = "Where it goes"
_STDOUT = Path("-")
# Options of `build` that the workflow sets itself.
_OWN = frozenset({"out", "release", "python", "cuda", "via", "nvidia", "on", "store", "objects", "json", "dry_run"})

BuildOptions = Annotated[
    str, typer.Option(metavar="TEXT", help="Further options of `build`: '--recompress --with torchvision'.")
]
Level = Annotated[
    str, typer.Option(metavar="LEVEL", help="How far jobs prove what they built: static, import, or all that works.")
]
Per = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT", help="A job for each variant, gpu or architecture, or one for all.", rich_help_panel=_WHERE
    ),
]
Runner = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ARCH=LABELS", help="x86_64=self-hosted,linux; default: the hosted runners.", rich_help_panel=_WHERE
    ),
]
GpuRunner = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GPU=LABELS",
        help="A runner with a GPU, sm90=self-hosted,h100: its variants are proven there.",
        rich_help_panel=_WHERE,
    ),
]
Login = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="How jobs log in to buckets: oidc (by what they are), or keys (secrets of the repository).",
        rich_help_panel=_GOES,
    ),
]
Cached = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep wheels and objects between runs.", rich_help_panel=_WHERE)
]
Timeout = Annotated[
    int | None, typer.Option(min=1, metavar="MINUTES", help="Stop a job after this long.", rich_help_panel=_WHERE)
]
Package = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="The torchtailor that pip installs: a version, a folder, git+URL. Default: this version.",
        rich_help_panel=_WHERE,
    ),
]
Schedule = Annotated[
    str | None, typer.Option(metavar="CRON", help="Also at these times: '0 3 * * 1' (github).", rich_help_panel=_WHERE)
]
Publish = Annotated[
    str | None,
    typer.Option(metavar="WHERE", help="The index: s3://bucket/torch, as for `publish --to`.", rich_help_panel=_GOES),
]
PublishNvidia = Annotated[
    bool, typer.Option("--publish-nvidia", help="As for `publish`: you confirm that you may.", rich_help_panel=_GOES)
]
Branch = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The branch that is published. Default: the main one.", rich_help_panel=_GOES),
]
Out = Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The file to write; - is stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Print the file, and write nothing.")]


@_cut.takes_cut("ci", panel=options.CUT_WHEELS)
def command(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="github or gitlab.")],
    variants: Annotated[
        list[str] | None,
        typer.Argument(metavar="VARIANT", help="Names or globs, as `build` takes them: 'sm{80,90}-avx2'."),
    ] = None,
    via: options.Via = WHEEL,
    release: options.Release = None,
    python: options.Python = None,
    cuda: options.Cuda = None,
    *,
    cut: _cut.ChosenCut,
    build_options: BuildOptions = "",
    level: Level = "all",
    per: Per = None,
    runner: Runner = None,
    gpu_runner: GpuRunner = None,
    cache: Cached = True,
    timeout: Timeout = None,
    package: Package = None,
    schedule: Schedule = None,
    on: options.On = None,
    store: options.Store = None,
    objects: options.Objects = None,
    publish: Publish = None,
    publish_nvidia: PublishNvidia = False,
    branch: Branch = None,
    login: Login = "oidc",
    out: Out = None,
    force: Force = False,
    dry_run: DryRun = False,
    json: options.Json = False,
) -> None:
    """Write a workflow that builds, proves and publishes variants.

    For GitHub it writes .github/workflows/torchtailor.yml, for GitLab, where runner labels are tags, .gitlab-ci.yml.
    Each matrix job builds and proves the variants of one GPU; --gpu-runner also proves them on that GPU. With
    --publish, what the branch builds is added to an index.
    """
    from torchtailor.catalog import load_catalog
    from torchtailor.cli import ui
    from torchtailor.cli.build import refuse_of_others
    from torchtailor.publish.ci.plan import CiDivision, CiLevel, CiLogin, CiOptions, CiSystem, plan_ci
    from torchtailor.publish.ci.render import render_ci
    from torchtailor.tailoring.choices import words_of

    refuse_of_others(WHEEL, cut.written, via)

    cut_options = {name: one for name, one in cut.given.items() if name != "nvidia"}
    plan = plan_ci(
        load_catalog(),
        CiSystem(_one_of("The system", system, CiSystem)),
        CiOptions(
            selectors=tuple(variants or ()),
            releases=options.listed(release),
            pythons=options.listed(python),
            cuda=cuda,
            method=via,
            nvidia=bool(cut.given.get("nvidia")),
            build_options=(*words_of(cut_options), *_build_options(build_options, farm=bool(on or store))),
            division=CiDivision(_one_of("--per", per, CiDivision)) if per else None,
            runners=tuple(runner or ()),
            gpu_runners=tuple(gpu_runner or ()),
            level=CiLevel(_one_of("--level", level, CiLevel)),
            on=on,
            store=store or "",
            objects=objects or "",
            publish=publish or "",
            publish_nvidia=publish_nvidia,
            cache=cache,
            schedule=schedule or "",
            branch=branch or "",
            minutes=timeout,
            package=package or "",
            login=CiLogin(_one_of("--login", login, CiLogin)),
        ),
    )
    named = {"--workload": cut.given.get("workload", ()), "--package": filter(None, [plan.package_path])}
    for option, place in ((option, place) for option, places in named.items() for place in places):
        if not Path(place).exists():
            raise NoMatchError(f"{option}: {place} does not exist.", "Run this in the repository's folder.")
    printed = dry_run or out == _STDOUT
    path = Path(plan.row.path) if out is None or out == _STDOUT else out
    text = render_ci(plan, path.as_posix())
    if not printed:
        _write(plan, path, text, force=force)
    if json:
        ui.print_json("ci", plan, path=path, written=not printed, text=text)
        return
    if printed:
        typer.echo(text, nl=False)
    else:
        _show(plan, path)
    for warning in plan.warnings:
        ui.err().print(f"warning: {warning}", markup=False, soft_wrap=True)


def _write(plan: CiPlan, path: Path, text: str, *, force: bool) -> None:
    from torchtailor.core.disk import write_output

    if path.exists() and not force:
        include = " .gitlab/torchtailor.yml, and `include:` that" if plan.system.value == "gitlab" else " FILE"
        raise UsageError(f"{path} is there already.", f"Add --force to replace it, or write another with -o{include}.")
    write_output(path, text.encode(), unchanged="Nothing was written.")


def _show(plan: CiPlan, path: Path) -> None:
    from torchtailor.cli import ui
    from torchtailor.core.format import counted

    jobs = counted(len(plan.jobs), "job")
    proofs = f", {len(plan.proofs)} on GPUs" if plan.proofs else ""
    ui.out().print(f"{path}: {jobs} for {counted(len(plan.every_variant), 'variant')}{proofs}", markup=False)
    if variables := plan.oidc_variables:
        ui.err().print(f"It logs in without keys, with the variables {', '.join(variables)}.", markup=False)
    if secrets := plan.secrets(publishes=True):
        ui.err().print(f"It needs the secrets {', '.join(secrets)}.", markup=False)


def _build_options(text: str, *, farm: bool) -> tuple[str, ...]:
    """The words of --build-options, checked by `build` itself; a store needs a farm, if only of one process."""
    from torchtailor.cli._dispatch import load_command
    from torchtailor.cli.build import refuse_on_farms

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--build-options {text!r}: {error}.", "Close the quotation.") from error
    command: Any = load_command("build")
    with command.make_context("torchtailor build", list(words)) as context:
        if context.params.get("variants") or context.params.get("everything"):
            raise UsageError("--build-options names variants.", "Name them before it, as arguments of `ci`.")
        given = [name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"]
    if farm:
        refuse_on_farms(given)
    if own := sorted(_OWN.intersection(given)):
        name = own[0].replace("_", "-")
        raise UsageError(
            f"--build-options: the workflow sets --{name} itself.", f"Give --{name} to `ci`, if it has that."
        )
    return tuple(words)


def _one_of(option: str, text: str, kind: Any) -> str:
    known = [item.value for item in kind]
    if text not in known:
        raise UsageError(f"{option} {text!r} is not {', '.join(known[:-1])} or {known[-1]}.", "Write one of them.")
    return text

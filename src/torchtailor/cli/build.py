"""`torchtailor build`: from a variant's name to a folder of wheels that pip and uv install from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.catalog.releases import Method
from torchtailor.cli import build_source as by_source
from torchtailor.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from torchtailor.backends.wheel.options import Options
    from torchtailor.backends.wheel.plan import BuildPlan
    from torchtailor.backends.wheel.run import Built
    from torchtailor.catalog import Catalog
    from torchtailor.fetch.finder import Finder

IndexUrl = Annotated[str | None, typer.Option("--index-url", "-i", help="This index instead of pip's and uv's.")]
ExtraIndexUrl = Annotated[list[str] | None, typer.Option("--extra-index-url", help="One more index.")]
FindLinks = Annotated[list[str] | None, typer.Option("--find-links", "-f", help="A folder or page with wheels.")]
Offline = Annotated[bool, typer.Option("--offline", help="Use the cache and local folders only.")]
Release = Annotated[str | None, typer.Option(help="PyTorch release: 2.15, 2.10.0, main, cuda-13_0.")]
Python = Annotated[str | None, typer.Option(help="For this Python, such as 3.12 or 3.13t.")]
With = Annotated[list[str] | None, typer.Option("--with", help="Also torchvision,torchaudio,... matched to torch.")]
Nvidia = Annotated[
    bool | None, typer.Option("--nvidia/--no-nvidia", help="Cut NVIDIA's libraries too (docs/licences.md).")
]
Recompress = Annotated[bool, typer.Option("--recompress", help="Store GPU code smaller; takes longer.")]
KeepPtx = Annotated[bool, typer.Option("--keep-ptx", help="Keep PTX as a way to newer GPUs.")]
Glibc = Annotated[str, typer.Option(help="The oldest glibc of the target.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only results and errors.")]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of progress bars.")]


def command(
    variants: Annotated[
        list[str] | None,
        typer.Argument(metavar="VARIANT", help="Names or globs: sm90-avx512, 'sm{80,90}-*'. None: this machine's."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every variant of the release.")] = False,
    via: Annotated[Method, typer.Option(help="How to make it.")] = Method.WHEEL,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the wheelhouses go.")] = Path("dist"),
    release: Release = None,
    python: Python = None,
    companions: With = None,
    nvidia: Nvidia = None,
    recompress: Recompress = False,
    keep_ptx: KeepPtx = False,
    wheel_variants: Annotated[
        bool, typer.Option("--variants", help="Also an index of wheel variants (PEP 825 draft) for uv.")
    ] = False,
    glibc: Glibc = "2.28",
    index_url: IndexUrl = None,
    extra_index_url: ExtraIndexUrl = None,
    find_links: FindLinks = None,
    offline: Offline = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document for scripts.")] = False,
    quiet: Quiet = False,
    plain: Plain = False,
    source: by_source.Source = None,
    profile: by_source.Profile = "full",
    overrides: by_source.Set = None,
    jobs: by_source.Jobs = "auto",
    resume: by_source.Resume = True,
    toolchain: by_source.Toolchain = "system",
    auto_mend: by_source.AutoMend = 0,
    gpus: by_source.Gpus = None,
    skip_check: by_source.SkipCheck = None,
    work: by_source.Work = None,
    verify: by_source.Verify = True,
    target: by_source.Target = None,
    ccache: by_source.Ccache = True,
) -> None:
    """Make an installable set of wheels for a variant.

    The official wheels are fetched, cut to one machine and proven; an index to install from is left.
    """
    from torchtailor import ui
    from torchtailor.catalog import load_catalog

    catalog = load_catalog()
    source_options = by_source.SourceOptions(
        source=source,
        profile=profile,
        overrides=tuple(overrides or ()),
        jobs=jobs,
        resume=resume,
        toolchain=toolchain,
        auto_mend=auto_mend,
        gpus=gpus,
        skip_checks=tuple(skip_check or ()),
        work=work,
        verify=verify,
        targets=tuple(target or ()),
        ccache=ccache,
    )
    if via is Method.SOURCE:
        by_source.build_via_source(
            catalog,
            variants or [],
            source_options,
            everything=everything,
            release=release,
            python=python,
            out=out,
            dry_run=dry_run,
            json=json,
            quiet=quiet,
        )
        return
    if source_options != by_source.SourceOptions():
        raise UsageError("These options are for builds from source only.", "Add --via source.")
    if via is Method.NIX:
        from torchtailor.cli.build_nix import build_via_nix

        build_via_nix(catalog, variants or [], release=release, python=python, out=out, dry_run=dry_run, json=json)
        return
    options = read_options(
        catalog,
        companions=companions,
        nvidia=nvidia,
        recompress=recompress,
        keep_ptx=keep_ptx,
        wheel_variants=wheel_variants,
        glibc=glibc,
    )
    finder = make_finder(index_url, extra_index_url, find_links, offline=offline)
    plan = make_plan(catalog, finder, options, variants or [], everything, release, python, out)
    if json and dry_run:
        ui.print_json(plan.to_json())
        return
    if not quiet and not json:
        show_plan(plan)
    if dry_run:
        return
    built = run_plan(plan, catalog, finder, quiet=quiet or json, plain=plain)
    if json:
        ui.print_json(built.to_json())
    else:
        show_built(built)


def read_options(
    catalog: Catalog,
    *,
    companions: list[str] | None,
    nvidia: bool | None,
    recompress: bool,
    keep_ptx: bool = False,
    wheel_variants: bool = False,
    glibc: str = "2.28",
) -> Options:
    """The command line's choices; NVIDIA's libraries are cut when --nvidia or torchtailor.toml says so."""
    import re

    from torchtailor.backends.wheel.options import Options

    found = re.fullmatch(r"2\.(\d{1,2})", glibc)
    if not found:
        raise UsageError(f"--glibc {glibc!r} is not a version such as 2.28.")
    words = [word.strip() for item in companions or () for word in item.split(",") if word.strip()]
    return Options(
        companions=tuple(dict.fromkeys(word for word in words if word != "torch")),
        nvidia=catalog.tailor.nvidia if nvidia is None else nvidia,
        recompress=recompress,
        keep_ptx=keep_ptx,
        variants=wheel_variants,
        glibc=(2, int(found[1])),
    )


def make_finder(
    index_url: str | None, extra_index_url: list[str] | None, find_links: list[str] | None, *, offline: bool
) -> Finder:
    from torchtailor.fetch.cache import Cache
    from torchtailor.fetch.finder import Finder
    from torchtailor.fetch.settings import read_settings

    settings = read_settings(
        index_url=index_url,
        extra_index_urls=extra_index_url or (),
        find_links=find_links or (),
        offline=offline,
    )
    return Finder(settings, Cache())


def make_plan(
    catalog: Catalog,
    finder: Finder,
    options: Options,
    words: list[str],
    everything: bool,
    release: str | None,
    python: str | None,
    out: Path,
) -> BuildPlan:
    from torchtailor.backends.choose import choose
    from torchtailor.backends.wheel.plan import Planner
    from torchtailor.ledger.ledger import Ledger
    from torchtailor.ledger.rates import Rates, learned

    choices = choose(catalog, words, everything=everything, release=release, python=python)
    try:
        rates = learned(Ledger().attempts(limit=50))
    except EnvironmentProblem:
        rates = Rates()
    return Planner(catalog, finder, options, rates).plan(choices, out)


def show_plan(plan: BuildPlan) -> None:
    """The plan as a person reads it, on stderr: stdout is for results."""
    from torchtailor import ui

    say = ui.err()
    for item in plan.plans:
        say.print(f"{item.name}: PyTorch {item.variant.release.version} ({item.label}), Python {item.variant.python}, "
                  f"{item.variant.arch}", markup=False)  # fmt: skip
        for line in (*item.notes, item.gives, *(f"Only by another way: {text}" for text in item.elsewhere)):
            say.print(f"  {line}", markup=False)
    first = plan.plans[0]
    rows = [
        (source.name, str(source.file.version), ui.human_bytes(source.size), _fetched(source.download, source.size),
         source.treatment.value, source.file.source.origin)
        for source in first.inputs
    ]  # fmt: skip
    say.print(ui.table(("wheel", "version", "size", "to fetch", "treatment", "from"), rows))
    cost = plan.cost
    expected = sum(item.output_size for item in plan.plans)
    say.print(
        f"To fetch {ui.human_bytes(cost.download)}, out about {ui.human_bytes(expected)} in {plan.out}, "
        f"disk {ui.human_bytes(cost.disk)} of {ui.human_bytes(cost.disk_free)} free, "
        f"memory {ui.human_bytes(cost.memory)}, about {ui.human_seconds(cost.seconds)}.",
        markup=False,
    )


def _fetched(download: int, size: int) -> str:
    from torchtailor import ui

    if not download:
        return "here"
    return ui.human_bytes(download) + (" (rest)" if download < size else "")


def run_plan(plan: BuildPlan, catalog: Catalog, finder: Finder, *, quiet: bool, plain: bool) -> Built:
    from torchtailor.backends.wheel.run import build
    from torchtailor.cli._progress import BuildBars

    plan.check()
    with BuildBars(plan.cost.download, quiet=quiet, plain=plain) as bars:
        return build(plan, catalog, finder, progress=bars)


def show_built(built: Built) -> None:
    from torchtailor import ui

    say = ui.out()
    for house in built.wheelhouses:
        say.print(
            f"{house.path}: {house.wheels} wheels, {house.changed} of them cut, "
            f"{ui.human_bytes(house.input_bytes)} -> {ui.human_bytes(house.output_bytes)}",
            markup=False,
        )
        say.print(f"  {house.pip_line}", markup=False)
        say.print(f"  {house.uv_line}", markup=False)
    if built.variants:
        index = (built.variants / "simple").absolute().as_uri()
        torch = f"torch=={built.wheelhouses[0].torch_version.partition('+')[0]}"
        say.print(f"{built.variants}: wheel variants, chosen by the GPU", markup=False)
        say.print(f"  uv pip install --preview-features wheel-variants --default-index {index} {torch}", markup=False)

"""`torchtailor build`: from a variant's name to a folder of wheels that pip and uv install from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from torchtailor.catalog.methods import SOURCE, WHEEL
from torchtailor.cli import _cut
from torchtailor.cli import _options as options
from torchtailor.core.errors import UsageError
from torchtailor.fetch.options import IndexOptions


@_cut.takes_cut("build", panel=options.CUT_WHEELS)
@options.takes_indexes()
def command(
    variants: Annotated[
        list[str] | None,
        typer.Argument(metavar="VARIANT", help="Names or globs: sm90-avx512, 'sm{80,90}-*'. None: this machine's."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every variant of the release.")] = False,
    via: options.Via = WHEEL,
    out: options.Out = Path("dist"),
    release: options.Release = None,
    python: options.Python = None,
    cuda: options.Cuda = None,
    companions: options.With = None,
    gpu: options.NoGpu = None,
    *,
    cut: _cut.ChosenCut,
    wheel_variants: options.Variants = False,
    glibc: options.Glibc = "2.28",
    indexes: IndexOptions,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    plain: options.Plain = False,
    source: options.Source = None,
    profile: options.Profile = "full",
    overrides: options.Set = None,
    jobs: options.Jobs = "auto",
    resume: options.Resume = True,
    toolchain: options.Toolchain = "system",
    auto_fix: options.AutoFix = 0,
    all_gpus: options.AllGpus = False,
    skip_check: options.SkipCheck = None,
    work: options.Work = None,
    bundle: options.Bundle = True,
    verify: options.Verify = True,
    target: options.Target = None,
    ccache: options.Ccache = True,
    on: options.On = None,
    store: options.Store = None,
    objects: options.Objects = None,
    shards: options.Shards = None,
    prove: options.Prove = False,
) -> None:
    """Make an installable set of wheels for a variant.

    The official wheels are fetched, cut to one GPU and proven, and an index to install from is written.
    """
    from torchtailor.building.build import plan_build
    from torchtailor.building.shown import result_lines
    from torchtailor.building.source.options import SourceOptions
    from torchtailor.building.wheel.options import WheelOptions
    from torchtailor.cli import ui
    from torchtailor.cli._build_output import show, show_plan
    from torchtailor.cli._progress import BuildDisplay
    from torchtailor.surgery.cut import Cut
    from torchtailor.tailoring.choices import with_choices

    ui.json_lines(json and on is not None)  # of a farm, stderr has events for scripts
    given: dict[str, object] = {
        WHEEL: WheelOptions(
            companions=tuple(companions or ()),
            cut=with_choices(Cut(), **cut.choices),
            variants=wheel_variants,
            without_gpu=_cut.without_gpu("build", gpu),
            glibc=glibc,
            **asdict(indexes),
        ),
        SOURCE: SourceOptions(
            source=source,
            profile=profile,
            overrides=tuple(overrides or ()),
            jobs=_jobs(jobs),
            resume=resume,
            cuda_from_wheels=_one_of("--toolchain", toolchain, "system", "wheels") == "wheels",
            auto_fix=auto_fix,
            all_gpus=all_gpus,
            skip_checks=tuple(skip_check or ()),
            work=work,
            bundle=bundle,
            verify=verify,
            targets=tuple(target or ()),
            ccache=ccache,
            objects=objects or "",
        ),
    }
    _check_method(via, given, cut)
    if on is not None and via in given:
        refuse_on_farms(_changed(given[via]))
    _check_farm(on, via, store=store, shards=shards, prove=prove, dry_run=dry_run)
    if via == WHEEL and not json and not quiet:
        _cut.say_standing(cut)
    with ui.working("Asking the package indexes", quiet=json or quiet):
        planned = plan_build(
            *(variants or ()),
            method=via,
            options=given.get(via),
            everything=everything,
            release=release,
            python=python,
            cuda=cuda,
            out=out,
        )
    if on is not None:
        _build_on(
            on,
            planned.plan,
            store,
            objects,
            shards,
            prove=prove,
            dry_run=dry_run,
            json=json,
            quiet=quiet,
            plain=plain,
        )
        return
    if dry_run and json:
        ui.print_json(f"build-{via}-plan", planned.plan.document)
        return
    if not json and (dry_run or not quiet):
        show_plan(planned.plan, dry_run=dry_run)
    if dry_run:
        return
    with BuildDisplay(quiet=quiet, plain=plain) as display:
        result = planned.run(display)
    if json:
        ui.print_json(f"build-{via}", result.document(planned.plan.unavailable))
    else:
        show(result_lines(result))


# How options are written whose field has another name.
_OPTIONS = {
    "companions": "--with",
    "without_gpu": "--gpu",
    "extra_index_urls": "--extra-index-url",
    "overrides": "--set",
    "resume": "--no-resume",
    "cuda_from_wheels": "--toolchain",
    "skip_checks": "--skip-check",
    "bundle": "--no-bundle",
    "verify": "--no-verify",
    "targets": "--target",
    "ccache": "--no-ccache",
}


def option_of(field: str) -> str:
    """The option that sets a field of a method's options."""
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


# Of builds from source, what a farm does by itself or leaves to its workers.
_NOT_ON_FARMS = ("resume", "auto_fix", "work", "ccache")


def _changed(value: Any) -> list[str]:
    """The fields of a method's options that are not as usual."""
    usual = type(value)()
    return [field.name for field in fields(value) if getattr(value, field.name) != getattr(usual, field.name)]


def refuse_on_farms(given: Iterable[str]) -> None:
    """Refuse options, by their fields, that no job of a farm would see."""
    from torchtailor.core.disk import WORK_VARIABLE

    unseen = [name for name in given if name in _NOT_ON_FARMS]
    if unseen:
        are, them = ("is", "it") if len(unseen) == 1 else ("are", "them")
        raise UsageError(
            f"{', '.join(map(option_of, unseen))} {are} for builds without --on: jobs are resumed by what the store "
            "has, and their objects shared through ccache.",
            f"Omit {them}; {WORK_VARIABLE} of a worker says where it compiles.",
        )


def _check_method(via: str, given: Mapping[str, Any], cut: _cut.ChosenCut) -> None:
    """Refuse options that another method has."""
    for method, value in given.items():
        changed = [option_of(name) for name in _changed(value) if name != "cut"]
        changed += cut.written if method == WHEEL else []
        refuse_of_others(method, changed, via)


def refuse_of_others(method: str, names: Sequence[str], via: str) -> None:
    """Refuse options of a method, as they are written, where another one was chosen."""
    if names and method != via:
        are, them = ("is", "it") if len(names) == 1 else ("are", "them")
        raise UsageError(f"{', '.join(names)} {are} for --via {method} only.", f"Use --via {method}, or omit {them}.")


def _check_farm(on: str | None, via: str, *, store: str | None, shards: int | None, prove: bool, dry_run: bool) -> None:
    """Refuse, before anything is asked of an index, what belongs to a farm and has none."""
    if on is None:
        if store is not None or shards or prove:
            raise UsageError(
                "--store, --shards and --prove are for builds on many machines.", "Add --on local:2, or omit them."
            )
        return
    from torchtailor.building.base import load_backend
    from torchtailor.building.farm.where import check_answers, check_room, chosen_store, parse_where
    from torchtailor.catalog import load_catalog

    catalog = load_catalog()
    has = load_backend(catalog.method(via)).on_farms
    if has is None:
        raise UsageError(f"The method {via} builds on one machine.", "Omit --on.")
    if shards and not has.shards:
        raise UsageError("--shards is for --via source only.", "Add --via source, or omit it.")
    if prove and has.proof:
        raise UsageError(*has.proof)
    where = parse_where(on, catalog)
    chosen_store(where, store)
    if dry_run:
        check_room(where)
    else:
        check_answers(where)


def _build_on(
    on: str,
    plan: Any,
    store: str | None,
    objects: str | None,
    shards: int | None,
    *,
    prove: bool,
    dry_run: bool,
    json: bool,
    quiet: bool,
    plain: bool,
) -> None:
    """Build on many machines; what fails is said at the end, with the rest built."""
    from torchtailor.building.base import unavailable_rows
    from torchtailor.building.farm.build import failure_of, plan_farm, run_farm
    from torchtailor.building.farm.where import parse_where
    from torchtailor.catalog import load_catalog
    from torchtailor.cli import ui
    from torchtailor.cli._build_output import show_plan
    from torchtailor.cli._farm_output import FarmDisplay, show_farm_plan, show_farm_result, show_farm_variants

    catalog = load_catalog()
    farm = plan_farm(
        plan, parse_where(on, catalog), catalog=catalog, store=store, objects=objects, shards=shards, prove=prove
    )
    if dry_run:
        if json:
            ui.print_json("build-farm-plan", farm.document)
        else:
            show_farm_plan(farm)
        return
    if not json and not quiet:
        show_plan(farm.plan, dry_run=False)
        if not farm.jobs.named:
            show_farm_variants(farm, ui.err())
    with FarmDisplay(farm, quiet=quiet, plain=plain, as_json=json) as display:
        result = run_farm(farm, catalog, listen=display)
    if json:
        ui.print_json("build-farm", result, unavailable=unavailable_rows(plan.unavailable))
    else:
        show_farm_result(result, quiet=quiet)
    if problem := failure_of(result):
        raise problem


def _jobs(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--jobs {text!r} is neither a positive number nor auto.", "Write --jobs 4 or --jobs auto.")
    return int(text)


def _one_of(option: str, text: str, *known: str) -> str:
    if text not in known:
        raise UsageError(f"{option} {text!r} is not {' or '.join(known)}.", f"Write {option} {known[-1]}.")
    return text

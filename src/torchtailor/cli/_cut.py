"""The options of a cut, in one table: every command that cuts has them all, or refuses one with a reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchtailor.cli._options import listed, parameter, takes
from torchtailor.core.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from torchtailor.surgery.cut import Cut
    from torchtailor.surgery.result import LibraryResult
    from torchtailor.tailoring.gpu_stand_ins import GpuStandIn
    from torchtailor.tailoring.image.result import ImageResult
    from torchtailor.tailoring.result import TailorResult
    from torchtailor.trees.artifact.drops import DroppedFile

SMALLER = "To save more"
WORKLOAD = "For one program"
_IN_A_HURRY = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class CutOption:
    """One option: the name of its parameter, how it is written, and the choice of a `Cut` that it makes."""

    name: str
    kind: Any
    help: str
    flag: str = ""
    panel: str | None = None
    metavar: str | None = None
    range: tuple[int, int] | None = None
    choice: str = ""  # where it has another name

    @property
    def written(self) -> str:
        return (self.flag or f"--{self.name.replace('_', '-')}").partition("/")[0]

    def parameter(self, command: str, panel: str | None) -> inspect.Parameter:
        """As typer takes it; what the command refuses is read, but not listed."""
        option = typer.Option(
            self.flag or self.written,
            help=self.help,
            rich_help_panel=panel or self.panel,
            metavar=self.metavar,
            hidden=(command, self.name) in REFUSED,
            min=self.range[0] if self.range else None,
            max=self.range[1] if self.range else None,
        )
        return parameter(self.name, Annotated[bool if self.kind is bool else self.kind | None, option])


OPTIONS = (
    CutOption("gpu", list[str], "Targets: 9.0, sm_90, 8.0,9.0a, 12.0+PTX, 'RTX 4090', native, none. Default: "
              "TORCH_CUDA_ARCH_LIST."),
    CutOption("keep_ptx", bool, "Keep PTX as well, for future GPUs."),
    CutOption("no_lto", bool, "Remove LTO-IR too, which only linking at run time uses."),
    CutOption("driver", str, "The oldest driver the result must run on, such as 550.54.", metavar="VERSION"),
    CutOption("drop", list[str], "Leave out files by rule: static-libs,headers; `tailor --drop list` lists all.",
              panel=SMALLER, metavar="RULES"),
    CutOption("nvidia", bool | None, "Cut NVIDIA's own libraries too; first read `torchtailor help licences`.",
              "--nvidia/--no-nvidia", SMALLER),
    CutOption("strip", bool | None, "Remove symbol tables; by default from packages with GPU code.",
              "--strip/--no-strip", SMALLER),
    CutOption("relr", bool, "Pack relocations: the result needs glibc 2.36 or newer.", panel=SMALLER),
    CutOption("recompress", bool, "Recompress GPU code as zstd (needs driver 550.54 or newer).", panel=SMALLER),
    CutOption("zstd_level", int, "The level of --recompress; 19 where none is given.", panel=SMALLER, range=(1, 22),
              choice="level"),
    CutOption("split", bool, "Move all GPU code to packs: one wheel for all GPUs, and a wheel of packs for each.",
              panel=SMALLER),
    CutOption("workload", list[Path], "Keep what the program of this trace uses, move the rest to packs; may be "
              "repeated.", panel=WORKLOAD, metavar="TRACE"),
    CutOption("margin", str, "What else stays: exact (nothing), library (all of used ones).", panel=WORKLOAD),
    CutOption("pack", Path, "Put the packs there; programs need TORCHTAILOR_PACK.", panel=WORKLOAD,
              metavar="FOLDER", choice="packs"),
    CutOption("no_pack", bool, "Make none: what the trace does not name no longer runs.", panel=WORKLOAD),
    CutOption("host_pages", str, "Which pages of libraries that the program did not touch go to packs: code (default), "
              "all (read-only data too), keep.", panel=WORKLOAD, metavar="WHICH"),
    CutOption("gap", int, "Keep fewer untouched bytes than these between touched ones; where none is given 4096, of "
              "compressed packs 8192.",
              panel=WORKLOAD, metavar="BYTES", range=(0, 1 << 30)),
    CutOption("debuggable", bool, "Keep unwind tables, which debuggers read from the file.", panel=WORKLOAD),
    CutOption("pack_compress", str, "Store the pages in packs as zstd; none is the default, and quicker.",
              panel=WORKLOAD, metavar="HOW"),
    CutOption("drop_unopened", bool, "Move files that the program never opened to packs, or leave them out.",
              panel=WORKLOAD),
    CutOption("index_modules", bool, "Put the code of modules that it imported into one file a package: few file calls "
              "at its start.", panel=WORKLOAD),
    CutOption("bake_caches", Path, "Programs start with the compile caches that `record --caches` wrote to this "
              "folder.", panel=WORKLOAD, metavar="FOLDER", choice="caches"),
)  # fmt: skip

_VARIANT = "the GPU of a build is part of its variant's name", "Name a variant such as sm90-avx512."
_NO_CACHES = "compile caches go into environments and images", "Use tailor --env or image."
_IN_WHEELS = "the wheels have their packs in them", "Leave it out."
# By command and option: why it is not for that command, and what to do instead.
REFUSED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("build", "gpu"): _VARIANT,
    ("install", "gpu"): _VARIANT,
    ("ci", "gpu"): _VARIANT,
    ("build", "pack"): _IN_WHEELS,
    ("install", "pack"): _IN_WHEELS,
    ("ci", "pack"): _IN_WHEELS,
    ("build", "bake_caches"): _NO_CACHES,
    ("install", "bake_caches"): _NO_CACHES,
    ("ci", "bake_caches"): _NO_CACHES,
    ("image", "split"): (
        "the packs of all GPUs would be in the same image",
        "Cut the image once for each GPU.",
    ),
}


@dataclass(frozen=True, slots=True)
class ChosenCut:
    """What was written of these options."""

    given: Mapping[str, Any]

    @property
    def written(self) -> list[str]:
        """The options that were given, as they are written."""
        return [option.written for option in OPTIONS if option.name in self.given]

    @property
    def choices(self) -> dict[str, Any]:
        """What `with_choices` and `cut_for` take, without the GPUs."""
        names = {option.name: option.choice or option.name for option in OPTIONS}
        chosen = {names[name]: value for name, value in self.given.items() if name not in ("gpu", "no_lto")}
        if "drop" in chosen:
            chosen["drop"] = listed(chosen["drop"])
        return chosen | ({"lto": False} if "no_lto" in self.given else {})


def takes_cut(command: str, *, panel: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command, in the place of its parameter `cut`, the options of the table."""

    def chosen(given: dict[str, Any]) -> ChosenCut:
        for name in given:
            if (command, name) in REFUSED:
                raise _refusal(command, name)
        return ChosenCut(given)

    return takes("cut", [option.parameter(command, panel) for option in OPTIONS], chosen)


def _refusal(command: str, name: str) -> UsageError:
    why, instead = REFUSED[(command, name)]
    written = next(option.written for option in OPTIONS if option.name == name)
    return UsageError(f"{written} is not for `{command}`: {why}.", instead)


def say_elsewhere_chosen(given: ChosenCut, cut: Cut) -> None:
    """What was not written on the command line, and where it is from."""
    from torchtailor.cli.ui import err

    if cut.targets.source != "--gpu":
        err().print(f"Target {cut.targets}, from {cut.targets.source}.", markup=False)
    say_standing(given)


def say_standing(given: ChosenCut) -> None:
    """The standing choices of torchtailor.toml that the command line does not change."""
    from torchtailor.catalog import load_catalog
    from torchtailor.catalog.load import USER_FILE
    from torchtailor.cli.ui import err

    if load_catalog().tailor.nvidia and "nvidia" not in given.given:
        err().print(f"--nvidia, from {USER_FILE}.", markup=False)


def sizes(before: int, after: int) -> tuple[str, str, str]:
    """Before, after, and how much of it is left."""
    from torchtailor.core.format import human_bytes

    return human_bytes(before), human_bytes(after), f"{100 * after / before:.0f} %" if before else ""


def library_table(changed: Sequence[tuple[LibraryResult, str]], layer: str = "") -> Table:
    """A row for each library, the largest first, and one for all of which little is cut out; of an image with the layer
    that it is in. In a narrow window names matter more than architectures."""
    from torchtailor.cli.ui import apart, table
    from torchtailor.core.format import counted

    ordered = sorted(changed, key=lambda pair: pair[0].size_before, reverse=True)
    shown, little = apart(ordered, lambda pair: pair[0].saved)
    column = [layer] if layer else []
    rows = [
        [one.path, *([where] if layer else []), *sizes(one.size_before, one.size_after), ", ".join(one.kept)]
        for one, where in shown
    ]
    if little:
        more = f"{len(little)} others" if shown else counted(len(little), "library", "libraries")
        before, after = (sum(getattr(one, name) for one, _ in little) for name in ("size_before", "size_after"))
        rows.append([more, *([""] if layer else []), *sizes(before, after), ""])
    kept = "GPU code kept"
    return table(["Library", *column, "Before", "After", "Left", kept], rows, optional=(kept,), paths=True)


def said_of_no_gpu(result: TailorResult | ImageResult, *, dry_run: bool) -> Iterator[str]:
    """What leaves with --gpu none besides GPU code, and what comes in its place."""
    from torchtailor.core.format import counted, human_bytes
    from torchtailor.surgery.cut import GPU_ONLY
    from torchtailor.trees.wheels.no_gpu import is_gpu_package, required_name

    if files := [file for file in result.dropped_files if file.rule == GPU_ONLY]:
        size = human_bytes(sum(file.size for file in files))
        kept = sorted({name for stand_in in result.stand_ins if is_gpu_package(name := stand_in.package.metadata.name)})
        packages = [*result.gone_packages, *(f"{name} but for its metadata" for name in kept)]
        names = ", ".join(packages or (file.path.rpartition("/")[2] for file in files))
        leave = "Would leave" if dry_run else "Left"
        yield f"{leave} out what only a GPU needs ({counted(len(files), 'file')} of {size}): {names}."
    if added := result.stand_ins:
        size, names = human_bytes(sum(one.size for one in added)), ", ".join(one.name for one in added)
        put = "Would put" if dry_run else "Put"
        yield f"{put} {counted(len(added), 'stand-in')} ({size}) in place of NVIDIA's libraries: {names}."
    if required := result.changed_requirements:
        gone = ", ".join(dict.fromkeys(required_name(text) for text, left in required.items() if left is None))
        rest = ", ".join(left.partition(";")[0].strip() for left in required.values() if left)
        stays = f" Of others, {rest} stays." if rest else ""
        yield f"No longer required: {gone or 'nothing'}.{stays}"


def said_of_left_out(result: TailorResult | ImageResult, cut: Cut) -> Iterator[str]:
    """What goes by rules, or because it was never opened; and what of that lies apart."""
    from torchtailor.core.format import counted, human_bytes
    from torchtailor.surgery.cut import GPU_ONLY, UNOPENED
    from torchtailor.trees.artifact.drops import default_rules, drop_rules

    move = "Would move" if cut.dry_run else "Moved"
    gone = [file for file in result.dropped_files if file.rule != GPU_ONLY]
    if modules := [] if cut.no_pack else [file for file in gone if file.rule == UNOPENED and file.path.endswith(".py")]:
        size = human_bytes(sum(file.size for file in modules))
        were = "was" if len(modules) == 1 else "were"
        yield f"{move} {counted(len(modules), 'module')} of {size} that {were} never imported to packs."
    if moved := getattr(result, "moved_files", ()):
        size, count = human_bytes(sum(one.size for one in moved)), sum(one.files for one in moved)
        were = "was" if count == 1 else "were"
        yield f"{move} {counted(count, 'file')} of {size} that {were} never opened beside the packs; links lead there."
    by_rule: dict[str, list[DroppedFile]] = {}
    for file in gone:
        if file not in modules:
            by_rule.setdefault(file.rule, []).append(file)
    for name, files in by_rule.items():
        size, first = human_bytes(sum(file.size for file in files)), files[0].path.rsplit("/", 1)[-1]
        what = (
            f"{counted(len(files), 'file')} of {size}, such as {first}" if files[1:] else f"1 file of {size}, {first}"
        )
        option = "--drop-unopened" if name == UNOPENED else f"--drop {name}"
        why = drop_rules()[name].what if name in default_rules() else option
        yield f"{'Would leave' if cut.dry_run else 'Left'} out {what} ({why})."
        if name == UNOPENED and any(not file.path.endswith(".pyc") for file in files):  # which Python makes again
            yield (
                "No pack has these; --json lists them. A file stays that the trace names: "
                "torchtailor record -o TRACE --append -- cat FILE"
            )


def said_of_indexes(result: TailorResult | ImageResult, *, dry_run: bool) -> Iterator[str]:
    """What --index-modules made, and what --bake-caches brought."""
    from torchtailor.core.format import counted, human_bytes

    if made := result.module_indexes:
        modules, size = sum(one.modules for one in made), human_bytes(sum(one.size for one in made))
        pythons = " and ".join(dict.fromkeys(one.python for one in made))
        what = (
            f"{counted(modules, 'module')} of {counted(len(made), 'package')} in {counted(len(made), 'file')} of {size}"
        )
        yield f"{'Would index' if dry_run else 'Indexed'} {what}, for Python {pythons}."
    for cache in result.baked_caches:
        what = f"{counted(cache.files, 'file')} of compile caches ({human_bytes(cache.size)})"
        yield f"Programs {'would start' if dry_run else 'start'} with {what}."


def said_of_cpu_builds(stand_ins: Iterable[GpuStandIn]) -> Iterator[str]:
    """The builds for the CPU of what was cut for machines without a GPU, where an index has one; asked in a hurry."""
    from torchtailor.trees.wheels.no_gpu import is_gpu_package

    named = ((stand_in.package.metadata, stand_in.machine.arch) for stand_in in stand_ins)
    packages = {(said.name, said.version, arch) for said, arch in named if not is_gpu_package(said.name)}
    if not packages:
        return  # without a quarter of a second of imports
    from dataclasses import replace

    from torchtailor.core.errors import TorchtailorError
    from torchtailor.fetch.cache import Cache
    from torchtailor.fetch.finder import Finder
    from torchtailor.fetch.settings import read_settings
    from torchtailor.fetch.torch import cpu_wheel

    finder = Finder(replace(read_settings(), timeout=_IN_A_HURRY, retries=0), Cache())
    for name, version, arch in sorted(packages):
        with suppress(TorchtailorError):  # nothing depends on it
            if found := cpu_wheel(finder, name, version, arch):
                wanted = f"`pip install {name}=={found.version}`"
                yield f"{found.source.shown} has {found.filename}: {wanted} gives a build for the CPU without a cut."


def said_of_packs(libraries: Iterable[LibraryResult], cut: Cut, *, sizes: bool = True) -> Iterator[str]:
    """What became of the code that these libraries no longer have."""
    from torchtailor.core.format import counted, human_bytes

    libraries = list(libraries)
    yield from _said_of_pages([library for library in libraries if library.pages], cut, sizes=sizes)
    moved = [library for library in libraries if library.moved]
    if not moved:
        return
    if cut.no_pack:
        made = f"{'would be' if cut.dry_run else 'was'} left out: no pack was asked for"
    elif cut.dry_run:
        made = "would go to packs"
    else:
        made = "is in packs" + (f" of {human_bytes(sum(library.pack_size for library in moved))}" if sizes else "")
    what = "The GPU code" if cut.split else "What the workload does not use"
    yield f"{what} of {counted(len(moved), 'library', 'libraries')} {made}."


def _said_of_pages(paged: Sequence[LibraryResult], cut: Cut, *, sizes: bool) -> Iterator[str]:
    """What became of the pages that the workload did not touch."""
    from torchtailor.core.format import counted, human_bytes

    if not paged:
        return
    cold = human_bytes(sum(library.pages.cold for library in paged if library.pages))
    where = counted(len(paged), "library", "libraries")
    if cut.no_pack:
        left = "would be left out" if cut.dry_run else "were left out"
        yield (
            f"{cold} of {where} that the workload did not touch {left}: no pack was asked for. "
            "A recording does not cover a program: one that runs into what is missing ends with a sentence, and so "
            "does an error that was not recorded."
        )
        return
    made = "would go to packs" if cut.dry_run else "are in packs"
    size = f" of {human_bytes(sum(library.pack_size for library in paged))}" if sizes and not cut.dry_run else ""
    yield f"{cold} of {where} that the workload did not touch {made}{size}, which are mapped when they are loaded."
    if cut.pages.value == "all":
        yield "Read-only data was cut, too: these libraries do not start without their packs."


def without_gpu(command: str, gpu: str | None) -> bool:
    """What `--gpu` of a build says: none, or nothing."""
    from torchtailor.code.gpucode.targets import NO_GPU

    if gpu is not None and gpu.lower() != NO_GPU:
        raise _refusal(command, "gpu")
    return gpu is not None

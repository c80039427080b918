"""The official torch wheel of a variant: the right release, CUDA, Python and platform."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.version import Version

from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import NetworkError, NoMatchError, TorchtailorError
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.metadata import Facts
from torchtailor.fetch.pages import WheelFile
from torchtailor.fetch.resolve import needs
from torchtailor.fetch.target import Target, build_label_of, is_official

# The packages whose version is that of the CUDA that torch was built with, best first.
_CUDA_MARKS = re.compile(r"cuda-toolkit|nvidia-cuda-runtime(?:-cu\d+)?")


@dataclass(frozen=True)
class TorchChoice:
    """The torch wheel for a variant, the finder for its companions, and notes for the user."""

    file: WheelFile
    facts: Facts
    label: str
    finder: Finder
    notes: tuple[str, ...]
    without_gpu: bool = False  # a CUDA build whose GPU code is removed, with NVIDIA's packages


@dataclass(frozen=True, slots=True)
class _Seen:
    """A torch wheel of the right release, and its build label."""

    file: WheelFile
    label: str

    def __str__(self) -> str:
        return f"{self.label} ({self.file.source.origin})"


def build_label(file: WheelFile, facts: Facts, target: Target) -> str:
    """PyTorch's label of a torch wheel: its own, or from the CUDA it depends on; `cpu` if it requires none."""
    return build_label_of(file.version) or label_of(needs(facts, target))


def label_of(requirements: Iterable[Requirement]) -> str:
    """`nvidia-cuda-runtime-cu12==12.8.90` -> `cu128`."""
    for requirement in requirements:
        if _CUDA_MARKS.fullmatch(requirement.name.lower()):
            for item in requirement.specifier:
                if found := re.match(r"(\d+)\.(\d+)", item.version):
                    return f"cu{found[1]}{found[2]}"
    return "cpu"


def choose_torch(finder: Finder, variant: Variant, target: Target, wheel_index: str) -> TorchChoice:
    """The official wheel for a variant.

    The configured indexes come first, any of them. Where they have only other builds of the release, PyTorch's own
    index for this build is searched, unless the user gave --index-url or --offline.
    """
    wanted = variant.build.label
    seen = _look(finder, variant, target, lambda one: one.label == wanted)
    if found := _with_label(seen, wanted):
        return _choice(finder, found, target, ())
    others = ", ".join(dict.fromkeys(str(item) for item in seen))
    what = f"PyTorch {variant.release.version} for Python {variant.python} on {variant.arch}"
    missing = (
        f"The configured indexes have {what} as {others}, not as {wanted}."
        if others
        else (f"The configured indexes do not have {what}.")
    )
    if finder.settings.explicit_index or finder.settings.offline:
        why = "--index-url" if finder.settings.explicit_index else "--offline"
        raise NoMatchError(
            f"{missing} No other index was searched because of {why}.",
            f"Add PyTorch's own index for {wanted} with --extra-index-url.",
        )
    source = IndexLocation(wheel_index.format(label=wanted), LocationKind.INDEX, f"PyTorch's index for {wanted}")
    extended = finder.with_index(source)
    try:
        seen = _look_in(extended, source, variant, target)
    except NetworkError as error:
        raise NetworkError(
            f"{missing} PyTorch's own index for {wanted} cannot be used: {error.message}",
            "Download the wheel elsewhere and give its folder with --find-links, or a mirror with --index-url.",
        ) from error
    if found := _with_label(seen, wanted):
        return _choice(extended, found, target, (f"{missing} It comes from PyTorch's index {source.shown}.",))
    raise NoMatchError(
        f"{missing} PyTorch's own index for {wanted} does not have it either.",
        f"`torchtailor matrix --why {variant.unique_name}` lists what is available.",
    )


def choose_cuda_torch(finder: Finder, variant: Variant, target: Target) -> TorchChoice:
    """The CUDA build that the configured indexes have of the release of a variant for the CPU: pip's default, else that
    with the newest CUDA."""
    seen = _look(finder, variant, target, _is_cuda)
    builds = sorted(filter(_is_cuda, seen), key=lambda one: int(one.label[2:]), reverse=True)
    default = [one for one in seen if one.file.version.local is None]
    what = f"PyTorch {variant.release.version} for Python {variant.python} on {variant.arch}"
    if not builds:
        raise NoMatchError(
            f"The configured indexes have no CUDA build of {what}.",
            f"`torchtailor matrix --why {variant.unique_name}` lists what is available.",
        )
    best = next(iter(default), builds[0])
    cpu = _with_label(seen, variant.build.label)
    why = f"No index that answered has a CPU build of {what}"
    if cpu:
        why = f"{cpu.file.filename} is used without --gpu none"
    cuda = f"CUDA {best.label[2:-1]}.{best.label[-1]}"
    kept = "without its GPU code and without NVIDIA's packages except the CUDA runtime"
    note = f"{why}: the {cuda} build is taken {kept}."
    return replace(_choice(finder, best, target, (note,)), without_gpu=True)


def cpu_wheel(finder: Finder, project: str, version: str, arch: str) -> WheelFile | None:
    """The CPU build of a release that an index has beside its CUDA build, for any Python."""
    public = Version(version).public
    for file in finder.all_files(project):
        if (file.version.public, file.version.local) == (public, "cpu") and file.filename.endswith(f"_{arch}.whl"):
            return file
    return None


def _is_cuda(seen: _Seen) -> bool:
    return seen.label.startswith("cu")


def _choice(finder: Finder, found: _Seen, target: Target, notes: tuple[str, ...]) -> TorchChoice:
    return TorchChoice(found.file, finder.facts(found.file), found.label, finder, notes)


def _look(finder: Finder, variant: Variant, target: Target, wanted: Callable[[_Seen], bool]) -> list[_Seen]:
    """In all configured indexes; one that fails is skipped as long as another has the wheel."""
    seen: list[_Seen] = []
    problem: TorchtailorError | None = None
    for source in finder.settings.sources:
        try:
            seen += _look_in(finder, source, variant, target)
        except NetworkError as error:
            problem = error
    if problem and not any(map(wanted, seen)):
        raise problem
    return seen


def _look_in(finder: Finder, source: IndexLocation, variant: Variant, target: Target) -> list[_Seen]:
    release = Version(str(variant.release.version))
    ranked = []
    for file in finder.list(source, "torch"):
        _, version, build, tags = file.parsed
        rank = target.rank(tags)
        if rank is not None and Version(version.public) == release and is_official(version) and not file.yanked:
            ranked.append(((-rank, build or (), version), file))
    best_first = [file for _, file in sorted(ranked, key=lambda pair: pair[0], reverse=True)]
    return [_Seen(file, build_label(file, finder.facts(file), target)) for file in best_first]


def _with_label(seen: Iterable[_Seen], label: str) -> _Seen | None:
    return next((item for item in seen if item.label == label), None)


def closure_requirements(choice: TorchChoice, companions: Iterable[str]) -> list[Requirement]:
    """torch itself and the requested companions, which pin the torch they belong to."""

    requirements = [Requirement(f"torch==={choice.file.version}")]
    for word in companions:
        try:
            requirements.append(Requirement(word))
        except ValueError as error:  # InvalidRequirement, or thousands of digits
            raise NoMatchError(
                f"--with {word!r} is not a package name.", "Write --with torchvision,torchaudio."
            ) from error
    return requirements

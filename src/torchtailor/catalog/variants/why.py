"""Explains a name: which releases offer it, with which build methods, and which rules forbid it elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.gpus import CodeKind, CodeTarget, Gpu
from torchtailor.catalog.methods import WHEEL
from torchtailor.catalog.releases import Build, Release
from torchtailor.catalog.variants.matrix import Matrix, ParsedName
from torchtailor.catalog.variants.rules import MethodCoverage, coverage, why_impossible
from torchtailor.catalog.variants.select import check_python
from torchtailor.catalog.variants.variant import Variant

_MOST_RELEASES = 4  # whose builds are told apart in one screen

_MOST_REASONS = 3


@dataclass(frozen=True, slots=True)
class BuildVerdict:
    """What holds for the name in one build of one release."""

    release: str
    build: str
    offered: bool
    forbidden: tuple[str, ...]
    methods: tuple[MethodCoverage, ...]

    @property
    def possible(self) -> bool:
        return not self.forbidden

    @property
    def by_wheel(self) -> bool:
        return any(covered.method.name == WHEEL and covered.available for covered in self.methods)

    @property
    def available(self) -> str:
        return ", ".join(covered.method.name for covered in self.methods if covered.available) or "no build method"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdicts of all builds, and the text that sums them up."""

    name: str
    possible: bool
    verdicts: tuple[BuildVerdict, ...]
    text: Annotated[str, Meta(description="all of it in words")]
    instead: Annotated[
        str | None, Meta(description="the variant whose official wheel runs on the GPU, where none of this name does")
    ] = None


def explain(matrix: Matrix, name: str, *, release: str | None = None, python: str | None = None) -> Explanation:
    """Whether a variant is offered, possible or impossible; in all releases or one, for a Python or the default."""
    parsed = ParsedName.parse(name)
    catalog = matrix.catalog
    check_python(catalog, python)
    gpu = catalog.gpu(str(parsed.gpu)) if parsed.gpu else None
    isa = catalog.isa(parsed.isa)
    tag = f"pytorch{parsed.torch}" if parsed.torch else None
    one = release or (tag if tag in catalog.tags else None)
    offered = {(v.release_name, v.build.label, v.short_name) for v in matrix.variants(one, python="all")}
    verdicts = []
    releases = [catalog.release(one)] if one else [*catalog.releases.values()]
    for item in sorted(releases, key=lambda item: item.version, reverse=True):
        if tag and item.tag != tag:
            continue
        for build in reversed(item.builds):
            if _concerns(parsed, build, gpu):
                variant = Variant(item, build, gpu, isa, parsed.python or python or item.default_python)
                is_offered = (variant.release_name, build.label, variant.short_name) in offered
                verdicts.append(_verdict(matrix, variant, is_offered))
    text = _text(parsed, name, verdicts)
    instead = _instead(matrix, gpu, isa, releases) if gpu and not any(v.by_wheel for v in verdicts) else None
    if instead is not None:
        variant, code = instead
        text += (
            f"\n\nThe official {variant.build.label} wheel of PyTorch {variant.release.version} runs on this GPU all "
            f"the same: its {code} code does. Its name is {variant.short_name}."
        )
    possible = any(v.possible for v in verdicts)
    return Explanation(name, possible, tuple(verdicts), text, instead[0].unique_name if instead else None)


def _instead(matrix: Matrix, gpu: Gpu, isa: Isa, releases: Iterable[Release]) -> tuple[Variant, CodeTarget] | None:
    """The newest official wheel with code for an older GPU of the same family, and that code."""
    if isa.arch not in gpu.hosts or not gpu.offered:
        return None
    rules = matrix.catalog.rules
    for release in sorted(releases, key=lambda one: one.version, reverse=True):
        default = release.default_index.get(isa.arch)
        for build in sorted(release.cuda_builds, key=lambda one: one.label != default):
            code = rules.best(gpu.capability, build.wheel_codes(isa.arch))
            if code is not None and code.kind is CodeKind.CUBIN and code.capability in matrix.catalog.gpus:
                owner = matrix.catalog.gpus[code.capability]
                return Variant(release, build, owner, isa, release.default_python), code
    return None


def _concerns(parsed: ParsedName, build: Build, gpu: Gpu | None) -> bool:
    if gpu is None:
        return build.cuda is None
    return build.cuda is not None and parsed.cuda in (None, str(build.cuda))


def _verdict(matrix: Matrix, variant: Variant, offered: bool) -> BuildVerdict:
    reasons = why_impossible(matrix.catalog, variant.release, variant.build, variant.gpu, variant.isa, variant.python)
    forbidden = tuple(reason.text for reason in reasons)
    methods = () if forbidden else tuple(coverage(matrix.catalog, variant, name) for name in matrix.catalog.methods)
    return BuildVerdict(variant.release_name, variant.build.label, offered and not forbidden, forbidden, methods)


def _text(parsed: ParsedName, name: str, verdicts: list[BuildVerdict]) -> str:
    if not verdicts:
        return f"{name}: no release has such a build; `torchtailor matrix` lists all variants."
    offered = [verdict for verdict in verdicts if verdict.offered]
    possible = [verdict for verdict in verdicts if verdict.possible and not verdict.offered]
    forbidden = [verdict for verdict in verdicts if not verdict.possible]
    if offered:
        lines = [f"{name} is available:", *_by_build(offered)]
    elif possible:
        lines = [
            f"{name} is possible, but no release lists it:",
            *_by_build(possible),
            "",
            _row_to_add(parsed, next((one for one in possible if one.by_wheel), possible[0])),
        ]
    else:
        lines = [f"{name} is not possible."]
    by_reasons: dict[tuple[str, ...], list[BuildVerdict]] = {}
    for verdict in forbidden:
        by_reasons.setdefault(verdict.forbidden, []).append(verdict)
    told = list(by_reasons.items())
    for reasons, where in told if len(told) <= _MOST_REASONS else told[: _MOST_REASONS - 1]:
        lines += ["", f"Not possible with {_where(where)}:", *(f"  - {reason}" for reason in reasons)]
    if len(told) > _MOST_REASONS:
        rest = [verdict for _, where in told[_MOST_REASONS - 1 :] for verdict in where]
        lines += ["", f"Nor with {_where(rest)}: add --release {rest[0].release} to see why."]
    return "\n".join(lines)


def _where(verdicts: Iterable[BuildVerdict]) -> str:
    """`2.15 (cu132, cu130), 2.14 (cu132)`."""
    builds: dict[str, list[str]] = {}
    for verdict in verdicts:
        builds.setdefault(verdict.release, []).append(verdict.build)
    return ", ".join(f"{release} ({', '.join(labels)})" for release, labels in builds.items())


def _by_build(verdicts: list[BuildVerdict]) -> list[str]:
    """A line for each build of one release; of many only the newest releases, where one sentence stands for all builds
    of a release with the same methods."""
    releases = list(dict.fromkeys(verdict.release for verdict in verdicts))
    shown = releases[:_MOST_RELEASES]
    alike: dict[tuple[str, ...], list[BuildVerdict]] = {}
    for verdict in verdicts:
        if verdict.release in shown:
            key = (verdict.release, verdict.build if len(releases) == 1 else verdict.available)
            alike.setdefault(key, []).append(verdict)
    lines = []
    for builds in alike.values():
        wheel = next(covered for covered in builds[0].methods if covered.method.name == WHEEL)
        lines.append(f"  {_where(builds)}: {builds[0].available}. {wheel.text}")
    if older := releases[_MOST_RELEASES:]:
        lines.append(f"  Also {', '.join(older)}: add --release {older[0]} to see one.")
    return lines


def _row_to_add(parsed: ParsedName, newest: BuildVerdict) -> str:
    """The newest build with an official wheel that runs, where there is one: that takes minutes to make."""
    cuda = f'cuda = "{newest.build[2:-1]}.{newest.build[-1]}"\n  gpus = ["{parsed.gpu}"]\n  ' if parsed.gpu else ""
    return (
        "To add it, put this into torchtailor.toml in the working directory:\n"
        f'  [[row]]\n  release = "{newest.release}"\n  {cuda}cpus = ["{parsed.isa}"]'
    )

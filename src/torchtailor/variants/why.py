"""Explains a name: in which releases it is, by which ways, and which rules forbid it elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.catalog.gpus import Gpu
from torchtailor.catalog.releases import Build, Method
from torchtailor.variants.matrix import Matrix, ParsedName
from torchtailor.variants.rules import Coverage, coverage, why_impossible
from torchtailor.variants.variant import Variant


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds for the name in one build of one release."""

    release: str
    build: str
    offered: bool
    forbidden: tuple[str, ...]
    ways: tuple[Coverage, ...]

    @property
    def possible(self) -> bool:
        return not self.forbidden

    @property
    def where(self) -> str:
        return f"{self.release} ({self.build})"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdicts of all builds, and the text that sums them up."""

    name: str
    possible: bool
    verdicts: tuple[Verdict, ...]
    text: str


def explain(matrix: Matrix, name: str, *, release: str | None = None, python: str | None = None) -> Explanation:
    """Why a variant is, could be, or cannot be; in all releases or one, for its default Python or another."""
    parsed = ParsedName.parse(name)
    catalog = matrix.catalog
    gpu = catalog.gpu(str(parsed.gpu)) if parsed.gpu else None
    isa = catalog.isa(parsed.isa)
    offered = {(v.release.name, v.build.label, v.short_name) for v in matrix.variants(python="all")}
    verdicts = []
    releases = [catalog.release(release)] if release else catalog.releases.values()
    for item in sorted(releases, key=lambda item: item.version, reverse=True):
        if parsed.torch and item.tag != f"pytorch{parsed.torch}":
            continue
        for build in reversed(item.builds):
            if _concerns(parsed, build, gpu):
                variant = Variant(item, build, gpu, isa, parsed.python or python or item.default_python)
                is_offered = (item.name, build.label, variant.short_name) in offered
                verdicts.append(_verdict(matrix, variant, is_offered))
    return Explanation(name, any(v.possible for v in verdicts), tuple(verdicts), _text(parsed, name, verdicts))


def _concerns(parsed: ParsedName, build: Build, gpu: Gpu | None) -> bool:
    if gpu is None:
        return build.cuda is None
    return build.cuda is not None and parsed.cuda in (None, str(build.cuda))


def _verdict(matrix: Matrix, variant: Variant, offered: bool) -> Verdict:
    reasons = why_impossible(matrix.catalog, variant.release, variant.build, variant.gpu, variant.isa, variant.python)
    forbidden = tuple(reason.text for reason in reasons)
    ways = () if forbidden else tuple(coverage(matrix.catalog, variant, way) for way in Method)
    return Verdict(variant.release.name, variant.build.label, offered and not forbidden, forbidden, ways)


def _text(parsed: ParsedName, name: str, verdicts: list[Verdict]) -> str:
    if not verdicts:
        return f"{name}: no release has such a build; `torchtailor matrix` lists what there is."
    offered = [verdict for verdict in verdicts if verdict.offered]
    possible = [verdict for verdict in verdicts if verdict.possible and not verdict.offered]
    forbidden = [verdict for verdict in verdicts if not verdict.possible]
    if offered:
        lines = [f"{name} is offered:", *_by_way(offered)]
    elif possible:
        lines = [
            f"{name} is in no release, but possible:",
            *_by_way(possible),
            "",
            _row_to_add(parsed, possible[0]),
        ]
    else:
        lines = [f"{name} cannot be."]
    by_reasons: dict[tuple[str, ...], list[str]] = {}
    for verdict in forbidden:
        by_reasons.setdefault(verdict.forbidden, []).append(verdict.where)
    for reasons, where in by_reasons.items():
        lines += ["", f"Not with {', '.join(where)}:", *(f"  - {reason}" for reason in reasons)]
    return "\n".join(lines)


def _by_way(verdicts: list[Verdict]) -> list[str]:
    lines = []
    for verdict in verdicts:
        wheel = next(way for way in verdict.ways if way.way is Method.WHEEL)
        ways = ", ".join(way.way.value for way in verdict.ways if way.available) or "no way"
        lines.append(f"  {verdict.where} by {ways}. {wheel.text}")
    return lines


def _row_to_add(parsed: ParsedName, newest: Verdict) -> str:
    cuda = f'cuda = "{newest.build[2:-1]}.{newest.build[-1]}"\n  gpus = ["{parsed.gpu}"]\n  ' if parsed.gpu else ""
    return (
        "To have it, add this to torchtailor.toml in the working directory:\n"
        f'  [[row]]\n  release = "{newest.release}"\n  {cuda}cpus = ["{parsed.isa}"]'
    )

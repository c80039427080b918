"""The matrix: every variant of every release, and how a name finds its variant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torchtailor.catalog.gpus import Capability
from torchtailor.catalog.load import USER_FILE, Catalog
from torchtailor.catalog.releases import DEFAULT_PYTHON, Build, Release
from torchtailor.catalog.variants.rules import MethodCoverage, Reason, available_methods, coverage, why_impossible
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import ImpossibleError, NoMatchError

_NAME = re.compile(
    r"(?:pytorch(?P<torch>\d{2,3}(?:_\d+)?)?-)?(?:python(?P<python>\d{2,3}t?)-)?(?:cuda(?P<cuda>\d{1,3}_\d{1,3})-)?"
    r"(?P<gpu>sm\d{2,3}(?:_\d{2,3}){0,15}|cpu)-(?P<isa>[a-z0-9_]+)"
)


@dataclass(frozen=True, slots=True)
class ParsedName:
    """The parts of a variant's name; what a short name leaves out is None."""

    torch: str | None
    python: str | None
    cuda: str | None
    gpu: Capability | None
    isa: str
    also: tuple[Capability, ...] = ()

    @classmethod
    def parse(cls, name: str) -> ParsedName:
        match = _NAME.fullmatch(name.strip().lower())
        if not match:
            raise NoMatchError(
                f"{name!r} is not a variant's name.",
                "Names look like sm90-avx512, cpu-armv9, pytorch-python313-cuda13_0-sm90-avx512 or "
                "pytorch210-python313-cpu-avx2; `torchtailor matrix` lists them.",
            )
        numbers = [] if match["gpu"] == "cpu" else match["gpu"][2:].split("_")
        gpus = sorted({Capability.from_number(int(number)) for number in numbers})
        python = match["python"] and f"{match['python'][0]}.{match['python'][1:]}"
        cuda = match["cuda"] and match["cuda"].replace("_", ".")
        return cls(match["torch"], python, cuda, gpus[0] if gpus else None, match["isa"], tuple(gpus[1:]))


@dataclass(frozen=True, slots=True)
class Resolution:
    """The variant that a name was taken for, and what else it could have meant."""

    variant: Variant
    others: tuple[Variant, ...]
    message: str


class Matrix:
    """All variants of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._known: dict[tuple[int, str], tuple[Release, tuple[Variant, ...]]] = {}  # by release and Python
        self._covered: dict[tuple[int, str], tuple[Variant, MethodCoverage]] = {}  # by variant and method
        for release in catalog.releases.values():
            for variant in self._of_release(release, release.default_python):
                if reasons := self.why_impossible(variant):
                    raise ImpossibleError(
                        f"Release {release.name} lists {variant.short_name}, which is not possible: {reasons[0].text}",
                        f"Remove it from its row in the catalog or in {USER_FILE}.",
                    )

    def variants(self, release: str | None = None, python: str | None = None) -> Iterator[Variant]:
        """Variants in the catalog's order; of each release's default Python, of another, or (`all`) of every one."""
        releases = [self.catalog.release(release)] if release else list(self.catalog.releases.values())
        for named in releases:
            item = self.catalog.for_python(named, python) if python and python != "all" else named
            pythons = item.pythons if python == "all" else (python or item.default_python,)
            for version in pythons:
                if version in item.pythons:
                    yield from self._of_release(item, version)

    def _of_release(self, release: Release, python: str) -> tuple[Variant, ...]:
        known = self._known.get((id(release), python))
        if known is None or known[0] is not release:
            known = self._known[id(release), python] = (release, tuple(self._make(release, python)))
        return known[1]

    def _make(self, release: Release, python: str) -> Iterator[Variant]:
        for build in release.builds:
            seen: set[tuple[Capability | None, str]] = set()
            for row in build.rows:
                for capability in row.gpus or (None,):
                    for isa in row.cpus:
                        if (capability, isa) not in seen:
                            seen.add((capability, isa))
                            yield self._variant(release, build, capability, isa, python)

    def _variant(self, release: Release, build: Build, capability: Capability | None, isa: str, python: str) -> Variant:
        gpu = self.catalog.gpus[capability] if capability else None
        return Variant(release, build, gpu, self.catalog.isas[isa], python)

    def coverage(self, variant: Variant, method: str) -> MethodCoverage:
        """Whether and how a method builds a variant; kept, for one recommendation asks many times."""
        known = self._covered.get((id(variant), method))
        if known is None or known[0] is not variant:
            known = self._covered[id(variant), method] = (variant, coverage(self.catalog, variant, method))
        return known[1]

    def why_impossible(self, variant: Variant) -> tuple[Reason, ...]:
        return why_impossible(self.catalog, variant.release, variant.build, variant.gpu, variant.isa, variant.python)

    def resolve(
        self, name: str, *, via: str | None = None, release: str | None = None, python: str | None = None
    ) -> Resolution:
        """The variant a name means: that of the newest release that offers it with the build method asked for.

        Without a method, any method counts. Of a release's CUDA builds, the default index's comes first, then the
        newest.
        """
        parsed = ParsedName.parse(name)
        if release is None and parsed.torch and f"pytorch{parsed.torch}" in self.catalog.tags:
            release = f"pytorch{parsed.torch}"
        default_python = self.catalog.release(release).default_python if release else DEFAULT_PYTHON
        wanted_python = parsed.python or python or default_python
        named = self.variants(release, wanted_python)
        if parsed.gpu and parsed.also:
            named = self.for_all(named, (parsed.gpu, *parsed.also))
        candidates = [variant for variant in named if _matches(parsed, variant)]
        if not candidates:
            raise self._no_variant(name, parsed, release, wanted_python)
        offered = [variant for variant in candidates if self._is_offered(variant, via)]
        if not offered:
            raise self._not_by(via, name, max(candidates, key=_preference))
        chosen = max(offered, key=_preference)
        others = tuple(sorted((v for v in candidates if v is not chosen), key=_preference, reverse=True))
        return Resolution(chosen, others, _message(name, chosen, others))

    def for_all(self, variants: Iterable[Variant], capabilities: Sequence[Capability]) -> Iterator[Variant]:
        """One variant for several GPUs, sorted by capability, of each build and ISA that has one for each of them."""
        found: dict[tuple[int, str], dict[Capability, Variant]] = {}
        for variant in variants:
            if variant.gpu is not None and variant.gpu.capability in capabilities:
                found.setdefault((id(variant.build), variant.isa.name), {})[variant.gpu.capability] = variant
        for each in found.values():
            if len(each) == len(capabilities):
                first, *others = (each[capability] for capability in capabilities)
                yield replace(first, also=tuple(other.gpu for other in others if other.gpu))

    def _is_offered(self, variant: Variant, via: str | None) -> bool:
        if via is None:
            return bool(available_methods(self.catalog, variant))
        return coverage(self.catalog, variant, via).available

    def _not_by(self, via: str | None, name: str, newest: Variant) -> NoMatchError:
        assert via is not None  # every variant has some build method
        others = available_methods(self.catalog, newest) or ("source",)
        builds = " or ".join(f"`torchtailor build {name} --via {method}`" for method in others)
        return NoMatchError(
            f"No release offers {name} {self.catalog.method(via).phrase}: {coverage(self.catalog, newest, via).text}",
            f"Try {builds}, or `torchtailor matrix --why {name}`.",
        )

    def _no_variant(self, name: str, parsed: ParsedName, release: str | None, python: str) -> NoMatchError:
        where = f"release {release}" if release else "any release"
        if parsed.gpu is not None and parsed.gpu not in self.catalog.gpus:
            self.catalog.gpu(str(parsed.gpu))  # raises with the known ones
        self.catalog.isa(parsed.isa)
        if parsed.also:
            return NoMatchError(
                f"{name} for Python {python} is not in {where}.",
                "Only official wheels are cut for several GPUs: `torchtailor recommend --gpu ... --gpu ...` finds one.",
            )
        return NoMatchError(
            f"{name} for Python {python} is not in {where}.",
            f"`torchtailor matrix --why {name}` explains; a [[row]] in {USER_FILE} adds a variant that is possible.",
        )


def _matches(parsed: ParsedName, variant: Variant) -> bool:
    capability = variant.gpu.capability if variant.gpu else None
    return (
        parsed.gpu == capability
        and parsed.isa == variant.isa.name
        and parsed.python in (None, variant.python)
        and (parsed.torch is None or f"pytorch{parsed.torch}" == variant.release.tag)
        and (parsed.cuda is None or parsed.cuda == str(variant.build.cuda))
    )


def _preference(variant: Variant) -> tuple[object, ...]:
    """Newest release first; of its builds the default index's, then the newest CUDA."""
    default = variant.release.default_index.get(variant.arch) == variant.build.label
    cuda = variant.build.cuda.parts if variant.build.cuda else ()
    return (variant.release.version.parts, default, cuda)


def _message(name: str, chosen: Variant, others: tuple[Variant, ...]) -> str:
    release = chosen.release
    text = f"{name} resolves to {chosen.unique_name} (PyTorch {release.version}, release {chosen.release_name})"
    if not others:
        return text + "."
    also = ", ".join(other.unique_name for other in others[:3]) + (", ..." if len(others) > 3 else "")
    return f"{text}; it also matches {also}."


_kept: list[Matrix] = []


def matrix_of(catalog: Catalog) -> Matrix:
    """The matrix of a catalog, kept because making one checks every variant."""
    if not _kept or _kept[0].catalog is not catalog:
        _kept[:] = [Matrix(catalog)]
    return _kept[0]

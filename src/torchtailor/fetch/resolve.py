"""The closure of requirements for a target: newest matching wheels, with backtracking, markers of the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version
from resolvelib import BaseReporter, ResolutionImpossible, Resolver
from resolvelib.providers import AbstractProvider
from resolvelib.resolvers import ResolutionTooDeep

from torchtailor.core.errors import BadInputError, NoMatchError
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.metadata import Facts
from torchtailor.fetch.pages import WheelFile
from torchtailor.fetch.target import Target, is_official, match_of
from torchtailor.trees.wheels.no_gpu import requirement_without_gpu

Identifier = tuple[NormalizedName, frozenset[str]]

_MAX_ROUNDS = 20_000


@dataclass(frozen=True)
class Resolved:
    """A wheel that belongs to the closure."""

    file: WheelFile
    facts: Facts
    required_by: tuple[str, ...]

    @property
    def name(self) -> NormalizedName:
        return self.file.name

    @property
    def version(self) -> Version:
        return self.file.version

    @property
    def size(self) -> int:
        return self.facts.size


@dataclass(frozen=True)
class _Candidate:
    """A wheel with the extras that are requested."""

    file: WheelFile
    extras: frozenset[str]

    @property
    def identifier(self) -> Identifier:
        return self.file.name, self.extras

    @cached_property
    def version(self) -> Version:
        return self.file.version


class _Provider(AbstractProvider[Requirement, _Candidate, Any]):
    """resolvelib's view of wheels: what matches, what a wheel requires on the target."""

    def __init__(
        self,
        finder: Finder,
        target: Target,
        pinned: Mapping[NormalizedName, WheelFile],
        label: str,
        *,
        without_gpu: bool,
    ) -> None:
        self._finder, self._target, self._pinned, self._label = finder, target, pinned, label
        self._without_gpu = without_gpu

    def identify(self, requirement_or_candidate: Requirement | _Candidate) -> Identifier:
        if isinstance(requirement_or_candidate, _Candidate):
            return requirement_or_candidate.identifier
        extras = frozenset(map(canonicalize_name, requirement_or_candidate.extras))
        return canonicalize_name(requirement_or_candidate.name), frozenset(extras)

    def get_preference(
        self,
        identifier: Identifier,
        resolutions: Mapping[Identifier, _Candidate],
        candidates: Mapping[Identifier, Iterator[_Candidate]],
        information: Mapping[Identifier, Iterator[Any]],
        backtrack_causes: Sequence[Any],
    ) -> Any:
        """What is pinned exactly comes first: there is only one choice."""
        specifiers = [item for info in information[identifier] for item in info.requirement.specifier]
        exact = any(map(_pins, specifiers))
        blamed = any(identifier == self.identify(cause.requirement) for cause in backtrack_causes)
        return (identifier[0] not in self._pinned, not exact, not blamed, not specifiers, identifier[0])

    def find_matches(
        self,
        identifier: Identifier,
        requirements: Mapping[Identifier, Iterator[Requirement]],
        incompatibilities: Mapping[Identifier, Iterator[_Candidate]],
    ) -> Callable[[], Iterator[_Candidate]]:
        name, extras = identifier
        # A package with extras is the same package as without: both must agree.
        wanted = [req for key, found in requirements.items() if key[0] == name for req in found]
        bad = {
            candidate.file.url for key, found in incompatibilities.items() if key == identifier for candidate in found
        }
        specifier = SpecifierSet(",".join(str(req.specifier) for req in wanted if req.specifier))
        files = [file for file in self._matching(name, specifier) if file.url not in bad]
        return lambda: (_Candidate(file, extras) for file in files if self._runs(file))

    def _runs(self, file: WheelFile) -> bool:
        """Whether a wheel is for the target's Python; where a page lacks it, its metadata has it."""
        if file.requires_python:
            return True  # checked by the finder
        return self._target.accepts_python(self._finder.facts(file).requires_python)

    def _matching(self, name: NormalizedName, specifier: SpecifierSet) -> list[WheelFile]:
        if name in self._pinned:
            files: Sequence[WheelFile] = [self._pinned[name]]
        elif any("+" in item.version for item in specifier):  # a build that was asked for
            files = self._finder.fitting(name, self._target)
        else:
            files = self._of_build(self._finder.fitting(name, self._target))
        found = [file for file in files if specifier.contains(file.version, prereleases=True)]
        matching = [file for file in found if not file.yanked]
        if not matching and any(map(_pins, specifier)):
            matching = found
        stable = [file for file in matching if not file.version.is_prerelease]
        chosen = stable if stable and not specifier.prereleases else matching
        best: dict[Version, WheelFile] = {}
        for file in chosen:
            best.setdefault(file.version, file)  # files come best first
        return list(best.values())

    def _of_build(self, files: Iterable[WheelFile]) -> list[WheelFile]:
        """Those that fit the build of torch, of each version the ones of the same build first."""
        fits = {file.url: match_of(file.version, self._label) if self._label else 1 for file in files}
        kept = [file for file in files if fits[file.url] is not None and is_official(file.version)]
        return sorted(kept, key=lambda file: (Version(file.version.public), fits[file.url]), reverse=True)

    def is_satisfied_by(self, requirement: Requirement, candidate: _Candidate) -> bool:
        return requirement.specifier.contains(candidate.version, prereleases=True)

    def get_dependencies(self, candidate: _Candidate) -> Iterable[Requirement]:
        facts = self._finder.facts(candidate.file)
        needed = list(needs(facts, self._target, candidate.extras))
        if self._without_gpu:
            left = (requirement_without_gpu(candidate.file.name, one) for one in needed)
            needed = [one for one in left if one is not None]
        if candidate.extras:
            needed.append(Requirement(f"{candidate.file.name}==={candidate.version}"))
        self._look_ahead(needed)
        return needed

    def _look_ahead(self, needed: Sequence[Requirement]) -> None:
        """Read the pages and the most likely metadata of all dependencies in parallel."""
        names = sorted({canonicalize_name(item.name) for item in needed})
        if len(names) < 2:
            return
        self._finder.warm(names, self._target)
        likely = []
        for item in needed:
            try:
                likely += self._matching(canonicalize_name(item.name), item.specifier)[:1]
            except Exception:  # raised again when this dependency is resolved
                continue
        self._finder.warm_facts(likely)


def _pins(specifier: Specifier) -> bool:
    """Whether it allows a single version."""
    return specifier.operator in ("==", "===") and not specifier.version.endswith(".*")


def needs(facts: Facts, target: Target, extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """What a wheel with these extras requires on the target; without markers."""
    asked = ["", *extras]
    for requirement in facts.requires:
        marker = requirement.marker
        if marker is None or any(_applies(marker, target, extra, str(requirement)) for extra in asked):
            bare = Requirement(str(requirement))
            bare.marker = None
            yield bare


def _applies(marker: Marker, target: Target, extra: str, shown: str) -> bool:
    try:
        return marker.evaluate(target.environment | {"extra": extra})
    except (ValueError, TypeError, RecursionError) as error:  # such as UndefinedComparison: `os_name ~= "x"`
        raise BadInputError(
            f"The condition of the requirement {shown[:200]!r} cannot be evaluated.", "Report it to the package."
        ) from error


def resolve(
    requirements: Sequence[Requirement],
    finder: Finder,
    target: Target,
    pinned: Mapping[NormalizedName, WheelFile] | None = None,
    label: str = "",
    *,
    without_gpu: bool = False,
) -> tuple[Resolved, ...]:
    """All wheels that the requirements need, sorted by name; `pinned` decides packages beforehand.

    `label` is the build of torch, such as cu128, which the others must fit; `without_gpu` leaves out what only a GPU
    needs.
    """
    provider = _Provider(finder, target, pinned or {}, label, without_gpu=without_gpu)
    names = [str(requirement) for requirement in requirements]
    try:
        result = Resolver(provider, BaseReporter()).resolve(requirements, max_rounds=_MAX_ROUNDS)
    except ResolutionImpossible as error:
        raise NoMatchError(_explain(error, target), _advice(error, finder, target)) from error
    except ResolutionTooDeep as error:
        raise NoMatchError(f"No set of wheels for {', '.join(names)} was found.", "Pin some versions.") from error
    chosen: dict[NormalizedName, WheelFile] = {}
    parents: dict[NormalizedName, set[str]] = {}
    for (name, _), candidate in result.mapping.items():
        chosen[name] = candidate.file
    for child in result.mapping:
        for parent in result.graph.iter_parents(child):
            if parent is not None and parent[0] != child[0]:
                parents.setdefault(child[0], set()).add(str(parent[0]))
    return tuple(
        Resolved(chosen[name], finder.facts(chosen[name]), tuple(sorted(parents.get(name, ()))))
        for name in sorted(chosen)
    )


def _explain(error: ResolutionImpossible[Any, Any], target: Target) -> str:
    where = f"Python {target.python} on {target.arch} (glibc {target.glibc[0]}.{target.glibc[1]})"
    causes = []
    for cause in error.causes:
        parent = f" (needed by {cause.parent.file.name} {cause.parent.version})" if cause.parent else ""
        causes.append(f"{cause.requirement}{parent}")
    together = " and ".join(dict.fromkeys(causes))
    return f"No wheel for {where} satisfies {together}."


def _advice(error: ResolutionImpossible[Any, Any], finder: Finder, target: Target) -> str:
    """What the indexes have instead, for the first package in conflict."""
    name = canonicalize_name(next(iter(error.causes)).requirement.name)
    if elsewhere := finder.elsewhere(name):
        return elsewhere
    fitting = finder.fitting(name, target)
    if fitting:
        versions = ", ".join(dict.fromkeys(str(file.version) for file in fitting[:40]))
        return f"The configured indexes have {name} {versions[:200]}."
    if finder.all_files(name):
        return f"The indexes have {name}, but not for this Python and platform; try another --python or --glibc."
    return f"No configured index has {name}; add one with --extra-index-url or --find-links."

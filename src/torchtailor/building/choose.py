"""From selectors to variants: names, globs, all of a release, or this machine's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from torchtailor.catalog import WHEEL, Catalog, Dotted
from torchtailor.catalog.variants import Matrix, Variant, coverage, matrix_of
from torchtailor.catalog.variants.matrix import ParsedName
from torchtailor.catalog.variants.select import Names, check_python, find_variants, is_glob, listed
from torchtailor.core.errors import NoMatchError, UsageError
from torchtailor.core.pythons import running_python

if TYPE_CHECKING:
    from torchtailor.advise.recommendation.request import Situation


@dataclass(frozen=True)
class VariantChoice:
    """A variant to build, older ones to fall back to where it is not available, and notes for the user."""

    variant: Variant
    fallbacks: tuple[Variant, ...] = ()
    notes: tuple[str, ...] = ()
    optional: bool = False  # one of a glob: where it is not available, the others are built all the same
    named: bool = False  # by a name that the user gave


def choose(
    catalog: Catalog,
    selectors: Sequence[str],
    *,
    everything: bool = False,
    release: Names = None,
    python: Names = None,
    cuda: str | None = None,
    method: str = WHEEL,
    glob_release: str | None = None,
    without_gpu: bool = False,
) -> tuple[VariantChoice, ...]:
    """The variants that the selectors name; a name that several releases share may fall back to an older one.

    A glob that names no PyTorch is expanded in the releases given, else in `glob_release`, else in the newest. A name
    is looked for in each of several releases and Pythons. `cuda` leaves out the builds of other toolkits, and
    `without_gpu` the GPUs of this machine.
    """
    line = catalog.toolkit(cuda).version if cuda else None
    matrix, releases, pythons = matrix_of(catalog), listed(release), listed(python)
    for one in pythons:
        check_python(catalog, one)
    choosers = [
        _Chooser(matrix, one or None, version or None, line, method, without_gpu)
        for one in releases or ("",)
        for version in pythons or ("",)
    ]
    if everything and selectors:
        raise UsageError("--all and names are mutually exclusive.", "Give one of them.")
    if not selectors and not everything:
        return tuple(chooser.this_machine() for chooser in choosers)
    newest = max(catalog.releases.values(), key=lambda item: item.version).name
    chosen: dict[str, VariantChoice] = {}
    for selector in selectors or ["*"]:
        if is_glob(selector):
            found = choosers[0].matching(selector, releases, pythons, glob_release or newest)
        else:
            found = [chooser.named(selector) for chooser in choosers]
        for choice in found:
            chosen.setdefault(choice.variant.unique_name, choice)
    return tuple(chosen.values())


@dataclass(frozen=True)
class _Chooser:
    matrix: Matrix
    release: str | None
    python: str | None
    cuda: Dotted | None
    method: str
    without_gpu: bool

    def matching(self, glob: str, releases: Sequence[str], pythons: Sequence[str], usual: str) -> list[VariantChoice]:
        """All variants of a glob."""
        matching = find_variants(self.matrix, [glob], release=releases, python=pythons, usual_release=usual)
        found = [variant for variant in matching if self._wanted(variant) and self._available(variant)]
        if not found:
            which = f" with CUDA {self.cuda}" if self.cuda else ""
            raise NoMatchError(
                f"No variant of release {' or '.join(releases) or usual}{which} that can be built with "
                f"--via {self.method} matches {glob!r}.",
                f"`torchtailor matrix {glob!r}` lists the variants; --release selects another release.",
            )
        return [VariantChoice(variant, optional=len(found) > 1) for variant in found]

    def named(self, name: str) -> VariantChoice:
        try:
            found = self.matrix.resolve(name, via=self.method, release=self.release, python=self.python)
        except NoMatchError:
            if not ParsedName.parse(name).also:
                find_variants(self.matrix, [name], release=self.release, python=self.python)  # says which part fails
            raise
        older = [one for one in found.others if one.python == found.variant.python and self._available(one)]
        first, *fallbacks = self._of_cuda(name, [found.variant, *older])
        return VariantChoice(first, tuple(fallbacks), (found.message,) if fallbacks else (), named=True)

    def _of_cuda(self, name: str, variants: Sequence[Variant]) -> list[Variant]:
        """Those of the CUDA that was asked for, at least one."""
        if found := [variant for variant in variants if self._wanted(variant)]:
            return found
        known = dict.fromkeys(str(variant.build.cuda) for variant in variants if variant.build.cuda)
        raise NoMatchError(
            f"{name} is not available with CUDA {self.cuda}.",
            f"It is with CUDA {', '.join(known)}." if known else "It is a variant for the CPU: omit --cuda.",
        )

    def this_machine(self) -> VariantChoice:
        from torchtailor.advise.host.detect import detect
        from torchtailor.advise.recommendation import Request
        from torchtailor.advise.recommendation.engine import recommend_for
        from torchtailor.advise.recommendation.request import Situation

        host = detect(catalog=self.matrix.catalog)
        if self.without_gpu:
            host = structs.replace(host, gpus=())
        request = Request(python=self.python or running_python(), release=self.release, method=self.method)
        answer = recommend_for(self.matrix, host, request)
        if answer.best is None:
            hint = answer.alternatives[0].text if answer.alternatives else "`torchtailor recommend` explains."
            raise NoMatchError(
                f"No variant that can be built with --via {self.method} fits this machine: {answer.machine}.",
                hint,
            )
        best = self.matrix.resolve(
            answer.best.variant, via=self.method, release=answer.best.release, python=answer.best.python
        ).variant
        runs = self._older(best, Situation.of(self.matrix, host, request)) if self.cuda or not self.release else ()
        same = [run for run in runs if not self.release or run.release.version == best.release.version]
        best, *rest = self._of_cuda(best.short_name, [best, *same])
        note = f"This machine is {answer.machine}; its variant is {best.unique_name}."
        return VariantChoice(best, () if self.release else tuple(rest), (note,))

    def _older(self, best: Variant, situation: Situation) -> tuple[Variant, ...]:
        """The same GPU and ISA in older builds that run on this machine too, newest first."""
        from torchtailor.advise.recommendation.candidates import Candidate, judge

        if best.gpu is None:
            situation = situation.on(())
        method = self.matrix.catalog.method(self.method)
        older = [
            variant
            for variant in self.matrix.variants(None, best.python)
            if variant.short_name == best.short_name
            and variant.unique_name != best.unique_name
            and variant.release.version <= best.release.version
            and (variant.build.cuda is None) == (best.build.cuda is None)
            and isinstance(judge(situation, variant, method), Candidate)
        ]
        older.sort(
            key=lambda variant: (variant.release.version, variant.build.cuda or variant.release.version), reverse=True
        )
        return tuple(older)

    def _wanted(self, variant: Variant) -> bool:
        return self.cuda is None or variant.build.cuda == self.cuda

    def _available(self, variant: Variant) -> bool:
        return coverage(self.matrix.catalog, variant, self.method).available

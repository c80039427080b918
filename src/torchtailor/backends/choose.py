"""From the words on the command line to variants: names, globs, all, or this machine's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtailor.catalog import Catalog, Method
from torchtailor.errors import NoMatchError, UsageError
from torchtailor.host.pythons import running_python
from torchtailor.variants import Matrix, Variant, coverage, select

_GLOB_SIGNS = "*?[{"


@dataclass(frozen=True)
class Choice:
    """A variant to build, what it falls back to where its wheel cannot be had, and what is to be said."""

    variant: Variant
    fallbacks: tuple[Variant, ...] = ()
    notes: tuple[str, ...] = ()


def choose(
    catalog: Catalog,
    words: Sequence[str],
    *,
    everything: bool = False,
    release: str | None = None,
    python: str | None = None,
    via: Method = Method.WHEEL,
) -> tuple[Choice, ...]:
    """The variants that are meant; a name that several releases share may fall back to an older one."""
    matrix = Matrix(catalog)
    if everything and words:
        raise UsageError("--all and names exclude each other.", "Give one of them.")
    if not words and not everything:
        return (_this_machine(matrix, release, python, via),)
    chosen: dict[str, Choice] = {}
    for word in words or ["*"]:
        found = (
            [*_matching(matrix, word, release, python, via)]
            if _is_glob(word)
            else [_named(matrix, word, release, python, via)]
        )
        for choice in found:
            chosen.setdefault(choice.variant.unique_name, choice)
    return tuple(chosen.values())


def _is_glob(word: str) -> bool:
    return any(sign in word for sign in _GLOB_SIGNS)


def _matching(matrix: Matrix, glob: str, release: str | None, python: str | None, via: Method) -> list[Choice]:
    """All variants of a glob in one release: the newest, unless one is named."""
    chosen = release or max(matrix.catalog.releases.values(), key=lambda item: item.version).name
    found = [
        variant
        for variant in select(matrix.variants(chosen, python), [glob])
        if coverage(matrix.catalog, variant, via).available
    ]
    if not found:
        raise NoMatchError(
            f"No variant of release {chosen} matches {glob!r} and can be made by way of {via.value}.",
            f"`torchtailor matrix {glob!r}` lists what there is; --release names another release.",
        )
    return [Choice(variant) for variant in found]


def _named(matrix: Matrix, name: str, release: str | None, python: str | None, via: Method) -> Choice:
    resolution = matrix.resolve(name, via=via, release=release, python=python)
    fallbacks = tuple(
        variant
        for variant in resolution.others
        if variant.python == resolution.variant.python and coverage(matrix.catalog, variant, via).available
    )
    return Choice(resolution.variant, fallbacks, (resolution.message,) if fallbacks else ())


def _this_machine(matrix: Matrix, release: str | None, python: str | None, via: Method) -> Choice:
    from torchtailor.host.detect import detect
    from torchtailor.recommend import recommend

    wanted_python = python or running_python()
    host = detect(catalog=matrix.catalog)
    answer = recommend(host, python=wanted_python, release=release, method=via, catalog=matrix.catalog)
    if answer.best is None:
        hint = answer.alternatives[0].text if answer.alternatives else "`torchtailor recommend` tells more."
        raise NoMatchError(f"No variant fits this machine {via.phrase}: {answer.machine}.", hint)
    best = matrix.resolve(answer.best.variant, via=via, release=answer.best.release, python=answer.best.python)
    older = (
        []
        if release
        else [
            variant
            for variant in matrix.variants(None, best.variant.python)
            if variant.short_name == best.variant.short_name
            and variant.unique_name != best.variant.unique_name
            and variant.release.version <= best.variant.release.version
            and (variant.build.cuda is None) == (best.variant.build.cuda is None)
            and coverage(matrix.catalog, variant, via).available
        ]
    )
    older.sort(
        key=lambda variant: (variant.release.version, variant.build.cuda or variant.release.version), reverse=True
    )
    said = f"This machine is {answer.machine}; its variant is {best.variant.unique_name}."
    return Choice(best.variant, tuple(older), (said,))

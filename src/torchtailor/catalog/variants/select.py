"""Selectors: globs with braces over variants' names, and filters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.variants.matrix import Matrix
from torchtailor.catalog.variants.variant import Variant
from torchtailor.catalog.versions import python_key
from torchtailor.core.errors import NoMatchError, UsageError

_BRACES = re.compile(r"\{([^{}]*)\}")
_SHORT = re.compile(r"-((?:sm[\d_]+[a-z]*|cpu)-.+)$")
_NO_GPU = ("cpu", "none")
_MOST_COMPARED = 200
_MOST_PATTERNS = 10_000  # more than the matrix has names; each pair of braces multiplies them


def expand_braces(pattern: str) -> tuple[str, ...]:
    """`sm{80,90}-*` -> `sm80-*`, `sm90-*`; braces may nest."""
    expanded = [pattern]
    while any(_BRACES.search(item) for item in expanded):
        expanded = list(dict.fromkeys(part for item in expanded for part in _expand_first(item)))
        if len(expanded) > _MOST_PATTERNS:
            raise UsageError(
                f"The selector {_shown(pattern)} stands for more than {_MOST_PATTERNS} patterns.",
                "Use * in place of some of its braces.",
            )
    if any(brace in item for item in expanded for brace in "{}"):
        raise UsageError(f"The selector {_shown(pattern)} has an unmatched brace.", "Write it as in sm{80,90}-*.")
    return tuple(expanded)


def _expand_first(pattern: str) -> list[str]:
    match = _BRACES.search(pattern)
    if not match:
        return [pattern]
    return [pattern[: match.start()] + part + pattern[match.end() :] for part in match[1].split(",")]


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 60 else f"{pattern[:57]}...")


def matches(variant: Variant, patterns: Iterable[str]) -> bool:
    """Whether any glob matches the variant's short, seeds' or unique name."""
    names = (variant.short_name, variant.name, variant.unique_name)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def name_matches(name: str, patterns: Iterable[str]) -> bool:
    """The same of a unique name alone, as a list of past builds has it."""
    short = _SHORT.search(name)
    names = (name, f"pytorch-{name.partition('-')[2]}", short[1] if short else name)
    return any(fnmatchcase(one, pattern) for pattern in patterns for one in names)


def unmatched(variants: Sequence[Variant], globs: Sequence[str]) -> tuple[str, ...]:
    """Of several selectors, or alternatives in braces, those that match none of the variants.

    Of one with very many alternatives, which would take long, nothing is said.
    """
    found: list[str] = []
    for glob in globs:
        parts = expand_braces(glob.lower())
        if len(parts) <= _MOST_COMPARED and (len(parts) > 1 or len(globs) > 1):
            found += [part for part in parts if not any(matches(variant, [part]) for variant in variants)]
    return tuple(dict.fromkeys(found))


def select(
    variants: Iterable[Variant],
    globs: Sequence[str] = (),
    *,
    gpus: Sequence[str] = (),
    cpus: Sequence[str] = (),
) -> tuple[Variant, ...]:
    """The variants that match any of the globs, any of the GPUs (`sm90`, `cpu`) and any of the ISAs."""
    name_globs = [item for glob in globs for item in expand_braces(glob.lower())]
    gpu_globs = [item for glob in gpus for item in expand_braces(glob.lower())]
    cpu_globs = [item for glob in cpus for item in expand_braces(glob.lower())]

    def wanted(variant: Variant) -> bool:
        gpu = variant.gpu.sm if variant.gpu else "cpu"
        return (
            (not name_globs or matches(variant, name_globs))
            and (not gpu_globs or any(fnmatchcase(gpu, glob) for glob in gpu_globs))
            and (not cpu_globs or any(fnmatchcase(variant.isa.name, glob) for glob in cpu_globs))
        )

    return tuple(variant for variant in variants if wanted(variant))


def find_variants(
    matrix: Matrix,
    globs: Sequence[str] = (),
    *,
    release: str | None = None,
    gpus: Sequence[str] = (),
    cpus: Sequence[str] = (),
    python: str | None = None,
) -> tuple[Variant, ...]:
    """The variants of a release (or all) that match; GPUs also by capability or product, `python` may be `all`."""
    catalog = matrix.catalog
    if python != "all":
        check_python(catalog, python)
    return select(
        matrix.variants(release, python),
        globs,
        gpus=["cpu" if text.lower() in _NO_GPU else text if is_glob(text) else catalog.gpu(text).sm for text in gpus],
        cpus=[text if is_glob(text) else catalog.isa(text.lower()).name for text in cpus],
    )


def check_python(catalog: Catalog, python: str | None) -> None:
    """Refuse a Python that no release is available for."""
    known = sorted({version for release in catalog.releases.values() for version in release.pythons}, key=python_key)
    if python is not None and python not in known:
        raise NoMatchError(f"No release is available for Python {python!r}.", f"Known: {', '.join(known)}, or `all`.")


def is_glob(text: str) -> bool:
    """Whether a selector is a pattern rather than a name."""
    return any(sign in text for sign in "*?[{")

"""Selectors: globs with braces over variants' names, and filters."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.schema import python_key
from torchtailor.catalog.variants.matrix import Matrix
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import NoMatchError, UsageError

_BRACES = re.compile(r"\{([^{}]*)\}")
_SHORT = re.compile(r"-((?:sm[\d_]+[a-z]*|cpu)-.+)$")
_NO_GPU = ("cpu", "none")
# What a selector has to say of a part for it to be looked for in all releases, or for all Pythons.
_PYTORCH = re.compile(r"pytorch[\d*?\[{]")
_PYTHON = re.compile(r"python[\d*?\[{]")
_PARTS = re.compile(
    r"(?:(?P<torch>pytorch[^-]*)(?:-|$))?(?:(?P<python>python[^-]*)(?:-|$))?(?:(?P<cuda>cuda[^-]*)(?:-|$))?"
    r"(?:(?P<gpu>sm[^-]*|cpu)(?:-(?P<isa>[^-]+))?)?"
)
_ANYTHING = re.compile(r"(?:^|-)\*(?=-|$)")  # parts of a selector that rule out nothing
_PART_OF: dict[str, Callable[[Variant], str]] = {
    "torch": lambda variant: variant.release.tag,
    "python": lambda variant: f"python{variant.python.replace('.', '')}",
    "cuda": lambda variant: f"cuda{str(variant.build.cuda).replace('.', '_')}" if variant.build.cuda else "no CUDA",
    "gpu": lambda variant: variant.gpu_name,
    "isa": lambda variant: variant.isa.name,
}
_MOST_LISTED = 12
Names = str | Sequence[str] | None  # of releases or Pythons: one or several, or with commas
_MOST_COMPARED = 200
_MOST_PATTERNS = 10_000  # more than the matrix has names; each pair of braces multiplies them


class NothingMatchesError(NoMatchError):
    """A selector that finds no variant."""


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
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


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
    release: Names = None,
    gpus: Sequence[str] = (),
    cpus: Sequence[str] = (),
    python: Names = None,
    usual_release: str | None = None,
    wanted: Callable[[Variant], bool] = lambda variant: True,
) -> tuple[Variant, ...]:
    """The variants that match, in the matrix's order; what finds none is an error that says which part of it fails.

    A selector that names a PyTorch or a Python (`pytorch215-python311-*`) is looked for in all of them, another one in
    the releases and for the Pythons that are given, else in the `usual_release` (else in all) for the default Python.
    GPUs are given also by capability or product; a Python may be `all`. `wanted` leaves out more, in silence.
    """
    catalog = matrix.catalog
    releases, pythons = listed(release), listed(python)
    for one in pythons:
        if one != "all":
            check_python(catalog, one)
    filters = {
        "gpus": [
            "cpu" if text.lower() in _NO_GPU else text if is_glob(text) else catalog.gpu(text).sm for text in gpus
        ],
        "cpus": [text if is_glob(text) else catalog.isa(text.lower()).name for text in cpus],
    }
    found: dict[str, Variant] = {}
    for glob in globs or ("*",):
        offered = [
            variant
            for one in releases or ([] if _PYTORCH.search(glob.lower()) else [usual_release or ""]) or [""]
            for version in pythons or (["all"] if _PYTHON.search(glob.lower()) else [""])
            for variant in matrix.variants(one or None, version or None)
        ]
        chosen = [variant for variant in select(offered, [glob], **filters) if wanted(variant)]
        found |= {variant.unique_name: variant for variant in chosen}
    if not found:
        raise _nothing(matrix, globs or ("*",), releases, pythons, **filters)
    return tuple(found.values())


def listed(names: Names) -> tuple[str, ...]:
    """The names of an option that may be given several times and may hold several, with commas."""
    words = (names,) if isinstance(names, str) else names or ()
    return tuple(dict.fromkeys(name.strip() for word in words for name in word.split(",") if name.strip()))


def _nothing(
    matrix: Matrix,
    globs: Sequence[str],
    releases: Sequence[str],
    pythons: Sequence[str],
    gpus: Sequence[str],
    cpus: Sequence[str],
) -> NothingMatchesError:
    """The part of the first selector that rules out the variants which those before it leave."""
    left = list(matrix.variants(python="all"))
    glob = expand_braces(globs[0].lower())[0]
    parts = _PARTS.fullmatch(_ANYTHING.sub("", glob).strip("-"))
    steps: list[tuple[str, Callable[[Variant], str], Sequence[str]]] = []
    if releases:
        known = [matrix.catalog.release(name).tag for name in releases]
        steps.append((f"release {' or '.join(releases)}", lambda variant: variant.release.tag, known))
    if pythons and "all" not in pythons:
        steps.append((f"Python {' or '.join(pythons)}", lambda variant: variant.python, pythons))
    named = parts.groupdict() if parts else {}
    for key, text_of in _PART_OF.items():
        if text := named.get(key):
            steps.append((text, text_of, [text]))
    if gpus:
        steps.append((f"GPU {' or '.join(gpus)}", lambda variant: variant.gpu_name, gpus))
    if cpus:
        steps.append((f"instruction set {' or '.join(cpus)}", lambda variant: variant.isa.name, cpus))
    before: list[str] = []
    for what, text_of, patterns in steps:
        there = list(dict.fromkeys(text_of(variant) for variant in left))
        left = [variant for variant in left if any(fnmatchcase(text_of(variant), pattern) for pattern in patterns)]
        if not left:
            of = f" of {', '.join(before)}" if before else ""
            near = difflib.get_close_matches(patterns[0], there, n=_MOST_LISTED, cutoff=0.0)
            shown = ", ".join(sorted(near, key=_natural)) + (", ..." if len(there) > len(near) else ".")
            return NothingMatchesError(f"{_shown(globs[0])}: no variant{of} has {what}.", f"There are {shown}")
        before.append(what)
    if parts is None:
        hint = (
            "Names look like sm90-avx512 or pytorch215-python313-cuda13_2-sm90-avx512; `torchtailor matrix` lists them."
        )
        return NothingMatchesError(f"No variant matches {_shown(globs[0])}.", hint)
    usual = "" if pythons or named.get("python") else "; --python all also looks at other Pythons than the usual one"
    return NothingMatchesError(
        f"No variant matches {_shown(globs[0])} here, though others do.",
        f"`torchtailor matrix {shlex.quote(globs[0])}` lists them{usual}.",
    )


def _natural(text: str) -> list[tuple[int, str]]:
    """sm90 before sm100."""
    return [(int(number or 0), word) for word, number in re.findall(r"(\D+)(\d*)", text)]


def check_python(catalog: Catalog, python: str | None) -> None:
    """Refuse a Python that no release is available for."""
    known = sorted({version for release in catalog.releases.values() for version in release.pythons}, key=python_key)
    if python is not None and python not in known:
        raise NoMatchError(f"No release is available for Python {python!r}.", f"Known: {', '.join(known)}, or `all`.")


def is_glob(text: str) -> bool:
    """Whether a selector is a pattern rather than a name."""
    return any(sign in text for sign in "*?[{")

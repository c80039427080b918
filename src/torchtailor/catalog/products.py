"""Finds the architecture behind a GPU's product name, as people write it and as drivers report it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchtailor.catalog.gpus import Gpu
from torchtailor.errors import NoMatchError

# Words that carry no meaning: NVIDIA writes them before or after the name that matters.
_NOISE = frozenset({"nvidia", "geforce", "generation", "gpu", "laptop", "mobile", "edition", "with", "graphics"})


def words(name: str) -> tuple[str, ...]:
    """`NVIDIA GeForce RTX 4070 Ti SUPER` -> rtx, 4070, ti, super."""
    spaced = re.sub(r"(?<=\d)(?=ti\b)|(?<=[rg]tx)(?=\d)", " ", name.lower())
    return tuple(word for word in re.findall(r"[a-z0-9]+", spaced) if word not in _NOISE)


def find_product(name: str, gpus: Iterable[Gpu]) -> Gpu:
    """The one architecture whose products the name means.

    A driver's name is longer than the product's ("A100-SXM4-80GB"); a person's may be shorter ("Jetson Orin"). The
    longest product inside the name wins; failing that, all products that hold the name must be of one architecture.
    """
    wanted = words(name)
    products = [(words(product), gpu) for gpu in gpus for product in gpu.all_products]
    inside = [(len(product), gpu) for product, gpu in products if _contains(wanted, product)]
    if inside:
        longest = max(length for length, _ in inside)
        return _only([gpu for length, gpu in inside if length == longest], name)
    around = [gpu for product, gpu in products if wanted and _subsequence(product, wanted)]
    if around:
        return _only(around, name)
    raise NoMatchError(
        f"No GPU is known as {name!r}.",
        "Give its compute capability instead: `nvidia-smi --query-gpu=compute_cap --format=csv,noheader`.",
    )


def _only(found: Sequence[Gpu], name: str) -> Gpu:
    distinct = {gpu.capability: gpu for gpu in found}
    if len(distinct) == 1:
        return found[0]
    options = ", ".join(f"{gpu.capability} ({gpu.family})" for gpu in distinct.values())
    raise NoMatchError(
        f"{name!r} could mean GPUs of several architectures: {options}.",
        "Write the full product name or 9.0-style.",
    )


def _contains(longer: Sequence[str], shorter: Sequence[str]) -> bool:
    """Whether the shorter run of words stands in the longer one, unbroken."""
    size = len(shorter)
    return any(tuple(longer[at : at + size]) == tuple(shorter) for at in range(len(longer) - size + 1))


def _subsequence(longer: Sequence[str], shorter: Sequence[str]) -> bool:
    """Whether the shorter words stand in the longer ones in order, gaps allowed."""
    remaining = iter(longer)
    return all(word in remaining for word in shorter)

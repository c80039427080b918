"""Which switches have a column of their own in the history of attempts."""

from __future__ import annotations

from collections.abc import Sequence

from torchtailor.building.ledger.ledger import Attempt
from torchtailor.catalog import SOURCE

# The switches that matter most when PyTorch is built for a new GPU.
_ALWAYS = ("USE_CUDA", "USE_CUDNN", "USE_FLASH_ATTENTION", "USE_XNNPACK", "USE_NCCL")


def switch_columns(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """The switches that differ between builds from source or were given with --set, after the most important ones."""
    built = [attempt for attempt in attempts if attempt.method == SOURCE]
    if not built:
        return ()
    present = {name for attempt in built for name in attempt.configuration if name.isupper()}
    chosen = [name for name in _ALWAYS if name in present]
    by_hand = {str(word).partition("=")[0] for attempt in built for word in _given(attempt)}
    differing = {name for name in present if len({str(attempt.configuration.get(name)) for attempt in built}) > 1}
    return (*chosen, *sorted((present & (by_hand | differing)) - set(chosen)))


def _given(attempt: Attempt) -> Sequence[object]:
    given = attempt.options.get("set", ())
    return given if isinstance(given, list) else ()

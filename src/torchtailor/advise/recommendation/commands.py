"""The commands that carry out a recommendation."""

from __future__ import annotations

import shlex

from torchtailor.advise.recommendation.candidates import Candidate
from torchtailor.catalog.methods import WHEEL, Basis


def command(candidate: Candidate, into: str | None = None) -> str:
    """What makes the variant, and installs it where it is cut from the official wheel."""
    name = candidate.variant.unique_name
    if candidate.method.name == WHEEL:
        return f"torchtailor install {name}" + (f" --into {shlex.quote(into)}" if into else "")
    return f"torchtailor build {name} --via {candidate.method.name}"


def stock_command(candidate: Candidate, wheel_index: str) -> str | None:
    """What installs the official wheel uncut; None where the variant is not cut from one."""
    variant = candidate.variant
    if candidate.method.basis is not Basis.WHEEL:
        return None
    version, label = variant.release.version, variant.build.label
    if candidate.default_index:
        return f"python -m pip install torch=={version}"
    return f"python -m pip install torch=={version}+{label} --extra-index-url {wheel_index.format(label=label)}"

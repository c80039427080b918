"""The commands that carry out a recommendation."""

from __future__ import annotations

import shlex

from torchtailor.advise.recommendation.candidates import Candidate
from torchtailor.advise.recommendation.request import Request
from torchtailor.catalog.methods import WHEEL, Basis


def command(candidate: Candidate, request: Request) -> str:
    """What makes the variant, and installs it where it is cut from the official wheel.

    Without a name, `install` falls back to an older release where the indexes do not have the newest.
    """
    name = candidate.variant.unique_name
    if candidate.method.name == WHEEL:
        into = f"--into {shlex.quote(request.into)}" if request.into else ""
        return " ".join(filter(None, ("torchtailor install", "" if request.here else name, into)))
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

"""Optional packages: torchtailor works without them, and what needs one says how to get it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.origin import requirement


def how_to_add(extra: str) -> str:
    """What to do where an extra is missing."""
    return f"Install torchtailor with its extra: `pip install '{requirement(extra)}'`."


def need_module(module: str, *, extra: str, purpose: str) -> Any:
    """A module of an extra; `purpose` starts the sentence about a missing one: "Recipes need"."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise EnvironmentProblem(
            f"{purpose} the Python package {package}, which is not installed.",
            how_to_add(extra),
        ) from error

"""Nix/Flox recipes: write, audit, migrate and hash trees of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torchtailor.errors import EnvironmentProblem


def require(module: str) -> Any:
    """A module of the `recipes` extra."""
    try:
        return import_module(module)
    except ImportError as error:
        raise EnvironmentProblem(
            f"Recipes need the Python package {module.partition('.')[0].replace('_', '-')}, which is not installed.",
            "Install torchtailor with its extra: `pip install 'torchtailor[recipes]'`.",
        ) from error

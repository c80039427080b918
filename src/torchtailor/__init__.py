"""Makes PyTorch fit one machine.

As a library: `torchtailor.build("sm90-avx512", nvidia=True)`, `torchtailor.install(into=".venv")`; with `plan_` before
the name, the plan without the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtailor.backends.build import build, plan_build
    from torchtailor.backends.install import install, plan_install
    from torchtailor.catalog.releases import Method

__version__ = "0.1.0"

__all__ = ["Method", "build", "install", "plan_build", "plan_install"]

# Imported on first use, so that `import torchtailor` and the command line stay quick.
_MODULES = {
    "Method": "torchtailor.catalog.releases",
    "build": "torchtailor.backends.build",
    "install": "torchtailor.backends.install",
    "plan_build": "torchtailor.backends.build",
    "plan_install": "torchtailor.backends.install",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)

"""Makes PyTorch fit one machine.

The stages of the pipeline are functions of this package (docs/api.md); each is imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # nothing is imported here: until `__main__` runs, Ctrl-C would print a traceback
if TYPE_CHECKING:
    from torchtailor.backends.base import BuildResult
    from torchtailor.backends.build import build, plan_build
    from torchtailor.backends.install import install, plan_install
    from torchtailor.catalog.methods import Method
    from torchtailor.errors import TorchtailorError
    from torchtailor.host.detect import detect
    from torchtailor.host.model import Host
    from torchtailor.inspection.inspect import inspect
    from torchtailor.inspection.inspection import Inspection
    from torchtailor.recommendation.engine import recommend
    from torchtailor.recommendation.result import Recommendation
    from torchtailor.tailoring.result import TailorResult
    from torchtailor.tailoring.run import tailor
    from torchtailor.verification.result import Level, VerifyReport
    from torchtailor.verification.run import verify
    from torchtailor.version import __version__

__all__ = [
    "BuildResult",
    "Host",
    "Inspection",
    "Level",
    "Method",
    "Recommendation",
    "TailorResult",
    "TorchtailorError",
    "VerifyReport",
    "__version__",
    "build",
    "detect",
    "inspect",
    "install",
    "plan_build",
    "plan_install",
    "recommend",
    "tailor",
    "verify",
]

_MODULES = {
    "BuildResult": "backends.base",
    "Host": "host.model",
    "Inspection": "inspection.inspection",
    "Level": "verification.result",
    "Method": "catalog.methods",
    "Recommendation": "recommendation.result",
    "TailorResult": "tailoring.result",
    "TorchtailorError": "errors",
    "VerifyReport": "verification.result",
    "__version__": "version",
    "build": "backends.build",
    "detect": "host.detect",
    "inspect": "inspection.inspect",
    "install": "backends.install",
    "plan_build": "backends.build",
    "plan_install": "backends.install",
    "recommend": "recommendation.engine",
    "tailor": "tailoring.run",
    "verify": "verification.run",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

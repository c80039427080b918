"""Makes PyTorch fit one machine.

The stages of the pipeline are functions of this package (docs/api.md); each is imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # nothing is imported here: until `__main__` runs, Ctrl-C would print a traceback
if TYPE_CHECKING:
    from torchtailor.advise.host.detect import detect
    from torchtailor.advise.host.model import Host
    from torchtailor.advise.recommendation.engine import recommend
    from torchtailor.advise.recommendation.result import Recommendation
    from torchtailor.building.base import BuildResult
    from torchtailor.building.build import build, plan_build
    from torchtailor.building.install import install, plan_install
    from torchtailor.catalog.methods import Method
    from torchtailor.core.errors import TorchtailorError
    from torchtailor.core.progress import Progress
    from torchtailor.core.version import __version__
    from torchtailor.tailoring.inputs import tailor
    from torchtailor.tailoring.restore import restore
    from torchtailor.tailoring.result import TailorResult
    from torchtailor.verification.doctor.doctor import doctor
    from torchtailor.verification.inspection.inspect import inspect
    from torchtailor.verification.inspection.inspection import Inspection
    from torchtailor.verification.result import Level, VerifyReport
    from torchtailor.verification.verify import verify

__all__ = [
    "BuildResult",
    "Host",
    "Inspection",
    "Level",
    "Method",
    "Progress",
    "Recommendation",
    "TailorResult",
    "TorchtailorError",
    "VerifyReport",
    "__version__",
    "build",
    "detect",
    "doctor",
    "inspect",
    "install",
    "plan_build",
    "plan_install",
    "recommend",
    "restore",
    "tailor",
    "verify",
]

_MODULES = {
    "BuildResult": "building.base",
    "Host": "advise.host.model",
    "Inspection": "verification.inspection.inspection",
    "Level": "verification.result",
    "Method": "catalog.methods",
    "Progress": "core.progress",
    "Recommendation": "advise.recommendation.result",
    "TailorResult": "tailoring.result",
    "TorchtailorError": "core.errors",
    "VerifyReport": "verification.result",
    "__version__": "core.version",
    "build": "building.build",
    "detect": "advise.host.detect",
    "doctor": "verification.doctor.doctor",
    "inspect": "verification.inspection.inspect",
    "install": "building.install",
    "plan_build": "building.build",
    "plan_install": "building.install",
    "recommend": "advise.recommendation.engine",
    "restore": "tailoring.restore",
    "tailor": "tailoring.inputs",
    "verify": "verification.verify",
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

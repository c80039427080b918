"""What a recommendation is asked for, and the checks that its words make sense."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import DEFAULT_PYTHON, Method
from torchtailor.errors import NoMatchError


class Workload(Enum):
    """What the CPU mostly has to do; it decides between instruction sets that the CPU runs equally."""

    GENERAL = "general"
    BF16_TRAINING = "bf16-training"
    INT8_INFERENCE = "int8-inference"


@dataclass(frozen=True, slots=True)
class Request:
    """The choices that are the user's; None leaves one to us."""

    workload: Workload = Workload.GENERAL
    python: str | None = None
    release: str | None = None
    via: Method | None = None

    @property
    def wanted_python(self) -> str:
        return self.python or DEFAULT_PYTHON

    def check(self, catalog: Catalog) -> None:
        """Refuse a release that does not exist and a Python that is not offered."""
        releases = [catalog.release(self.release)] if self.release else list(catalog.releases.values())
        offered = sorted(
            {python for release in releases for python in release.pythons},
            key=lambda python: (int(python.rstrip("t").split(".")[1]), python),
        )
        if self.wanted_python not in offered:
            where = f"PyTorch {releases[0].version} (release {self.release})" if self.release else "any release"
            raise NoMatchError(
                f"Python {self.wanted_python} is not offered by {where}.", f"Offered are {', '.join(offered)}."
            )

"""A case of the op suite, what it needs, and the registry of all cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch

from .sites import Site
from .tolerance import Tolerance

Run = Callable[[Site], Any]
CPU_AND_GPU = ("cpu", "cuda")
GPU_ONLY = ("cuda",)
# From torch's dispatcher, which knows what it was compiled with, before any GPU code is looked for.
NO_SUCH_KERNEL = (
    "not implemented for '",
    "Could not run 'aten::",
    "without MKL. PyTorch built with MKL",
    "requires compiling PyTorch with MKL",
)


class NotApplicable(Exception):  # noqa: N818  (not an error)
    """The case cannot be run by this torch on this device; the message says why."""


@dataclass(frozen=True)
class SuiteMachine:
    """What cases may need: the device under test and torch's version."""

    device: str
    torch_version: tuple[int, int]
    capability: tuple[int, int] | None = None

    @classmethod
    def current(cls, device: str) -> SuiteMachine:
        major, minor = torch.__version__.split(".")[:2]
        capability = torch.cuda.get_device_capability() if device == "cuda" else None
        return cls(device, (int(major), int(minor)), capability)


# The reason why a machine does not have what a case needs; None where it has.
Need = Callable[[SuiteMachine], "str | None"]


def capability(major: int, minor: int) -> Need:
    """The GPU is of this compute capability or a later one."""

    def unmet(machine: SuiteMachine) -> str | None:
        if machine.capability is None or machine.capability >= (major, minor):
            return None
        return "needs a GPU of compute capability {}.{}, this one is {}.{}".format(major, minor, *machine.capability)

    return unmet


def attribute(path: str) -> Need:
    """Something inside torch exists, such as `_scaled_mm` or `cuda.jiterator`."""

    def unmet(machine: SuiteMachine) -> str | None:
        found: Any = torch
        for part in path.split("."):
            found = getattr(found, part, None)
            if found is None:
                return f"torch {torch.__version__} has no torch.{path}"
        return None

    return unmet


def package(name: str) -> Need:
    def unmet(machine: SuiteMachine) -> str | None:
        return None if find_spec(name) else f"the package {name} is not installed"

    return unmet


def holds(condition: Callable[[], Any], otherwise: str) -> Need:
    """Any other condition, with the words for when it does not hold."""

    def unmet(machine: SuiteMachine) -> str | None:
        return None if condition() else otherwise

    return unmet


@dataclass(frozen=True)
class Case:
    """One or a few calls whose outputs are hashed and compared with a reference."""

    name: str
    library: str
    run: Run
    dtype: Any
    tolerance: Tolerance
    devices: tuple[str, ...] = CPU_AND_GPU
    needs: tuple[Need, ...] = ()
    # What is compared instead of the outputs themselves, where several outputs are right (signs of eigenvectors).
    derive: Callable[[Any], Any] | None = None
    # A run that gives the expected numbers directly; without one the case itself is run in higher precision.
    reference: Run | None = None
    # Parts of torch's messages that it does not have this at all (never that it failed).
    refusals: tuple[str, ...] = ()
    # Whether kernels are chosen by timing them: the next process may choose others, and other bits are no fault then.
    timed_choice: bool = False

    def why_not(self, machine: SuiteMachine) -> str | None:
        """Why this case does not apply to a machine; None where it does."""
        if machine.device not in self.devices:
            return f"not run on {machine.device}: it exercises {self.library}"
        for need in self.needs:
            if (reason := need(machine)) is not None:
                return reason
        return None

    def refused(self, error: BaseException) -> bool:
        """Whether torch says that it has no such kernel for this type or device, which is not a failure."""
        message = str(error)
        return any(refusal in message for refusal in (*NO_SUCH_KERNEL, *self.refusals))


@dataclass
class Registry:
    """All cases by name, in the order in which they were added."""

    cases: dict[str, Case] = field(default_factory=dict)

    def add(
        self,
        library: str,
        name: str,
        run: Run,
        dtype: Any = torch.float32,
        tolerance: Tolerance | None = None,
        **options: Any,
    ) -> None:
        """Add a case; its name becomes `library/name/dtype`."""
        full = f"{library}/{name}/{str(dtype).removeprefix('torch.')}"
        if full in self.cases:
            raise ValueError(f"two cases are called {full}")
        self.cases[full] = Case(full, library, run, dtype, tolerance or Tolerance.NORMAL, **options)

    def case(
        self, library: str, name: str, *dtypes: Any, tolerance: Tolerance | None = None, **options: Any
    ) -> Callable[[Run], Run]:
        """Decorate a run: one case for each dtype (float32 where none is named)."""

        def register(run: Run) -> Run:
            for dtype in dtypes or (torch.float32,):
                self.add(library, name, run, dtype, tolerance, **options)
            return run

        return register

    def select(self, names: Iterable[str] | None = None, containing: str = "") -> list[Case]:
        wanted = None if names is None else set(names)
        return [case for name, case in self.cases.items() if containing in name and (wanted is None or name in wanted)]


REGISTRY = Registry()

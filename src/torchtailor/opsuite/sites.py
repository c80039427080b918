"""Where a case runs: the device under test, or the CPU in higher precision for the reference.

The same case is run on both. Inputs are drawn on the CPU from one seed and rounded to the precision under test, so
that both runs see the same numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

# The precision in which a reference is computed.
_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
    torch.complex128: torch.complex128,
}
_COMPLEX = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


class Site:
    """Makes the inputs of one run of one case."""

    def __init__(self, device: str, dtype: Any, seed: int, *, reference: bool = False) -> None:
        self.device = "cpu" if reference else device
        self.differs = False  # whether a reference is computed in another way than what is tested
        self._reference = reference
        self.seed = seed
        self.stored = dtype
        self.dtype = self.widened(dtype)
        self._draws = torch.Generator("cpu").manual_seed(seed)

    def widened(self, dtype: Any) -> Any:
        """The type in which this run computes what the case stores as `dtype`."""
        wider = _WIDER.get(dtype, dtype) if self._reference else dtype
        self.differs |= wider is not dtype
        return wider

    @property
    def reference(self) -> bool:
        """Whether this run gives the expected numbers; a case that asks computes them in another way."""
        self.differs = True
        return self._reference

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def put(self, values: Any, dtype: Any = None, *, grad: bool = False) -> Any:
        """Values rounded to what the case stores, in this run's precision, on this run's device."""
        stored = dtype or self.stored
        placed = values.to(stored).to(device=self.device, dtype=self.widened(stored))
        return placed.requires_grad_() if grad else placed

    def normal(self, *shape: int, scale: float = 1.0, grad: bool = False, dtype: Any = None) -> Any:
        drawn = torch.randn(shape, generator=self._draws, dtype=torch.float64) * scale
        return self.put(drawn, dtype, grad=grad)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0, grad: bool = False, dtype: Any = None) -> Any:
        drawn = torch.rand(shape, generator=self._draws, dtype=torch.float64) * (high - low) + low
        return self.put(drawn, dtype, grad=grad)

    def complex_normal(self, *shape: int) -> Any:
        """Complex numbers whose parts have the case's precision."""
        parts = torch.randn((2, *shape), generator=self._draws, dtype=torch.float64).to(self.stored)
        drawn = torch.complex(parts[0].double(), parts[1].double())
        stored = _COMPLEX[self.stored]
        return drawn.to(device=self.device, dtype=self.widened(stored))

    def integers(self, *shape: int, low: int = 0, high: int = 100, dtype: Any = torch.int64) -> Any:
        drawn = torch.randint(low, high, shape, generator=self._draws)
        return drawn.to(device=self.device, dtype=dtype)

    def bools(self, *shape: int) -> Any:
        return self.integers(*shape, high=2).bool()

    def distinct(self, count: int, dtype: Any = None) -> Any:
        """The numbers 0 .. count-1 in random order: sorting them has one answer."""
        return self.put(torch.randperm(count, generator=self._draws), dtype)

    def positive_definite(self, *shape: int) -> Any:
        """Well-conditioned symmetric matrices."""
        root = torch.randn(shape, generator=self._draws, dtype=torch.float64)
        eye = torch.eye(shape[-1], dtype=torch.float64)
        return self.put(root @ root.mT / shape[-1] + 2 * eye)

    def module(self, make: Callable[[], Any]) -> Any:
        """A module with the same parameters in both runs."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            made = make()
        return copy.deepcopy(made).to(self.stored).to(device=self.device, dtype=self.dtype)

    def with_gradients(self, output: Any, *leaves: Any) -> tuple[Any, ...]:
        """The output and the gradients of its product with random numbers."""
        cotangent = self.normal(*output.shape)
        return (output, *torch.autograd.grad(output, leaves, cotangent.to(output.dtype)))

    def generator(self) -> Any:
        return torch.Generator(self.device).manual_seed(self.seed)

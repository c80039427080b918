"""How far an output may lie from its reference, relative to the largest number of the reference."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch


class Tolerance(Enum):
    """How errors add up in a case: not at all, a rounding, a sum, a long chain of sums."""

    EXACT = "exact"
    TIGHT = "tight"
    NORMAL = "normal"
    LOOSE = "loose"
    TF32 = "tf32"  # float32 whose products are rounded to 10 bits
    TF32_LOOSE = "tf32-loose"
    FP8 = "fp8"
    STATISTICAL = "statistical"  # moments of random numbers

    def limit(self, dtype: Any) -> float:
        """The largest relative error of a case in this precision."""
        if self in _FIXED:
            return _FIXED[self]
        return _LIMITS[self].get(dtype, 0.0)  # integers and booleans are exact


_FIXED = {
    Tolerance.EXACT: 0.0,
    Tolerance.TF32: 5e-3,
    Tolerance.TF32_LOOSE: 3e-2,
    Tolerance.FP8: 0.1,
    Tolerance.STATISTICAL: 0.05,
}
_LIMITS = {
    Tolerance.TIGHT: {
        torch.float64: 1e-13,
        torch.float32: 2e-6,
        torch.float16: 2e-3,
        torch.bfloat16: 1.6e-2,
    },
    Tolerance.NORMAL: {
        torch.float64: 1e-10,
        torch.float32: 2e-5,
        torch.float16: 1e-2,
        torch.bfloat16: 6e-2,
    },
    Tolerance.LOOSE: {
        torch.float64: 1e-7,
        torch.float32: 2e-3,
        torch.float16: 5e-2,
        torch.bfloat16: 0.2,
    },
}

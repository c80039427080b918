"""Elementwise kernels: arithmetic, functions, comparisons and conversions in every type."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ..case import REGISTRY
from ..sites import Site
from ..tolerance import Tolerance

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
EXACT = Tolerance.EXACT

ANYWHERE = ("sin", "cos", "tanh", "sigmoid", "erf", "atan", "abs", "neg", "floor", "ceil", "trunc", "sign", "sinc")
POSITIVE = (
    "exp",
    "log",
    "log2",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp2",
    "expm1",
    "lgamma",
    "digamma",
    "square",
)
UNIT = ("asin", "acos", "atanh", "erfinv", "asinh", "sinh", "cosh", "tan", "logit")


def _each(names: Sequence[str], values: Any) -> list[Any]:
    return [getattr(torch, name)(values) for name in names]


@REGISTRY.case("aten", "functions", *FLOATS)
def _functions(site: Site) -> Any:
    return _each(ANYWHERE, site.normal(777))


@REGISTRY.case("aten", "functions-of-positive", *FLOATS)
def _positive(site: Site) -> Any:
    return _each(POSITIVE, site.uniform(777, low=0.3, high=4.0))


@REGISTRY.case("aten", "functions-of-unit", *FLOATS, tolerance=Tolerance.NORMAL)
def _unit(site: Site) -> Any:
    values = site.uniform(777, low=0.05, high=0.9)
    return _each(UNIT, values)


@REGISTRY.case("aten", "arithmetic", *FLOATS)
def _arithmetic(site: Site) -> Any:
    left, right = site.normal(31, 40), site.uniform(40, low=0.5, high=2.0)
    return (
        left + right,
        left - 2 * right,
        left * right,
        left / right,
        torch.addcmul(left, right, right, value=0.5),
        torch.addcdiv(left, right, right),
        torch.lerp(left, right.expand_as(left), 0.25),
        right.pow(1.5),
        torch.hypot(left, right.expand_as(left)),
        torch.atan2(left, right),
        left.clamp(-0.5, 0.5),
        torch.maximum(left, right),
        torch.copysign(right, left),
    )


@REGISTRY.case("aten", "remainders", torch.float64, torch.float32, tolerance=Tolerance.NORMAL)
def _remainders(site: Site) -> Any:
    """Quarters, which every precision holds exactly."""
    left = site.integers(500, low=-90, high=90).to(site.dtype) * 0.25
    right = site.integers(500, low=1, high=9).to(site.dtype) * 0.25
    return torch.fmod(left, right), torch.remainder(left, right), torch.floor_divide(left, right), left.frac()


@REGISTRY.case("aten", "integer-arithmetic", *INTEGERS, tolerance=EXACT)
def _integers(site: Site) -> Any:
    left, right = (site.integers(600, low=1, high=60, dtype=site.stored) for _ in range(2))
    return (
        left + right,
        left * right,
        left // right,
        left % right,
        left & right,
        left | right,
        left ^ right,
        ~left,
        left << 1,
        left >> 1,
        left.clamp(5, 20),
        left == right,
        left < right,
        torch.bitwise_left_shift(left, right % 3),
    )


@REGISTRY.case("aten", "booleans", torch.bool, tolerance=EXACT)
def _booleans(site: Site) -> Any:
    left, right = site.bools(500), site.bools(500)
    return left & right, left | right, left ^ right, ~left, torch.logical_xor(left, right), left.eq(right)


@REGISTRY.case("aten", "comparisons", *FLOATS, tolerance=EXACT)
def _comparisons(site: Site) -> Any:
    left, right = site.normal(700), site.normal(700)
    odd = torch.cat([left, left.new_tensor([float("nan"), float("inf"), -float("inf")])])
    return left < right, left >= right, left != right, odd.isnan(), odd.isinf(), odd.isfinite(), odd.nan_to_num(1, 2, 3)


@REGISTRY.case("aten", "complex-arithmetic", torch.float32, torch.float64)
def _complex(site: Site) -> Any:
    left, right = site.complex_normal(300), site.complex_normal(300)
    return (
        left + right,
        left * right,
        left / (right + 3),
        left.conj(),
        left.abs(),
        left.angle(),
        torch.polar(left.abs(), left.angle()),
        (left + 4).log(),
        left.sin(),
        left.real.contiguous(),
    )


@REGISTRY.case("aten", "conversions", *FLOATS, tolerance=EXACT)
def _conversions(site: Site) -> Any:
    """From each precision to integers and back; numbers that all of them hold."""
    values = site.integers(400, low=0, high=120).to(site.dtype)
    return [values.to(kind) for kind in (*INTEGERS, torch.bool, *FLOATS)]


@REGISTRY.case("aten", "rounding-conversions", torch.float32, tolerance=EXACT)
def _rounding(site: Site) -> Any:
    """float32 to the narrower types rounds to nearest even everywhere."""
    values = site.normal(1000, dtype=torch.float32).float()
    return values.half(), values.bfloat16(), values.round(), values.round(decimals=1)[:0]


def _to_float8(site: Site, kind: Any) -> Any:
    values = site.normal(500, dtype=torch.float32).float()
    return values.to(kind).to(torch.float32), values.to(kind).view(torch.uint8)


for _name in ("float8_e4m3fn", "float8_e5m2"):
    if hasattr(torch, _name):
        _kind = getattr(torch, _name)
        REGISTRY.add("aten", "float8-conversion", partial(_to_float8, kind=_kind), _kind, EXACT)


@REGISTRY.case("aten", "foreach", torch.float32, torch.bfloat16)
def _foreach(site: Site) -> Any:
    left = [site.normal(size) for size in (5, 300, 1, 77)]
    right = [site.normal(size) for size in (5, 300, 1, 77)]
    return (
        torch._foreach_add(left, right, alpha=2),
        torch._foreach_mul(left, 0.5),
        torch._foreach_sqrt(torch._foreach_abs(left)),
        torch._foreach_norm(left),
        torch._foreach_addcmul(left, right, right, value=0.1),
        torch._foreach_lerp(left, right, 0.3),
        torch._foreach_maximum(left, right),
    )


@REGISTRY.case("aten", "ranges", torch.float32, torch.int64, tolerance=EXACT)
def _ranges(site: Site) -> Any:
    kind = site.dtype
    return (
        torch.arange(0, 500, 2, device=site.device, dtype=kind),
        torch.linspace(0, 64, 65, device=site.device).to(kind),
        torch.full((30,), 7, device=site.device, dtype=kind),
        torch.eye(9, device=site.device, dtype=kind),
        torch.tril_indices(5, 5, device=site.device),
    )


@REGISTRY.case("aten", "interpolated-powers", torch.float32, torch.float64)
def _powers(site: Site) -> Any:
    base = site.uniform(200, low=0.5, high=2.0)
    return (
        torch.float_power(base, 3).to(base.dtype),
        torch.logaddexp(base, base * 2),
        torch.xlogy(base, base),
        torch.heaviside(base - 1, base),
        torch.special.entr(base),
        torch.special.i0(base),
        torch.polygamma(1, base),
    )

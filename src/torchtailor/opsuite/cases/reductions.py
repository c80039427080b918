"""Reductions of every type and shape."""

from __future__ import annotations

from typing import Any

import torch

from ..case import REGISTRY
from ..sites import Site
from ..tolerance import Tolerance

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SHAPES = (((20_000,), 0), ((37, 501), 1), ((501, 37), 0), ((6, 7, 8, 9), (1, 3)))


@REGISTRY.case("aten", "sum-mean", *FLOATS)
def _sum(site: Site) -> Any:
    data = [(site.normal(*shape), dims) for shape, dims in SHAPES]
    return [(values.sum(dims), values.mean(dims)) for values, dims in data]


@REGISTRY.case("aten", "variance", *FLOATS)
def _variance(site: Site) -> Any:
    data = [(site.normal(*shape), dims) for shape, dims in SHAPES]
    return [(values.var(dims), values.std(dims, unbiased=False)) for values, dims in data]


@REGISTRY.case("aten", "product", torch.float64, torch.float32, torch.bfloat16)
def _product(site: Site) -> Any:
    return site.uniform(12, 40, low=0.95, high=1.05).prod(1)


@REGISTRY.case("aten", "extremes", *FLOATS, torch.int64, torch.int8, torch.uint8, tolerance=Tolerance.EXACT)
def _extremes(site: Site) -> Any:
    if site.stored.is_floating_point:
        values = site.normal(30, 400)
    else:
        values = site.integers(30, 400, high=120, dtype=site.stored)
    return values.amax(1), values.amin(0), values.max(), torch.aminmax(values, dim=1)


@REGISTRY.case("aten", "argmax", torch.float32, torch.int64, tolerance=Tolerance.EXACT)
def _argmax(site: Site) -> Any:
    values = site.distinct(2400, site.stored).view(24, 100)
    return values.argmax(1), values.argmin(0), values.argmax(), values.max(1)


@REGISTRY.case("aten", "logsumexp", *FLOATS)
def _logsumexp(site: Site) -> Any:
    return torch.logsumexp(site.normal(30, 200), 1)


@REGISTRY.case("aten", "integer-sums", torch.int64, torch.int32, torch.uint8, tolerance=Tolerance.EXACT)
def _integer_sums(site: Site) -> Any:
    values = site.integers(40, 300, high=100, dtype=site.stored)
    return values.sum(), values.sum(0), values.count_nonzero(1), (values % 3 + 1)[:, :5].prod(1)


@REGISTRY.case("aten", "any-all", torch.bool, tolerance=Tolerance.EXACT)
def _any_all(site: Site) -> Any:
    values = site.bools(50, 6)
    return values.any(1), values.all(1), values.any(), values.logical_not().all(0)


@REGISTRY.case("aten", "complex-sums", torch.float32, torch.float64)
def _complex_sums(site: Site) -> Any:
    values = site.complex_normal(20, 300)
    return values.sum(1), values.mean(0), torch.linalg.vector_norm(values, dim=1)


@REGISTRY.case("aten", "nan-reductions", torch.float32)
def _nan_reductions(site: Site) -> Any:
    values = site.normal(20, 50)
    values[values.abs() < 0.3] = float("nan")
    return values.nansum(1), values.nanmean(1), values.nanmedian(1)[0], values.sum(0)


@REGISTRY.case("aten", "quantile", torch.float32, torch.float64)
def _quantile(site: Site) -> Any:
    values = site.normal(5, 999)
    return torch.quantile(values, site.put(torch.tensor([0.1, 0.5, 0.9])), dim=1)


@REGISTRY.case("aten", "distances", torch.float32, torch.float64, tolerance=Tolerance.LOOSE)
def _distances(site: Site) -> Any:
    left, right = site.normal(30, 12), site.normal(25, 12)
    return torch.cdist(left, right), torch.cdist(left, right, p=1), torch.nn.functional.pdist(left)

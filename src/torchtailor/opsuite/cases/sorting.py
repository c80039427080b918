"""Sorting, searching, unique values, scans: the CUB and Thrust kernels inside libtorch_cuda."""

from __future__ import annotations

from typing import Any

import torch

from ..case import REGISTRY
from ..sites import Site
from ..tolerance import Tolerance

FLOATS = (torch.float32, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
EXACT = Tolerance.EXACT


def _numbers(site: Site, *shape: int) -> Any:
    """Random numbers of the case's type; in floats hardly any twice."""
    if site.stored.is_floating_point:
        return site.normal(*shape)
    return site.integers(*shape, high=100, dtype=site.stored)


@REGISTRY.case("aten", "sort", *FLOATS, *INTEGERS, tolerance=EXACT)
def _sort(site: Site) -> Any:
    """Stable sorts, so that equal numbers have one order; a row, many rows, a long row."""
    return [torch.sort(_numbers(site, *shape), stable=True) for shape in ((1000,), (40, 130), (200_000,))]


@REGISTRY.case("aten", "sort-descending", torch.float32, torch.int64, tolerance=EXACT)
def _descending(site: Site) -> Any:
    return torch.sort(_numbers(site, 60, 90), dim=0, descending=True, stable=True)


@REGISTRY.case("aten", "argsort", torch.float32, tolerance=EXACT)
def _argsort(site: Site) -> Any:
    return torch.argsort(site.distinct(3000)), torch.msort(site.normal(30, 40))


@REGISTRY.case("aten", "topk", torch.float32, torch.float16, torch.int32, tolerance=EXACT)
def _topk(site: Site) -> Any:
    few = site.distinct(1500, site.stored if site.stored is not torch.float16 else torch.float32)
    return torch.topk(few, 20), torch.topk(few[:1024], 7, largest=False), torch.topk(few.view(3, 500), 100)


@REGISTRY.case("aten", "kthvalue", torch.float32, torch.int64, tolerance=EXACT)
def _kthvalue(site: Site) -> Any:
    values = site.distinct(900, site.stored).view(9, 100)
    return torch.kthvalue(values, 13, dim=1), torch.median(values, dim=1), torch.mode(values, dim=1)[0]


@REGISTRY.case("aten", "unique", torch.int64, torch.float32, tolerance=EXACT)
def _unique(site: Site) -> Any:
    values = site.integers(3000, high=50).to(site.stored)
    rows = site.integers(200, 3, high=3).to(site.stored)
    return (
        torch.unique(values, return_inverse=True, return_counts=True),
        torch.unique_consecutive(values, return_counts=True),
        torch.unique(rows, dim=0),
    )


@REGISTRY.case("aten", "searchsorted", torch.float32, torch.int64, tolerance=EXACT)
def _searchsorted(site: Site) -> Any:
    edges = torch.sort(_numbers(site, 300))[0]
    values = _numbers(site, 40, 20)
    return torch.searchsorted(edges, values), torch.bucketize(values, edges, right=True)


@REGISTRY.case("aten", "histogram", torch.float32, tolerance=EXACT)
def _histogram(site: Site) -> Any:
    """Halves of integers lie on no edge in any precision."""
    values = site.integers(5000, low=-20, high=20).to(site.dtype) + 0.5
    return torch.histc(values, bins=10, min=-20, max=20), torch.bincount(site.integers(4000, high=30))


@REGISTRY.case("aten", "cumsum", *FLOATS, torch.int64, torch.bfloat16)
def _cumsum(site: Site) -> Any:
    return [torch.cumsum(_numbers(site, *shape), dim) for shape, dim in (((5000,), 0), ((30, 70), 1), ((30, 70), 0))]


@REGISTRY.case("aten", "cumprod", torch.float32, torch.float64)
def _cumprod(site: Site) -> Any:
    return torch.cumprod(site.uniform(20, 60, low=0.9, high=1.1), 1)


@REGISTRY.case("aten", "cummax", torch.float32, torch.int64, tolerance=EXACT)
def _cummax(site: Site) -> Any:
    values = site.distinct(1200, site.stored).view(12, 100)
    return torch.cummax(values, 1), torch.cummin(values, 0)


@REGISTRY.case("aten", "logcumsumexp", torch.float32, torch.float64)
def _logcumsumexp(site: Site) -> Any:
    return torch.logcumsumexp(site.normal(15, 200), 1)

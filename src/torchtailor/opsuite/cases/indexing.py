"""Gathering and scattering, copies between layouts, embeddings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from ..case import REGISTRY
from ..sites import Site
from ..tolerance import Tolerance

EXACT = Tolerance.EXACT
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@REGISTRY.case("aten", "gather", *TYPES, tolerance=EXACT)
def _gather(site: Site) -> Any:
    data, index = site.normal(40, 60), site.integers(40, 25, high=60)
    return torch.gather(data, 1, index), data.take(index), torch.take_along_dim(data, index, 1)


@REGISTRY.case("aten", "index-select", *TYPES, tolerance=EXACT)
def _select(site: Site) -> Any:
    data, rows, columns = site.normal(50, 30), site.integers(80, high=50), site.integers(80, high=30)
    return data.index_select(0, rows), data[rows, columns], data[:, columns[:7]], data[data[:, 0] > 0]


@REGISTRY.case("aten", "masked", torch.float32, torch.int64, tolerance=EXACT)
def _masked(site: Site) -> Any:
    data, mask = site.integers(40, 50).to(site.dtype), site.bools(40, 50)
    return (
        data.masked_select(mask),
        data.masked_fill(mask, 7),
        torch.nonzero(mask),
        torch.where(mask, data, -data),
        data.masked_scatter(mask, data.flatten()),
    )


@REGISTRY.case("aten", "scatter", torch.float32, torch.int64, tolerance=EXACT)
def _scatter(site: Site) -> Any:
    """Every place is written once, so that the order does not matter."""
    order = torch.stack([site.distinct(30, torch.int64) for _ in range(20)])
    rows = site.distinct(20, torch.int64)
    source = site.integers(20, 30).to(site.dtype)
    empty = torch.zeros_like(source)
    return empty.scatter(1, order, source), empty.index_copy(0, rows, source), empty.index_put((rows,), source)


@REGISTRY.case("aten", "scatter-add", torch.float32, torch.float64, torch.float16)
def _scatter_add(site: Site) -> Any:
    """Atomic additions: sums of small integers are exact in any order, and in float16 too."""
    index, source = site.integers(60, 40, high=25), site.integers(60, 40, high=5).to(site.dtype)
    empty = torch.zeros(60, 25, device=site.device, dtype=site.dtype)
    rows = index[:, 0]
    return (
        empty.scatter_add(1, index, source),
        torch.zeros(25, 40, device=site.device, dtype=site.dtype).index_add(0, rows, source),
        torch.zeros(25, 40, device=site.device, dtype=site.dtype).index_put((rows,), source, accumulate=True),
    )


@REGISTRY.case("aten", "scatter-reduce", torch.float32, torch.float64)
def _scatter_reduce(site: Site) -> Any:
    index, source = site.integers(400, high=20), site.integers(400, low=1, high=9).to(site.dtype)
    start = torch.ones(20, device=site.device, dtype=site.dtype)
    return [start.scatter_reduce(0, index, source, kind) for kind in ("sum", "amax", "amin", "mean")]


@REGISTRY.case("aten", "segment-reduce", torch.float32, torch.float64)
def _segments(site: Site) -> Any:
    lengths = torch.tensor([3, 0, 5, 12], device=site.device)
    return [
        torch.segment_reduce(site.normal(20), kind, lengths=lengths, unsafe=True, initial=initial)
        for kind, initial in (("sum", 0.0), ("max", -9.0), ("mean", 0.0))
    ]


@REGISTRY.case("aten", "embedding", torch.float32, torch.float16, torch.bfloat16)
def _embedding(site: Site) -> Any:
    table, words = site.normal(100, 32, grad=True), site.integers(12, 20, high=100)
    return site.with_gradients(F.embedding(words, table), table)


@REGISTRY.case("aten", "embedding-bag", torch.float32, torch.float16)
def _embedding_bag(site: Site) -> Any:
    table, words = site.normal(60, 24, grad=True), site.integers(40, high=60)
    offsets = torch.tensor([0, 7, 7, 25], device=site.device)
    return [
        site.with_gradients(F.embedding_bag(words, table, offsets, mode=mode), table) for mode in ("sum", "mean")
    ] + [F.embedding_bag(words, table.detach(), offsets, mode="max")]


@REGISTRY.case("aten", "shuffling", *TYPES, torch.int8, torch.bool, tolerance=EXACT)
def _shuffling(site: Site) -> Any:
    data = site.integers(6, 8, 10, high=2 if site.stored is torch.bool else 100).to(site.dtype)
    return (
        data.permute(2, 0, 1).contiguous(),
        torch.cat([data, data.flip(1)], dim=1),
        torch.stack([data, data], -1),
        data.roll((1, 3), (0, 2)),
        torch.tril(data),
        data.repeat(2, 1, 3),
        data.repeat_interleave(3, 1),
        F.pad(data, (1, 2, 3, 0)),
        data.unfold(2, 4, 3).contiguous(),
        torch.rot90(data, 1, (0, 2)),
    )


@REGISTRY.case("aten", "diagonals", torch.float32, torch.int64, tolerance=EXACT)
def _diagonals(site: Site) -> Any:
    data = site.integers(12, 12).to(site.dtype)
    return data.diagonal(1).clone(), torch.diag_embed(data[:3]), torch.triu(data, 2), data.trace()

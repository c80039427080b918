"""NCCL with a world of one: enough to load it, make a communicator and launch its kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..case import GPU_ONLY, REGISTRY, Need, holds
from ..sites import Site
from ..tolerance import Tolerance


def _nccl_built() -> bool:
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_nccl_available())


NEEDS: tuple[Need, ...] = (holds(_nccl_built, "this torch was built without NCCL"),)


def _alone(collective: Callable[[Any], Any]) -> Any:
    """Run a collective in a process group of this process only."""
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        result = collective(dist)
        torch.cuda.synchronize()
        return result
    finally:
        dist.destroy_process_group()


def _reduce(site: Site, operation: str) -> Any:
    values = site.normal(1000)
    if site.reference:
        return values

    def collective(dist: Any) -> Any:
        dist.all_reduce(values, op=getattr(dist.ReduceOp, operation))
        return values

    return _alone(collective)


for _operation in ("SUM", "AVG", "MAX"):
    for _dtype in (torch.float32, torch.bfloat16):
        REGISTRY.add(
            "nccl",
            f"all-reduce-{_operation.lower()}",
            partial(_reduce, operation=_operation),
            _dtype,
            Tolerance.TIGHT,
            devices=GPU_ONLY,
            needs=NEEDS,
        )


@REGISTRY.case("nccl", "all-reduce-premultiplied", tolerance=Tolerance.TIGHT, devices=GPU_ONLY, needs=NEEDS)
def _premultiplied(site: Site) -> Any:
    """A reduction that even one rank must compute with a kernel."""
    values = site.normal(5000)
    if site.reference:
        return values * 0.5

    def collective(dist: Any) -> Any:
        dist.all_reduce(values, op=dist._make_nccl_premul_sum(0.5))
        return values

    return _alone(collective)


@REGISTRY.case("nccl", "gathering", tolerance=Tolerance.EXACT, devices=GPU_ONLY, needs=NEEDS)
def _gathering(site: Site) -> Any:
    values = site.normal(640)
    if site.reference:
        return [values] * 4

    def collective(dist: Any) -> Any:
        gathered, scattered, exchanged = (torch.empty_like(values) for _ in range(3))
        dist.all_gather_into_tensor(gathered, values)
        dist.reduce_scatter_tensor(scattered, values)
        dist.all_to_all_single(exchanged, values)
        sent = values.clone()
        dist.broadcast(sent, 0)
        return gathered, scattered, exchanged, sent

    return _alone(collective)


@REGISTRY.case("nccl", "direct", tolerance=Tolerance.EXACT, devices=GPU_ONLY, needs=NEEDS)
def _direct(site: Site) -> Any:
    """torch.cuda.nccl, which torch.nn.DataParallel uses."""
    values = site.normal(256)
    if site.reference:
        return values
    from torch.cuda import nccl

    nccl.all_reduce([values])
    return values

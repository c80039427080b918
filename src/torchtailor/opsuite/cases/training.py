"""Whole training steps of small networks, with and without mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import REGISTRY
from ..sites import Site
from ..tolerance import Tolerance


def _multilayer() -> Any:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))


def _convolutional() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def _transformer() -> Any:
    # GELU keeps the step smooth: ReLU would turn roundings into jumps.
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation=F.gelu)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(320, 10))


def _train(site: Site, make: Callable[[], Any], shape: tuple[int, ...], mixed: bool) -> Any:
    network = site.module(make).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(3):
        data, labels = site.normal(16, *shape), site.integers(16, high=10)
        optimizer.zero_grad()
        with torch.autocast(
            "cpu" if site.device == "cpu" else "cuda", torch.bfloat16, enabled=mixed and not site.reference
        ):
            loss = F.cross_entropy(network(data), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [parameter.detach() for parameter in network.parameters()]


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "multilayer": (_multilayer, (32,)),
    "convolutional": (_convolutional, (3, 16, 16)),
    "transformer": (_transformer, (10, 32)),
}
for _name, (_make, _shape) in NETWORKS.items():
    REGISTRY.add(
        "aten",
        f"train-{_name}",
        partial(_train, make=_make, shape=_shape, mixed=False),
        torch.float32,
        Tolerance.TF32_LOOSE,
    )
    REGISTRY.add(
        "aten",
        f"train-{_name}-autocast",
        partial(_train, make=_make, shape=_shape, mixed=True),
        torch.float32,
        Tolerance.FP8,
    )
    REGISTRY.add(
        "aten",
        f"train-{_name}",
        partial(_train, make=_make, shape=_shape, mixed=False),
        torch.float64,
        Tolerance.LOOSE,
    )


@REGISTRY.case("aten", "checkpointed-backward", torch.float32, tolerance=Tolerance.NORMAL)
def _checkpointed(site: Site) -> Any:
    from torch.utils.checkpoint import checkpoint

    network, data = site.module(_multilayer), site.normal(8, 32, grad=True)
    output = checkpoint(network, data, use_reentrant=False)
    return site.with_gradients(output, data, *network.parameters())


@REGISTRY.case("aten", "functional-transforms", torch.float32, tolerance=Tolerance.NORMAL)
def _transforms(site: Site) -> Any:
    weight, data = site.normal(6, 4), site.normal(9, 4)

    def value(row: Any) -> Any:
        return torch.tanh(weight @ row).sum()

    return (
        torch.vmap(torch.func.grad(value))(data),
        torch.func.hessian(value)(data[0]),
        torch.func.jacrev(value)(data[1]),
    )

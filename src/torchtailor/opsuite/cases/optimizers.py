"""Optimizer steps: the foreach and fused kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..case import REGISTRY
from ..sites import Site
from ..tolerance import Tolerance

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"lr": 0.05, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.05}),
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.05}),
    "nadam": (torch.optim.NAdam, {"lr": 0.05}),
}
FUSED = ("adam", "adamw", "sgd")


def _steps(site: Site, kind: Any, settings: dict[str, Any], way: str) -> Any:
    parameters = [site.normal(size, grad=True) for size in (5, 1000, 33)]
    gradients = [[site.normal(size) for size in (5, 1000, 33)] for _ in range(3)]
    # The reference uses neither: one tensor at a time in float64.
    optimizer = kind(parameters, **settings, **({"foreach": False} if site.reference else {way: True}))
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return parameters


for _name, (_kind, _settings) in KINDS.items():
    for _way in ("foreach", "fused") if _name in FUSED else ("foreach",):
        for _dtype in (torch.float32, torch.bfloat16) if _name == "adamw" else (torch.float32,):
            REGISTRY.add(
                "aten",
                f"optimizer-{_name}-{_way}",
                partial(_steps, kind=_kind, settings=_settings, way=_way),
                _dtype,
                Tolerance.LOOSE,
            )


@REGISTRY.case("aten", "gradient-clipping", torch.float32, tolerance=Tolerance.NORMAL)
def _clipping(site: Site) -> Any:
    parameters = [site.normal(size, grad=True) for size in (100, 7)]
    for parameter in parameters:
        parameter.grad = site.normal(*parameter.shape)
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    return norm, [parameter.grad for parameter in parameters]


@REGISTRY.case("aten", "gradient-scaling", torch.float32, tolerance=Tolerance.NORMAL)
def _scaling(site: Site) -> Any:
    """The kernel behind automatic mixed precision's scaler."""
    gradients = [site.normal(300), site.normal(20)]
    found = torch.zeros(1, device=site.device)
    inverse = torch.full((1,), 0.125, device=site.device)
    if site.reference:
        return [gradient * 0.125 for gradient in gradients], found
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
    return gradients, found

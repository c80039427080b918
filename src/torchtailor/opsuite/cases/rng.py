"""torch's own random numbers: Philox inside its kernels, checked by their moments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from ..case import REGISTRY
from ..sites import Site
from ..tolerance import Tolerance

COUNT = 100_000


def _moments(outputs: Any) -> Any:
    values = outputs.double()
    return torch.stack([values.mean(), values.std()])


def _expected(site: Site, mean: float, deviation: float) -> Any:
    return torch.tensor([mean, deviation], dtype=torch.float64)


def _empty(site: Site) -> Any:
    return torch.empty(COUNT, device=site.device, dtype=site.dtype)


# name: (what is drawn, mean, standard deviation)
DISTRIBUTIONS: dict[str, tuple[Callable[[Site], Any], float, float]] = {
    "uniform": (lambda s: _empty(s).uniform_(1, 3, generator=s.generator()), 2, 0.57735),
    "normal": (lambda s: _empty(s).normal_(3, 2, generator=s.generator()), 3, 2),
    "exponential": (lambda s: _empty(s).exponential_(0.5, generator=s.generator()), 2, 2),
    "bernoulli": (lambda s: _empty(s).bernoulli_(0.3, generator=s.generator()), 0.3, 0.45826),
    "geometric": (lambda s: _empty(s).geometric_(0.5, generator=s.generator()), 2, 1.41421),
    "log-normal": (lambda s: _empty(s).log_normal_(0, 0.25, generator=s.generator()), 1.03174, 0.26202),
    "poisson": (
        lambda s: torch.poisson(torch.full((COUNT,), 4.0, device=s.device, dtype=s.dtype), generator=s.generator()),
        4,
        2,
    ),
    "binomial": (
        lambda s: torch.binomial(
            torch.full((COUNT,), 20.0, device=s.device, dtype=s.dtype),
            torch.full((COUNT,), 0.5, device=s.device, dtype=s.dtype),
            generator=s.generator(),
        ),
        10,
        2.23607,
    ),
    "randint": (lambda s: torch.randint(0, 101, (COUNT,), device=s.device, generator=s.generator()), 50, 29.15476),
    "dropout": (lambda s: F.dropout(torch.ones(COUNT, device=s.device, dtype=s.dtype), 0.25), 1, 0.57735),
    "gamma": (
        lambda s: torch._standard_gamma(
            torch.full((COUNT,), 3.0, device=s.device, dtype=s.dtype), generator=s.generator()
        ),
        3,
        1.73205,
    ),
}
for _name, (_draw, _mean, _deviation) in DISTRIBUTIONS.items():
    REGISTRY.add(
        "aten",
        f"random-{_name}",
        _draw,
        torch.float32,
        Tolerance.STATISTICAL,
        derive=_moments,
        reference=partial(_expected, mean=_mean, deviation=_deviation),
    )


@REGISTRY.case("aten", "randperm", torch.int64, tolerance=Tolerance.EXACT, derive=lambda order: order.sort()[0])
def _randperm(site: Site) -> Any:
    return torch.randperm(5000, device=site.device, generator=site.generator())


@REGISTRY.case(
    "aten",
    "multinomial",
    tolerance=Tolerance.STATISTICAL,
    derive=lambda drawn: torch.bincount(drawn, minlength=3).double() / drawn.numel(),
    reference=lambda site: torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64),
)
def _multinomial(site: Site) -> Any:
    weights = torch.tensor([2.0, 3.0, 5.0], device=site.device)
    return torch.multinomial(weights, 50_000, replacement=True, generator=site.generator())

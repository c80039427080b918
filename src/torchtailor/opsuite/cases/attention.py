"""Scaled dot product attention on every back end, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from ..case import CPU_AND_GPU, GPU_ONLY, REGISTRY, NotApplicable, capability
from ..sites import Site
from ..tolerance import Tolerance

HALVES = (torch.float16, torch.bfloat16)
BACKENDS = {
    # name: (SDPBackend, library, types, devices, what it needs)
    "flash": ("FLASH_ATTENTION", "flash-attention", HALVES, GPU_ONLY, (capability(8, 0),)),
    "efficient": ("EFFICIENT_ATTENTION", "efficient-attention", (torch.float32, *HALVES), GPU_ONLY, ()),
    "cudnn": ("CUDNN_ATTENTION", "cudnn", HALVES, GPU_ONLY, (capability(8, 0),)),
    "math": ("MATH", "cublas", (torch.float64, torch.float32, *HALVES), CPU_AND_GPU, ()),
}
# torch says this where a back end was left out of the build or refuses this GPU.
REFUSALS = ("No available kernel", "was not compiled with flash attention")


def _backend(site: Site, name: str) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = getattr(SDPBackend, "MATH" if site.reference else name, None)
    if backend is None:
        raise NotApplicable(f"this torch has no attention back end {name}")
    return sdpa_kernel(backend)


def _attend(site: Site, backend: str, *, dim: int = 64, causal: bool = False, heads: int = 4, tokens: int = 96) -> Any:
    query, key, value = (site.normal(2, heads, tokens, dim, grad=True) for _ in range(3))
    with _backend(site, backend):
        output = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return site.with_gradients(output, query, key, value)


def _inference(site: Site, backend: str) -> Any:
    """One new token against a long past, and a length no tile divides."""
    query, key, value = site.normal(1, 8, 1, 128), site.normal(1, 8, 515, 128), site.normal(1, 8, 515, 128)
    with _backend(site, backend):
        return F.scaled_dot_product_attention(query, key, value)


SHAPES: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "dim128": {"dim": 128, "tokens": 130},
    "dim32": {"dim": 32, "tokens": 77},
}
for _short, (_member, _library, _dtypes, _devices, _needs) in BACKENDS.items():
    _options = {"devices": _devices, "needs": _needs, "refusals": REFUSALS}
    for _dtype in _dtypes:
        for _shape, _settings in SHAPES.items():
            REGISTRY.add(
                _library,
                f"attention-{_short}-{_shape}",
                partial(_attend, backend=_member, **_settings),
                _dtype,
                Tolerance.LOOSE,
                **_options,
            )
        REGISTRY.add(
            _library,
            f"attention-{_short}-decode",
            partial(_inference, backend=_member),
            _dtype,
            Tolerance.LOOSE,
            **_options,
        )


@REGISTRY.case("efficient-attention", "attention-mask", torch.float32, torch.float16, tolerance=Tolerance.LOOSE)
def _masked(site: Site) -> Any:
    query, key, value = (site.normal(2, 2, 40, 32) for _ in range(3))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=site.normal(2, 2, 40, 40))


@REGISTRY.case("flash-attention", "attention-default", torch.bfloat16, torch.float32, tolerance=Tolerance.LOOSE)
def _default(site: Site) -> Any:
    """Whatever torch chooses by itself."""
    query, key, value = (site.normal(2, 8, 128, 64, grad=True) for _ in range(3))
    return site.with_gradients(F.scaled_dot_product_attention(query, key, value, is_causal=True), query, key, value)


@REGISTRY.case("flash-attention", "attention-grouped-query", torch.bfloat16, tolerance=Tolerance.LOOSE)
def _grouped(site: Site) -> Any:
    query, key, value = site.normal(2, 8, 48, 64), site.normal(2, 2, 48, 64), site.normal(2, 2, 48, 64)
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


@REGISTRY.case("aten", "multi-head-attention", torch.float32, torch.float16, tolerance=Tolerance.LOOSE)
def _multi_head(site: Site) -> Any:
    layer = site.module(lambda: nn.MultiheadAttention(64, 4, batch_first=True)).eval()
    data = site.normal(3, 20, 64)
    with torch.no_grad():
        return layer(data, data, data, need_weights=True)


@REGISTRY.case("aten", "encoder-fast-path", torch.float32, torch.float16, tolerance=Tolerance.LOOSE)
def _encoder(site: Site) -> Any:
    layer = site.module(lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)).eval()
    with torch.no_grad():
        return layer(site.normal(2, 24, 64))

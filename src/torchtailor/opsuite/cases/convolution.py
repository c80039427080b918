"""cuDNN convolutions: dimensions, groups, strides, layouts, gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from ..case import GPU_ONLY, REGISTRY
from ..sites import Site
from ..tolerance import Tolerance

HALVES = (torch.float16, torch.bfloat16)
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
SIDES = {1: 60, 2: 18, 3: 9}


def _add(name: str, run: Any, *dtypes: Any) -> None:
    """float32 convolutions use TF32 by default on a GPU, and the tolerance allows for it."""
    for dtype in dtypes:
        tolerance = Tolerance.TF32 if dtype is torch.float32 else Tolerance.NORMAL
        REGISTRY.add("cudnn", name, run, dtype, tolerance)


def _convolve(site: Site, dims: int, **options: Any) -> Any:
    groups = options.get("groups", 1)
    data = site.normal(3, 16, *([SIDES[dims]] * dims))
    weight = site.normal(32, 16 // groups, *([3] * dims), scale=0.2)
    return CONVOLUTIONS[dims](data, weight, site.normal(32), **options)


def _convolve_transposed(site: Site, dims: int) -> Any:
    data = site.normal(2, 16, *([SIDES[dims] // 2] * dims))
    weight = site.normal(16, 8, *([3] * dims), scale=0.2)
    return TRANSPOSED[dims](data, weight, site.normal(8), stride=2, padding=1, output_padding=1)


def _backward(site: Site, dims: int) -> Any:
    data = site.normal(2, 8, *([SIDES[dims]] * dims), grad=True)
    weight = site.normal(16, 8, *([3] * dims), scale=0.2, grad=True)
    bias = site.normal(16, grad=True)
    return site.with_gradients(CONVOLUTIONS[dims](data, weight, bias, padding=1), data, weight, bias)


for _dims in CONVOLUTIONS:
    _all = (torch.float32, *HALVES) if _dims != 2 else (torch.float64, torch.float32, *HALVES)
    _add(f"conv{_dims}d", partial(_convolve, dims=_dims, padding=1), *_all)
    _add(f"conv{_dims}d-strided", partial(_convolve, dims=_dims, stride=2, padding=1), *_all)
    _add(f"conv{_dims}d-grouped", partial(_convolve, dims=_dims, groups=4), torch.float32, torch.float16)
    _add(f"conv{_dims}d-transposed", partial(_convolve_transposed, dims=_dims), *_all)
    _add(f"conv{_dims}d-backward", partial(_backward, dims=_dims), *_all)
_add("conv2d-dilated", partial(_convolve, dims=2, dilation=2), torch.float32, torch.float16)


def _depthwise(site: Site) -> Any:
    data, weight = site.normal(2, 24, 20, 20, grad=True), site.normal(24, 1, 3, 3, grad=True)
    return site.with_gradients(F.conv2d(data, weight, padding=1, groups=24), data, weight)


def _channels_last(site: Site) -> Any:
    data = site.normal(4, 32, 14, 14).to(memory_format=torch.channels_last)
    weight = site.normal(64, 32, 3, 3, scale=0.1).to(memory_format=torch.channels_last)
    return F.conv2d(data, weight, site.normal(64), padding=1)


def _channels_last_backward(site: Site) -> Any:
    data = site.normal(4, 32, 10, 10).to(memory_format=torch.channels_last).requires_grad_()
    weight = site.normal(32, 32, 3, 3, scale=0.1).to(memory_format=torch.channels_last).requires_grad_()
    return site.with_gradients(F.conv2d(data, weight, padding=1), data, weight)


def _pointwise(site: Site) -> Any:
    return F.conv2d(site.normal(4, 64, 14, 14), site.normal(32, 64, 1, 1, scale=0.2))


def _big_kernel(site: Site) -> Any:
    """Seven by seven with stride two on three channels: the first layer of most image networks."""
    return F.conv2d(site.normal(2, 3, 64, 64), site.normal(16, 3, 7, 7, scale=0.1), stride=2, padding=3)


def _five_by_five(site: Site) -> Any:
    """Sizes for which cuDNN may choose FFT or Winograd algorithms."""
    return F.conv2d(site.normal(1, 8, 48, 48), site.normal(8, 8, 5, 5, scale=0.1), padding=2)


_add("conv2d-depthwise", _depthwise, torch.float32, *HALVES)
_add("conv2d-channels-last", _channels_last, torch.float32, *HALVES)
_add("conv2d-channels-last-backward", _channels_last_backward, torch.float16, torch.bfloat16)
_add("conv2d-1x1", _pointwise, torch.float32, torch.float16)
_add("conv2d-7x7", _big_kernel, torch.float32, torch.float16)
_add("conv2d-5x5", _five_by_five, torch.float32, torch.float16)


@REGISTRY.case("cudnn", "conv2d-ieee", tolerance=Tolerance.NORMAL)
def _ieee(site: Site) -> Any:
    """float32 without TF32."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        return _convolve(site, 2, padding=1)


@REGISTRY.case("cudnn", "conv2d-benchmark", tolerance=Tolerance.TF32, devices=GPU_ONLY, timed_choice=True)
def _benchmark(site: Site) -> Any:
    """cuDNN tries every algorithm it has: each of them must still be there."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True):
        return _convolve(site, 2, padding=1)


@REGISTRY.case("cudnn", "conv2d-deterministic-backward", tolerance=Tolerance.TF32)
def _deterministic(site: Site) -> Any:
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True):
        return _backward(site, 2)


@REGISTRY.case("cudnn", "complex-conv2d", tolerance=Tolerance.TF32)
def _complex(site: Site) -> Any:
    return F.conv2d(site.complex_normal(2, 4, 12, 12), site.complex_normal(6, 4, 3, 3))

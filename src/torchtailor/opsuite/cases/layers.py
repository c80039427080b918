"""Layers and losses of torch.nn: normalization, activations, pooling, resampling."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from ..case import REGISTRY, attribute
from ..sites import Site
from ..tolerance import Tolerance

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float64, torch.float32, *HALVES)

ACTIVATIONS = (
    F.relu,
    F.gelu,
    F.silu,
    F.mish,
    F.elu,
    F.selu,
    F.softplus,
    F.hardswish,
    F.hardsigmoid,
    F.leaky_relu,
    F.logsigmoid,
    F.softsign,
    F.tanhshrink,
)


@REGISTRY.case("aten", "activations", *FLOATS, tolerance=Tolerance.LOOSE)
def _activations(site: Site) -> Any:
    data = site.normal(30, 40, grad=True)
    return [site.with_gradients(function(data), data) for function in ACTIVATIONS]


@REGISTRY.case("aten", "gated-activations", torch.float32, *HALVES)
def _gated(site: Site) -> Any:
    data, slope = site.normal(6, 20, 8), site.normal(20)
    return F.glu(data), F.prelu(data, slope), F.threshold(data, 0.25, -1)


@REGISTRY.case("aten", "layer-norm", *FLOATS, tolerance=Tolerance.LOOSE)
def _layer_norm(site: Site) -> Any:
    data, weight, bias = site.normal(20, 96, grad=True), site.normal(96, grad=True), site.normal(96, grad=True)
    return site.with_gradients(F.layer_norm(data, (96,), weight, bias), data, weight, bias)


@REGISTRY.case("aten", "rms-norm", torch.float32, *HALVES, tolerance=Tolerance.LOOSE, needs=(attribute("rms_norm"),))
def _rms_norm(site: Site) -> Any:
    data, weight = site.normal(20, 128, grad=True), site.normal(128, grad=True)
    return site.with_gradients(F.rms_norm(data, (128,), weight, eps=1e-5), data, weight)


@REGISTRY.case("aten", "group-norm", torch.float32, *HALVES, tolerance=Tolerance.LOOSE)
def _group_norm(site: Site) -> Any:
    data, weight, bias = site.normal(3, 16, 9, 9, grad=True), site.normal(16, grad=True), site.normal(16, grad=True)
    return site.with_gradients(F.group_norm(data, 4, weight, bias), data, weight, bias)


@REGISTRY.case("aten", "instance-norm", torch.float32, torch.float16, tolerance=Tolerance.LOOSE)
def _instance_norm(site: Site) -> Any:
    return F.instance_norm(site.normal(3, 8, 14, 14))


@REGISTRY.case("cudnn", "batch-norm", torch.float32, *HALVES, tolerance=Tolerance.LOOSE)
def _batch_norm(site: Site) -> Any:
    """Statistics and weights stay in float32, as cuDNN wants them."""
    data = site.normal(8, 12, 10, 10, grad=True)
    kind = torch.float32
    mean, variance = site.normal(12, dtype=kind), site.uniform(12, low=0.5, dtype=kind)
    weight, bias = site.normal(12, dtype=kind, grad=True), site.normal(12, dtype=kind, grad=True)
    output = F.batch_norm(data, mean, variance, weight, bias, training=True)
    return (*site.with_gradients(output, data, weight, bias), mean, variance)


@REGISTRY.case("cudnn", "batch-norm-inference", torch.float32, torch.float16, tolerance=Tolerance.LOOSE)
def _batch_norm_inference(site: Site) -> Any:
    kind = torch.float32
    mean, variance = site.normal(12, dtype=kind), site.uniform(12, low=0.5, dtype=kind)
    return F.batch_norm(
        site.normal(4, 12, 6, 6), mean, variance, site.normal(12, dtype=kind), site.normal(12, dtype=kind)
    )


@REGISTRY.case("cudnn", "batch-norm-channels-last", torch.float32, torch.float16, tolerance=Tolerance.LOOSE)
def _batch_norm_channels_last(site: Site) -> Any:
    data = site.normal(8, 16, 8, 8).to(memory_format=torch.channels_last)
    return F.batch_norm(data, None, None, training=True)


@REGISTRY.case("aten", "softmax", *FLOATS)
def _softmax(site: Site) -> Any:
    data, long = site.normal(25, 60, grad=True), site.normal(3, 5000)
    return site.with_gradients(F.softmax(data, -1), data), F.log_softmax(long, -1), F.softmax(data.detach(), 0)


@REGISTRY.case("aten", "max-pool", torch.float32, *HALVES, tolerance=Tolerance.EXACT)
def _max_pool(site: Site) -> Any:
    values = site.distinct(2 * 4 * 18 * 18).view(2, 4, 18, 18)
    return F.max_pool2d(values, 3, 2, 1), F.max_pool1d(values[0], 4), F.adaptive_max_pool2d(values, (5, 4))


@REGISTRY.case("cudnn", "average-pool", torch.float32, *HALVES)
def _average_pool(site: Site) -> Any:
    data = site.normal(2, 6, 16, 16, grad=True)
    volume = site.normal(2, 3, 8, 8, 8)
    return (
        site.with_gradients(F.avg_pool2d(data, 3, 2, 1), data),
        F.adaptive_avg_pool2d(data.detach(), (5, 3)),
        F.avg_pool3d(volume, 2),
        F.max_pool3d(volume, 2),
    )


@REGISTRY.case("aten", "resample", torch.float32, torch.float16, tolerance=Tolerance.LOOSE)
def _resample(site: Site) -> Any:
    image, line, volume = site.normal(2, 3, 12, 10), site.normal(2, 3, 20), site.normal(1, 2, 5, 6, 7)
    return (
        F.interpolate(image, (17, 23), mode="bilinear"),
        F.interpolate(image, (24, 20), mode="nearest"),
        F.interpolate(image, (15, 15), mode="bicubic", align_corners=True),
        F.interpolate(image, (6, 5), mode="bilinear", antialias=True),
        F.interpolate(line, 33, mode="linear"),
        F.interpolate(volume, (9, 9, 9), mode="trilinear"),
        F.pixel_shuffle(site.normal(1, 8, 5, 5), 2),
    )


@REGISTRY.case("cudnn", "grid-sample", torch.float32, tolerance=Tolerance.LOOSE)
def _grid_sample(site: Site) -> Any:
    grid = F.affine_grid(site.uniform(2, 2, 3, low=-0.6, high=0.6), [2, 3, 9, 9], align_corners=False)
    image = site.normal(2, 3, 12, 12, grad=True)
    output = F.grid_sample(image, grid, align_corners=False)
    return site.with_gradients(output, image), F.grid_sample(image.detach(), grid, mode="bicubic", align_corners=True)


@REGISTRY.case("aten", "fold", torch.float32, torch.float16)
def _fold(site: Site) -> Any:
    columns = F.unfold(site.normal(2, 3, 10, 10), 3, padding=1)
    return columns, F.fold(columns, (10, 10), 3, padding=1)


@REGISTRY.case("aten", "padding", torch.float32, torch.float16, tolerance=Tolerance.EXACT)
def _padding(site: Site) -> Any:
    image = site.normal(2, 3, 8, 8)
    return [F.pad(image, (2, 1, 3, 2), mode=mode) for mode in ("reflect", "replicate", "circular", "constant")]


@REGISTRY.case("aten", "cross-entropy", *FLOATS, tolerance=Tolerance.LOOSE)
def _cross_entropy(site: Site) -> Any:
    logits, labels = site.normal(40, 30, grad=True), site.integers(40, high=30)
    return site.with_gradients(F.cross_entropy(logits, labels, label_smoothing=0.1), logits)


@REGISTRY.case("aten", "losses", torch.float32, torch.float64, tolerance=Tolerance.LOOSE)
def _losses(site: Site) -> Any:
    guess, truth = site.normal(50, 8, grad=True), site.uniform(50, 8)
    labels = site.integers(50, high=8)
    values = (
        F.mse_loss(guess, truth),
        F.l1_loss(guess, truth),
        F.smooth_l1_loss(guess, truth),
        F.huber_loss(guess, truth),
        F.binary_cross_entropy_with_logits(guess, truth),
        F.binary_cross_entropy(guess.sigmoid(), truth),
        F.kl_div(guess.log_softmax(-1), truth.softmax(-1), reduction="batchmean"),
        F.nll_loss(guess.log_softmax(-1), labels),
        F.multi_margin_loss(guess, labels),
        F.soft_margin_loss(guess, truth.round() * 2 - 1),
        F.poisson_nll_loss(guess, truth),
        F.gaussian_nll_loss(guess, truth, truth + 0.5),
        F.cosine_embedding_loss(guess, truth, torch.ones(50, device=guess.device)),
        F.triplet_margin_loss(guess, truth, truth.flip(0)),
    )
    return [site.with_gradients(value, guess) for value in values]


@REGISTRY.case("aten", "bilinear", torch.float32, torch.float16, tolerance=Tolerance.LOOSE)
def _bilinear(site: Site) -> Any:
    return F.bilinear(site.normal(9, 6), site.normal(9, 7), site.normal(5, 6, 7), site.normal(5))


@REGISTRY.case("aten", "cosine-similarity", torch.float32, torch.float16)
def _cosine(site: Site) -> Any:
    left, right = site.normal(20, 30), site.normal(20, 30)
    return F.cosine_similarity(left, right), F.normalize(left), F.pairwise_distance(left, right)

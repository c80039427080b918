"""Code compiled while running: NVRTC (jiterator and torch's own jiterated kernels), Triton, CUDA graphs."""

from __future__ import annotations

import shutil
import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from ..case import GPU_ONLY, REGISTRY, attribute, capability, holds, package
from ..sites import Site
from ..tolerance import Tolerance


@REGISTRY.case(
    "nvrtc", "jiterator", torch.float32, torch.float16, devices=GPU_ONLY, needs=(attribute("cuda.jiterator"),)
)
def _jiterator(site: Site) -> Any:
    left, right = site.normal(500), site.normal(500)
    if site.reference:
        return 2.5 * left + right * right
    code = "template <typename T> T blend(T x, T y, T alpha) { return alpha * x + y * y; }"
    return torch.cuda.jiterator._create_jit_fn(code, alpha=2.5)(left, right)


@REGISTRY.case("nvrtc", "jiterator-many", devices=GPU_ONLY, needs=(attribute("cuda.jiterator"),))
def _jiterator_many(site: Site) -> Any:
    left, right = site.normal(300), site.normal(300)
    if site.reference:
        return left + right, left - right
    code = "template <typename T> void both(T x, T y, T& sum, T& less) { sum = x + y; less = x - y; }"
    return torch.cuda.jiterator._create_multi_output_jit_fn(code, num_outputs=2)(left, right)


@REGISTRY.case("nvrtc", "airy", torch.float64, tolerance=Tolerance.LOOSE)
def _airy(site: Site) -> Any:
    return torch.special.airy_ai(site.uniform(400, low=0.2, high=6.0))


@REGISTRY.case("nvrtc", "special-functions", tolerance=Tolerance.LOOSE)
def _special(site: Site) -> Any:
    """Functions that torch ships as source and compiles at the first call."""
    values = site.uniform(400, low=0.2, high=6.0)
    return [
        function(values)
        for function in (
            torch.special.bessel_j0,
            torch.special.bessel_y1,
            torch.special.modified_bessel_i1,
            torch.special.modified_bessel_k0,
            torch.special.scaled_modified_bessel_k1,
            torch.special.spherical_bessel_j0,
            torch.special.airy_ai,
            torch.special.i1e,
            torch.special.log_ndtr,
            torch.special.erfcx,
        )
    ]


@REGISTRY.case("nvrtc", "polynomials", torch.float32, torch.float64, tolerance=Tolerance.LOOSE)
def _polynomials(site: Site) -> Any:
    values = site.uniform(300, low=-0.9, high=0.9)
    degree = site.put(torch.full((300,), 4.0))
    return [
        function(values, degree)
        for function in (
            torch.special.chebyshev_polynomial_t,
            torch.special.hermite_polynomial_h,
            torch.special.laguerre_polynomial_l,
            torch.special.legendre_polynomial_p,
        )
    ] + [torch.special.zeta(values.abs() + 1.5, degree)]


@REGISTRY.case("nvrtc", "integer-functions", torch.int64, tolerance=Tolerance.EXACT)
def _integers(site: Site) -> Any:
    left, right = site.integers(500, low=1, high=5000), site.integers(500, low=1, high=5000)
    return torch.gcd(left, right), torch.lcm(left, right)


@REGISTRY.case("nvrtc", "complex-functions", torch.float32, tolerance=Tolerance.NORMAL)
def _complex(site: Site) -> Any:
    values = site.complex_normal(400)
    return [function(values) for function in (torch.exp, torch.sigmoid, torch.tanh, torch.sqrt, torch.reciprocal)] + [
        values.sum(),
        values[:8].prod(),
    ]


def _c_compiler() -> bool:
    return any(map(shutil.which, ("cc", "gcc", "clang")))


TRITON: dict[str, Any] = {
    "devices": GPU_ONLY,
    "needs": (
        package("triton"),
        capability(7, 0),
        holds(_c_compiler, "Triton needs a C compiler and there is none"),
    ),
}


def _compiled(function: Any, *inputs: Any, reference: bool) -> Any:
    if reference:
        return function(*inputs)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.compile(function, dynamic=False)(*inputs)


@REGISTRY.case("triton", "compile-pointwise", **TRITON)
def _compile_pointwise(site: Site) -> Any:
    def pointwise(left: Any, right: Any) -> Any:
        return torch.sin(left) * right + F.gelu(left - right)

    return _compiled(pointwise, site.normal(64, 100), site.normal(64, 100), reference=site.reference)


@REGISTRY.case("triton", "compile-softmax", torch.bfloat16, timed_choice=True, **TRITON)
def _compile_reduction(site: Site) -> Any:
    def normalized(data: Any, weight: Any) -> Any:
        return F.softmax(F.layer_norm(data, (96,), weight), -1), data.sum(0)

    return _compiled(normalized, site.normal(32, 96), site.normal(96), reference=site.reference)


@REGISTRY.case("triton", "compile-training", tolerance=Tolerance.LOOSE, timed_choice=True, **TRITON)
def _compile_training(site: Site) -> Any:
    weight, data = site.normal(32, 48, grad=True), site.normal(20, 48)

    def loss(weight: Any, data: Any) -> Any:
        return F.silu(F.linear(data, weight)).pow(2).mean()

    value = _compiled(loss, weight, data, reference=site.reference)
    return site.with_gradients(value, weight)


@REGISTRY.case("cudart", "cuda-graph", torch.float32, torch.bfloat16, devices=GPU_ONLY, tolerance=Tolerance.LOOSE)
def _graph(site: Site) -> Any:
    data, weight = site.normal(64, 64), site.normal(64, 64, scale=0.2)

    def step() -> Any:
        return F.layer_norm(torch.relu(data @ weight) + data, (64,))

    if site.reference:
        return step()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    graph.replay()
    torch.cuda.synchronize()
    return output.clone()


@REGISTRY.case("cudart", "streams-and-copies", torch.float32, devices=GPU_ONLY, tolerance=Tolerance.EXACT)
def _streams(site: Site) -> Any:
    values = site.normal(100_000)
    if site.reference:
        return values * 2, values
    pinned = values.cpu().pin_memory()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        moved = pinned.to("cuda", non_blocking=True)
        doubled = moved * 2
    stream.synchronize()
    return doubled, moved

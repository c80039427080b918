"""cuBLAS and cuBLASLt: matrix products in every precision, batched and with epilogues."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from ..case import CPU_AND_GPU, GPU_ONLY, REGISTRY, attribute, capability
from ..sites import Site
from ..tolerance import Tolerance

ALL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)
FP8_TYPES = {name: getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)}


@REGISTRY.case("cublas", "matmul", *ALL)
def _matmul(site: Site) -> Any:
    return site.normal(192, 320) @ site.normal(320, 128)


@REGISTRY.case("cublas", "matmul-odd-sizes", *ALL)
def _matmul_odd(site: Site) -> Any:
    """Sizes that no tile divides take other kernels than round ones."""
    return site.normal(67, 131) @ site.normal(131, 29), site.normal(1, 257) @ site.normal(257, 3)


@REGISTRY.case("cublas", "matmul-large", *ALL)
def _matmul_large(site: Site) -> Any:
    return site.normal(1024, 1024) @ site.normal(1024, 1024)


@REGISTRY.case("cublas", "matmul-long-k", *ALL)
def _matmul_long(site: Site) -> Any:
    """Few outputs of long sums: split-K kernels."""
    return site.normal(32, 8192, scale=0.1) @ site.normal(8192, 32, scale=0.1)


@REGISTRY.case("cublas", "matmul-transposed", *ALL)
def _transposed(site: Site) -> Any:
    left, right = site.normal(96, 160), site.normal(96, 160)
    return left.t() @ right, left @ right.t(), left.t() @ site.normal(64, 96).t()


@REGISTRY.case("cublas", "bmm", *ALL)
def _bmm(site: Site) -> Any:
    return torch.bmm(site.normal(12, 48, 80), site.normal(12, 80, 40))


@REGISTRY.case("cublas", "baddbmm", *ALL)
def _baddbmm(site: Site) -> Any:
    return torch.baddbmm(site.normal(5, 33, 17), site.normal(5, 33, 65), site.normal(5, 65, 17), beta=0.5, alpha=2)


@REGISTRY.case("cublas", "strided-batched", torch.float32, torch.bfloat16)
def _strided(site: Site) -> Any:
    whole = site.normal(4, 64, 6, 32).transpose(1, 2)
    return whole @ whole.transpose(-1, -2)


@REGISTRY.case("cublas", "vectors", *ALL)
def _vectors(site: Site) -> Any:
    matrix, vector, other = site.normal(130, 70), site.normal(70), site.normal(130)
    dot = torch.dot(vector, site.normal(70))
    return torch.mv(matrix, vector), dot, torch.outer(other, vector), torch.addmv(other, matrix, vector)


@REGISTRY.case("cublas", "complex-matmul", torch.float32, torch.float64)
def _complex(site: Site) -> Any:
    left, right = site.complex_normal(48, 72), site.complex_normal(72, 40)
    return left @ right, torch.vdot(site.complex_normal(64), site.complex_normal(64)), left.mH @ left


@REGISTRY.case("cublas", "matmul-tf32", tolerance=Tolerance.TF32, needs=(capability(8, 0),))
def _tf32(site: Site) -> Any:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return site.normal(256, 256) @ site.normal(256, 256), site.normal(100, 36) @ site.normal(36, 20)
    finally:
        torch.set_float32_matmul_precision(before)


@REGISTRY.case("cublas", "triangular-solve", torch.float32, torch.float64)
def _triangular(site: Site) -> Any:
    matrix = site.positive_definite(3, 40, 40)
    lower = torch.linalg.solve_triangular(matrix.tril(), site.normal(3, 40, 8), upper=False)
    return lower, torch.linalg.solve_triangular(matrix.triu(), site.normal(3, 12, 40), upper=True, left=False)


@REGISTRY.case("cublas", "einsum", *ALL)
def _einsum(site: Site) -> Any:
    return torch.einsum("bhqd,bhkd->bhqk", site.normal(2, 3, 20, 16), site.normal(2, 3, 28, 16))


@REGISTRY.case("cublas", "addbmm", torch.float32, torch.float16)
def _addbmm(site: Site) -> Any:
    return torch.addbmm(site.normal(24, 40), site.normal(6, 24, 32), site.normal(6, 32, 40))


@REGISTRY.case("cublaslt", "addmm", *ALL)
def _addmm(site: Site) -> Any:
    return torch.addmm(site.normal(96), site.normal(128, 64), site.normal(64, 96))


@REGISTRY.case("cublaslt", "linear", *ALL)
def _linear(site: Site) -> Any:
    return F.linear(site.normal(6, 50, 64), site.normal(80, 64), site.normal(80))


@REGISTRY.case("cublaslt", "linear-backward", *ALL)
def _linear_backward(site: Site) -> Any:
    data, weight, bias = site.normal(64, 48, grad=True), site.normal(32, 48, grad=True), site.normal(32, grad=True)
    return site.with_gradients(F.linear(data, weight, bias), data, weight, bias)


def _epilogue(site: Site, use_gelu: bool) -> Any:
    return torch._addmm_activation(site.normal(96), site.normal(64, 64), site.normal(64, 96), use_gelu=use_gelu)


def _epilogue_reference(site: Site, use_gelu: bool) -> Any:
    product = torch.addmm(site.normal(96), site.normal(64, 64), site.normal(64, 96))
    # The fused epilogue is cuBLASLt's GELU, which is the tanh form.
    return F.gelu(product, approximate="tanh") if use_gelu else F.relu(product)


for _dtype in (torch.float32, *HALVES):
    for _name, _gelu in (("relu", False), ("gelu", True)):
        REGISTRY.add(
            "cublaslt",
            f"addmm-epilogue-{_name}",
            partial(_epilogue, use_gelu=_gelu),
            _dtype,
            # Where it is not fused, exact GELU is computed: 5e-4 away.
            Tolerance.LOOSE if _gelu else Tolerance.NORMAL,
            reference=partial(_epilogue_reference, use_gelu=_gelu),
            needs=(attribute("_addmm_activation"),),
        )


@REGISTRY.case("cublaslt", "linear-gelu", torch.float32, *HALVES)
def _linear_gelu(site: Site) -> Any:
    return F.gelu(F.linear(site.normal(40, 64), site.normal(72, 64), site.normal(72)), approximate="tanh")


@REGISTRY.case("cublaslt", "linear-relu", torch.float32, *HALVES)
def _linear_relu(site: Site) -> Any:
    return F.relu(F.linear(site.normal(40, 64), site.normal(72, 64), site.normal(72)))


@REGISTRY.case(
    "cublaslt", "int8-matmul", torch.int8, tolerance=Tolerance.EXACT, devices=CPU_AND_GPU, needs=(attribute("_int_mm"),)
)
def _int8(site: Site) -> Any:
    left = site.integers(64, 96, low=-128, high=128, dtype=torch.int8)
    right = site.integers(96, 48, low=-128, high=128, dtype=torch.int8)
    if site.reference:
        return (left.long() @ right.long()).int()
    return torch._int_mm(left, right)


def _scales(site: Site, rows: int, columns: int, rowwise: bool) -> tuple[Any, Any]:
    if not rowwise:
        return tuple(site.put(torch.tensor(value), torch.float32) for value in (0.5, 0.25))
    left = site.uniform(rows, 1, low=0.25, high=2.0, dtype=torch.float32)
    return left, site.uniform(1, columns, low=0.25, high=2.0, dtype=torch.float32)


def _scaled_mm(site: Site, right_type: Any, rowwise: bool, biased: bool) -> Any:
    left = site.normal(64, 128, dtype=FP8_TYPES["float8_e4m3fn"])
    right = site.normal(96, 128, dtype=right_type).t()
    scale_left, scale_right = _scales(site, 64, 96, rowwise)
    bias = site.normal(96, dtype=torch.bfloat16) if biased else None
    if site.reference:
        product = (left.double() * scale_left) @ (right.double() * scale_right)
        return product if bias is None else product + bias
    return torch._scaled_mm(left, right, scale_a=scale_left, scale_b=scale_right, bias=bias, out_dtype=torch.bfloat16)


for _fp8, _right_type in FP8_TYPES.items():
    for _rowwise, _biased in ((False, False), (False, True), (True, False)):
        if _rowwise and _fp8 == "float8_e5m2":
            continue  # torch has no row-wise scaling of e5m2
        _label = "rowwise" if _rowwise else "bias" if _biased else "tensorwise"
        REGISTRY.add(
            "cublaslt",
            f"fp8-matmul-{_label}",
            partial(_scaled_mm, right_type=_right_type, rowwise=_rowwise, biased=_biased),
            _right_type,
            Tolerance.FP8,
            devices=GPU_ONLY,
            needs=(attribute("_scaled_mm"), capability(8, 9)),
        )

"""cuSPARSE and cuSPARSELt: compressed rows, coordinates, blocks, two-of-four."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..case import GPU_ONLY, REGISTRY, attribute, capability
from ..sites import Site
from ..tolerance import Tolerance

BOTH = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)


def _mostly_zero(site: Site, rows: int, columns: int) -> Any:
    return site.normal(rows, columns) * (site.uniform(rows, columns, dtype=torch.float32) < 0.2)


@REGISTRY.case("cusparse", "csr-mm", *BOTH, *HALVES)
def _csr_mm(site: Site) -> Any:
    return _mostly_zero(site, 64, 48).to_sparse_csr() @ site.normal(48, 20)


@REGISTRY.case("cusparse", "csr-mv", *BOTH)
def _csr_mv(site: Site) -> Any:
    return _mostly_zero(site, 80, 50).to_sparse_csr() @ site.normal(50)


@REGISTRY.case("cusparse", "csr-addmm", *BOTH)
def _csr_addmm(site: Site) -> Any:
    return torch.addmm(site.normal(40, 12), _mostly_zero(site, 40, 30).to_sparse_csr(), site.normal(30, 12), beta=0.5)


@REGISTRY.case("cusparse", "csr-spgemm", *BOTH)
def _spgemm(site: Site) -> Any:
    left, right = _mostly_zero(site, 40, 32).to_sparse_csr(), _mostly_zero(site, 32, 24).to_sparse_csr()
    return (left @ right).to_dense()


@REGISTRY.case("cusparse", "csr-add", *BOTH)
def _csr_add(site: Site) -> Any:
    total = _mostly_zero(site, 30, 30).to_sparse_csr() + _mostly_zero(site, 30, 30).to_sparse_csr()
    return total.to_dense()


@REGISTRY.case("cusparse", "csr-triangular-solve", *BOTH, tolerance=Tolerance.LOOSE)
def _csr_solve(site: Site) -> Any:
    matrix = site.positive_definite(24, 24).tril()
    right = site.normal(24, 3)
    if site.reference or not site.on_gpu:
        return torch.linalg.solve_triangular(matrix, right, upper=False)
    return torch.triangular_solve(right, matrix.to_sparse_csr(), upper=False).solution


@REGISTRY.case("cusparse", "sampled-addmm", *BOTH, devices=GPU_ONLY)
def _sampled(site: Site) -> Any:
    pattern = _mostly_zero(site, 24, 28)
    left, right = site.normal(24, 16), site.normal(16, 28)
    if site.reference:
        return (pattern + left @ right) * (pattern != 0)
    return torch.sparse.sampled_addmm(pattern.to_sparse_csr(), left, right).to_dense()


@REGISTRY.case("cusparse", "bsr-mm", *BOTH)
def _bsr(site: Site) -> Any:
    blocks = site.bools(8, 6).repeat_interleave(4, 0).repeat_interleave(4, 1)
    matrix, right = site.normal(32, 24) * blocks, site.normal(24, 10)
    return matrix @ right if site.reference else matrix.to_sparse_bsr((4, 4)) @ right


@REGISTRY.case("cusparse", "csc-mm", torch.float32)
def _csc(site: Site) -> Any:
    return _mostly_zero(site, 30, 40).to_sparse_csc() @ site.normal(40, 7)


@REGISTRY.case("cusparse", "coo-mm", *BOTH)
def _coo_mm(site: Site) -> Any:
    return torch.sparse.mm(_mostly_zero(site, 50, 40).to_sparse(), site.normal(40, 9))


@REGISTRY.case("cusparse", "coo-backward", torch.float32)
def _coo_backward(site: Site) -> Any:
    matrix, right = _mostly_zero(site, 30, 20).to_sparse(), site.normal(20, 6, grad=True)
    return site.with_gradients(torch.sparse.mm(matrix, right), right)


@REGISTRY.case("aten", "coo-add", *BOTH)
def _coo_add(site: Site) -> Any:
    return _mostly_zero(site, 30, 40).to_sparse() + _mostly_zero(site, 30, 40).to_sparse()


@REGISTRY.case("aten", "coo-coalesce", *BOTH)
def _coalesce(site: Site) -> Any:
    indices = site.integers(2, 200, high=12)
    return torch.sparse_coo_tensor(indices, site.normal(200), (12, 12)).coalesce().to_dense()


@REGISTRY.case("aten", "to-sparse", *BOTH, tolerance=Tolerance.EXACT)
def _to_sparse(site: Site) -> Any:
    dense = _mostly_zero(site, 20, 30)
    return dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_csr().to_dense()


@REGISTRY.case("aten", "sparse-softmax", *BOTH)
def _softmax(site: Site) -> Any:
    return torch.sparse.softmax(_mostly_zero(site, 20, 30).to_sparse(), dim=1).to_dense()


@REGISTRY.case("aten", "sparse-sum", *BOTH)
def _sum(site: Site) -> Any:
    return torch.sparse.sum(_mostly_zero(site, 20, 30).to_sparse(), dim=1).to_dense()


def _two_of_four(site: Site, rows: int, columns: int) -> Any:
    """Two numbers of every four are zero, as the sparse tensor cores want it."""
    keep = torch.tensor([0, 1, 0, 1], device=site.device).repeat(rows, columns // 4)
    if site.stored is torch.int8:
        # Sums of these fit int8, in which cuSPARSELt gives them unless asked otherwise.
        return site.integers(rows, columns, low=-1, high=2, dtype=torch.int8) * keep.to(torch.int8)
    return site.normal(rows, columns) * keep


def _semi_structured(site: Site, cutlass: bool) -> Any:
    matrix = _two_of_four(site, 128, 128)
    right = _two_of_four(site, 128, 128).t().contiguous().t() if site.stored is torch.int8 else site.normal(128, 128)
    if site.reference:
        return (matrix.long() @ right.long()).int() if site.stored is torch.int8 else matrix @ right
    kind = torch.sparse.SparseSemiStructuredTensor
    before = kind._FORCE_CUTLASS
    kind._FORCE_CUTLASS = cutlass
    try:
        return torch.mm(torch.sparse.to_sparse_semi_structured(matrix), right)
    finally:
        kind._FORCE_CUTLASS = before


for _dtype in (*HALVES, torch.int8):
    for _library, _cutlass in (("cusparselt", False), ("aten", True)):
        if _cutlass and _dtype is torch.int8:
            continue
        REGISTRY.add(
            _library,
            "semi-structured-cutlass" if _cutlass else "semi-structured",
            partial(_semi_structured, cutlass=_cutlass),
            _dtype,
            devices=GPU_ONLY,
            needs=(attribute("sparse.to_sparse_semi_structured"), capability(8, 0)),
            derive=(lambda output: output.int()) if _dtype is torch.int8 else None,
            refusals=("cuSPARSELt not supported", "Supported only on GPUs with compute capability"),
        )


def _cusparselt_direct(site: Site, out_dtype: Any) -> Any:
    matrix = _two_of_four(site, 64, 128)
    right = (
        site.integers(128, 64, low=-8, high=8, dtype=torch.int8) if site.stored is torch.int8 else site.normal(128, 64)
    )
    if site.reference:
        if site.stored is torch.int8:
            return (matrix.long() @ right.long()).to(out_dtype)
        return matrix @ right
    # int8 wants the dense side transposed in memory.
    dense = right.t().contiguous().t() if site.stored is torch.int8 else right
    return torch._cslt_sparse_mm(torch._cslt_compress(matrix), dense, out_dtype=out_dtype)


for _name, _dtype, _out in (
    ("direct", torch.float16, None),
    ("direct", torch.bfloat16, None),
    ("direct-int32", torch.int8, torch.int32),
):
    REGISTRY.add(
        "cusparselt",
        _name,
        partial(_cusparselt_direct, out_dtype=_out),
        _dtype,
        devices=GPU_ONLY,
        needs=(attribute("_cslt_compress"), capability(8, 0)),
        refusals=("cuSPARSELt not supported",),
    )

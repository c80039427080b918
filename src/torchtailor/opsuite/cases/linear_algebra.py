"""cuSOLVER (and MAGMA where torch chooses it): factorizations and solutions."""

from __future__ import annotations

from typing import Any

import torch

from ..case import REGISTRY
from ..sites import Site
from ..tolerance import Tolerance

BOTH = (torch.float32, torch.float64)


def _wide(tensor: Any) -> Any:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _rebuilt_qr(outputs: Any) -> Any:
    q, r = map(_wide, outputs)
    return q @ r, q.mH @ q


def _rebuilt_svd(outputs: Any) -> Any:
    u, s, vh = map(_wide, outputs)
    return (u * s.unsqueeze(-2)) @ vh, s.real


def _rebuilt_eigh(outputs: Any) -> Any:
    values, vectors = map(_wide, outputs)
    return (vectors * values.unsqueeze(-2)) @ vectors.mH, values


def _square(site: Site, *shape: int) -> Any:
    """Far from singular, not symmetric."""
    return site.positive_definite(*shape) + 0.2 * site.normal(*shape)


@REGISTRY.case("cusolver", "qr", *BOTH, tolerance=Tolerance.LOOSE, derive=_rebuilt_qr)
def _qr(site: Site) -> Any:
    return tuple(torch.linalg.qr(site.normal(60, 40)))


@REGISTRY.case("cusolver", "qr-batched", *BOTH, tolerance=Tolerance.LOOSE, derive=_rebuilt_qr)
def _qr_batched(site: Site) -> Any:
    return tuple(torch.linalg.qr(site.normal(9, 16, 12)))


@REGISTRY.case("cusolver", "svd", *BOTH, tolerance=Tolerance.LOOSE, derive=_rebuilt_svd)
def _svd(site: Site) -> Any:
    return tuple(torch.linalg.svd(site.normal(50, 30), full_matrices=False))


@REGISTRY.case("cusolver", "svd-batched", *BOTH, tolerance=Tolerance.LOOSE, derive=_rebuilt_svd)
def _svd_batched(site: Site) -> Any:
    return tuple(torch.linalg.svd(site.normal(6, 20, 20), full_matrices=False))


@REGISTRY.case("cusolver", "svdvals", *BOTH, tolerance=Tolerance.LOOSE)
def _svdvals(site: Site) -> Any:
    return torch.linalg.svdvals(site.normal(3, 24, 36))


@REGISTRY.case("cusolver", "eigh", *BOTH, tolerance=Tolerance.LOOSE, derive=_rebuilt_eigh)
def _eigh(site: Site) -> Any:
    return tuple(torch.linalg.eigh(site.positive_definite(48, 48)))


@REGISTRY.case("cusolver", "eigh-batched", *BOTH, tolerance=Tolerance.LOOSE, derive=_rebuilt_eigh)
def _eigh_batched(site: Site) -> Any:
    return tuple(torch.linalg.eigh(site.positive_definite(8, 16, 16)))


@REGISTRY.case("cusolver", "eigvalsh-large", torch.float32, tolerance=Tolerance.LOOSE)
def _eigvalsh(site: Site) -> Any:
    return torch.linalg.eigvalsh(site.positive_definite(600, 600))


@REGISTRY.case(
    "cusolver", "eigvals", *BOTH, tolerance=Tolerance.LOOSE, derive=lambda values: _wide(values).abs().sort()[0]
)
def _eigvals(site: Site) -> Any:
    return torch.linalg.eigvals(_square(site, 20, 20))


@REGISTRY.case("cusolver", "cholesky", *BOTH, tolerance=Tolerance.LOOSE)
def _cholesky(site: Site) -> Any:
    matrix = site.positive_definite(64, 64)
    factor = torch.linalg.cholesky(matrix)
    return factor, torch.cholesky_solve(site.normal(64, 5), factor), torch.cholesky_inverse(factor)


@REGISTRY.case("cusolver", "cholesky-batched", *BOTH, tolerance=Tolerance.LOOSE)
def _cholesky_batched(site: Site) -> Any:
    return torch.linalg.cholesky(site.positive_definite(12, 24, 24))


@REGISTRY.case("cusolver", "lu", *BOTH, tolerance=Tolerance.LOOSE)
def _lu(site: Site) -> Any:
    permutation, lower, upper = torch.linalg.lu(_square(site, 40, 40))
    return permutation, lower, upper


@REGISTRY.case("cusolver", "lu-batched", *BOTH, tolerance=Tolerance.LOOSE)
def _lu_batched(site: Site) -> Any:
    factors, pivots = torch.linalg.lu_factor(_square(site, 10, 20, 20))
    return torch.linalg.lu_solve(factors, pivots, site.normal(10, 20, 3))


@REGISTRY.case("cusolver", "solve", *BOTH, tolerance=Tolerance.LOOSE)
def _solve(site: Site) -> Any:
    return torch.linalg.solve(_square(site, 70, 70), site.normal(70, 6))


@REGISTRY.case("cusolver", "solve-batched", *BOTH, tolerance=Tolerance.LOOSE)
def _solve_batched(site: Site) -> Any:
    return torch.linalg.solve(_square(site, 16, 12, 12), site.normal(16, 12, 4))


@REGISTRY.case("cusolver", "solve-backward", torch.float64, tolerance=Tolerance.LOOSE)
def _solve_backward(site: Site) -> Any:
    matrix, right = _square(site, 24, 24).requires_grad_(), site.normal(24, 4, grad=True)
    return site.with_gradients(torch.linalg.solve(matrix, right), matrix, right)


@REGISTRY.case("cusolver", "lstsq", *BOTH, tolerance=Tolerance.LOOSE)
def _lstsq(site: Site) -> Any:
    return torch.linalg.lstsq(site.normal(60, 20), site.normal(60, 3)).solution


@REGISTRY.case("cusolver", "inverse", *BOTH, tolerance=Tolerance.LOOSE)
def _inverse(site: Site) -> Any:
    return torch.linalg.inv(_square(site, 32, 32)), torch.linalg.inv(_square(site, 6, 10, 10))


@REGISTRY.case("cusolver", "det", *BOTH, tolerance=Tolerance.LOOSE)
def _det(site: Site) -> Any:
    matrix = _square(site, 5, 12, 12)
    sign, logarithm = torch.linalg.slogdet(matrix)
    return torch.linalg.det(matrix), sign, logarithm


@REGISTRY.case("cusolver", "pinv", *BOTH, tolerance=Tolerance.LOOSE)
def _pinv(site: Site) -> Any:
    return torch.linalg.pinv(site.normal(30, 12)), torch.linalg.matrix_rank(site.normal(20, 8))


@REGISTRY.case("cusolver", "ldl", torch.float64, tolerance=Tolerance.LOOSE)
def _ldl(site: Site) -> Any:
    factors, pivots = torch.linalg.ldl_factor(site.positive_definite(16, 16))
    return torch.linalg.ldl_solve(factors, pivots, site.normal(16, 2))


@REGISTRY.case("cusolver", "complex-eigh", torch.float32, tolerance=Tolerance.LOOSE, derive=_rebuilt_eigh)
def _complex_eigh(site: Site) -> Any:
    half = site.complex_normal(20, 20)
    return tuple(torch.linalg.eigh(half + half.mH))


@REGISTRY.case("cusolver", "complex-svd", torch.float32, tolerance=Tolerance.LOOSE, derive=_rebuilt_svd)
def _complex_svd(site: Site) -> Any:
    return tuple(torch.linalg.svd(site.complex_normal(24, 16), full_matrices=False))


@REGISTRY.case(
    "cusolver", "householder", torch.float32, tolerance=Tolerance.LOOSE, derive=lambda q: _wide(q).mT @ _wide(q)
)
def _householder(site: Site) -> Any:
    factors, taus = torch.geqrf(site.normal(20, 12))
    return torch.linalg.householder_product(factors, taus)


@REGISTRY.case("cublas", "matrix-exp", torch.float64, torch.float32, tolerance=Tolerance.LOOSE)
def _matrix_exp(site: Site) -> Any:
    return torch.linalg.matrix_exp(site.normal(3, 10, 10, scale=0.3))


@REGISTRY.case("aten", "norms", *BOTH, tolerance=Tolerance.NORMAL)
def _norms(site: Site) -> Any:
    matrix = site.normal(20, 30)
    orders = (1, 2, float("inf"), float("-inf"), 0.5)
    return [torch.linalg.vector_norm(matrix, order, dim=1) for order in orders], torch.linalg.matrix_norm(matrix)

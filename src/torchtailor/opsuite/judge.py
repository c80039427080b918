"""Judges the outputs of a run: their exact bytes, and their distance from a reference."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_SPARSE_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_SPARSE_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


@dataclass(frozen=True)
class HashedOutput:
    """One output tensor: what it is, and the SHA-256 of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


def flatten(outputs: Any) -> Iterator[Any]:
    """The dense tensors inside nested tuples, mappings and sparse tensors, on the CPU."""
    if isinstance(outputs, torch.Tensor):
        yield from _dense_parts(outputs)
    elif isinstance(outputs, Mapping):
        for value in outputs.values():
            yield from flatten(value)
    elif isinstance(outputs, Sequence) and not isinstance(outputs, str):
        for value in outputs:
            yield from flatten(value)
    elif isinstance(outputs, (bool, int, float, complex)):
        yield torch.tensor(outputs, dtype=torch.float64 if isinstance(outputs, float) else None)
    else:
        raise TypeError(f"a case returned a {type(outputs).__name__}")


def _dense_parts(tensor: Any) -> Iterator[Any]:
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        parts = [whole.indices(), whole.values()]
    elif tensor.layout in _SPARSE_ROWS:
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in _SPARSE_COLUMNS:
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    else:
        parts = [tensor]
    for part in parts:
        yield part.detach().resolve_conj().resolve_neg().cpu().contiguous()


def describe(tensor: Any) -> HashedOutput:
    """Type, shape and hash of a dense, contiguous CPU tensor."""
    size = tensor.numel() * tensor.element_size()
    # Without NumPy, which torch does not need and an environment may lack.
    content = (ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b""
    return HashedOutput(
        str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), hashlib.sha256(content).hexdigest()
    )


def relative_error(outputs: Sequence[Any], references: Sequence[Any]) -> float:
    """The largest distance of any output from its reference, relative to the reference's largest number.

    Infinity stands for outputs that cannot be compared: another number or shape, NaN or infinity in other places.
    """
    if len(outputs) != len(references):
        return float("inf")
    return max((_error(*pair) for pair in zip(outputs, references, strict=True)), default=0.0)


def _error(output: Any, reference: Any) -> float:
    if output.shape != reference.shape or output.is_complex() != reference.is_complex():
        return float("inf")
    if not output.numel():
        return 0.0
    wide = torch.complex128 if output.is_complex() else torch.float64
    found, expected = output.to(wide), reference.to(wide)
    if found.is_complex():
        found, expected = torch.view_as_real(found), torch.view_as_real(expected)
    finite = torch.isfinite(expected)
    odd_found, odd_expected = found[~finite], expected[~finite]
    if not torch.equal(torch.isfinite(found), finite) or not torch.equal(
        torch.nan_to_num(odd_found, nan=0.5), torch.nan_to_num(odd_expected, nan=0.5)
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    distance = (found[finite] - expected[finite]).abs().max().item()
    scale = expected[finite].abs().max().item()
    return float(distance / scale) if scale else float(distance)

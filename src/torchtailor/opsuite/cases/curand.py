"""libcurand itself, which torch links but hardly calls: every generator, through its C interface."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch

from ..case import GPU_ONLY, REGISTRY, NotApplicable
from ..sites import Site
from ..tolerance import Tolerance

COUNT = 100_000
# curandRngType_t
PSEUDO = {"xorwow": 101, "mrg32k3a": 121, "mtgp32": 141, "mt19937": 142, "philox": 161}
QUASI = {"sobol32": 201, "scrambled-sobol32": 202}
QUASI64 = {"sobol64": 203, "scrambled-sobol64": 204}


def _library() -> Any:
    for name in ("libcurand.so.10", "libcurand.so.11"):
        try:
            return ctypes.CDLL(name)  # torch has loaded it: the name is enough
        except OSError:
            continue
    raise NotApplicable("no libcurand is loaded by this torch")


def _check(call: str, status: int) -> None:
    if status:
        raise RuntimeError(f"{call} returned curandStatus {status}")


def _draw(site: Site, generator_type: int, seeded: bool) -> Any:
    library = _library()
    handle = ctypes.c_void_p()
    _check("curandCreateGenerator", library.curandCreateGenerator(ctypes.byref(handle), generator_type))
    try:
        if seeded:
            _check("curandSetSeed", library.curandSetPseudoRandomGeneratorSeed(handle, ctypes.c_ulonglong(site.seed)))
        uniform = torch.empty(COUNT, device="cuda")
        normal = torch.empty(COUNT, device="cuda", dtype=torch.float64)
        torch.cuda.synchronize()
        _check("curandGenerateUniform", library.curandGenerateUniform(handle, *_target(uniform)))
        _check(
            "curandGenerateNormalDouble",
            library.curandGenerateNormalDouble(handle, *_target(normal), ctypes.c_double(3), ctypes.c_double(2)),
        )
        torch.cuda.synchronize()
        return uniform, normal
    finally:
        library.curandDestroyGenerator(handle)


def _target(tensor: Any) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel())


def _moments(outputs: Any) -> Any:
    return torch.stack([moment for part in outputs for moment in (part.double().mean(), part.double().std())])


def _expected(site: Site) -> Any:
    return torch.tensor([0.5, 0.288675, 3.0, 2.0], dtype=torch.float64)


for _name, _type in {**PSEUDO, **QUASI, **QUASI64}.items():
    REGISTRY.add(
        "curand",
        _name,
        partial(_draw, generator_type=_type, seeded=_name in PSEUDO),
        torch.float32,
        Tolerance.STATISTICAL,
        devices=GPU_ONLY,
        derive=_moments,
        reference=_expected,
    )


def _poisson(site: Site) -> Any:
    library = _library()
    handle = ctypes.c_void_p()
    _check("curandCreateGenerator", library.curandCreateGenerator(ctypes.byref(handle), PSEUDO["philox"]))
    try:
        _check("curandSetSeed", library.curandSetPseudoRandomGeneratorSeed(handle, ctypes.c_ulonglong(site.seed)))
        counts = torch.empty(COUNT, device="cuda", dtype=torch.int32)
        torch.cuda.synchronize()
        _check("curandGeneratePoisson", library.curandGeneratePoisson(handle, *_target(counts), ctypes.c_double(4)))
        torch.cuda.synchronize()
        return (counts,)
    finally:
        library.curandDestroyGenerator(handle)


REGISTRY.add(
    "curand",
    "poisson",
    _poisson,
    torch.int32,
    Tolerance.STATISTICAL,
    devices=GPU_ONLY,
    derive=_moments,
    reference=lambda site: torch.tensor([4.0, 2.0], dtype=torch.float64),
)

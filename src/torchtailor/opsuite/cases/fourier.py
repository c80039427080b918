"""cuFFT: sizes of every kind, real and complex, one to three dimensions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..case import GPU_ONLY, REGISTRY
from ..sites import Site
from ..tolerance import Tolerance

# Powers of the small radices, mixed radices, primes that need a general algorithm (Bluestein), large ones.
SIZES = {
    "1": 1,
    "2^7": 128,
    "2^12": 4096,
    "2^17": 131072,
    "3^6": 729,
    "5^4": 625,
    "7^3": 343,
    "11^2": 121,
    "13^2": 169,
    "mixed-2310": 2310,
    "mixed-30030": 30030,
    "prime-17": 17,
    "prime-127": 127,
    "prime-257": 257,
    "prime-1009": 1009,
    "prime-65537": 65537,
}
BOTH = (torch.float32, torch.float64)


def _one_dimension(site: Site, size: int) -> Any:
    batch = 3 if size < 10000 else 1
    spectrum = torch.fft.fft(site.complex_normal(batch, size))
    return spectrum, torch.fft.rfft(site.normal(batch, size)), torch.fft.ifft(spectrum)


for _name, _size in SIZES.items():
    for _dtype in BOTH if _size < 5000 else (torch.float32,):
        REGISTRY.add("cufft", f"fft-{_name}", partial(_one_dimension, size=_size), _dtype)


@REGISTRY.case("cufft", "fft2", *BOTH)
def _two_dimensions(site: Site) -> Any:
    return torch.fft.fft2(site.complex_normal(2, 48, 35)), torch.fft.rfft2(site.normal(2, 64, 64))


@REGISTRY.case("cufft", "fft3", *BOTH)
def _three_dimensions(site: Site) -> Any:
    return torch.fft.fftn(site.complex_normal(16, 12, 18)), torch.fft.rfftn(site.normal(2, 16, 16, 16), dim=(1, 2, 3))


@REGISTRY.case("cufft", "irfft", *BOTH)
def _inverse_real(site: Site) -> Any:
    half = torch.fft.rfft(site.normal(4, 90))
    return torch.fft.irfft(half, n=90), torch.fft.hfft(half), torch.fft.irfft2(torch.fft.rfft2(site.normal(3, 20, 22)))


@REGISTRY.case("cufft", "batched-strided", torch.float32)
def _strided(site: Site) -> Any:
    return torch.fft.fft(site.complex_normal(5, 36, 7), dim=1), torch.fft.rfft(site.normal(6, 40, 9), dim=1)


@REGISTRY.case("cufft", "half", torch.float16, devices=GPU_ONLY, tolerance=Tolerance.NORMAL)
def _half(site: Site) -> Any:
    """Half precision takes powers of two only."""
    return torch.fft.fft(site.complex_normal(2, 256)), torch.fft.rfft(site.normal(2, 512))


@REGISTRY.case("cufft", "stft", torch.float32)
def _stft(site: Site) -> Any:
    window = site.put(torch.hann_window(64, dtype=torch.float64))
    spectrum = torch.stft(site.normal(2, 800), 64, hop_length=16, window=window, return_complex=True)
    return spectrum, torch.istft(spectrum, 64, hop_length=16, window=window)


@REGISTRY.case("cufft", "backward", *BOTH)
def _backward(site: Site) -> Any:
    data = site.normal(3, 100, grad=True)
    return site.with_gradients(torch.fft.rfft(data).abs(), data)

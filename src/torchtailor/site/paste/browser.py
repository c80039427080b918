"""The GPU that a browser names: WebGPU's adapter, or WebGL's renderer, which Chromium writes as `ANGLE (...)`."""

from __future__ import annotations

import re

from torchtailor.catalog.load import Catalog
from torchtailor.core.errors import TorchtailorError

_DISGUISED = re.compile(r"or similar|swiftshader|llvmpipe|softpipe|basic render|mesa offscreen", re.IGNORECASE)
_ANGLE = re.compile(r"ANGLE \((.*)\)")  # vendor, renderer, version
_VULKAN = re.compile(r"Vulkan [\d.]+ \((.*)\)")
_BEHIND = re.compile(r" ?\(0x[0-9A-Fa-f]+\).*| Direct3D.*|/PCIe.*|/SSE2.*| OpenGL.*| \((?:radeonsi|LLVM|[A-Z]{3}).*")


def browser_gpu(catalog: Catalog, named: list[str], vendor: str, architecture: str) -> str:
    """A GPU that can be looked up, or one of another vendor; empty where the browser hides it or says nothing sure."""
    for text in named:
        name = _product(text)
        if name and not _DISGUISED.search(text) and _is_meaningful(catalog, name):
            return name
    return _by_family(catalog, architecture) if vendor == "nvidia" else ""


def _product(text: str) -> str:
    """`ANGLE (NVIDIA, NVIDIA GeForce RTX 4090 (0x2684) Direct3D11 vs_5_0, D3D11)` -> `NVIDIA GeForce RTX 4090`."""
    found = text.strip()[:200]
    if angle := _ANGLE.fullmatch(found):
        parts = angle[1].split(", ")
        found = parts[1] if len(parts) > 2 else parts[0]
    if vulkan := _VULKAN.fullmatch(found):
        found = vulkan[1]
    found = found.removeprefix("ANGLE Metal Renderer: ").removeprefix("Mesa ").replace("(R)", "").replace("(TM)", "")
    return _BEHIND.sub("", found).replace("NVIDIA NVIDIA", "NVIDIA").strip()


def _is_meaningful(catalog: Catalog, name: str) -> bool:
    try:
        catalog.find_gpu(name)
    except TorchtailorError as error:
        return "not an NVIDIA GPU" in error.message and "(display adapter)" not in error.message
    return any(sign.isdigit() for sign in name) or "TITAN" in name.upper()


def _by_family(catalog: Catalog, architecture: str) -> str:
    """`ada-lovelace` has one capability; `ampere` and `blackwell` have several, and nothing is made of them."""
    family = architecture.replace("-", " ").lower()
    offered = [gpu for gpu in catalog.gpus.values() if gpu.offered and family and gpu.family.lower().startswith(family)]
    return str(offered[0].capability) if len(offered) == 1 else ""

"""The GPU that a browser names, in the shapes that WebGPU and WebGL give it; what is hidden or wrong is no name."""

from __future__ import annotations

import pytest

from tests import machines
from torchtailor.site.paste import browser_gpu

D3D = "ANGLE ({}, {} Direct3D11 vs_5_0 ps_5_0, D3D11)"


@pytest.mark.parametrize(
    ("renderer", "name"),
    [
        (D3D.format("NVIDIA", "NVIDIA GeForce RTX 4090 (0x00002684)"), "NVIDIA GeForce RTX 4090"),
        (D3D.format("NVIDIA", "NVIDIA GeForce RTX 3070 Laptop GPU (0x0000249D)"), "NVIDIA GeForce RTX 3070 Laptop GPU"),
        (D3D.format("NVIDIA", "NVIDIA TITAN V (0x00001D81)"), "NVIDIA TITAN V"),
        ("ANGLE (NVIDIA, Vulkan 1.3.242 (NVIDIA NVIDIA RTX A6000 (0x00002230)), NVIDIA-535.98)", "NVIDIA RTX A6000"),
        ("ANGLE (NVIDIA Corporation, NVIDIA GeForce GTX 1080/PCIe/SSE2, OpenGL 4.5.0)", "NVIDIA GeForce GTX 1080"),
        ("ANGLE (NVIDIA Corporation, Quadro P2000/PCIe/SSE2, OpenGL 4.5.0 NVIDIA 535.183.01)", "Quadro P2000"),
        ("NVIDIA GeForce RTX 2060/PCIe/SSE2", "NVIDIA GeForce RTX 2060"),
        ("ANGLE (Apple, ANGLE Metal Renderer: Apple M2 Pro, Unspecified Version)", "Apple M2 Pro"),
        ("Apple GPU", "Apple GPU"),
        (D3D.format("AMD", "AMD Radeon RX 7900 XTX (0x0000744C)"), "AMD Radeon RX 7900 XTX"),
        ("ANGLE (AMD, AMD Radeon Graphics (radeonsi renoir LLVM 15.0.7), OpenGL 4.6)", "AMD Radeon Graphics"),
        (D3D.format("Intel", "Intel(R) UHD Graphics 770 (0x00004680)"), "Intel UHD Graphics 770"),
        ("Mesa Intel(R) Xe Graphics (TGL GT2)", "Intel Xe Graphics"),
        ("NVIDIA GeForce GTX 980, or similar", ""),  # Firefox hides which one it is
        ("ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero) (0x0000C0DE)), SwiftShader driver)", ""),
        ("llvmpipe (LLVM 15.0.7, 256 bits)", ""),
        (D3D.format("Microsoft", "Microsoft Basic Render Driver (0x0000008C)"), ""),
        ("ANGLE (VMware, Inc., SVGA3D; build: RELEASE, OpenGL 4.3)", ""),
        ("WebKit WebGL", ""),
        ("NVIDIA", ""),
        ("NVIDIA Tegra", ""),
        ("NVIDIA GeForce RTX 99999", ""),
        ("Adreno (TM) 740", ""),
        ("Mali-G710", ""),
        ("<img src=x onerror=alert(1)>", ""),
        ("ANGLE (" * 5000, ""),
        ("", ""),
    ],
)  # fmt: skip
def test_renderers(renderer: str, name: str) -> None:
    assert browser_gpu(machines.catalog(), ["", "", renderer], "", "") == name


@pytest.mark.parametrize(
    ("vendor", "architecture", "name"),
    [
        ("nvidia", "ada-lovelace", "8.9"),
        ("nvidia", "turing", "7.5"),
        ("nvidia", "ampere", ""),  # 8.0, 8.6 or 8.7
        ("nvidia", "blackwell", ""),
        ("nvidia", "", ""),
        ("nvidia", "next-year", ""),
        ("amd", "rdna-3", ""),
        ("apple", "metal-3", ""),
        ("intel", "xe", ""),
        ("", "", ""),
    ],
)
def test_an_architecture_counts_where_it_has_one_capability(vendor: str, architecture: str, name: str) -> None:
    assert browser_gpu(machines.catalog(), [], vendor, architecture) == name


def test_the_adapter_comes_before_the_renderer() -> None:
    """A laptop draws with one GPU and computes with the other."""
    named = ["NVIDIA GeForce RTX 4060 Laptop GPU", "", D3D.format("Intel", "Intel(R) Iris(R) Xe Graphics (0x46A6)")]
    assert browser_gpu(machines.catalog(), named, "nvidia", "ada-lovelace") == "NVIDIA GeForce RTX 4060 Laptop GPU"

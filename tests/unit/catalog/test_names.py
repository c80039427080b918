"""Product names of GPUs and CPUs, as people write them and as machines report them."""

from __future__ import annotations

import pytest

from torchtailor.catalog import Catalog, load_catalog
from torchtailor.errors import NoMatchError


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("H200", "9.0"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("NVIDIA GH200 480GB", "9.0"),
        ("DGX Spark", "12.1"),
        ("NVIDIA GB10", "12.1"),
        ("GTX 1080 Ti", "6.1"),
        ("NVIDIA GeForce GTX 1080 Ti", "6.1"),
        ("gtx1080ti", "6.1"),
        ("Jetson Orin", "8.7"),
        ("Orin", "8.7"),
        ("Jetson Orin Nano", "8.7"),
        ("Thor", "11.0"),
        ("RTX 4090", "8.9"),
        ("rtx4090", "8.9"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9"),
        ("RTX 4070 Ti SUPER", "8.9"),
        ("A100-SXM4-80GB", "8.0"),
        ("NVIDIA A100 80GB PCIe", "8.0"),
        ("NVIDIA A10", "8.6"),
        ("NVIDIA L40S", "8.9"),
        ("NVIDIA L4", "8.9"),
        ("NVIDIA RTX A4000", "8.6"),
        ("Quadro RTX 4000", "7.5"),
        ("NVIDIA RTX 4000 Ada Generation", "8.9"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0"),
        ("Tesla V100-SXM2-16GB", "7.0"),
        ("Tesla P100-PCIE-16GB", "6.0"),
        ("Tesla T4", "7.5"),
        ("B300", "10.3"),
        ("NVIDIA B200", "10.0"),
        ("NVIDIA GB200", "10.0"),
        ("RTX 5090", "12.0"),
        ("NVIDIA TITAN X (Pascal)", "6.1"),
        ("NVIDIA GeForce GTX TITAN X", "5.2"),
    ],
)
def test_gpu_names(catalog: Catalog, name: str, capability: str) -> None:
    assert str(catalog.gpu(name).capability) == capability


@pytest.mark.parametrize("name", ["Radeon RX 7900", "RTX", "", "nvidia", "Quadro", "RTX 9999", "sm_999", "99.9"])
def test_gpu_names_that_mean_nothing_or_too_much(catalog: Catalog, name: str) -> None:
    with pytest.raises(NoMatchError) as error:
        catalog.gpu(name)
    assert error.value.hint


@pytest.mark.parametrize(
    ("name", "isas"),
    [
        ("Graviton1", ""),
        ("Graviton2", "armv8_2"),
        ("Graviton3", "armv8_2"),
        ("AWS Graviton4", "armv8_2 armv9"),
        ("Graviton4", "armv8_2 armv9"),
        ("Grace", "armv8_2 armv9"),
        ("Jetson AGX Orin", "armv8_2"),
        ("Jetson AGX Xavier", ""),
        ("Ampere Altra", "armv8_2"),
        ("A64FX", ""),
        ("zen3", "avx avx2"),
        ("zen4", "avx avx2 avx512 avx512bf16 avx512vnni"),
        ("znver5", "avx avx2 avx512 avx512bf16 avx512vnni"),
        ("i9-12900K", "avx avx2"),
        ("Intel(R) Core(TM) i9-12900K", "avx avx2"),
        ("12th Gen Intel(R) Core(TM) i9-12900K", "avx avx2"),
        ("Intel(R) Core(TM) i7-2600K CPU @ 3.40GHz", "avx"),
        ("i9-7980XE", "avx avx2 avx512"),
        ("i7-9700K", "avx avx2"),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "avx avx2 avx512"),
        ("Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", "avx avx2 avx512 avx512vnni"),
        ("Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz", "avx avx2 avx512 avx512bf16 avx512vnni"),
        ("Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz", "avx avx2 avx512 avx512vnni"),
        ("Intel(R) Xeon(R) Platinum 8480+", "avx avx2 avx512 avx512bf16 avx512vnni"),
        ("Intel(R) Xeon(R) CPU E5-2670 0 @ 2.60GHz", "avx"),
        ("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", "avx avx2"),
        ("AMD EPYC 7763 64-Core Processor", "avx avx2"),
        ("AMD EPYC 9654 96-Core Processor", "avx avx2 avx512 avx512bf16 avx512vnni"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "avx avx2 avx512 avx512bf16 avx512vnni"),
        ("AMD Ryzen Threadripper PRO 5995WX 64-Cores", "avx avx2"),
        ("knl", "avx avx2"),
        ("icelake", "avx avx2 avx512 avx512vnni"),
        ("skylake_avx512", "avx avx2 avx512"),
        ("neoverse_v1", "armv8_2"),
        ("broadwell", "avx avx2"),
        ("cannonlake", "avx avx2 avx512"),
    ],
)
def test_cpu_names(catalog: Catalog, name: str, isas: str) -> None:
    core, _ = catalog.microarchitecture(name)
    assert sorted(isa.name for isa in catalog.isas.values() if isa.runs_on(core.flags)) == isas.split()


def test_an_unknown_cpu_name_says_what_to_do(catalog: Catalog) -> None:
    with pytest.raises(NoMatchError) as error:
        catalog.microarchitecture("Z80")
    assert "detect --json" in error.value.hint

"""Product names of GPUs and CPUs, as people write them and as machines report them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from torchtailor.catalog import Catalog, load_catalog
from torchtailor.catalog.products import _pci_readings, words
from torchtailor.core.errors import NoMatchError

FOLDER = Path(__file__).parent


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("H200", "9.0"),
        ("sm90a", "9.0"),
        ("sm_120f", "12.0"),
        ("10.0a", "10.0"),
        ("VR200", "10.7"),
        ("NVIDIA VR200 NVL72", "10.7"),
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
        ("rtx4070tisuper", "8.9"),
        ("3060laptop", "8.6"),
        ("h100sxm5", "9.0"),
        ("TeslaV100", "7.0"),
        ("geforcertx3080", "8.6"),
        ("nvidiaa100", "8.0"),
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


def test_names_as_nvidias_tools_print_them(catalog: Catalog) -> None:
    """Expected capabilities are those of the chips by NVIDIA's documents; `doubt` is the other reading."""
    table = rows("gpu_names.csv")
    found = {row["name"]: catalog.find_gpu(row["name"]) for row in table}
    assert len(found) == len(table) > 250
    expected = {row["name"]: [row["capability"], *row["doubt"].split()] for row in table}
    readings = {
        name: [str(match.gpu.capability), *(str(reading.capability) for reading in match.readings[1:])]
        for name, match in found.items()
    }
    assert readings == expected
    said = {name: match.doubt for name, match in found.items()}
    assert {name for name, doubt in said.items() if doubt} == {row["name"] for row in table if row["doubt"]}
    assert [row for row in table if row["doubt"] and row["doubt"] not in said[row["name"]]] == []
    assert [row for row in table if row["doubt"] and row["capability"] not in said[row["name"]]] == []


@pytest.mark.parametrize("row", [row for row in rows("gpu_names.csv") if row["doubt"]], ids=lambda row: row["name"])
def test_a_name_that_two_chips_carry_is_refused_where_it_decides_what_is_cut(
    catalog: Catalog, row: dict[str, str]
) -> None:
    with pytest.raises(NoMatchError, match="could mean GPUs of several architectures") as error:
        catalog.gpu(row["name"])
    assert f"{row['capability']})" in error.value.message and f"{row['doubt']})" in error.value.message
    assert row["doubt"] in error.value.hint


def test_every_product_of_the_catalog_agrees_with_its_chip_in_pci_ids(catalog: Catalog) -> None:
    """Two independent lists: NVIDIA's, by product, and pci.ids, by chip (which also has a GT 1030 of GK107)."""
    by_chip: dict[tuple[str, ...], set[str]] = {}
    for product, reading in _pci_readings():
        by_chip.setdefault(product, set()).add(str(reading.capability))
    known = [(name, gpu) for gpu in catalog.gpus.values() for name in gpu.all_products if words(name) in by_chip]
    wrong = [name for name, gpu in known if str(gpu.capability) not in by_chip[words(name)]]
    assert len(known) > 100 and wrong == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("MI300X", "ROCm"),
        ("AMD Instinct MI250", "ROCm"),
        ("Radeon RX 7900 XTX", "ROCm"),
        ("1002:74a1", "ROCm"),
        ("Intel Arc A770", "XPU"),
        ("Intel(R) Data Center GPU Max 1550", "XPU"),
        ("8086:56a0", "XPU"),
        ("Gaudi 3", "Gaudi"),
        ("TPU v5e", "XLA"),
        ("Trainium", "Neuron"),
        ("Apple M2 GPU", "MPS"),
        ("M1", "MPS"),
        ("M2 Max", "MPS"),
        ("MacBook Pro", "MPS"),
        ("Strix Halo", "ROCm"),
        ("Snapdragon X Elite", "no build"),
    ],
)
def test_other_vendors_get_one_true_sentence(catalog: Catalog, name: str, says: str) -> None:
    with pytest.raises(NoMatchError, match="not an NVIDIA GPU") as error:
        catalog.gpu(name)
    assert says in error.value.hint and "nvidia-smi" not in error.value.hint


@pytest.mark.parametrize(("name", "near"), [("RTX 4090 Ti", "RTX 4070 Ti"), ("GeForce RTX 2070 Tii", "RTX 2070")])
def test_an_unknown_gpu_is_answered_with_near_ones(catalog: Catalog, name: str, near: str) -> None:
    with pytest.raises(NoMatchError) as error:
        catalog.gpu(name)
    assert "Did you mean" in error.value.message and near in error.value.message


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RTX 4090 Ti", "RTX 4090"),
        ("RTX 3050 Super", "RTX 3050"),
        ("RTX 4900", "RTX 4090"),
        ("RTX 3900", "RTX 3090"),
        ("RTX 4800", "RTX 4080"),
        ("GTX 1800", "GTX 1080"),
    ],
)
def test_the_likeliest_comes_first_among_the_near_ones(catalog: Catalog, name: str, meant: str) -> None:
    with pytest.raises(NoMatchError, match=f"Did you mean (GeForce )?{meant}( or|\\?)"):
        catalog.gpu(name)


@pytest.mark.parametrize(
    "name", ["Quadro 5000", "GeForce GTX 580", "10de:3340", "10de:ffff", "5000", "2", "Graphics Device"]
)
def test_a_gpu_that_is_not_surely_known_is_not_guessed(catalog: Catalog, name: str) -> None:
    with pytest.raises(NoMatchError):
        catalog.gpu(name)


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


@pytest.mark.parametrize(
    ("name", "core"),
    [
        ("Celeron G5905", "x86_64_v2"),  # Comet Lake: no SHA, as Tremont has it
        ("Intel(R) Pentium(R) Gold G5400 CPU @ 3.70GHz", "x86_64_v2"),
        ("Intel(R) Celeron(R) 4205U CPU @ 1.80GHz", "x86_64_v2"),
        ("Celeron G6900", "alderlake"),
        ("Intel(R) Celeron(R) N4020 CPU @ 1.10GHz", "tremont"),
        ("Pentium Silver N6000", "tremont"),
    ],
)
def test_celeron_and_pentium_are_of_core_or_of_atom(catalog: Catalog, name: str, core: str) -> None:
    assert catalog.microarchitecture(name)[0].name == core


def test_cpu_names_as_cpuinfo_prints_them(catalog: Catalog) -> None:
    """The best general ISA by the makers' specifications; none is below AVX or Armv8.2."""

    def best(name: str) -> str:
        core, _ = catalog.microarchitecture(name)
        runs = [isa for isa in ("avx", "avx2", "avx512", "armv8_2", "armv9") if catalog.isa(isa).runs_on(core.flags)]
        return (runs or [""])[-1]

    expected = {row["name"]: row["isa"] for row in rows("cpu_names.csv")}
    assert len(expected) > 300
    assert {name: best(name) for name in expected} == expected


@pytest.mark.parametrize(
    "name",
    ["AMD Ryzen 7 7799X", "Intel(R) Core(TM) i7", "ARMv8 Processor rev 1 (v8l)", "AMD EPYC 9996"],
)  # fmt: skip
def test_a_cpu_name_that_says_too_little_is_not_guessed(catalog: Catalog, name: str) -> None:
    with pytest.raises(NoMatchError):
        catalog.microarchitecture(name)


@pytest.mark.parametrize(
    ("name", "readings"),
    [("Xeon 5120", ("Core 2", "Gold")), ("AMD EPYC Processor", ("or later", "taken as Zen 1")),
     ("Intel(R) Xeon(R) Processor @ 2.50GHz", ("AVX-512 or less", "x86-64 alone is assumed")),
     ("Intel(R) Xeon(R) CPU @ 2.20GHz", ("AVX-512 or less", "x86-64 alone is assumed")),
     ("QEMU Virtual CPU version 2.5+", ("x86-64 alone", "may have more")),
     ("Common KVM processor", ("x86-64 alone", "may have more")),
     ("ZHAOXIN KaiXian KX-7000/8", ("AVX at least",)), ("ZHAOXIN KaiXian KX-U6780A@2.7GHz", ("AVX at least",)),
     ("ZHAOXIN KaiSheng KH-20016", ("SSE4.2 at least",)), ("DO-Regular", ("at least",)),
     ("VIA Nano U2250@1.3+GHz", ("SSSE3 at least",)), ("Phytium,S5000C/64", ("Armv8.0 at least",))],
)  # fmt: skip
def test_a_cpu_name_with_two_readings_says_so_and_takes_the_lower(
    catalog: Catalog, name: str, readings: tuple[str, ...]
) -> None:
    _, label = catalog.microarchitecture(name)
    assert all(reading in label for reading in readings)
    row = catalog.cpu_name(name)
    assert row is not None and row.at_least == ("Core 2" not in readings)


@pytest.mark.parametrize(
    ("name", "arch"),
    [("POWER9, altivec supported", "ppc64le"), ("IBM POWER10", "ppc64le"), ("sifive,u74-mc", "riscv64"),
     ("Loongson-3A5000", "loongarch64"), ("IBM/S390", "s390x")],
)  # fmt: skip
def test_the_cpus_of_other_platforms_are_known_as_such(catalog: Catalog, name: str, arch: str) -> None:
    assert catalog.microarchitecture(name)[0].arch == arch


@pytest.mark.parametrize("name", ["7900X", "8250U", "6248"])
def test_a_cpu_without_its_brand_is_asked_for_it(catalog: Catalog, name: str) -> None:
    with pytest.raises(NoMatchError) as error:
        catalog.microarchitecture(name)
    assert "brand" in error.value.hint


@pytest.mark.parametrize("name", ["9.x", "12.", "8.9a1"])
def test_what_looks_like_a_capability_is_called_one(catalog: Catalog, name: str) -> None:
    with pytest.raises(NoMatchError, match="is not a compute capability") as error:
        catalog.find_gpu(name)
    assert "8.9, 9.0" in error.value.hint


def test_an_unknown_cpu_name_says_what_to_do(catalog: Catalog) -> None:
    with pytest.raises(NoMatchError) as error:
        catalog.microarchitecture("Z80")
    assert "detect --json" in error.value.hint


@pytest.mark.parametrize(
    ("line", "capability"),
    [
        ("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)", "8.0"),
        ("GPU 7: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", "9.0"),
        ("GPU 0: Tesla K80 (UUID: GPU-2)", "3.7"),
        ("GPU 0: NVIDIA GeForce RTX 4070 Laptop GPU (UUID: GPU-3)", "8.9"),
        ("GPU 0: Orin (nvgpu) (UUID: 54ec5ee9)", "8.7"),
        ("GPU 0: NVIDIA GB10", "12.1"),
    ],
)
def test_a_line_of_nvidia_smi(catalog: Catalog, line: str, capability: str) -> None:
    assert str(catalog.gpu(line).capability) == capability


@pytest.mark.parametrize(
    "line",
    ["  MIG 1g.5gb      Device  0: (UUID: MIG-c6d4f1ef-42e4)", "MIG 3g.40gb", "1g.10gb+me", "MIG 1c.3g.20gb Device 0:"],
)
def test_an_instance_does_not_say_of_which_gpu_it_is(catalog: Catalog, line: str) -> None:
    with pytest.raises(NoMatchError, match="is an instance of a GPU"):
        catalog.gpu(line)


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("GTX 580", "Fermi"), ("GeForce GTX 560 Ti", "Fermi"), ("Tesla M2090", "Fermi"), ("Tesla C2075", "Fermi"),
        ("Quadro 4000", "Fermi"), ("GeForce 610M", "Fermi"), ("NVS 5400M", "Fermi"), ("GT 430", "Fermi"),
        ("GTX 280", "Tesla"), ("GeForce 8800 GT", "Tesla"), ("Tesla C1060", "Tesla"), ("GeForce 210", "Tesla"),
        ("Quadro FX 5800", "Tesla"), ("GeForce 9800 GTX+", "Tesla"),
    ],
)  # fmt: skip
def test_a_gpu_before_kepler_is_said_to_be_one(catalog: Catalog, name: str, generation: str) -> None:
    with pytest.raises(NoMatchError) as caught:
        catalog.gpu(name)
    assert f"is a GPU of the {generation} generation" in caught.value.message and "--gpu none" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "core"),
    [
        ("Apple Icestorm", "apple_m1"), ("Firestorm-M1", "apple_m1"), ("Avalanche-M2-Pro", "apple_m2"),
        ("Qualcomm Falkor", "cortex_a57"), ("Centriq 2460", "cortex_a57"), ("FTC663", "cortex_a57"),
        ("Phytium FT-2000+/64", "cortex_a57"), ("VIA Nano X2 U4025 @ 1.2 GHz", "core2"), ("DO-Premium-AMD", "x86_64"),
        ("ZHAOXIN KaiXian KX-U6780A@2.7GHz", "lujiazui"), ("Apple M3 Max", "apple_m2"), ("Apple M5", "apple_m4"),
        ("Intel(R) Core(TM) 3 N350", "gracemont"), ("Intel(R) N150", "gracemont"), ("VR200", "olympus"),
        ("Westmere E56xx/L56xx/X56xx", "nehalem"), ("Westmere E56xx/L56xx/X56xx (IBRS update)", "nehalem"),
        ("Intel Core i7 9xx (Nehalem Class Core i7)", "nehalem"), ("Intel(R) Xeon(R) CPU X5670 @ 2.93GHz", "nehalem"),
        ("AMD Custom APU 0405", "znver2"), ("AMD Custom APU 0932", "znver2"), ("AMD BC-250", "znver2"),
        ("Raspberry Pi 3 Model B Plus Rev 1.3", "cortex_a53"), ("Raspberry Pi Zero 2 W Rev 1.0", "cortex_a53"),
        ("Raspberry Pi 4 Model B Rev 1.4", "cortex_a72"), ("Raspberry Pi 400", "cortex_a72"),
        ("Raspberry Pi Compute Module 4 Rev 1.1", "cortex_a72"), ("Raspberry Pi 500", "cortex_a76"),
        ("9950X3D", "znver5"), ("5800x3d", "znver3"), ("7800X3D", "znver4"), ("3900X", "znver2"),
        ("14900K", "raptorlake"), ("12700f", "alderlake"),
    ],
)  # fmt: skip
def test_cores_by_rarer_names(catalog: Catalog, name: str, core: str) -> None:
    assert catalog.microarchitecture(name)[0].name == core

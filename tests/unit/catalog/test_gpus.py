"""The driver's rules, against the table that was measured with ptxas and read from NVIDIA's documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.catalog import Capability, Catalog, CodeKind, CodeTarget, Fit, Suffix, TorchArch, load_catalog

# Which cubins each device runs; the checked facts' own lists, written out so that the rule is tested against data.
DEVICE_RUNS = {
    "3.0": "30",
    "3.5": "30 35",
    "3.7": "30 35 37",
    "5.0": "50",
    "5.2": "50 52",
    "5.3": "53",
    "6.0": "60",
    "6.1": "60 61",
    "6.2": "62",
    "7.0": "70",
    "7.2": "72",
    "7.5": "70 75",
    "8.0": "80",
    "8.6": "80 86",
    "8.7": "87",
    "8.8": "88",
    "8.9": "80 86 89",
    "9.0": "90 90a",
    "10.0": "100 100a 100f",
    "10.1": "101 101a 101f",
    "10.3": "100 100f 103 103a 103f",
    "10.7": "100 100f 103 103f 107 107a 107f",
    "11.0": "101 101f 110 110a 110f",
    "12.0": "120 120a 120f",
    "12.1": "120 120f 121 121a 121f",
}
ALL_CUBINS = sorted({cubin for cubins in DEVICE_RUNS.values() for cubin in cubins.split()})


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def test_the_table_names_every_gpu_of_the_catalog(catalog: Catalog) -> None:
    assert {str(capability) for capability in catalog.gpus} == set(DEVICE_RUNS)


@pytest.mark.parametrize("device", DEVICE_RUNS)
def test_device_runs_exactly_these_cubins(catalog: Catalog, device: str) -> None:
    capability = Capability.parse(device)
    runs = [
        cubin for cubin in ALL_CUBINS if catalog.rules.fit(capability, CodeTarget.parse(f"sm_{cubin}")) is not Fit.NONE
    ]
    assert runs == sorted(DEVICE_RUNS[device].split())


def test_orin_takes_desktop_cubins_only_on_the_unified_stack(catalog: Catalog) -> None:
    orin = Capability(8, 7)
    assert catalog.rules.fit(orin, CodeTarget.parse("sm_80")) is Fit.NONE
    assert catalog.rules.fit(orin, CodeTarget.parse("sm_80"), unified_tegra=True) is Fit.COMPATIBLE
    assert catalog.rules.fit(orin, CodeTarget.parse("sm_86"), unified_tegra=True) is Fit.COMPATIBLE
    assert catalog.rules.fit(Capability(8, 9), CodeTarget.parse("sm_87")) is Fit.NONE


@pytest.mark.parametrize(
    ("device", "ptx", "fit"),
    [
        ("9.0", "compute_80", Fit.JIT),
        ("8.0", "compute_90", Fit.NONE),
        ("9.0", "compute_90a", Fit.JIT),
        ("10.0", "compute_90a", Fit.NONE),
        ("12.1", "compute_120f", Fit.JIT),
        ("10.0", "compute_120f", Fit.NONE),
        ("8.7", "compute_80", Fit.JIT),
    ],
)
def test_ptx(catalog: Catalog, device: str, ptx: str, fit: Fit) -> None:
    assert catalog.rules.fit(Capability.parse(device), CodeTarget.parse(ptx)) is fit


def test_lto_is_never_loaded_by_the_driver(catalog: Catalog) -> None:
    assert catalog.rules.fit(Capability(9, 0), CodeTarget.parse("lto_90")) is Fit.NONE


@pytest.mark.parametrize(
    ("device", "codes", "best"),
    [
        ("9.0", "sm_80 sm_90 sm_90a compute_90", "sm_90a"),
        ("8.9", "sm_80 sm_86 sm_90 compute_80", "sm_86"),
        ("12.1", "sm_120 sm_120a sm_120f compute_120", "sm_120f"),
        ("10.3", "sm_90 compute_80 compute_90", "compute_90"),
        ("7.0", "sm_75 compute_80", None),
    ],
)
def test_the_driver_takes_the_most_specific_code(catalog: Catalog, device: str, codes: str, best: str | None) -> None:
    found = catalog.rules.best(Capability.parse(device), [CodeTarget.parse(code) for code in codes.split()])
    assert (str(found) if found else None) == best


@given(st.sampled_from(sorted(DEVICE_RUNS)), st.sampled_from(ALL_CUBINS), st.sampled_from(sorted(DEVICE_RUNS)))
def test_a_cubin_never_crosses_majors_except_for_renumbered_silicon(device: str, cubin: str, other: str) -> None:
    rules = load_catalog_once().rules
    code = CodeTarget.parse(f"sm_{cubin}")
    if rules.fit(Capability.parse(device), code).runs and code.capability.major != Capability.parse(device).major:
        assert (str(code.capability), device) == ("10.1", "11.0")


def load_catalog_once(cached: list[Catalog] = []) -> Catalog:  # noqa: B006  (hypothesis calls this thousands of times)
    if not cached:
        cached.append(load_catalog())
    return cached[0]


@pytest.mark.parametrize("text", ["9.0", "sm_90", "sm90", "SM90", "compute_90", "90", " 9.0 "])
def test_capability_spellings(text: str) -> None:
    assert Capability.parse(text) == Capability(9, 0)


def test_capability_of_three_digits() -> None:
    assert Capability.parse("sm_121") == Capability(12, 1)
    assert Capability.parse("12.1").number == 121


@pytest.mark.parametrize("text", ["", "9", "9.", "hopper", "sm_", "9.0a", "1234", "9.00", "-9.0"])
def test_what_is_no_capability_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a compute capability"):
        Capability.parse(text)


@given(st.sampled_from(CodeKind), st.integers(5, 13), st.integers(0, 9), st.sampled_from(Suffix))
def test_code_targets_round_trip(kind: CodeKind, major: int, minor: int, suffix: Suffix) -> None:
    code = CodeTarget(kind, Capability(major, minor), suffix)
    assert CodeTarget.parse(str(code)) == code


def test_torch_cuda_arch_list() -> None:
    archs = TorchArch.parse_list("8.6;9.0a 12.0+PTX")
    assert [str(arch) for arch in archs] == ["8.6", "9.0a", "12.0+PTX"]
    assert [str(code) for code in archs[2].codes] == ["sm_120", "compute_120"]
    for wrong in ("sm_90", "121", "9.0b", "", "9.0+SASS"):
        with pytest.raises(ValueError, match="TORCH_CUDA_ARCH_LIST"):
            TorchArch.parse_list(wrong)

"""GPUs, CPUs and Pythons that get less than the others: what they get, and why not more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import machines
from torchtailor.advise.host.model import Cpu, Host
from torchtailor.advise.recommendation import Recommendation, Request
from torchtailor.advise.recommendation.engine import recommend_for
from torchtailor.advise.recommendation.hypothetical import GivenParts, hypothetical_host
from torchtailor.catalog import SOURCE, Capability, load_catalog
from torchtailor.catalog.variants import Matrix
from torchtailor.core.errors import UsageError


def this_cpu() -> Cpu:
    return machines.host("zen4").cpu


def hypothetical(*gpus: str, **more: str | None) -> Host:
    return hypothetical_host(machines.catalog(), GivenParts(gpus, **more), None, this_cpu)


def ask(*gpus: str, python: str | None = None, release: str | None = None, **more: str | None) -> Recommendation:
    return recommend_for(machines.matrix(), hypothetical(*gpus, **more), Request(python=python, release=release))


@pytest.mark.parametrize(
    ("gpus", "driver", "served", "note"),
    [
        (("RTX 5090", "GTX 1080 Ti"), "590.48.01", ("sm120",), "Nothing runs on GPU 1 (GTX 1080 Ti): Driver 590"),
        (("V100", "H100"), "595.71.05", ("sm90",), "Nothing runs on GPU 0 (V100): Driver 595"),
        (
            ("H100", "Tesla M40", "GTX 680"),
            "580.95.05",
            ("sm90", "sm52"),
            "Nothing runs on GPU 2 (GTX 680): Driver 580",
        ),
        (("H100", "K40m", "V100"), "580.95.05", ("sm90", "sm70"), "Nothing runs on GPU 1 (K40m): Driver 580"),
        (("B200", "GTX 1060"), "570.133.20", ("sm100", "sm61"), "No single variant runs on all GPUs"),
        (("GTX 680", "GTX 1080"), "470.256.02", ("sm61",), "Nothing runs on GPU 0 (GTX 680): CUDA 12 no longer"),
    ],
)
def test_a_gpu_that_nothing_serves_is_not_dropped_silently(
    gpus: tuple[str, ...], driver: str, served: tuple[str, ...], note: str
) -> None:
    found = ask(*gpus, cpu="zen3", driver=driver)
    assert tuple(one.gpu for one in found.per_gpu) == served
    assert any(text.startswith(note) for text in found.notes)
    others = [text for text in found.notes if "an environment of their own" in text]
    assert bool(others) == (len(served) > 1)


def test_a_gpu_whose_releases_have_another_python_gets_it() -> None:
    found = ask("K80", "P100", cpu="haswell", driver="470.256.02")
    assert [(one.gpu, one.python) for one in found.per_gpu] == [("sm60", "3.13"), ("sm37", "3.11")]
    assert "in an environment with Python 3.11" in found.per_gpu[1].reasons[0]


def test_a_python_that_was_asked_for_is_the_reason() -> None:
    found = ask("K80", "P100", cpu="haswell", driver="470.256.02", python="3.12")
    assert "Nothing runs on GPU 0 (K80): PyTorch 2.0.1: Not available for Python 3.12." in found.notes


@pytest.mark.parametrize(
    ("gpus", "driver", "best", "per_gpu"),
    [
        (("RTX 3090", "GTX 1080 Ti"), "535.183.01", "sm61_86 2.14.1", ("sm86", "sm61")),
        (("RTX 4090", "RTX 3060"), "580.95.05", "sm86 2.15.0", ("sm89", "sm86")),
        (("H100 PCIe", "A100 80GB PCIe"), "570.86.15", "sm80_90 2.14.1", ("sm90", "sm80")),
        (("Tesla T4", "Tesla V100-SXM2-32GB"), "550.54.15", "sm70 2.14.1", ("sm75", "sm70")),
        (("RTX 5090", "RTX 4090"), "570.133.07", "sm89_120 2.13.0", ("sm120", "sm89")),
        (("RTX 2080 Ti", "RTX 2080 Ti", "Quadro RTX 6000"), "535.183.01", "sm75 2.14.1", ()),
        (("NVIDIA L4", "Tesla P4"), "590.48.01", "sm89 2.15.0", ("sm89",)),
        (("GTX 1080", "GTX 980"), "580.95.05", "sm52_61 2.14.1", ("sm61", "sm52")),
        (("T4", "K80"), "470.256.02", "sm37_75 2.0.1", ("sm75", "sm37")),
        (("Tesla K80", "Tesla P100"), "470.199.02", "sm37_60 2.0.1", ("sm60", "sm37")),
    ],
)
def test_machines_with_several_gpus(gpus: tuple[str, ...], driver: str, best: str, per_gpu: tuple[str, ...]) -> None:
    """sm_70 runs on 7.5 and sm_86 on 8.9, so that one variant serves both; of other pairs, one wheel is cut for two."""
    found = ask(*gpus, cpu="zen3", driver=driver)
    assert found.best is not None and f"{found.best.gpu} {found.best.pytorch}" == best
    assert tuple(one.gpu for one in found.per_gpu) == per_gpu


def test_one_environment_for_all_gpus_is_the_answer_and_one_for_each_the_alternative() -> None:
    found = ask("RTX 4060 Ti", "GTX 1060", cpu="Ryzen 5 3600", driver="580.95.05")
    assert found.best is not None and found.command == f"torchtailor install {found.best.variant}"
    assert found.best.variant == "pytorch214-python313-cuda12_6-sm61_89-avx2"
    assert (found.best.gpus, found.best.code) == ((0, 1), "sm_86, sm_60")
    assert [(one.gpu, one.pytorch) for one in found.per_gpu] == [("sm89", "2.15.0"), ("sm61", "2.14.1")]
    assert not found.upgrades  # 2.15.0 leaves the GTX 1060 without code


@pytest.mark.parametrize(
    ("gpu", "reason"), [("K40m", "none of which runs on SM35"), ("GRID K520", "10.2 was the last"), ("GTX 770", "10.2")]
)
def test_a_python_does_not_hide_the_reason_against_a_release(gpu: str, reason: str) -> None:
    found = ask(gpu, cpu="haswell")
    (rejection,) = (one for one in found.rejected if "2.0.1" in one.what)
    assert reason in rejection.reason and "Python" not in rejection.reason


def test_a_python_is_the_reason_where_nothing_else_is() -> None:
    (rejection,) = (one for one in ask("K80", cpu="haswell", python="3.12").rejected if "2.0.1" in one.what)
    assert rejection.reason == "Not available for Python 3.12."


def test_a_newer_driver_and_python_together() -> None:
    (upgrade,) = ask("H100", cpu="icelake", driver="535.183.01", python="3.10").upgrades
    assert upgrade.needs == "driver 580.65.06 and Python 3.13" and "pytorch215" in upgrade.variant


@pytest.mark.parametrize(
    ("gpu", "more", "reason"),
    [
        ("GTX 770", {"driver": "470.256.02"}, "CUDA 12 no longer supports SM30 (Kepler): 10.2 was the last."),
        ("GRID K520", {"driver": "367.134"}, "CUDA 12 no longer supports SM30 (Kepler): 10.2 was the last."),
        ("MX150", {"driver": "390.157"}, "CUDA 11 needs driver 450.80.02 or newer; this machine has 390.157."),
        ("Quadro M2200", {"driver": "595.71.05"}, "Driver 595.71.05 no longer supports SM52: R580 is the last branch"),
        ("RTX 5060", {"driver": "570.144", "python": "3.8"}, "2.7.1: Not available for Python 3.8."),
        ("Jetson Orin", {"jetpack": "6.2"}, "(SBSA), which needs JetPack 7.2 or newer; this system has JetPack 6.2."),
    ],
)
def test_where_nothing_runs_a_note_says_why(gpu: str, more: dict[str, str], reason: str) -> None:
    found = ask(gpu, cpu=None if "Jetson" in gpu else "haswell", **more)
    assert found.best is None and reason in found.notes[-1]


def test_compiling_is_not_recommended_without_saying_why_no_wheel_runs() -> None:
    on_arm = ask("T4", cpu="Graviton2", driver="535.183.01").best
    assert on_arm is not None and on_arm.method == SOURCE
    assert "The official aarch64 wheels contain sm_80, sm_90, none of which runs on SM75." in on_arm.reasons[-1]
    found = ask("TITAN V", cpu="zen1", driver="580.95.05", python="3.15")
    assert found.best is not None and found.best.reasons[-1].endswith(
        "CUDA 13 no longer supports SM70 (Volta): 12.9 was the last."
    )
    assert [one.text for one in found.upgrades] == [
        "Python 3.13 enables PyTorch 2.14.1 (sm70-avx2) using the official wheel."
    ]


def test_a_gpu_that_the_driver_has_already_dropped_is_not_lost_again() -> None:
    (upgrade,) = ask("K80", "RTX 3090", cpu="zen2", driver="535.183.01").upgrades
    assert "lost" not in upgrade.text


@pytest.mark.parametrize("text", ["2x RTX 3090", "2 x RTX 3090", "RTX 3090 x2", "2×RTX 3090", "2*RTX 3090"])
def test_several_gpus_of_one_name_are_counted(text: str) -> None:
    gpus = hypothetical(text, cpu="zen2").gpus
    assert [(gpu.index, gpu.name, gpu.capability) for gpu in gpus] == [(0, "RTX 3090", "8.6"), (1, "RTX 3090", "8.6")]


@pytest.mark.parametrize("texts", [("none", "H100"), ("H100", "none"), ("cpu", "T4")])
def test_no_gpu_and_a_gpu_contradict_each_other(texts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="without a GPU, and other GPUs are given too"):
        ask(*texts, cpu="zen4")


def test_all_that_nvidia_smi_lists_can_be_given_at_once() -> None:
    lines = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)
  MIG 1g.5gb      Device  0: (UUID: MIG-2)
GPU 1: Tesla T4 (UUID: GPU-3)"""
    assert [(gpu.name, gpu.capability) for gpu in hypothetical(lines, cpu="zen2").gpus] == [
        ("NVIDIA A100-SXM4-40GB", "8.0"),
        ("Tesla T4", "7.5"),
    ]


@pytest.mark.parametrize(
    ("driver", "capability"),
    [("470.256.02", "3.0"), ("390.157", "3.0"), ("510.108.03", "5.0"), ("535", "5.0"), ("580.95.05", "5.0")],
)
def test_the_driver_tells_chips_of_one_name_apart(driver: str, capability: str) -> None:
    host = hypothetical("NVIDIA GeForce GTX 860M", cpu="haswell", driver=driver)
    assert host.gpus[0].capability == capability
    assert any("GK104, 3.0" in note.text and "GM107, 5.0" in note.text for note in host.notes)


@pytest.mark.parametrize(
    ("gpu", "release", "arch"),
    [("GB10", "2.9", "sm_121a"), ("B300", "2.9", "sm_103a"), ("GB300", "2.8", "sm_103a"), ("Thor", "2.9", "sm_110a")],
)
def test_a_triton_that_does_not_know_the_gpu_is_said_to_be_one(gpu: str, release: str, arch: str) -> None:
    cpu = {"cpu": "zen5"} if gpu == "B300" else {}
    best = ask(gpu, release=release, **cpu).best
    assert best is not None
    assert any("torch.compile needs more" in reason and arch in reason for reason in best.reasons)


@pytest.mark.parametrize("gpu", ["GB10", "B300", "B200", "RTX 5090", "H100", "T4"])
def test_a_triton_that_knows_the_gpu_is_not_blamed(gpu: str) -> None:
    cpu = {} if gpu == "GB10" else {"cpu": "zen5"}
    best = ask(gpu, release="2.12", driver="580.95.05", **cpu).best
    assert best is not None and not any("torch.compile" in reason for reason in best.reasons)


@pytest.mark.parametrize(
    ("gpu", "release", "warned"),
    [("GB10", "2.10.0", True), ("GB10", "2.11", False), ("GB300", "2.9", True), ("GB200", "2.9", False)],
)
def test_the_false_warning_of_older_releases_is_mentioned(gpu: str, release: str, warned: bool) -> None:
    best = ask(gpu, release=release).best
    assert best is not None
    assert any("may warn" in reason for reason in best.reasons) == warned


BELOW = sorted(
    name
    for name, core in machines.catalog().microarchitectures.items()
    if core.flags
    and not any(isa.arch == core.arch and isa.runs_on(core.flags) for isa in machines.catalog().isas.values())
)


@pytest.mark.parametrize("gpu", ["none", "RTX 3090"])
@pytest.mark.parametrize("core", BELOW)
def test_the_rows_for_a_cpu_below_every_instruction_set_work(core: str, gpu: str, tmp_path: Path) -> None:
    """Pasted into torchtailor.toml, they give a source build that this CPU runs."""
    found = ask(gpu, cpu=core)
    (own,) = (one for one in found.alternatives if one.toml)
    assert own.toml is not None and own.variant is not None
    (tmp_path / "torchtailor.toml").write_text(own.toml)
    catalog = load_catalog(tmp_path)
    host = hypothetical_host(catalog, GivenParts((gpu,), cpu=core), None, this_cpu)
    best = recommend_for(Matrix(catalog), host, Request(method=SOURCE)).best
    assert best is not None and best.short_name == own.variant
    isa = catalog.isas[best.isa]
    known = machines.catalog().microarchitectures[core].flags
    assert isa.requires <= known
    assert ("-msse4.2" in isa.compile_flags) == ("sse4_2" in known)
    assert ("-mssse3" in isa.compile_flags) == ("ssse3" in known)


@pytest.mark.parametrize(
    "cpu", ["Intel(R) Xeon(R) CPU @ 2.20GHz", "DO-Regular", "AMD EPYC Processor", "Common KVM processor"]
)
def test_a_cpu_whose_model_is_hidden_is_not_said_to_lack_anything(cpu: str) -> None:
    found = ask("none", cpu=cpu)
    assert found.best is not None and found.best.method == "wheel"
    assert not any("does not support" in one.reason or "lacks" in one.reason for one in found.rejected)
    assert any("Its name does not tell" in one.reason for one in found.rejected)
    assert not found.alternatives and any("does not say which CPU" in note for note in found.notes)


@pytest.mark.parametrize("cpu", ["core2", "Pentium G4560", "Opteron 6174", "Xeon X5650"])
def test_the_wheel_is_not_said_to_run_on_what_the_cpu_lacks(cpu: str) -> None:
    best = ask("none", cpu=cpu).best
    assert best is not None and not any("runs on AVX" in reason for reason in best.reasons)


def test_rubin_gets_the_same_answer_everywhere() -> None:
    from torchtailor.catalog.variants.why import explain

    best = ask("Rubin", cpu="NVIDIA Vera").best
    assert best is not None and (best.short_name, best.code) == ("sm100-armv9", "sm_100")
    explanation = explain(machines.matrix(), "sm107-armv9")
    assert explanation.instead == best.variant and best.short_name in explanation.text


def test_why_agrees_with_recommend_for_every_gpu() -> None:
    """Where no variant of its name can be cut from a wheel, but a wheel runs, `matrix --why` names it too."""
    from torchtailor.catalog.variants.why import explain

    for gpu in machines.catalog().gpus.values():
        if not gpu.offered or gpu.tegra or gpu.capability < Capability(5, 0):
            continue
        arch = "x86_64" if "x86_64" in gpu.hosts else "aarch64"
        best = ask(str(gpu.capability), cpu="haswell" if arch == "x86_64" else "neoverse_v2").best
        assert best is not None
        explanation = explain(machines.matrix(), f"{gpu.sm}-{best.isa}")
        listed = any(verdict.by_wheel for verdict in explanation.verdicts)
        assert listed or explanation.instead == best.variant

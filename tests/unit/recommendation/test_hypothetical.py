"""Machines that are only given by their parts, and the recommendation for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import machines
from torchtailor.advise.host.model import Cpu, Host
from torchtailor.advise.recommendation import Recommendation, Request, recommend
from torchtailor.advise.recommendation.engine import recommend_for
from torchtailor.advise.recommendation.hypothetical import GivenParts, hypothetical_host
from torchtailor.catalog import NIX, load_catalog
from torchtailor.core.errors import ImpossibleError, NoMatchError, TorchtailorError, UsageError


def this_cpu() -> Cpu:
    return machines.host("zen4").cpu


def hypothetical(*gpus: str, **more: str) -> Host:
    return hypothetical_host(machines.catalog(), GivenParts(gpus, **more), None, this_cpu)


def changed(base: Host, *gpus: str, **more: str) -> Host:
    return hypothetical_host(machines.catalog(), GivenParts(gpus, **more), base, this_cpu)


def ask(*gpus: str, **more: str) -> Recommendation:
    return recommend_for(machines.matrix(), hypothetical(*gpus, **more), Request())


def test_an_apple_cpu_by_its_name_says_what_macos_needs() -> None:
    best = ask("none", cpu="Apple M2").best
    assert best is not None and best.reasons[0].endswith("(for Linux on it; on macOS `pip install torch`).")
    assert any("On macOS `pip install torch`" in note for note in ask("none", cpu="Apple M2").notes)
    assert not any("macOS" in note for note in ask("none", cpu="Graviton3").notes)


def test_a_driver_of_windows_is_called_one() -> None:
    (note,) = [note for note in ask("RTX 4090", cpu="zen4", driver="572.16").notes if "572" in note]
    assert "Windows" in note and note.endswith("what R570 does.")


@pytest.mark.parametrize(("gpu", "first"), [("RTX 5090", "570.26"), ("H100", "520.61.05")])
def test_the_first_driver_that_runs_anything_is_offered(gpu: str, first: str) -> None:
    asked = ask(gpu, cpu="zen4", driver="470.256.02")
    assert asked.best is None
    assert [upgrade.needs for upgrade in asked.upgrades] == [f"driver {first}", "driver 580.65.06"]
    offered = ask(gpu, cpu="zen4", driver=first).best
    assert offered is not None and offered.variant == asked.upgrades[0].variant


@pytest.mark.parametrize(
    ("gpus", "more", "variant"),
    [
        (("RTX 4090",), {"cpu": "zen4", "driver": "570.26"}, "pytorch214-python313-cuda12_6-sm89-avx512"),
        (("H200",), {"cpu": "sapphirerapids", "driver": "580.95.05"}, "pytorch215-python313-cuda13_2-sm90-avx512"),
        (("GTX 1080 Ti",), {"cpu": "haswell"}, "pytorch214-python313-cuda12_6-sm61-avx2"),
        (("DGX Spark",), {"driver": "580.95.05"}, "pytorch215-python313-cuda13_2-sm121-armv9"),
        (("GH200",), {"driver": "580.95.05"}, "pytorch215-python313-cuda13_2-sm90-armv9"),
        (("Jetson AGX Thor",), {}, "pytorch215-python313-cuda13_2-sm110-armv9"),
        (("Jetson AGX Thor",), {"jetpack": "7.1"}, "pytorch215-python313-cuda13_2-sm110-armv9"),
        (("Jetson Orin",), {"jetpack": "7.2.1"}, "pytorch215-python313-cuda13_2-sm80-armv8_2"),
        (("Jetson Orin",), {"jetpack": "6.2"}, None),
        (("Jetson Orin",), {}, None),
        (("GTX 1080 Ti",), {"cpu": "haswell", "driver": "590.44.01"}, None),
        (("A100", "RTX 3090"), {"cpu": "zen2", "driver": "580.95.05"}, "pytorch215-python313-cuda13_2-sm80-avx2"),
        (("sm_90",), {"cpu": "zen4"}, "pytorch215-python313-cuda13_2-sm90-avx512"),
        (("none",), {"cpu": "Graviton3"}, "pytorch215-python313-cpu-armv8_2"),
        ((), {"cpu": "i9-12900K"}, "pytorch215-python313-cpu-avx2"),
        ((), {"cpu": "Graviton4"}, "pytorch215-python313-cpu-armv9"),
        ((), {"cpu": "Intel(R) Xeon(R) Gold 6132 CPU @ 2.60GHz"}, "pytorch215-python313-cpu-avx512"),
    ],
)
def test_names_lead_to_variants(gpus: tuple[str, ...], more: dict[str, str], variant: str | None) -> None:
    best = ask(*gpus, **more).best
    assert (best.variant if best else None) == variant


@pytest.mark.parametrize(
    ("gpu", "driver", "variant"),
    [
        ("B200", "570", "pytorch213-python313-cuda12_9-sm100-avx512"),
        ("RTX 5090", "570", "pytorch213-python313-cuda12_9-sm120-avx512"),
        ("H100", "525", "pytorch214-python313-cuda12_6-sm90-avx512"),
        ("B300", "575", "pytorch213-python313-cuda12_9-sm103-avx512"),
        ("H100", "580", "pytorch215-python313-cuda13_2-sm90-avx512"),
    ],
)
def test_a_bare_branch_stands_for_its_released_drivers(gpu: str, driver: str, variant: str) -> None:
    """Not for its number with zeros behind it, which is older than every driver of it."""
    found = ask(gpu, cpu="zen4", driver=driver)
    assert found.best is not None and found.best.variant == variant
    assert any(f"{driver} is a driver branch: taken as its newest known driver" in note for note in found.notes)


@pytest.mark.parametrize(
    ("gpus", "more", "variant"),
    [
        (("V100",), {"cpu": "haswell", "driver": "450"}, "pytorch27-python313-cuda11_8-sm70-avx2"),
        (("A100",), {"cpu": "zen2", "driver": "515"}, "pytorch27-python313-cuda11_8-sm80-avx2"),
        (("GTX 980",), {"cpu": "haswell", "driver": "470"}, "pytorch27-python313-cuda11_8-sm52-avx2"),
        (("H100",), {"cpu": "zen4", "driver": "520"}, "pytorch27-python313-cuda11_8-sm90-avx512"),
    ],
)
def test_drivers_before_cuda_12_get_the_last_cuda_11_wheel(
    gpus: tuple[str, ...], more: dict[str, str], variant: str
) -> None:
    best = ask(*gpus, **more).best
    assert best is not None and (best.variant, best.method) == (variant, "wheel")


def test_a_patch_release_can_be_asked_for() -> None:
    host = hypothetical("H100", cpu="zen4", driver="580.95.05")
    best = recommend_for(machines.matrix(), host, Request(release="2.14.0")).best
    assert best is not None and (best.pytorch, best.release) == ("2.14.0", "2.14.0")
    assert "PyTorch 2.14.0 is the release that was asked for." in best.reasons


def test_a_gpu_without_a_wheel_is_compiled_for_and_not_for_another() -> None:
    """T4G is 7.5, and no aarch64 wheel has 7.5: 2.14 has sm75-armv8_2 with CUDA 12.6, 2.15 only sm70 with CUDA 12."""
    best = ask("T4G", cpu="Graviton2", driver="535.54.03").best
    assert best is not None and (best.variant, best.method, best.code) == (
        "pytorch214-python313-cuda12_6-sm75-armv8_2", "source", "sm_75",
    )  # fmt: skip
    assert not any("no stock variant" in reason for reason in best.reasons)


@pytest.mark.parametrize(
    ("gpu", "advice"),
    [
        ("Tesla T4", "Try a newer container"),
        ("NVIDIA GeForce RTX 2080 Ti", ""),
        ("Quadro RTX 6000", ""),
        ("7.5", "If it is a data-centre GPU"),
    ],
)
def test_the_compatibility_library_is_for_gpus_of_data_centres(gpu: str, advice: str) -> None:
    found = recommend(gpus=[gpu], driver="418.40")
    texts = [one.text for one in found.alternatives if one.kind == "container"]
    assert texts == [] if not advice else texts[0].startswith(advice)


def test_no_container_for_a_kernel_driver_that_predates_the_gpu_nor_for_dropped_gpus() -> None:
    for found in (ask("RTX PRO 6000 Blackwell", cpu="zen4", driver="565.57.01"), ask("K40", cpu="haswell")):
        assert found.best is None and "container" not in {one.kind for one in found.alternatives}


def test_a_k80_gets_the_last_release_with_its_code_and_a_python_that_has_it() -> None:
    found = ask("K80", cpu="haswell", driver="470.256.02")
    assert found.best is not None and found.best.variant == "pytorch20-python311-cuda11_7-sm37-avx2"
    assert any("the recommendation is for Python 3.11" in note for note in found.notes)
    assert found.command == "torchtailor install pytorch20-python311-cuda11_7-sm37-avx2"


def test_torch_compile_on_blackwell_with_a_cuda_12_driver_needs_another_ptxas() -> None:
    """Triton 3.7.1 compiles for Blackwell with ptxas 13.1, and R570 loads nothing that CUDA 13 made."""
    reasons = " ".join((ask("B200", cpu="zen4", driver="570.124.06").best or pytest.fail("nothing")).reasons)
    assert "Triton 3.7.1" in reasons and "ptxas of CUDA 13.1" in reasons and "TRITON_PTXAS_BLACKWELL_PATH" in reasons
    for gpu, driver in (("B200", "580.95.05"), ("H100", "570.124.06")):
        assert "torch.compile" not in str(ask(gpu, cpu="zen4", driver=driver).best)


def test_rubin_runs_the_wheels_code_for_blackwell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the page is made from the real catalog
    best = recommend(gpus="Rubin", cpu="zen4", catalog=load_catalog(Path("/"))).best
    assert best is not None and (best.gpu, best.method) == ("sm100", "wheel")
    assert best.code is not None and best.code.startswith("sm_100")
    text = (Path(__file__).parents[3] / "docs" / "choosing.md").read_text()
    (row,) = [line for line in text.splitlines() if "| `sm107` |" in line]
    assert f"| {best.pytorch}, CUDA {best.cuda} |" in row and "As `sm100`" in row


@pytest.mark.parametrize("board", ["Jetson Nano", "Jetson TX2"])
def test_jetpack_4_gets_no_advice_to_compile(board: str) -> None:
    answer = ask(board)
    assert answer.best is None and not {"source", "wheel", "cpu"} & {one.kind for one in answer.alternatives}


def test_a_driver_that_dropped_the_gpu_and_the_python_of_the_last_release_for_it() -> None:
    answer = ask("Tesla K80", cpu="haswell", driver="535.274.02")
    assert answer.best is None
    (upgrade,) = answer.upgrades
    assert upgrade.needs == "driver R470" and upgrade.variant.startswith("pytorch20-python311-cuda11_7-sm37")
    assert "for Python 3.11" in upgrade.text


def test_the_newest_wheel_is_not_called_the_newest_release_that_runs() -> None:
    answer = ask("V100", cpu="haswell", driver="575.64.05")
    assert answer.best is not None
    assert answer.best.reasons[0] == (
        "PyTorch 2.14.1 is the newest release whose official wheel is known to run on this machine."
    )
    assert any("PyTorch 2.15.0 is newer" in " ".join(other.reasons) for other in answer.other_variants)


def test_a_cuda_that_is_older_than_the_gpu_is_said_to_be() -> None:
    reasons = [one.reason for one in ask("B200", cpu="zen4", driver="570.133.20").rejected]
    assert "CUDA 12.6 does not support SM100 (Blackwell) yet: 12.8 is the first." in reasons


def test_a_board_that_came_later_than_its_chip_has_its_own_first_driver() -> None:
    server = ask("NVIDIA RTX PRO 6000 Blackwell Server Edition", cpu="zen4", driver="570.133.20")
    assert server.best is None
    assert any("which needs 575.57.08 or newer" in one.reason for one in server.rejected)
    assert not any(one.kind == "container" for one in server.alternatives)
    assert ask("HGX B200", cpu="zen4", driver="570.124.06").best is None


@pytest.mark.parametrize("gpu", ["none", "V100"])
@pytest.mark.parametrize(
    ("cpu", "arch", "where"),
    [
        ("power9", "ppc64le", "conda-forge, Open-CE"),
        ("SiFive U74", "riscv64", "a build of the distribution"),
        ("Loongson-3A6000", "loongarch64", "a build of the distribution"),
        ("IBM z16", "s390x", "IBM Z"),
    ],
)
def test_another_platform_gets_an_answer_with_a_gpu_and_without(cpu: str, arch: str, where: str, gpu: str) -> None:
    found = ask(gpu, cpu=cpu)
    (alternative,) = (one for one in found.alternatives if one.kind == "platform")
    assert found.best is None and f"this machine is {arch}" in alternative.text and where in alternative.text
    assert ("POWER" in alternative.text) == (arch == "ppc64le")


@pytest.mark.parametrize(
    ("driver", "note"),
    [
        ("570.26", ""),
        ("605", "No Linux driver of branch R605 is known"),
        ("572.16", "drivers for Windows, which WSL 2 uses"),  # that of Windows
        ("999", "newer than every branch that is known"),
        ("620.14.02", "newer than every branch that is known"),
    ],
)
def test_a_driver_that_is_no_bare_branch_is_taken_as_it_is(driver: str, note: str) -> None:
    host = hypothetical("H100", cpu="zen4", driver=driver)
    assert host.driver is not None and host.driver.version == driver
    assert [note in one.text for one in host.notes] == ([True] if note else [])


def test_the_branches_are_in_order() -> None:
    for branch, row in machines.catalog().drivers.items():
        assert branch == row.first.major == row.newest.major and row.first <= row.newest


def test_a_dropped_gpu_says_which_branch_brings_it_back() -> None:
    found = ask("GTX 1080 Ti", cpu="haswell", driver="590.44.01")
    assert [upgrade.needs for upgrade in found.upgrades] == ["driver R580"]
    assert "R580 is the last branch that does" in found.upgrades[0].text
    assert "container" not in {one.kind for one in found.alternatives}  # none would help


def test_what_was_guessed_is_said() -> None:
    notes = [note.text for note in hypothetical("RTX 4090").notes]
    assert any("using the one of this machine" in text for text in notes)
    assert any("No driver version was given" in text for text in notes)
    assert any("comes with its own CPU, gb10" in note.text for note in hypothetical("DGX Spark").notes)
    assert any("No GPU was given" in note.text for note in hypothetical(cpu="zen4").notes)
    assert any("No JetPack version was given" in note.text for note in hypothetical("Jetson Orin").notes)


def test_an_unknown_driver_is_taken_to_be_new_but_its_floor_is_named() -> None:
    best = ask("H100", cpu="zen4").best
    assert best is not None and best.driver == "unknown"
    assert any("CUDA 13.2 needs 580.65.06 or newer" in reason for reason in best.reasons)


def test_a_file_may_be_changed_in_part() -> None:
    base = machines.host("h200-driver-550")
    newer = changed(base, driver="580.95.05")
    assert newer.gpus == base.gpus and newer.cpu == base.cpu
    assert newer.driver is not None and newer.driver.version == "580.95.05"
    other = changed(base, "RTX 5090")
    assert other.driver is None and other.cpu == base.cpu and other.system == base.system
    assert changed(base, cpu="zen3").gpus == base.gpus
    limited = machines.host("kubernetes-pod")
    assert limited.notes[0] in changed(limited, driver="595.71.05").notes
    flashed = changed(machines.host("orin-jetpack-6"), jetpack="7.2")
    assert flashed.tegra is not None and flashed.tegra.unified


@pytest.mark.parametrize(
    ("gpus", "more", "error", "says"),
    [
        (("Foo 9000",), {}, NoMatchError, "No GPU is known as 'Foo 9000'"),
        (("13.7",), {}, NoMatchError, "No GPU of compute capability 13.7"),
        ((), {"cpu": "8086"}, NoMatchError, "No CPU is known as '8086'"),
        (("DGX Spark",), {"cpu": "zen4"}, ImpossibleError, "only with aarch64 hosts"),
        (("Jetson T4000",), {"cpu": "zen4"}, ImpossibleError, "only with aarch64 hosts"),
        (("H100",), {"driver": "latest"}, UsageError, "'latest' is not a driver version"),
        (("H100",), {"driver": "12.8"}, UsageError, "'12.8' is not a driver version"),
        (("H100",), {"jetpack": "6.2"}, UsageError, "--jetpack is for Jetson"),
        (("Jetson Orin",), {"jetpack": "six"}, UsageError, "'six' is not a JetPack version"),
        (("Jetson Orin",), {"jetpack": "1"}, UsageError, "JetPack 1 is not known"),
    ],
)
def test_wrong_names_are_refused_with_a_hint(
    gpus: tuple[str, ...], more: dict[str, str], error: type[TorchtailorError], says: str
) -> None:
    with pytest.raises(error) as caught:
        hypothetical(*gpus, **more)
    assert says in caught.value.message and caught.value.hint


def test_hints_name_what_was_meant() -> None:
    with pytest.raises(NoMatchError) as caught:
        hypothetical(cpu="Ryzn 7950X")
    assert "Did you mean 'ryzen 7950x'?" in caught.value.hint
    with pytest.raises(UsageError) as refused:
        hypothetical("H100", driver="12.8")
    assert "That is a version of CUDA." in refused.value.hint


@pytest.mark.parametrize(("text", "name"), [("4090", "4090"), ("8.9", "Ada Lovelace: L40S, RTX 6000 Ada")])
def test_a_product_that_is_a_bare_number_keeps_its_name(text: str, name: str) -> None:
    assert [gpu.name for gpu in hypothetical(text, cpu="zen4").gpus] == [name]


def test_xavier_is_promised_no_jetpack_that_will_never_come() -> None:
    answer = ask("Xavier")
    assert not [one for one in answer.alternatives if "CUDA 12" in one.text]


def test_the_api_takes_parts_a_description_or_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, zen3 = machines.catalog(), machines.host("zen3")
    named = recommend(gpus=["RTX 4090"], cpu="zen4", driver="570.26", python="3.12", catalog=catalog)
    assert named.best is not None and named.best.name == "pytorch-python312-cuda12_6-sm89-avx512"
    described = machines.host("h200-driver-550")
    assert recommend(described, catalog=catalog) == recommend_for(machines.matrix(), described, Request())
    changed = recommend(described, driver="580.95.05", release="cuda-13_0", method=NIX, catalog=catalog).best
    assert changed is not None and (changed.pytorch, changed.method) == ("2.10.0", "nix")
    monkeypatch.setattr("torchtailor.advise.recommendation.hypothetical.detect", lambda catalog: zen3)
    this = recommend(catalog=catalog)
    assert this.best is not None and this.best.short_name == "cpu-avx2" and "No GPU was given" not in str(this.notes)


def test_nothing_is_detected_for_a_machine_of_given_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtailor.advise.recommendation.hypothetical.detect", None)
    monkeypatch.setattr("torchtailor.advise.recommendation.hypothetical.detect_cpu", None)
    best = recommend(gpus=("none",), cpu="Graviton4", catalog=machines.catalog()).best
    assert best is not None and best.short_name == "cpu-armv9"


def test_a_driver_that_gives_one_environment_for_all_gpus() -> None:
    """It was named for the GPU that runs already."""
    catalog = machines.catalog()
    answer = recommend(gpus=["H100", "B200"], cpu="sapphirerapids", driver="550.54.15", catalog=catalog)
    assert answer.best and answer.best.gpu == "sm90"
    assert [upgrade.needs for upgrade in answer.upgrades] == ["driver 570.26", "driver 580.65.06"]
    assert all("-sm90_100-" in upgrade.variant for upgrade in answer.upgrades)
    # no driver serves both, but none is lost by an older one
    answer = recommend(gpus=["Tesla K80", "RTX 3090"], cpu="zen4", driver="535.54", catalog=catalog)
    assert [upgrade.needs for upgrade in answer.upgrades] == ["driver R470"]

"""Every way of naming a GPU leads to the same target."""

from __future__ import annotations

import pytest

from torchtailor.advise.host.targets import read_targets
from torchtailor.catalog import Capability, Suffix, load_catalog
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.errors import EnvironmentProblem, ImpossibleError, NoMatchError, TorchtailorError, UsageError

CATALOG = load_catalog()


def read(*words: str, keep_ptx: bool = False, arch_list: str = "", native: tuple[str, ...] = ()) -> Targets:
    return read_targets(
        words,
        CATALOG,
        {"TORCH_CUDA_ARCH_LIST": arch_list},
        keep_ptx=keep_ptx,
        native=lambda: tuple(map(Capability.parse, native)),
    )


@pytest.mark.parametrize(
    "word", ["9.0", "sm_90", "sm90", "90", "SM_90", "compute_90", "H100", "NVIDIA H200", "9.0a", "sm_90a"]
)
def test_spellings_of_one_gpu(word: str) -> None:
    targets = read(word)
    assert targets.devices == (Capability(9, 0),)
    assert (targets.label, targets.keep_ptx, targets.source) == ("sm90", False, "--gpu")


@pytest.mark.parametrize(
    "words", [["9.0,8.0"], ["8.0", "9.0"], ["9.0;8.0"], ["8.0 9.0"], ["A100,H100"], ["8.0,9.0,8.0,sm_90"]]
)
def test_several(words: list[str]) -> None:
    targets = read(*words)
    assert targets.label == "sm80.sm90"
    assert str(targets) == "8.0, 9.0"


def test_product_names_may_have_spaces() -> None:
    assert read("RTX 4090,RTX 3090").label == "sm86.sm89"


@pytest.mark.parametrize("word", ["9.0+PTX", "sm_90+ptx", "H100+PTX"])
def test_ptx(word: str) -> None:
    targets = read(word)
    assert targets.keep_ptx
    assert targets.label == "sm90.ptx"
    assert str(targets) == "9.0 and PTX"


def test_keep_ptx_option() -> None:
    assert read("9.0", keep_ptx=True).label == "sm90.ptx"


def test_suffix_is_handed_on() -> None:
    assert [arch.suffix for arch in read("9.0a").archs] == [Suffix.ARCH]


def test_family_means_its_members() -> None:
    devices = read("10.0f").devices
    assert Capability(10, 0) in devices
    assert Capability(10, 3) in devices
    assert Capability(9, 0) not in devices


def test_arch_list_counts_only_without_gpu() -> None:
    targets = read(arch_list="8.0;9.0a 12.0+PTX")
    assert (targets.label, targets.source) == ("sm80.sm90.sm120.ptx", "TORCH_CUDA_ARCH_LIST")
    assert read("8.6", arch_list="9.0").label == "sm86"


def test_native() -> None:
    assert read("native", native=("8.0", "9.0")).label == "sm80.sm90"
    assert read(arch_list="native", native=("12.1",)).label == "sm121"


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ([], UsageError, "No GPU was given"),
        ([" , "], UsageError, "No GPU was given"),
        (["9.9"], NoMatchError, r"9\.9"),
        (["sm_8.0a"], TorchtailorError, "sm_8"),
        (["8.0a"], ImpossibleError, "no sm_80a"),
        (["Voodoo 3"], NoMatchError, "Voodoo"),
        (["RTX 6000"], NoMatchError, r"Quadro RTX 6000 .*RTX 6000 Ada \(8\.9\)"),
        (["9.0", "nonsense"], NoMatchError, "nonsense"),
    ],
)
def test_what_is_no_target(words: list[str], error: type[TorchtailorError], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        read(*words)
    assert caught.value.hint


def test_native_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtailor.advise.host import targets

    class NoGpu:
        gpus = ()

    monkeypatch.setattr(targets, "detect", lambda: NoGpu)
    with pytest.raises(EnvironmentProblem, match="no usable NVIDIA GPU"):
        targets.native_gpus()

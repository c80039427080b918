"""What a user may ask for: Python, release, build method, hidden GPUs, rows of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest

from tests import machines
from tests.unit.recommendation.test_machines import TABLE
from torchtailor.advise.host.model import Host
from torchtailor.advise.recommendation import Recommendation, Request, recommend
from torchtailor.advise.recommendation.engine import recommend_for
from torchtailor.catalog import NIX, SOURCE, WHEEL, load_catalog
from torchtailor.catalog.variants import Matrix
from torchtailor.core.errors import NoMatchError


def ask(host: Host, **wishes: object) -> Recommendation:
    return recommend_for(machines.matrix(), host, Request(**wishes))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [row.machine for row in TABLE if {"source", "wheel"} & set(row.alternatives)])
def test_the_rows_that_are_shown_work_unchanged(name: str, tmp_path: Path) -> None:
    """Put into torchtailor.toml, they give the very variant they promise, with the build method they promise."""
    host = machines.host(name)
    alternative = next(one for one in ask(host).alternatives if one.toml)
    assert alternative.toml is not None and alternative.variant is not None
    (tmp_path / "torchtailor.toml").write_text(alternative.toml)
    matrix = Matrix(load_catalog(tmp_path))
    method = None
    if alternative.variant.startswith("cpu-"):
        assert "--gpu none --via source" in alternative.text
        host, method = msgspec.structs.replace(host, gpus=()), SOURCE
    best = recommend_for(matrix, host, Request(method=method)).best
    assert best is not None
    assert (best.short_name, best.method) == (alternative.variant, alternative.kind)


def test_another_python_is_kept_to() -> None:
    best = ask(machines.host("h100-driver-580"), python="3.12").best
    assert best is not None and best.variant == "pytorch215-python312-cuda13_2-sm90-avx512"


def test_a_python_that_only_the_newest_release_has_and_what_it_costs() -> None:
    found = ask(machines.host("h200-driver-550"), python="3.15")
    assert found.best is None  # PyTorch 2.15 has no CUDA 12 build for it
    assert {upgrade.needs for upgrade in found.upgrades} == {"driver 580.65.06", "Python 3.13"}
    assert any(one.reason == "Not available for Python 3.15." for one in found.rejected)


@pytest.mark.parametrize("python", ["3.7", "2.7", "4", "nonsense"])
def test_a_python_nobody_offers_is_refused_with_the_list(python: str) -> None:
    with pytest.raises(NoMatchError) as caught:
        ask(machines.host("zen4"), python=python)
    assert (
        f"Python {python} is not supported by any release that torchtailor knows (2.0 and newer)."
        in caught.value.message
    )
    assert "3.11, 3.12, 3.13" in caught.value.hint


def test_the_command_can_be_pasted_whatever_the_folder_is_called() -> None:
    command = ask(machines.host("t4"), into="my env").command
    assert command is not None and shlex.split(command)[-2:] == ["--into", "my env"]


def test_a_python_that_only_an_older_patch_release_has_gets_that() -> None:
    """2.12.1 has no wheels for 3.13t, 2.12.0 has."""
    host = machines.host("h100-driver-580")
    best = ask(host, python="3.13t").best
    assert best is not None and best.variant.startswith("pytorch212_0-python313t-cuda13_")
    named = ask(host, python="3.13t", release="2.12").best
    assert named is not None and named.variant == best.variant
    assert {variant.release.name for variant in machines.matrix().variants("2.12", "3.13t")} == {"2.12.0"}


def test_the_python_of_old_systems_gets_the_last_release_for_it() -> None:
    best = ask(machines.host("t4"), python="3.9").best  # the system's Python of RHEL 9
    assert best is not None and (best.pytorch, best.python, best.method) == ("2.8.0", "3.9", "wheel")


def test_a_python_that_a_release_lacks_is_refused_with_its_list() -> None:
    with pytest.raises(NoMatchError) as caught:
        ask(machines.host("zen4"), python="3.15", release="main")
    assert (
        "PyTorch 2.8.0" in caught.value.message
        and caught.value.hint == "Supported are 3.9, 3.10, 3.11, 3.12, 3.13, 3.13t."
    )


def test_a_release_is_kept_to() -> None:
    best = ask(machines.host("h100-driver-580"), release="cuda-13_0").best
    assert best is not None and (best.pytorch, best.cuda) == ("2.10.0", "13.0")
    with pytest.raises(NoMatchError):
        ask(machines.host("zen4"), release="9.9")


def test_a_release_that_does_not_run_here_says_why_and_what_would() -> None:
    found = ask(machines.host("h200-driver-550"), release="2.15")
    assert found.best is None
    assert found.upgrades[0].needs == "driver 580.65.06"
    assert any("CUDA 13 needs driver 580.65.06" in one.reason for one in found.rejected)


@pytest.mark.parametrize(("method", "pytorch"), [(WHEEL, "2.14.1"), (SOURCE, "2.15.0"), (NIX, "2.9.1")])
def test_a_build_method_is_kept_to(method: str, pytorch: str) -> None:
    best = ask(machines.host("gtx-1080-ti"), method=method).best
    assert best is not None and (best.method, best.pytorch, best.gpu) == (method, pytorch, "sm61")


def test_a_build_method_that_gives_nothing() -> None:
    assert ask(machines.host("t4g-graviton2"), method=WHEEL).best is None


def test_hidden_gpus_do_not_count() -> None:
    only = machines.host("a100-rtx-3090", env={"CUDA_VISIBLE_DEVICES": "GPU-00000001"})
    best = ask(only).best
    assert best is not None and (best.short_name, best.gpus) == ("sm86-avx2", (1,))


def test_all_gpus_hidden_means_the_cpu_and_it_is_said() -> None:
    found = ask(machines.host("h100-driver-580", env={"CUDA_VISIBLE_DEVICES": ""}))
    assert found.best is not None and found.best.short_name == "cpu-avx512"
    assert any("unset CUDA_VISIBLE_DEVICES" in note for note in found.notes)


def test_mixed_gpus_also_get_one_variant_each() -> None:
    found = ask(machines.host("h100-gtx-1080-ti"))
    assert [(pick.short_name, pick.cuda, pick.gpus) for pick in found.per_gpu] == [
        ("sm90-avx512", "13.2", (0,)),
        ("sm61-avx512", "12.6", (1,)),
    ]
    assert "CUDA_VISIBLE_DEVICES=GPU-00000001" in found.per_gpu[1].reasons[0]
    strongest_first = ask(machines.host("a100-rtx-3090")).per_gpu
    assert [pick.short_name for pick in strongest_first] == ["sm80-avx2", "sm86-avx2"]


def test_a_variant_that_promises_more_than_another_gpu_runs_is_not_taken_for_both() -> None:
    """By wheel sm89 holds sm_86 code, which an RTX 3090 runs; but sm89 promises sm_89."""
    host = machines.host("a100-rtx-3090")
    both = msgspec.structs.replace(
        host,
        gpus=(
            msgspec.structs.replace(host.gpus[0], name="NVIDIA L40S", capability="8.9"),
            host.gpus[1],
        ),
    )
    best = ask(both).best
    assert best is not None and best.gpu == "sm86"


def test_the_wheel_that_serves_all_is_the_default_indexs_where_it_can_be() -> None:
    host = machines.host("a100-rtx-3090")
    older = msgspec.structs.replace(host.gpus[1], name="NVIDIA GeForce RTX 2080 Ti", capability="7.5")
    found = ask(msgspec.structs.replace(host, gpus=(host.gpus[0], older)))
    assert found.best is not None and found.best.variant == "pytorch215-python313-cuda13_2-sm75_80-avx2"


def test_a_wheel_named_for_more_than_the_cpu_has_runs_all_the_same() -> None:
    """Sandy Bridge has AVX, the matrix no sm120-avx: the official wheel loads on any x86-64 CPU."""
    host = msgspec.structs.replace(machines.host("rtx-5090-driver-580"), cpu=machines.host("sandy-bridge").cpu)
    found = ask(host)
    assert found.best is not None and (found.best.short_name, found.best.method) == ("sm120-avx2", "wheel")
    assert any("it needs x86-64 only" in reason and "because" in reason for reason in found.best.reasons)
    assert [one.kind for one in found.alternatives] == ["wheel"]  # a row that names it sm120-avx
    assert ask(host, method=SOURCE).best is None  # compiled for AVX2, it would not


def test_a_wheel_whose_baseline_the_cpu_lacks_is_refused_with_what_is_missing() -> None:
    """2.10.0 alone runs Armv8.1 atomics when it is loaded: a Cortex-A72 ends with an illegal instruction."""
    graviton1 = machines.host("graviton1")
    assert ask(graviton1, release="2.10", method=WHEEL).best is None
    newer = ask(graviton1, release="2.11", method=WHEEL).best
    assert newer is not None and newer.pytorch == "2.11.0"
    gpu = msgspec.structs.replace(graviton1, gpus=machines.host("gh200").gpus)
    reasons = [one.reason for one in ask(gpu, release="2.10").rejected]
    assert any("need Armv8.1-A: this CPU lacks asimdrdm, atomics" in reason for reason in reasons)


@pytest.mark.parametrize(("system", "says"), [("macOS", "MPS"), ("Windows", "WSL 2"), ("FreeBSD", "for Linux")])
@pytest.mark.parametrize("gpu", [True, False])
def test_another_system_than_linux_gets_one_true_sentence_and_no_variant(system: str, says: str, *, gpu: bool) -> None:
    host = machines.host("t4" if gpu else "zen4")
    changed = msgspec.structs.replace(host.system, os=system, os_id=system.lower(), libc=None, libc_version=None)
    answer = ask(msgspec.structs.replace(host, system=changed))
    assert answer.best is None and answer.command is None and not answer.upgrades
    assert [one.kind for one in answer.alternatives] == ["system"] and says in answer.alternatives[0].text
    assert [one.what for one in answer.rejected] == ["all variants"]
    assert answer.rejected[0].reason == f"Every variant is for Linux, and this machine runs {system}."


def test_an_unknown_baseline_keeps_to_the_instruction_set(tmp_path: Path) -> None:
    (tmp_path / "torchtailor.toml").write_text(
        '[[release]]\nname = "9.0"\nversion = "9.0.0"\npythons = ["3.13"]\n'
        '[[release.build]]\nrows = [{ cpus = ["avx2"] }]\n'
    )
    matrix = Matrix(load_catalog(tmp_path))
    assert recommend_for(matrix, machines.host("sandy-bridge"), Request(release="9.0")).best is None
    assert recommend_for(matrix, machines.host("zen3"), Request(release="9.0")).best is not None


def test_other_variants_differ_in_one_thing_each() -> None:
    found = ask(machines.host("h100-driver-580"))
    assert found.best is not None
    assert len({(pick.variant, pick.method) for pick in (found.best, *found.other_variants)}) == 1 + len(
        found.other_variants
    )
    first = found.other_variants[0]
    assert (first.cuda, first.driver) == ("13.0", "full") and "your driver fully supports it" in first.reasons[0]
    assert found.other_variants[-1].gpu is None
    assert all(pick.reasons for pick in found.other_variants)


def test_ptx_needs_the_full_floor(tmp_path: Path) -> None:
    """A GPU newer than all cubins runs PTX only, and minor-version compatibility does not compile PTX."""
    (tmp_path / "torchtailor.toml").write_text(
        '[[gpu]]\ncapability = "13.0"\nfamily = "Tomorrow"\nfirst_cuda = "13.0"\nhosts = ["x86_64"]\n'
        '[[cuda]]\nversion = "13.9"\ntoolkits = ["13.9.0"]\narchitectures = ["12.0", "13.0"]\ngcc_max = 16\n'
        'clang_max = 22\ndriver_full = "700.10"\ndriver_minor = "580.65.06"\n'
        '[[release]]\nname = "3.0"\nversion = "3.0.0"\npythons = ["3.13"]\ndefault_index = { x86_64 = "cu139" }\n'
        '[[release.build]]\ncuda = "13.9"\narchitectures = { x86_64 = "12.0+PTX" }\n'
        'rows = [{ gpus = ["13.0"], cpus = ["avx2", "avx512"] }]\n'
    )
    matrix = Matrix(load_catalog(tmp_path))
    host = machines.host("h100-driver-580")
    tomorrow = msgspec.structs.replace(host.gpus[0], capability="13.0", name="Tomorrow")
    old = msgspec.structs.replace(host, gpus=(tomorrow,))
    assert recommend_for(matrix, old, Request(method=WHEEL)).best is None
    assert host.driver is not None
    new = msgspec.structs.replace(old, driver=msgspec.structs.replace(host.driver, version="700.20"))
    best = recommend_for(matrix, new, Request(method=WHEEL)).best
    assert best is not None and (best.fit, best.code, best.gpu) == ("jit", "compute_120", "sm130")


def test_an_old_system_runs_the_wheels_of_an_old_release() -> None:
    """The wheels of PyTorch 2.0 are older than manylinux_2_28."""
    answer = recommend(machines.host("centos7-v100"), gpus=("Tesla K80",), driver="470.256.02")
    assert answer.best is not None
    assert (answer.best.variant.split("-")[0], answer.best.gpu, answer.best.method) == ("pytorch20", "sm37", "wheel")
    assert "wheels" not in {rejection.what for rejection in answer.rejected}

"""Plans say what will be fetched and made, and refuse early; they download nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import machines
from tests.unit.building.conftest import Workshop
from tests.unit.fetch.serving import Fault
from torchtailor.building.choose import VariantChoice, choose
from torchtailor.building.shown import Line, Rows
from torchtailor.building.wheel.graph import describe_variant
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.building.wheel.plan import Treatment
from torchtailor.catalog import Catalog
from torchtailor.core.documents import plain
from torchtailor.core.errors import EnvironmentProblem, NetworkError, NoMatchError, UsageError
from torchtailor.core.pythons import running_python
from torchtailor.surgery.cut import Cut


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def treatments(workshop: Workshop, options: WheelOptions | None = None) -> dict[str, Treatment]:
    (plan,) = workshop.plan("sm90-avx512", options=options).plans
    return {item.name: item.treatment for item in plan.wheels}


def test_a_plan_downloads_no_wheel(workshop: Workshop) -> None:
    plan = workshop.plan("sm90-avx512")
    (one,) = plan.plans
    assert one.name == "pytorch28-python313-cuda12_8-sm90-avx512"
    assert one.label == "cu128"
    assert [item.name for item in one.wheels] == [
        "filelock", "nvidia-cublas-cu12", "nvidia-cuda-runtime-cu12", "nvidia-nccl-cu12", "torch", "triton",
    ]  # fmt: skip
    assert plan.cost.download == sum(item.size for item in one.wheels)
    assert all(request.headers.get("Range") for request in workshop.site.requests if request.path.startswith("/files/"))
    assert not list((workshop.root / "cache").glob("blobs/*/*"))
    assert not workshop.out.exists()


def test_what_is_cut(workshop: Workshop) -> None:
    assert treatments(workshop) == {
        "filelock": Treatment.UNCHANGED,
        "nvidia-cublas-cu12": Treatment.NEEDS_NVIDIA_OPTION,
        "nvidia-cuda-runtime-cu12": Treatment.NEEDS_NVIDIA_OPTION,
        "nvidia-nccl-cu12": Treatment.CUT,  # its licence is open
        "torch": Treatment.CUT,
        "triton": Treatment.NEEDS_NVIDIA_OPTION,  # NVIDIA's CUPTI is inside
    }
    with_consent = treatments(workshop, WheelOptions(cut=Cut(nvidia=True)))
    assert with_consent["nvidia-cublas-cu12"] is Treatment.CUT
    assert with_consent["triton"] is Treatment.CUT


def test_companions_are_matched_to_torch(workshop: Workshop) -> None:
    (plan,) = workshop.plan("sm90-avx512", options=WheelOptions(companions=("torchvision",))).plans
    (vision,) = [item for item in plan.wheels if item.name == "torchvision"]
    assert str(vision.file.version) == "0.23.0"
    assert vision.treatment is Treatment.CUT


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("torchvision<0.24", ("torch", "torchvision")),
        ("torchvision>=0.2,<0.24,filelock", ("torch", "torchvision", "filelock")),
        ("torchvision[gdown]", ("torch", "torchvision[gdown]")),
        ("Torchvision[a,b]~=0.23.0", ("torch", "torchvision[a,b]")),
    ],
)
def test_companions_with_versions_and_extras(workshop: Workshop, word: str, names: tuple[str, ...]) -> None:
    """Only `==` was understood: all others were fetched and not cut, and extras were not installed."""
    options = WheelOptions(companions=(word,))
    (plan,) = workshop.plan("sm90-avx512", options=options).plans
    (vision,) = [item for item in plan.wheels if item.name == "torchvision"]
    assert vision.treatment is Treatment.CUT
    assert describe_variant(plan, options).requested == names


def test_other_platform_and_cpu(workshop: Workshop) -> None:
    (plan,) = workshop.plan("cpu-armv9").plans
    assert plan.torch.file.filename == "torch-2.8.0-cp313-cp313-manylinux_2_28_aarch64.whl"
    assert {item.treatment for item in plan.wheels} == {Treatment.UNCHANGED}
    assert "at run time" in plan.gives
    assert any("--via" in line for line in plan.other_methods)


def test_what_only_other_methods_give(workshop: Workshop) -> None:
    (plan,) = workshop.plan("sm89-avx512").plans
    assert "sm_86, which runs on SM89" in plan.gives
    build = f"`torchtailor build {plan.variant.unique_name} --via source`"
    assert plan.other_methods[0].startswith(f"Optional: code compiled for SM89 itself, with {build}")


def test_variants_of_one_release_share_inputs(workshop: Workshop) -> None:
    plan = workshop.plan("sm80-avx2", "sm90-avx2", "sm90-avx512")
    assert len(plan.plans) == 3
    assert len(plan.files) == 6
    assert plan.cost.download == plan.input_bytes


def test_refuses_early_when_the_disk_is_short(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 1000))
    plan = workshop.plan("sm90-avx512")
    with pytest.raises(EnvironmentProblem, match="of disk, and 1 kB are free"):
        plan.check()


def test_each_of_two_disks_has_its_own_share(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == workshop.root.stat().st_dev:
        pytest.skip("there is no second disk")
    workshop.out = other / "torchtailor-dist"
    cost = workshop.plan("sm90-avx512").cost
    output, cache = sorted(cost.needs, key=lambda need: need.size)
    assert cache.size >= cost.download + cost.made + cost.scratch and output.place == workshop.out
    frees = {"shm": output.size + 1}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, frees.get(Path(path).name, cache.size + 1)))
    workshop.plan("sm90-avx512").check()
    frees["shm"] = output.size - 1
    with pytest.raises(EnvironmentProblem, match="are free for /dev/shm"):
        workshop.plan("sm90-avx512").check()
    frees["shm"] = output.size + 1
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, frees.get(Path(path).name, 1000)))
    with pytest.raises(EnvironmentProblem, match=f"1 kB are free for {workshop.root}"):
        workshop.plan("sm90-avx512").check()


def test_json(workshop: Workshop) -> None:
    document = json.loads(json.dumps(plain(workshop.plan("sm90-avx512").document)))
    (variant,) = document["variants"]
    assert variant["gpu"] == "9.0" and variant["build"] == "cu128"
    assert {"name", "version", "filename", "size", "download", "treatment"} <= set(variant["inputs"][0])
    assert document["seconds"] > 0 and document["memory"] > 0


def test_a_wheel_that_is_not_available_is_explained(workshop: Workshop) -> None:
    with pytest.raises((NetworkError, NoMatchError), match=r"PyTorch 2\.15\.0"):
        workshop.plan("sm90-avx512", release="2.15", explicit_index=True)


def test_a_shared_name_falls_back_to_what_is_available_and_says_so(workshop: Workshop) -> None:
    plan = workshop.plan("cpu-armv9", release=None, explicit_index=True)
    (one,) = plan.plans
    assert str(one.variant.release.version) == "2.8.0"
    assert any("is not available" in note for note in one.notes)
    assert any("The newest available is pytorch28-python313-cpu-armv9" in note for note in one.notes)


def test_where_nothing_can_stand_in_the_error_says_how_many_were_tried(workshop: Workshop) -> None:
    workshop.site.content = {}
    with pytest.raises(NoMatchError, match=r"Nor is any of the \d+ other builds of sm90-avx512, down to PyTorch 2"):
        workshop.plan("sm90-avx512", release=None, explicit_index=True)


def test_a_name_that_nothing_stands_in_for_says_how_to_let_something(workshop: Workshop) -> None:
    with pytest.raises(NoMatchError) as caught:
        workshop.plan("pytorch215-python312-cuda13_2-sm90-avx512", release=None, explicit_index=True)
    assert "Only pytorch215-python312-cuda13_2-sm90-avx512 was looked for" in caught.value.hint
    assert "`torchtailor build sm90-avx512 --dry-run`" in caught.value.hint


def test_a_server_that_fails_is_a_sentence_too(workshop: Workshop) -> None:
    """Its error has a status beside its words."""
    for page in [*workshop.site.content, "/simple/torch/"]:
        workshop.site.always[page] = Fault(status=500)
    with pytest.raises(NetworkError, match="answered 500") as caught:
        workshop.plan("pytorch28-python313-cuda12_8-sm90-avx512", explicit_index=True)
    assert "was looked for" in caught.value.hint


def test_the_answer_stands_before_the_notes(workshop: Workshop) -> None:
    """Where each wheel is from stood before the table of wheels, a screen of it."""
    plan = workshop.plan("cpu-armv9", release=None, explicit_index=True)
    shown = list(plan.lines(dry_run=True))
    table = next(number for number, item in enumerate(shown) if isinstance(item, Rows))
    notes = [number for number, item in enumerate(shown) if isinstance(item, Line) and item.text.startswith("note: ")]
    assert table <= 2 and len(notes) >= 2 and min(notes) == table + 2  # the cost is between


def test_choosing(catalog: Catalog) -> None:
    names = [choice.variant.short_name for choice in choose(catalog, ["sm{80,90}-avx2"], release="main")]
    assert names == ["sm80-avx2", "sm90-avx2"]
    everything = choose(catalog, [], everything=True, release="main")
    assert len(everything) > 20
    assert all(choice.variant.release.name == "2.8" for choice in everything)
    with pytest.raises(UsageError, match="mutually exclusive"):
        choose(catalog, ["x"], everything=True)
    with pytest.raises(NoMatchError, match="matches"):
        choose(catalog, ["nothing*"], release="main")


def test_without_a_name_it_is_this_machine_and_this_python(catalog: Catalog) -> None:
    (choice,) = choose(catalog, [])
    assert choice.variant.python == running_python()
    assert choice.notes[0].startswith("This machine is ")
    assert all(older.short_name == choice.variant.short_name for older in choice.fallbacks)


def test_this_machine_falls_back_only_to_what_its_cpu_loads(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """2.10.0 alone runs Armv8.1 atomics when it is loaded."""
    for name, loads in (("graviton1", False), ("graviton2", True)):
        monkeypatch.setattr("torchtailor.advise.host.detect.detect", lambda name=name, **_: machines.host(name))
        (choice,) = choose(catalog, [], python="3.13")
        versions = {str(older.release.version) for older in choice.fallbacks}
        assert "2.9.1" in versions and ("2.10.0" in versions) is loads


def test_install_falls_back_only_to_what_this_cpu_loads(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchtailor.building import install

    planned: list[VariantChoice] = []
    monkeypatch.setattr(install, "plan_choices", lambda _, choices, __: planned.extend(choices))
    for name in ("graviton1", "graviton2"):
        monkeypatch.setattr(install, "detect_cpu", lambda _, name=name: machines.host(name).cpu)
        install.plan_install("cpu-armv8_2", into=tmp_path / "none", python="3.13", catalog=catalog)
    old, new = ({str(one.release.version) for one in choice.fallbacks} for choice in planned)
    assert new - old == {"2.10.0"}


def test_install_takes_the_python_of_the_environment(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchtailor.building import install

    asked: list[str | None] = []

    def choose(*_: object, python: str | None, **__: object) -> tuple[()]:
        asked.append(python)
        return ()

    monkeypatch.setattr(install, "choose", choose)
    monkeypatch.setattr(install, "plan_choices", lambda *_: None)
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 3.12 x86_64\n")
    python.chmod(0o755)
    for wanted in (None, "3.14"):
        install.plan_install("cpu-avx2", into=tmp_path / "env", python=wanted, catalog=catalog)
    install.plan_install("cpu-avx2", into=tmp_path / "none", catalog=catalog)
    assert asked == ["3.12", "3.14", None]


def test_of_a_glob_what_is_available_is_built(workshop: Workshop, catalog: Catalog) -> None:
    """The release has several CUDAs, and this index one of them."""
    choices = choose(catalog, ["sm90-avx*"], release="2.8.0")
    assert {str(choice.variant.build.cuda) for choice in choices} == {"12.6", "12.8", "12.9"}
    backend = workshop.backend(explicit_index=True)
    plan = backend.plan(choices, workshop.out)
    assert {one.label for one in plan.plans} == {"cu128"}
    elsewhere = [choice for choice in choices if str(choice.variant.build.cuda) != "12.8"]
    missing = {name for names in plan.unavailable.values() for name in names}
    assert missing == {choice.variant.unique_name for choice in elsewhere}
    assert {row.variant for row in plan.document.unavailable} == missing
    with pytest.raises(NoMatchError, match="not as cu"):  # none of them
        backend.plan(elsewhere, workshop.out)
    with pytest.raises(NoMatchError, match="not as cu"):  # one that was asked for by its name
        backend.plan([*choices, replace(elsewhere[0], optional=False)], workshop.out)


def test_one_cuda(catalog: Catalog) -> None:
    found = choose(catalog, ["sm90-*"], release="2.8.0", cuda="12.6")
    assert {str(choice.variant.build.cuda) for choice in found} == {"12.6"}
    (named,) = choose(catalog, ["sm90-avx2"], cuda="12.6")
    assert str(named.variant.build.cuda) == "12.6"
    assert {str(variant.build.cuda) for variant in named.fallbacks} == {"12.6"}
    with pytest.raises(NoMatchError, match=r"sm90-avx2 is not available with CUDA 11\.8"):
        choose(catalog, ["sm90-avx2"], release="2.15", cuda="11.8")
    with pytest.raises(NoMatchError, match=r"with CUDA 11\.8"):
        choose(catalog, ["sm90-*"], release="2.15", cuda="11.8")

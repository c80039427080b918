"""Building and installing as scripts do it: one function for every method, plans apart from work, clear refusals."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import torchtailor
from tests.unit.building.conftest import Workshop
from tests.unit.building.test_build import NAME
from torchtailor.building.base import load_backend
from torchtailor.building.nix.backend import NixOptions
from torchtailor.building.source.backend import SourcePlan
from torchtailor.building.source.options import SourceOptions
from torchtailor.building.wheel.builder import WheelBuildResult
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.building.wheel.plan import WheelPlanDocument
from torchtailor.catalog import NIX, SOURCE, WHEEL, Catalog
from torchtailor.core.errors import UsageError

ISA = {"x86_64": "avx2", "aarch64": "armv8_2"}.get(platform.machine(), "avx2")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TORCHTAILOR_WORK", str(tmp_path / "work"))
    monkeypatch.chdir(tmp_path)


def test_a_script_builds_with_a_call(workshop: Workshop, catalog: Catalog, tmp_path: Path) -> None:
    result = torchtailor.build(
        "sm90-avx512", release="main", nvidia=True, index_url=f"{workshop.site.url}/simple", catalog=catalog
    )
    assert isinstance(result, WheelBuildResult)
    (wheelhouse,) = result.wheelhouses
    assert wheelhouse.path == Path("dist") / NAME
    assert wheelhouse.changed == 5
    assert wheelhouse.pip_line.startswith("pip install --index-url file:")


def test_a_plan_is_shown_costed_and_run_later(workshop: Workshop, catalog: Catalog, tmp_path: Path) -> None:
    options = WheelOptions(index_url=f"{workshop.site.url}/simple")
    planned = torchtailor.plan_build("sm{80,90}-avx2", release="main", options=options, out=tmp_path / "out")
    assert [variant.short_name for variant in planned.plan.variants] == ["sm80-avx2", "sm90-avx2"]
    assert planned.plan.cost_text.startswith("Download ")
    assert isinstance(planned.plan.document, WheelPlanDocument)
    assert not (tmp_path / "out").exists()
    assert len(planned.run().wheelhouses) == 2


def test_every_method_has_a_backend_with_frozen_options(catalog: Catalog) -> None:
    assert set(catalog.methods) == {WHEEL, SOURCE, NIX}
    for method, kind in ((WHEEL, WheelOptions), (SOURCE, SourceOptions), (NIX, NixOptions)):
        backend = load_backend(catalog.method(method))
        assert backend.options_type is kind
        assert callable(backend.plan) and callable(backend.run)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(kind(), dataclasses.fields(kind)[0].name, None)


def test_source_is_planned_by_the_same_function(catalog: Catalog) -> None:
    planned = torchtailor.plan_build(f"cpu-{ISA}", method=SOURCE, profile="minimal", catalog=catalog)
    assert isinstance(planned.plan, SourcePlan)
    assert planned.plan.builds[0].configuration.profile == "minimal"
    assert "core-hours" in planned.plan.cost_text


def test_a_plan_from_source_names_every_variant_that_comes_out(catalog: Catalog) -> None:
    planned = torchtailor.plan_build(
        "pytorch-python313-cuda13_0-sm90-avx512", method=SOURCE, all_gpus=True, catalog=catalog
    )
    names = [variant.short_name for variant in planned.plan.variants]
    assert {"sm80-avx512", "sm90-avx512"} <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        (WHEEL, {"jobs": 4}, "wheel has no option 'jobs'"),
        (SOURCE, {"nvidia": True}, "source has no option 'nvidia'"),
        (NIX, {"offline": True}, "nix has no option 'offline'"),
        (SOURCE, {"options": WheelOptions()}, "WheelOptions are not options of the method source"),
        (WHEEL, {"glibc": "new"}, "--glibc"),
    ],
)
def test_wrong_options_are_said(catalog: Catalog, method: str, given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        torchtailor.plan_build("sm90-avx512", method=method, catalog=catalog, **given)  # type: ignore[arg-type]


def test_install_takes_one_variant_and_refuses_before_it_builds(workshop: Workshop, catalog: Catalog) -> None:
    """It built every match and failed then."""
    with pytest.raises(UsageError, match=r"matches 2 variants \(sm80-avx2, sm90-avx2\)"):
        torchtailor.install(
            "sm{80,90}-avx2", into="env", release="main", index_url=f"{workshop.site.url}/simple", catalog=catalog
        )
    assert not Path("dist").exists()
    assert not workshop.site.requests


def test_importing_torchtailor_imports_no_backend() -> None:
    code = "import sys, torchtailor; print([name for name in sys.modules if name.startswith('torchtailor.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'fly'"):
        _ = torchtailor.fly

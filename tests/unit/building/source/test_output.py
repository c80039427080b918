"""From a wheel to a wheelhouse: names, proof, the GPUs of a fat library, and nothing left where it is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.building.stack import FAT
from tests.unit.wheels.builder import build_wheel
from torchtailor.building.source.configuration import configure
from torchtailor.building.source.options import SourceOptions, SourceRequest
from torchtailor.building.source.output import SourceOutput
from torchtailor.building.source.tables import Tables
from torchtailor.building.source.tree import SourceOrigin, SourceTree, TorchSource
from torchtailor.catalog import Capability, Catalog
from torchtailor.catalog.variants import Variant
from torchtailor.code.gpucode.scan import scan_file
from torchtailor.core.errors import BuildFailedError, CheckFailedError

Named = Callable[[str], Variant]
NAME = "pytorch-python313-cuda13_0-sm90-avx512"
TAG = "cp313-cp313-linux_x86_64"
SM80, SM90 = Capability(8, 0), Capability(9, 0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(tmp_path / "cache"))


def output(
    catalog: Catalog,
    tables: Tables,
    variant: Variant,
    out: Path,
    gpus: tuple[Capability, ...],
    verify: bool,
    needs: bool = False,
) -> SourceOutput:
    options = SourceOptions(verify=verify, with_dependencies=needs)
    request = SourceRequest(variant=variant, gpus=gpus, out=out, options=options)
    source = TorchSource(SourceOrigin.GIT, "https://example.org/pytorch.git", "v2.10.0")
    tree = SourceTree(Path("/nowhere"), "2.10.0", "abc")
    return SourceOutput(catalog, request, source, tree, configure(tables, variant, gpus=gpus).columns)


def torch(folder: Path, tag: str = TAG, name: str = "torch") -> Path:
    folder.mkdir(exist_ok=True)
    files = {"torch/version.py": b"__version__ = '2.10.0+cu130.avx512'\n", "torch/lib/libtorch_cuda.so": FAT}
    metadata = "Requires-Dist: filelock\n"
    return build_wheel(folder, files, name=name, version="2.10.0+cu130.avx512", tag=tag, metadata=metadata)


def test_each_gpu_is_cut_out_of_a_fat_library(catalog: Catalog, tables: Tables, variant: Named, tmp_path: Path) -> None:
    import zipfile

    wheel = torch(tmp_path / "built")
    houses = output(catalog, tables, variant(NAME), tmp_path / "dist", (SM80, SM90), verify=False).write(wheel)
    assert [house.variant.split("-")[-2] for house in houses] == ["sm80", "sm90"]
    for house, code in zip(houses, ("sm_80", "sm_90"), strict=True):
        (own,) = (house.path / "wheels").glob("*.whl")
        assert own.stat().st_size < wheel.stat().st_size
        zipfile.ZipFile(own).extract("torch/lib/libtorch_cuda.so", tmp_path / code)
        images = scan_file(tmp_path / code / "torch/lib/libtorch_cuda.so").images
        assert {str(image.target)[-3:].strip("_a") for image in images} == {code[-2:]}
        manifest = json.loads((house.path / "manifest.json").read_bytes())
        assert manifest["wheels"][0]["step"] == "cut"
        assert manifest["configuration"]["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0"
        assert manifest["source"]["ref"] == "v2.10.0"


@pytest.mark.parametrize(
    ("tag", "name"),
    [("cp312-cp312-linux_x86_64", "torch"), ("cp313-cp313-linux_aarch64", "torch"), (TAG, "flashlight")],
)
def test_something_else_than_was_asked_for(
    catalog: Catalog, tables: Tables, variant: Named, tmp_path: Path, tag: str, name: str
) -> None:
    with pytest.raises(BuildFailedError, match=r"not torch for Python 3\.13 on x86_64"):
        output(catalog, tables, variant(NAME), tmp_path / "dist", (), verify=False).write(
            torch(tmp_path / "b", tag, name)
        )
    assert not (tmp_path / "dist").exists()


def test_what_is_not_proven_is_not_put_in_its_place(
    catalog: Catalog, tables: Tables, variant: Named, tmp_path: Path
) -> None:
    """A library for eight GPUs is not one for SM121 alone: nothing in it runs there."""
    wheel = torch(tmp_path / "built")
    named = variant("pytorch-python313-cuda13_0-sm121-armv9")
    arm = torch(tmp_path / "arm", "cp313-cp313-linux_aarch64")
    with pytest.raises(CheckFailedError, match="not what pytorch"):
        output(catalog, tables, named, tmp_path / "dist", (), verify=True).write(arm)
    assert not [path for path in (tmp_path / "dist").rglob("*") if path.is_file()]
    assert wheel.exists()


def test_a_library_without_the_isa_is_not_proven(
    catalog: Catalog, tables: Tables, variant: Named, tmp_path: Path
) -> None:
    with pytest.raises(CheckFailedError, match="compiled for something less than AVX-512"):
        output(catalog, tables, variant(NAME), tmp_path / "dist", (), verify=True).write(torch(tmp_path / "built"))


def test_what_torch_requires_is_beside_it(
    catalog: Catalog, tables: Tables, variant: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    build_wheel(shelf, {"filelock.py": b""}, name="filelock", version="4.2")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    wheel = torch(tmp_path / "built")
    (house,) = output(catalog, tables, variant(NAME), tmp_path / "dist", (), verify=False, needs=True).write(wheel)
    assert sorted(path.name.split("-")[0] for path in (house.path / "wheels").glob("*.whl")) == ["filelock", "torch"]
    assert house.requirements == ("torch==2.10.0+cu130.avx512",)


def test_packages_that_cannot_be_fetched_are_a_warning(
    catalog: Catalog, tables: Tables, variant: Named, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    writer = output(catalog, tables, variant(NAME), tmp_path / "dist", (), verify=False, needs=True)
    (house,) = writer.write(torch(tmp_path / "built"))
    assert house.wheels == 1
    (warning,) = writer.warnings
    assert "filelock" in warning
    assert json.loads((house.path / "manifest.json").read_bytes())["warnings"] == [warning]

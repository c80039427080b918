"""Split wheels through real uv and pip: the packs for every GPU, by extra and by variant, from a published index."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests.integration.building.conftest import Shell
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.workload.hook import HookKind, hook_library

VARIANTS = "sm{80,86,90,120}-avx2"

pytestmark = pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")


def installed(shell: Shell, *line: str, **variables: str) -> set[str]:
    """The distributions that an installer put into an empty folder, of torch and its packs."""
    target = shell.root / "site"
    shutil.rmtree(target, ignore_errors=True)
    done = shell.run(*line, "--target", str(target), **variables)
    assert done.returncode == 0, done.stderr
    return {path.name.split("-")[0] for path in target.glob("*.dist-info") if "torch" in path.name}


def with_uv(shell: Shell, index: str, wanted: str, driver: str = "", gpu: str = "") -> set[str]:
    forced = {
        "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION": driver,
        "NV_VARIANT_PROVIDER_FORCE_SM_ARCH": gpu,
    }
    return installed(
        shell, "uv", "pip", "install", "--preview-features", "wheel-variants", "--default-index", index,
        "--python-version", "3.13", "--python-platform", "x86_64-manylinux_2_28", wanted,
        **(forced if gpu else {}),
    )  # fmt: skip


def with_pip(shell: Shell, index: str, wanted: str) -> set[str]:
    platforms = ["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"]
    return installed(
        shell, sys.executable, "-m", "pip", "install", "--quiet", "--index-url", index, "--python-version", "3.13",
        "--only-binary=:all:", *platforms, wanted,
    )  # fmt: skip


def test_the_packs_of_each_gpu(shell: Shell) -> None:
    hook_library(ElfMachine.X86_64, HookKind.NEEDED)  # skipped where none was compiled
    shell.torchtailor("build", VARIANTS, "--release", "main", "--split", "--variants")
    index = (shell.root / "dist" / "variants" / "simple").as_uri()
    wanted = "torch[gpu]==2.8.0+cu128.host"
    for gpu, packs in {"8.0": "sm80", "8.9": "sm86", "9.0": "sm90", "12.1": "sm120"}.items():
        assert with_uv(shell, index, wanted, "13.0", gpu) == {"torch", "torch_gpu", f"torch_gpu_{packs}"}, gpu
    for driver, gpu in (("13.0", "7.5"), ("12.6", "9.0"), ("", "")):
        assert with_uv(shell, index, wanted, driver, gpu) == {"torch", "torch_gpu"}
    assert with_pip(shell, index, "torch[sm90]==2.8.0+cu128.host") == {"torch", "torch_gpu_sm90"}
    assert with_pip(shell, index, "torch[sm80,sm90]") == {"torch", "torch_gpu_sm80", "torch_gpu_sm90"}

    shell.torchtailor("publish", "dist", "--to", "public")
    public = shell.root / "public"
    assert with_uv(shell, (public / "variants").as_uri(), wanted, "13.0", "9.0") == {
        "torch",
        "torch_gpu",
        "torch_gpu_sm90",
    }
    assert with_pip(shell, (public / "cu128-sm90").as_uri(), "torch[sm90]") == {"torch", "torch_gpu_sm90"}
    hosts = list(public.glob("files/*/*/torch-2.8.0+cu128.host-*.whl"))
    assert len(hosts) == 1, "the same wheel for all GPUs"
    assert (shell.root / "site" / "torchtailor-packs" / "torch_gpu_sm90").is_dir()
    assert (shell.root / "site" / "torchtailor-packs" / "torch" / "libtorchtailor-hook.so.1").is_file()

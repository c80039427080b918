"""Whose libraries are cut only when the user says so: as the packages themselves declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.wheels.builder import build_wheel
from torchtailor.trees import licences
from torchtailor.trees.artifact.installed import read_installed
from torchtailor.trees.licences import is_proprietary, needs_nvidia_option
from torchtailor.trees.wheels.archive import WheelArchive
from torchtailor.trees.wheels.distribution import read_metadata
from torchtailor.trees.wheels.metadata import Metadata, is_licence_file
from torchtailor.verification.inspection.inspect import inspect

PROPRIETARY = "License :: Other/Proprietary License"
OPEN = "License :: OSI Approved :: Apache Software License"


EULA = "End User License Agreement\n--------------------------\n\nPreface\n"
AGREEMENT = "NVIDIA Software\nLicense Agreement\n\nIMPORTANT NOTICE"
APACHE = "  Apache License\n  Version 2.0, January 2004\n"


def package(name: str, licence: str, *classifiers: str, author: str = "", files: tuple[str, ...] = ()) -> Metadata:
    return Metadata(name, "1.0", licence, classifiers, (), author, files)


@pytest.mark.parametrize(
    ("metadata", "library", "expected"),
    [
        # the fields of the wheels that torch 2.10 and 2.15 name
        (package("torch", "BSD-3-Clause"), "torch/lib/libtorch_cuda.so", False),
        (
            package("nvidia-cublas-cu12", "NVIDIA Proprietary Software", PROPRIETARY),
            "nvidia/cublas/lib/libcublas.so.12",
            True,
        ),
        (package("nvidia-cublas", "LicenseRef-NVIDIA-Proprietary"), "nvidia/cu13/lib/libcublas.so.13", True),
        (
            package("nvidia-cusparselt-cu12", "NVIDIA Proprietary Software"),
            "nvidia/cusparselt/lib/libcusparseLt.so.0",
            True,
        ),
        (package("nvidia-nccl-cu12", "BSD-3-Clause", PROPRIETARY), "nvidia/nccl/lib/libnccl.so.2", False),
        (package("nvidia-nccl-cu13", "LicenseRef-NVIDIA-Proprietary"), "nvidia/nccl/lib/libnccl.so.2", True),
        (package("nvidia-nvtx-cu12", "Apache 2.0", PROPRIETARY), "nvidia/nvtx/lib/libnvtx3interop.so.1", False),
        # what is declared is open, and what comes with it is not
        (
            package("nvidia-nvimgcodec-cu12", "Apache License 2.0", files=(AGREEMENT,)),
            "nvidia/nvimgcodec/libnvimgcodec.so.0",
            True,
        ),
        (
            package("nvidia-nvshmem-cu12", "BSD-3-Clause", PROPRIETARY, files=(EULA,)),
            "nvidia/nvshmem/lib/libnvshmem_host.so.3",
            True,
        ),
        (package("nvidia-nvshmem-cu12", "BSD-3-Clause", PROPRIETARY), "nvidia/nvshmem/lib/libnvshmem_host.so.3", True),
        (package("nvidia-x", "BSD EULA"), "nvidia/x/libx.so", True),
        (package("nvidia-nccl-cu12", "BSD-3-Clause", PROPRIETARY, files=(EULA,)), "nvidia/nccl/lib/libnccl.so.2", True),
        (package("nvidia-nvtx", "Apache 2.0", PROPRIETARY, files=(APACHE,)), "nvidia/nvtx/libnvtx3.so", False),
        (package("libcudf-cu13", "Apache-2.0", author="NVIDIA Corporation", files=(APACHE,)), "lib/libcudf.so", False),
        (package("libcuopt-cu12", "Apache-2.0", author="NVIDIA Corporation", files=(APACHE,)), "libcuopt.so", False),
        (
            package("nixl-cu12", "MIT", author="NIXL <nixl@nvidia.com>", files=("LicenseRef-NvidiaProprietary",)),
            "x.so",
            True,
        ),
        (package("other", "MIT", author="Somebody", files=(EULA,)), "other/libother.so", False),
        (None, "nvidia/nvimgcodec/libnvimgcodec.so.0", True),
        (None, "nvidia/nvshmem/lib/libnvshmem_host.so.3", True),
        (package("cuda-bindings", "LicenseRef-NVIDIA-SOFTWARE-LICENSE"), "cuda/bindings/driver.so", True),
        (package("nvidia-something-new", ""), "nvidia/new/lib/libnew.so", True),
        (
            package("nvidia-cutlass-dsl-libs-base", "", PROPRIETARY),
            "nvidia_cutlass_dsl/lib/libcute_dsl_runtime.so",
            True,
        ),
        (package("nvidia-x", "See LICENSE"), "nvidia_x/libx.so", True),
        (package("somebody-x", "NVIDIA Proprietary Software"), "x/libx.so", True),
        (package("triton", "", "License :: OSI Approved :: MIT License"), "triton/_C/libtriton.so", False),
        # RAPIDS: made by NVIDIA, under an open licence, with every library in the package
        (package("libcuvs-cu13", "Apache-2.0"), "libcuvs/lib64/libcuvs.so", False),
        (package("libcuvs-cu13", "Apache-2.0"), "libcuvs/lib64/libcuvs_c.so", False),
        (package("libcudf-cu13", "Apache-2.0"), "libcudf/lib64/libnvcomp.so.5", False),
        (package("libraft-cu12", "Apache 2.0"), "libraft/lib64/libraft.so", False),
        (package("libcuml-cu13", "Apache-2.0 AND LicenseRef-NVIDIA-SDK"), "libcuml/lib64/libcuml++.so", True),
        (package("cuml-cu12", "Copyright (c) NVIDIA. " * 99, OPEN), "cuml/lib.so", False),
        (package("cuml-cu12", "", OPEN), "cuml/lib.so", False),
        (package("cuml-cu12", "", OPEN, PROPRIETARY), "cuml/lib.so", True),
        (None, "lib/libcuvs.so", False),
        (package("faiss-gpu-cuvs", "MIT"), "faiss/libcuvs.so", False),
        # NVIDIA's libraries inside of others' packages
        (package("torch", "BSD-3-Clause"), "torch/lib/libcudnn_ops.so.9", True),
        (package("torch", "BSD-3-Clause"), "torch/lib/libcublasLt.so.12", True),
        (package("nvidia-libnvcomp-cu13", "LicenseRef-NVIDIA-Proprietary"), "nvidia/lib/libnvcomp.so.6", True),
        # no package at all
        (None, "lib/libnvcomp.so.6", True),
        (None, "lib/libcufft.so.11", True),
        (None, "lib/libmine.so", False),
    ],
)
def test_whose(metadata: Metadata | None, library: str, expected: bool) -> None:
    assert needs_nvidia_option(library, metadata) is expected


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (package("nvidia-cuda-nvcc", "LicenseRef-NVIDIA-Proprietary"), True),
        (package("nvidia-x", ""), True),
        (package("nvidia-nccl-cu12", "BSD-3-Clause", PROPRIETARY), False),
        (package("triton", "MIT"), False),  # whose copies of CUPTI are part of it
    ],
)
def test_whose_files_are_left_out_only_with_the_option(metadata: Metadata, expected: bool) -> None:
    assert is_proprietary(metadata) is expected


def test_the_texts_of_a_package_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`inspect` asks for each file of an environment: half of its time went into this."""
    searched: list[str] = []
    monkeypatch.setattr(licences._Rules, "is_closed_text", lambda _, text: searched.extend([text]))
    asked_often = package("asked-often", "BSD-3-Clause", files=(APACHE, "a second text"))
    assert not any(is_proprietary(asked_often) for _ in range(9))
    assert searched == ["BSD-3-Clause", APACHE, "a second text"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x-1.0.dist-info/licenses/LICENSE.txt", True),
        ("License.txt", True),
        ("licenses/licenses/NVIDIA-proprietary-LICENSE.txt", True),
        ("EULA.txt", True),
        ("licenses/Third_party_attr.txt", False),
        ("METADATA", False),
        ("NOTICE", False),
    ],
)
def test_which_files_are_licences(name: str, expected: bool) -> None:
    assert is_licence_file(name) is expected


def test_a_wheel_a_folder_and_an_environment_agree_with_the_licence_file(tmp_path: Path, fat: bytes) -> None:
    """The package declares Apache, and the licence file in it is NVIDIA's."""
    files = {
        "nvidia/x/libx.so": fat,
        "nvidia_x_cu12-1.0.dist-info/licenses/LICENSE.txt": AGREEMENT.encode(),
    }
    wheel = build_wheel(tmp_path, files, name="nvidia-x-cu12", licence="Apache License 2.0")
    with WheelArchive(wheel) as archive:
        archive.extract(tmp_path / "site")
        assert is_proprietary(read_metadata(archive))
    (installed,) = read_installed(tmp_path / "site", (tmp_path / "site").glob("*.dist-info"))
    assert is_proprietary(installed.metadata)
    for given in (wheel, tmp_path / "site"):
        assert inspect(given).libraries[0].proprietary

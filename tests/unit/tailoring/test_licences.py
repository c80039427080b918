"""Whose libraries are cut only when the user says so: as the packages themselves declare."""

from __future__ import annotations

import pytest

from torchtailor.licences import is_proprietary, needs_nvidia_option
from torchtailor.wheels.metadata import Metadata

PROPRIETARY = "License :: Other/Proprietary License"
OPEN = "License :: OSI Approved :: Apache Software License"


def package(name: str, licence: str, *classifiers: str) -> Metadata:
    return Metadata(name, "1.0", licence, classifiers, ())


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

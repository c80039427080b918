"""What a package for machines without a GPU requires."""

from __future__ import annotations

import pytest

from torchtailor.trees.wheels.metadata import with_requirements
from torchtailor.trees.wheels.no_gpu import is_gpu_package, stated_without_gpu


@pytest.mark.parametrize(
    ("owner", "stated", "left"),
    [
        ("torch", 'nvidia-cublas-cu12==12.8.4.1; platform_system == "Linux"', None),
        ("torch", "nvidia-nccl-cu13==2.30.7", None),
        ("torch", "nvidia-cublas", None),
        ("torch", "nvidia_cuda_runtime_cu12==12.8.90", "nvidia_cuda_runtime_cu12==12.8.90"),
        ("torch", "triton~=3.9.0; python_version < '3.16'", None),
        ("torch", "Cuda.Bindings<14", None),
        ("xformers", "triton==3.4.0", "triton==3.4.0"),  # it may import it
        ("vllm", "nvidia-ml-py>=12", "nvidia-ml-py>=12"),
        ("torch", "filelock", "filelock"),
        (
            "torch",
            'cuda-toolkit[cublas,cudart,cupti]==13.2.2; platform_system == "Linux"',
            'cuda-toolkit[cudart]==13.2.2; platform_system == "Linux"',
        ),
        ("torch", "cuda-toolkit[cudart] == 13.2.2", "cuda-toolkit[cudart] == 13.2.2"),
        ("torch", "cuda-toolkit[cublas]==13.2.2", None),
        ("torch", "not a requirement (", "not a requirement ("),
    ],
)
def test_requirements(owner: str, stated: str, left: str | None) -> None:
    assert stated_without_gpu(owner, stated) == left


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("body", ["", "{0}Requires-Dist: in the text, not a field{0}"])
def test_every_other_byte_of_metadata_stays(newline: str, body: str) -> None:
    head = (
        "Name: x{0}requires-dist:  a ; os_name == 'posix'{0}Requires-Dist: gone{0}Requires-Dist: b[c,d]{0}Version: 1{0}"
    )
    data = (head + body).format(newline).encode()
    changes = {"gone": None, "b[c,d]": "b[c]"}
    left = (head.replace("Requires-Dist: gone{0}", "").replace("b[c,d]", "b[c]") + body).format(newline).encode()
    assert with_requirements(data, lambda text: changes.get(text, text)) == left


def test_packages_for_a_gpu_only() -> None:
    assert all(map(is_gpu_package, ["nvidia-cudnn-cu13", "NVIDIA_nvtx", "triton"]))
    assert not any(map(is_gpu_package, ["nvidia-cuda-runtime", "nvidia-ml-py", "torch", "cuda-toolkit"]))

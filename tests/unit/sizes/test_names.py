"""Names of kernels: demangled, by template, and by the source file that nvcc wrote into them."""

from __future__ import annotations

import pytest

from torchtailor.code.gpucode.demangle import demangled, template_of, unit_of
from torchtailor.verification.sizes.compare import unversioned, unversioned_function

TEMPLATES = {
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
    "(int, at::native::FillFunctor<float>)": "at::native::vectorized_elementwise_kernel",
    "void at::native::(anonymous namespace)::sum<int>(int*)": "at::native::(anonymous namespace)::sum",
    "ampere_sgemm_128x64_nn": "ampere_sgemm_128x64_nn",
    "void foo<(anonymous namespace)::Bar>(int)": "foo",
    "cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm<(int)3> >": "cutlass::Kernel2",
    "bool operator< <int>(A<int> const&, A<int> const&)": "operator<",
    "f(int)": "f",
    "": "",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_instances_of_a_template_share_a_name(name: str) -> None:
    assert template_of(name) == TEMPLATES[name]


def test_demangled() -> None:
    assert demangled("_ZN2at6native4fillIfLi4EEEviPT_") == "void at::native::fill<float, 4>(int, float*)"
    assert demangled("plain_c_name") == "plain_c_name"
    assert demangled("_Znonsense") == "_Znonsense"


def test_source_units() -> None:
    assert unit_of("_ZN52_GLOBAL__N__1a2b3c4d_13_Activation_cu_5e6f7a8b4fillEv") == "Activation.cu"
    assert unit_of("_Z4fillv") == ""


FILES = {
    "torch-2.10.0.dist-info/RECORD": "torch.dist-info/RECORD",
    "torch/lib/libgomp-24e2ab19.so.1.0.0": "torch/lib/libgomp.so",
    "lib/libfoo-1a2b3c4d.so": "lib/libfoo.so",
    "scipy.libs/libgfortran-040039e1-0352e75f.so.5.0.0": "scipy.libs/libgfortran.so",  # of a wheel repaired twice
    "numpy.libs/libopenblas64_p-r0-0cf96a72.3.23.dev.so": "numpy.libs/libopenblas64_p-r0.3.23.dev.so",
    "torch/_C.cpython-312-x86_64-linux-gnu.so": "torch/_C.so",
    "nvidia/cudnn/lib/libcudnn.so.9": "nvidia/cudnn/lib/libcudnn.so",
    "torch/lib/libtorch_cuda.so": "torch/lib/libtorch_cuda.so",
    "torch-2.15.0-cp312-cp312-manylinux_2_28_x86_64.whl": "torch.whl",
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_two_releases_are_the_same_file(name: str) -> None:
    assert unversioned(name) == FILES[name]


@pytest.mark.parametrize("space", ["CUB_300104_SM_750_800_900", "_V_300401_SM_750_800", "CUB_200200_800_900_NS"])
def test_kernels_of_two_versions_of_cub_are_the_same(space: str) -> None:
    """In two releases of custabilizer-cu13 each of them was a kernel that went and one that came."""
    assert (
        unversioned_function(f"cub::{space}::detail::scan::DeviceScanKernel") == "cub::detail::scan::DeviceScanKernel"
    )
    assert unversioned_function("mine::V_1::scan") == "mine::V_1::scan"

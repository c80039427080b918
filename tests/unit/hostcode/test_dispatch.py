"""Names that say that code is behind dispatch, and names that do not."""

from __future__ import annotations

import pytest

from torchtailor.code.hostcode.dispatch import dispatch_table

X86, ARM = dispatch_table("x86_64"), dispatch_table("aarch64")


@pytest.mark.parametrize(
    ("name", "source", "family"),
    [
        ("_ZN2at6native4AVX212_GLOBAL__N_110add_kernelERNS_18TensorIteratorBaseE", "", "ATen"),
        ("_ZN2at6native6AVX51210sum_kernelEv", "", "ATen"),
        ("_ZN2at6native12_GLOBAL__N_110cat_kernelEv", "CatKernel.cpp.AVX2.cpp", "ATen"),
        ("_ZN2at6native12_GLOBAL__N_110cat_kernelEv", "CatKernel.cpp.DEFAULT.cpp", ""),
        ("_ZN2at6native12_GLOBAL__N_110cat_kernelEv", "", ""),
        ("mkl_blas_avx512_dgemm_kernel", "", "MKL"),
        ("_ZN6fbgemm15trRequantizeOptILb0ELb1EEEvPhPKi", "", "FBGEMM"),
        ("xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast", "", "XNNPACK"),
        ("nnp_sgemm_only_4x24__fma3", "", "NNPACK"),
        ("Sleef_expf8_u10avx2", "", "SLEEF"),
        ("dgemm_kernel_HASWELL", "", "OpenBLAS"),
        ("_ZNSt6vectorIN2at6TensorESaIS1_EE17_M_realloc_insertIJRS1_EEEvv", "", ""),
        ("_GLOBAL__sub_I_Dispatch.cpp", "", ""),
        ("memcpy_wrapper", "", ""),
        ("_ZN5torch3jit6tracer4saveEv", "", ""),
    ],
)
def test_family_on_x86(name: str, source: str, family: str) -> None:
    assert X86.family(name, source) == family


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("_ZN2at6native6SVE25610add_kernelEv", "ATen"),
        ("__aarch64_ldadd8_acq_rel", "libgcc outline atomics"),
        ("__aarch64_cas8_rel.cold.0", "libgcc outline atomics"),
        ("__aarch64_cas8_acq_rel.org.0", "libgcc outline atomics"),
        ("kai_run_matmul_clamp_f32_qsi8d32p1x8_qsi4c32p4x8_1x4x32_neon_dotprod", "XNNPACK"),
        ("sgemm_kernel_NEOVERSEV1", "OpenBLAS"),
        ("sbgemm_kernel_neoversev1_alpha_one", "OpenBLAS"),
        ("_ZN8arm_gemm28sve_hybrid_fp32_mla_6x4VL_a64fxEv", "Arm Compute Library"),
        ("_ZSt17__rotate_adaptiveIN2at6native23CompositeRandomAccessorIPbPlEEEvv", ""),
        ("_ZN2at6native16apply_grad_inputIfN3c108BFloat16ELi0EEEvPT_PT0_l", ""),
    ],
)
def test_family_on_arm(name: str, family: str) -> None:
    assert ARM.family(name, "") == family


def test_a_family_of_one_architecture_is_not_on_the_other() -> None:
    assert X86.family("_ZN8arm_gemm6kernelEv", "") == ""


def test_who_asks_the_cpu() -> None:
    assert X86.is_guard("cpuinfo_has_x86_avx2")
    assert X86.is_guard("__cpu_model")
    assert ARM.is_guard("getauxval")
    assert not X86.is_guard("getenv")


def test_what_lies_between_functions_of_mkl_is_its_own() -> None:
    assert X86.contiguous == {"MKL"}


def test_names_that_say_nothing() -> None:
    assert ARM.tells("cblas_dgemm")
    assert not ARM.tells("")
    assert not ARM.tells("libnvpl_blas_core_db83f76f684dbd0b1720b909b6ff6c166b3a2729")

"""Switches, flags and cache variables of variants: from the tables, the profile and --set."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from importlib.resources import files

import pytest

from torchtailor.building.source.configuration import configure, parse_override
from torchtailor.building.source.tables import Tables
from torchtailor.catalog import Capability
from torchtailor.catalog.variants import Variant
from torchtailor.core.errors import NoMatchError, UsageError

Named = Callable[[str], Variant]


def test_every_row_has_a_source_that_exists(tables: Tables) -> None:
    text = files("torchtailor.catalog").joinpath("data", "source.toml").read_text("utf-8")
    known = set(tomllib.loads(text)["sources"])
    assert {rule.source for rule in tables.rules} | {kind.source for kind in tables.kinds} <= known
    assert {row.source for row in tables.precompiled} <= known


@pytest.mark.parametrize(
    ("name", "off", "on"),
    [
        ("cpu-avx", {"CXX_AVX2_FOUND", "CXX_AVX512_FOUND"}, set()),
        ("cpu-avx2", {"CXX_AVX512_FOUND"}, {"CXX_AVX2_FOUND"}),
        ("cpu-avx512", set(), {"CXX_AVX2_FOUND", "CXX_AVX512_FOUND"}),
        ("cpu-armv8_2", {"CXX_SVE256_FOUND"}, set()),
        ("cpu-armv9", set(), {"CXX_SVE256_FOUND"}),
    ],
)
def test_kernels_of_other_isas_are_off(tables: Tables, variant: Named, name: str, off: set[str], on: set[str]) -> None:
    cache = configure(tables, variant(name)).cache
    assert off <= {key for key, value in cache.items() if value == "OFF"}
    assert not on & set(cache)


def test_a_cpu_variant_never_takes_cuda(tables: Tables, variant: Named) -> None:
    configuration = configure(tables, variant("cpu-avx512"))
    assert configuration.off("USE_CUDA")
    assert "TORCH_CUDA_ARCH_LIST" not in configuration.environment
    assert configuration.environment["CXXFLAGS"].startswith(" ".join(variant("cpu-avx512").isa.compile_flags))


def test_flags_of_the_user_are_added_to_those_of_the_variant(tables: Tables, variant: Named) -> None:
    own = configure(tables, variant("cpu-avx2"), overrides=["CXXFLAGS=-g1 -mtune=native"])
    assert own.environment["CXXFLAGS"].startswith("-mavx2 ")
    assert own.environment["CXXFLAGS"].endswith(" -g1 -mtune=native")
    assert "-g1" not in own.environment["CFLAGS"]


def test_flags_of_rules_follow_those_of_the_isa(tables: Tables, variant: Named) -> None:
    configuration = configure(tables, variant("cpu-armv8_2"))
    own = (*variant("cpu-armv8_2").isa.compile_flags, "-fno-semantic-interposition")
    assert configuration.flags == own
    assert configuration.environment["CFLAGS"] == configuration.environment["CXXFLAGS"] == " ".join(own)
    assert configuration.columns["flags"] == " ".join(own)


def test_without_ccache_pytorch_does_not_take_one_by_itself(tables: Tables, variant: Named) -> None:
    without = configure(tables, variant("cpu-avx512"), ccache=False)
    assert without.off("USE_CCACHE") and without.environment["USE_PRECOMPILED_HEADERS"] == "1"
    assert "USE_CCACHE" not in configure(tables, variant("cpu-avx512"), ccache=True).environment


def test_a_blas_has_switches_of_its_own(tables: Tables, variant: Named) -> None:
    static, shared, *_ = tables.blas_for("x86_64")
    found = configure(tables, variant("cpu-avx512"), blas=static)
    assert (found.switches["BLAS"], found.switches["USE_STATIC_MKL"]) == ("MKL", "1")
    assert "USE_STATIC_MKL" not in configure(tables, variant("cpu-avx512"), blas=shared).switches
    asked = configure(tables, variant("cpu-avx512"), blas=static, overrides=["USE_STATIC_MKL=0"])
    assert asked.off("USE_STATIC_MKL")


def test_a_gpu_variant_asks_for_its_gpu_in_pytorchs_spelling(tables: Tables, variant: Named) -> None:
    configuration = configure(tables, variant("sm121-armv9"))
    assert configuration.environment["TORCH_CUDA_ARCH_LIST"] == "12.1"
    assert configuration.environment["USE_CUDA"] == "1"
    assert configuration.off("USE_MAGMA")  # CUDA 13


def test_gpus_without_flash_attention(tables: Tables, variant: Named) -> None:
    assert configure(tables, variant("sm61-avx2")).off("USE_FLASH_ATTENTION")
    assert not configure(tables, variant("sm90-avx512")).off("USE_FLASH_ATTENTION")


def test_a_fat_build_lists_all_gpus_in_order(tables: Tables, variant: Named) -> None:
    gpus = [Capability(12, 0), Capability(8, 0)]
    assert configure(tables, variant("sm90-avx512"), gpus=gpus).arch_list == "8.0;9.0;12.0"


def test_profiles_only_take_away(tables: Tables, variant: Named) -> None:
    named = variant("sm90-avx512")
    full, inference, minimal = (configure(tables, named, profile=name) for name in ("full", "inference", "minimal"))
    assert not full.off("USE_DISTRIBUTED")
    assert inference.off("USE_DISTRIBUTED")
    assert not inference.off("USE_FLASH_ATTENTION")
    assert minimal.off("USE_FLASH_ATTENTION")
    off = [{key for key in item.switches if item.off(key)} for item in (full, inference, minimal)]
    assert off[0] < off[1] < off[2]
    with pytest.raises(NoMatchError, match="tiny"):
        configure(tables, named, profile="tiny")


def test_the_users_word_is_the_last(tables: Tables, variant: Named) -> None:
    configuration = configure(
        tables, variant("cpu-avx2"), profile="minimal", overrides=["USE_XNNPACK=1", "CXX_AVX512_FOUND=ON", "FOO=a=b"]
    )
    assert configuration.environment["USE_XNNPACK"] == "1"
    assert configuration.environment["FOO"] == "a=b"
    assert configuration.cache["CXX_AVX512_FOUND"] == "ON"
    assert "set(CXX_AVX512_FOUND ON CACHE BOOL" in configuration.cmake_text()


@pytest.mark.parametrize("text", ["", "USE_X", "=1", "A B=1", "MAX_JOBS=3", "TORCH_CUDA_ARCH_LIST=9.0", "PATH=/x"])
def test_what_cannot_be_set(text: str) -> None:
    with pytest.raises(UsageError):
        parse_override(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("CXX=clang++-19", "in the environment: CXX="),
        ("CC=gcc-14", "in the environment: CXX="),
        ("CMAKE_CXX_COMPILER=/usr/bin/g++", "in the environment: CXX="),
        ("CUDAHOSTCXX=g++-13", "in the environment: CXX="),
        ("CMAKE_CXX_FLAGS=-march=native", "--set CXXFLAGS="),
        ("CMAKE_C_FLAGS=-O1", "--set CFLAGS="),
    ],
)
def test_what_is_set_in_another_way(text: str, hint: str) -> None:
    """Checks before the build did not see it: clang without OpenMP, or a wheel without the variant's flags."""
    with pytest.raises(UsageError) as raised:
        parse_override(text)
    assert hint in raised.value.hint


def test_a_fix_changes_the_digest_and_is_recorded(tables: Tables, variant: Named) -> None:
    before = configure(tables, variant("cpu-armv9"))
    after = before.fixed({"USE_XNNPACK": "0"}, {"CXXFLAGS_EXTRA": "-Wno-error", "LDFLAGS": "-latomic"})
    assert after.digest != before.digest
    assert after.environment["CXXFLAGS"].endswith(" -Wno-error")
    assert after.environment["LDFLAGS"] == "-latomic"
    assert "CXXFLAGS_EXTRA" not in after.environment
    assert after.columns["USE_XNNPACK"] == "0"


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("c10/CMakeFiles/c10.dir/core/Allocator.cpp.o", "c10"),
        ("caffe2/CMakeFiles/torch_cpu.dir/__/aten/src/ATen/native/Copy.cpp.o", "ATen"),
        ("caffe2/CMakeFiles/torch_cpu.dir/__/aten/src/ATen/native/cpu/Sum.cpp.AVX2.cpp.o", "CPU kernels"),
        ("caffe2/CMakeFiles/torch_cpu.dir/__/aten/src/ATen/Operators_3.cpp.o", "generated ATen"),
        ("caffe2/CMakeFiles/torch_cpu.dir/__/torch/csrc/autograd/generated/VariableType_0.cpp.o", "generated autograd"),
        ("caffe2/CMakeFiles/torch_cuda.dir/__/aten/src/ATen/native/cuda/Sort.cu.o", "CUDA"),
        ("caffe2/CMakeFiles/torch_cuda.dir/__/x/flash_attn/src/flash_fwd_hdim64_fp16_sm80.cu.o", "flash attention"),
        ("caffe2/CMakeFiles/torch_cpu.dir/__/torch/csrc/jit/ir/ir.cpp.o", "JIT"),
        ("lib/libtorch_cpu.so", "link"),
        ("bin/torch_shm_manager", "link"),
        ("third_party/fmt/CMakeFiles/fmt.dir/src/os.cc.o", "other"),
        ("build.ninja", None),
    ],
)
def test_kinds_of_files(tables: Tables, output: str, kind: str | None) -> None:
    found = tables.kind(output)
    assert (found.name if found else None) == kind


def test_patterns_compile(tables: Tables) -> None:
    assert all(re.compile(kind.pattern) for kind in tables.kinds)

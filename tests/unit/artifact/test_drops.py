"""Rules of --drop: which files they find, and what they never find."""

from __future__ import annotations

import pytest

from torchtailor.advise.host.targets import read_targets
from torchtailor.catalog import load_catalog
from torchtailor.code.gpucode.policy import Policy
from torchtailor.core.errors import NoMatchError
from torchtailor.trees.artifact.drops import Drops, drop_rules

CATALOG = load_catalog()
BIN = "triton/backends/nvidia/bin"


def found(rules: str, paths: str, gpus: str = "", head: bytes = b"") -> set[str]:
    policy = Policy(read_targets([gpus.replace(" ", ",")], CATALOG, {}), CATALOG.rules) if gpus else None
    return set(Drops.of(rules.split(), policy).find(dict.fromkeys(paths.split(), 1), read_head=lambda _: head))


def test_every_rule_says_what_it_breaks_and_why_that_is_all() -> None:
    for rule in drop_rules().values():
        assert rule.what and rule.breaks and rule.why.endswith(".") and rule.source, rule.name
        assert all(group.globs for group in rule.files)


@pytest.mark.parametrize(
    ("rules", "paths", "gone"),
    [
        ("static-libs", "libx.a a/b/liby.a a/b.abc a.a/x.py a/x.so", "libx.a a/b/liby.a"),
        ("headers", "torch/include/c10/x.h torch/include/y.h torch/x.h include/z.cuh", None),
        ("headers", "triton/backends/nvidia/include/cuda.h include/notes.txt", ""),
        ("cmake", "torch/share/cmake/Torch/T.cmake cmake/data/share/cmake-4/M.cmake x/lib/pkgconfig/y.pc", None),
        ("amd-backend", "triton/backends/amd/lib/ockl.bc triton/backends/amd/compiler.py", None),
        ("triton-profiler", "triton/backends/nvidia/lib/cupti/x.so triton/backends/nvidia/lib/libdevice.10.bc", None),
        ("static-libs", "x-1.0.dist-info/licenses/libx.a", ""),
        ("", "libx.a", ""),
    ],
)  # fmt: skip
def test_what_rules_find(rules: str, paths: str, gone: str | None) -> None:
    kept = {
        "torch/x.h",
        "triton/backends/amd/compiler.py",
        "cmake/data/share/cmake-4/M.cmake",
        "triton/backends/nvidia/lib/libdevice.10.bc",
    }
    expected = set(paths.split()) - kept if gone is None else set(gone.split())
    assert found(rules, paths) == expected


def test_paths_of_environments_and_data_folders() -> None:
    assert found("amd-backend", "lib/python3.13/site-packages/triton/backends/amd/lib/x.bc")
    assert found("amd-backend", "triton-3.9.0.data/platlib/triton/backends/amd/lib/x.bc")


@pytest.mark.parametrize(
    ("gpus", "gone"),
    [
        ("8.0", "ptxas-blackwell"),
        ("8.0 8.9", "ptxas-blackwell"),
        ("9.0", ""),  # which one it takes depends on the version of Triton
        ("8.0 10.0", ""),
        ("10.0 12.0", "ptxas"),
        ("", ""),
    ],
)
def test_the_compiler_of_other_gpus(gpus: str, gone: str) -> None:
    assert found("ptxas-copies", f"{BIN}/ptxas {BIN}/ptxas-blackwell", gpus) == {
        f"{BIN}/{name}" for name in gone.split()
    }


IN_ONE_LINE = b"""
def get_ptxas(arch: int) -> knobs.NvidiaTool:
    return knobs.nvidia.ptxas_blackwell if arch >= 100 else knobs.nvidia.ptxas

"""
IN_TWO = b"""
def get_ptxas(arch: int) -> knobs.NvidiaTool:
    if arch < 90:
        return knobs.nvidia.ptxas
    # The name is misleading.
    return knobs.nvidia.ptxas_blackwell

"""


@pytest.mark.parametrize(
    ("text", "gpus", "gone"),
    [
        (IN_ONE_LINE, "9.0", "ptxas-blackwell"),
        (IN_ONE_LINE, "8.0 9.0", "ptxas-blackwell"),
        (IN_ONE_LINE, "10.0", "ptxas"),
        (IN_TWO, "9.0", "ptxas"),
        (IN_TWO, "9.0 12.0", "ptxas"),
        (IN_TWO, "8.9", "ptxas-blackwell"),
        (IN_TWO, "8.9 9.0", ""),
        (IN_TWO.replace(b"arch < 90", b"arch < 90 or force"), "9.0", ""),
        (IN_TWO.replace(b"    #", b"    if mock:\n        return other\n    #"), "9.0", ""),
    ],
)
def test_the_compiler_that_tritons_own_code_takes(text: bytes, gpus: str, gone: str) -> None:
    compiler = "lib/python3.13/site-packages/triton/backends/nvidia/compiler.py"
    paths = f"{compiler} {BIN}/ptxas {BIN}/ptxas-blackwell"
    assert found("ptxas-copies", paths, gpus, text) == {f"{BIN}/{name}" for name in gone.split()}


def test_the_only_compiler_stays() -> None:
    assert not found("ptxas-copies", f"{BIN}/ptxas {BIN}/cuobjdump", "12.0")
    assert not found("ptxas-copies", f"{BIN}/ptxas-blackwell", "8.0")


def test_the_first_rule_has_a_file_that_two_find() -> None:
    path = "triton/backends/nvidia/lib/cupti/libcupti_static.a"
    assert Drops.of(["triton-profiler", "static-libs"], None).find({path: 7})[path].rule == "triton-profiler"


def test_unknown_names() -> None:
    with pytest.raises(NoMatchError, match="no rule everything") as error:
        Drops.of(["everything"], None)
    assert "static-libs" in error.value.hint

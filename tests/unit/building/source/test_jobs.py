"""Jobs by memory, pools for heavy files, and what ninja leaves behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.advise.host.capacity import Capacity
from torchtailor.building.ledger.ledger import Ledger
from torchtailor.building.source.estimate import Estimate, learned_speed, measured_speed
from torchtailor.building.source.ninja import edges, read_log, read_status, write_pool
from torchtailor.building.source.parallel import choose_jobs
from torchtailor.building.source.tables import FileKind, Tables, load_tables
from torchtailor.building.source.watch import Sample, sample
from torchtailor.catalog import SOURCE
from torchtailor.core.progress import RunningFile

BUILD = """\
# CMAKE generated file: DO NOT EDIT!
ninja_required_version = 1.5
rule CXX_COMPILER
  command = c++ $in
build c10/CMakeFiles/c10.dir/a.cpp.o: CXX_COMPILER /s/c10/a.cpp || x
  FLAGS = -O2
build caffe2/CMakeFiles/t.dir/__/torch/csrc/autograd/generated/V_0.cpp.o: CXX_COMPILER /s/v.cpp
  FLAGS = -O2
build caffe2/CMakeFiles/t.dir/__/aten/src/ATen/native/cuda/Sort.cu.o: CUDA_COMPILER /s/Sort.cu
build lib/libtorch.so: CXX_LINK c10/CMakeFiles/c10.dir/a.cpp.o
build gen.cpp | ${cmake_ninja_workdir}gen.cpp: CUSTOM_COMMAND x
build all: phony lib/libtorch.so
"""


def kinds(tables: Tables, **counts: int) -> list[FileKind]:
    named = {kind.name.replace(" ", "_"): kind for kind in tables.kinds}
    return [named[name] for name, count in counts.items() for _ in range(count)]


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (
            "caffe2/torch/CMakeFiles/torch_python.dir/csrc/autograd/generated/python_torch_functions_0.cpp.o",
            "generated",
        ),
        ("caffe2/torch/CMakeFiles/torch_python.dir/csrc/jit/python/init.cpp.o", "JIT"),
        ("caffe2/torch/CMakeFiles/torch_python.dir/csrc/dynamo/utils.cpp.o", "Python binding"),
        ("caffe2/CMakeFiles/torch_cpu.dir/__/torch/csrc/autograd/generated/VariableType_2.cpp.o", "generated autograd"),
        ("caffe2/CMakeFiles/torch_cpu.dir/__/aten/src/ATen/native/cpu/SortingKernel.cpp.DEFAULT.cpp.o", "CPU kernels"),
        ("caffe2/CMakeFiles/torch_cpu.dir/__/aten/src/ATen/native/Loss.cpp.o", "ATen"),
        ("c10/CMakeFiles/c10.dir/util/tempfile.cpp.o", "c10"),
        ("lib/libtorch_cpu.so", "link"),
    ],
)
def test_kinds_of_files_of_a_real_build(tables: Tables, output: str, kind: str) -> None:
    found = tables.kind(output)
    assert found is not None
    assert found.name.startswith(kind)


def test_memory_decides_not_cores(tables: Tables) -> None:
    files = kinds(tables, ATen=100, c10=50, generated_autograd=10)
    assert choose_jobs(Capacity(64, 200 * 10**9), files).total == 64
    small = choose_jobs(Capacity(64, 8 * 10**9), files)
    assert small.total == 6
    assert small.heavy == 1
    assert "8.0 GB free" in small.why


def test_flash_attention_has_a_pool_of_its_own(tables: Tables) -> None:
    files = kinds(tables, ATen=900, flash_attention=60)
    jobs = choose_jobs(Capacity(32, 64 * 10**9), files)
    assert jobs.total == 32
    assert jobs.heavy == 4  # 4 x 6.0 + 28 x 1.2 GB fit into 60 GB, one more does not


def test_a_machine_with_too_little_memory_still_tries_one(tables: Tables) -> None:
    jobs = choose_jobs(Capacity(8, 10**9), kinds(tables, CUDA=3))
    assert (jobs.total, jobs.heavy) == (1, 1)
    assert jobs.fewer() is None


def test_the_users_number_holds_but_heavy_files_are_still_limited(tables: Tables) -> None:
    jobs = choose_jobs(Capacity(4, 10 * 10**9), kinds(tables, ATen=5, flash_attention=5), asked=8)
    assert jobs.total == 8
    assert jobs.heavy == 1


@given(cores=st.integers(1, 256), memory=st.integers(0, 10**13), heavy=st.integers(0, 5), light=st.integers(0, 50))
def test_jobs_fit_into_memory_and_always_become_fewer(cores: int, memory: int, heavy: int, light: int) -> None:
    tables = load_tables()
    jobs = choose_jobs(Capacity(cores, memory), kinds(tables, ATen=light, CUDA=heavy))
    assert 1 <= jobs.heavy <= jobs.total <= cores
    if heavy and jobs.heavy > 1:
        assert jobs.heavy * 3 * 10**9 <= memory
    while (fewer := jobs.fewer()) is not None:
        assert 1 <= fewer.heavy <= fewer.total < jobs.total
        jobs = fewer
    assert jobs.total == 1


def test_pools_are_written_once_and_can_be_changed(tables: Tables, tmp_path: Path) -> None:
    path = tmp_path / "build.ninja"
    path.write_text(BUILD)
    os.utime(path, (1, 1))
    assert write_pool(tmp_path, tables, 2) == 3
    first = path.read_text()
    assert "pool torchtailor_heavy\n  depth = 2\n" in first
    assert path.stat().st_mtime == 1, "ninja would run CMake again"
    assert write_pool(tmp_path, tables, 1) == 3
    assert path.read_text() == first.replace("depth = 2", "depth = 1")
    without = [line for line in path.read_text().splitlines() if "torchtailor_heavy" not in line]
    assert without[1:] == BUILD.splitlines()
    assert {name.rsplit("/", 1)[-1]: kind.name for name, kind in edges(tmp_path, tables).items()} == {
        "a.cpp.o": "c10",
        "V_0.cpp.o": "generated autograd",
        "Sort.cu.o": "CUDA",
        "libtorch.so": "link",
    }


def test_ninja_log_cut_short(tmp_path: Path) -> None:
    (tmp_path / ".ninja_log").write_text("# ninja log v6\n0\t1500\t1\ta.o\tff\n1500\t1700\t1\tb.o\tfe\n17")
    made = read_log(tmp_path)
    assert {name: timing.seconds for name, timing in made.items()} == {"a.o": 1.5, "b.o": 0.2}
    assert read_log(tmp_path / "nothing") == {}


@pytest.mark.parametrize(
    ("line", "done", "output"),
    [
        ("[12/1245] Building CXX object c10/a.cpp.o", 12, "c10/a.cpp.o"),
        ("[3/9] Linking CXX shared library lib/libc10.so", 3, "lib/libc10.so"),
        ("[1/2] Generating x", 1, ""),
    ],
)
def test_status(line: str, done: int, output: str) -> None:
    status = read_status(line)
    assert status is not None
    assert (status.done, status.output) == (done, output)


@pytest.mark.parametrize("line", ["", "[", "[1/0] x", "[a/b] x", "-- [1/2] x", "FAILED: x"])
def test_what_is_no_status(line: str) -> None:
    assert read_status(line) is None


def test_the_estimate_counts_weights_not_files(tables: Tables) -> None:
    heavy, light = (next(kind for kind in tables.kinds if kind.name == name) for name in ("generated autograd", "c10"))
    files = {"big.o": heavy, **{f"{number}.o": light for number in range(9)}}
    estimate = Estimate(files, made=["0.o"], jobs=2, speed=2.0)
    whole = estimate.progress.remaining
    assert whole == pytest.approx((104 + 8 * 2) * 2.0 / 2)
    first = read_status("[1/9] Building CXX object big.o")
    assert first is not None
    estimate.take(first)
    assert estimate.progress.remaining == pytest.approx(8 * 2)
    estimate.look(Sample(5_000, (RunningFile("x.o", 3.0),)))
    estimate.look(Sample(2_000, ()))
    assert estimate.peak == 5_000
    assert estimate.progress.percent == pytest.approx(100 * 2 / 10)  # one of ten was made before
    part = Estimate(files, made=[], jobs=2, speed=1.0, whole=False)
    part.take(first)
    assert part.progress.percent == pytest.approx(100 / 9)


def test_the_estimate_counts_what_is_made_again(tables: Tables) -> None:
    """A build of 2.12.1 was resumed with other flags: ninja made everything again, and hours were missing."""
    kind = next(kind for kind in tables.kinds if kind.name == "c10")
    files = {f"{number}.o": kind for number in range(100)}
    resumed = Estimate(files, made=[f"{number}.o" for number in range(60)], jobs=2, speed=1.0)
    assert resumed.progress.remaining == pytest.approx(40 * kind.seconds / 2)
    for done in range(1, 11):
        status = read_status(f"[{done}/100] Building CXX object {done}.o")
        assert status is not None
        resumed.take(status)
    assert resumed.progress.remaining == pytest.approx(90 * kind.seconds / 2)
    assert resumed.progress.percent == pytest.approx(10)


def test_what_ninja_does_before_it_knows_its_files_is_no_progress(tables: Tables) -> None:
    """Lines of a build of 2.12.1: four steps bring build.ninja up to date, and only then are the files counted."""
    kind = next(kind for kind in tables.kinds if kind.name == "c10")
    estimate = Estimate({f"{number}.o": kind for number in range(1260)}, made=[], jobs=2, speed=1.0)
    for line, seen in [
        ("[1/4] Generating ATen headers", (0, 1260)),
        ("[3/4] Generating ATen declarations_yaml", (0, 1260)),
        ("[1/1271] Building CXX object 0.o", (1, 1271)),
        ("[2/1271] Generating version.py", (2, 1271)),
    ]:
        status = read_status(line)
        assert status is not None
        estimate.take(status)
        assert (estimate.progress.done, estimate.progress.total) == seen
    resumed = Estimate({f"{number}.o": kind for number in range(10)}, made=["0.o", "1.o"], jobs=2, speed=1.0)
    status = read_status("[1/1] Generating ATen headers")
    assert status is not None
    resumed.take(status)
    assert (resumed.progress.done, resumed.progress.total) == (2, 10)


def test_speed_is_learnt_from_enough_files(tables: Tables) -> None:
    from torchtailor.building.source.ninja import Timing

    kind = next(kind for kind in tables.kinds if kind.name == "c10")
    files = {f"{number}.o": kind for number in range(30)}
    made = {name: Timing(name, 3.0) for name in files}
    assert measured_speed(files, made) == pytest.approx(1.5)
    assert measured_speed(files, {"0.o": Timing("0.o", 3.0)}) is None


def test_the_speed_of_another_compiler_says_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    for row in ({"compiler": "gcc 14.2.0", "seconds_per_weight": 2.5}, {"compiler": "gcc 14.2.0"}):
        with ledger.attempt("cpu-avx2", SOURCE, options={}, configuration=row):
            pass
    assert learned_speed(ledger.attempts(), "gcc 14.2.0") == 2.5
    assert learned_speed(ledger.attempts(), "clang 19.1.7") == 1.0


def test_a_look_at_this_process() -> None:
    seen = sample(os.getpid())
    assert seen.memory > 1_000_000

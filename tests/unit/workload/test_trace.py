"""Traces: written, read, merged; what is not a trace is an error in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.core.errors import BadInputError, EnvironmentProblem, NoMatchError, UsageError
from torchtailor.tailoring.choices import cut_for
from torchtailor.workload.choice import TracedWorkload, margins
from torchtailor.workload.trace import (
    FILES_UNKNOWN,
    Trace,
    TracedLibrary,
    check_trace_output,
    decode_trace,
    merge_traces,
    ranges_of_pages,
    read_trace,
    write_trace,
)

ONE, TWO = "1" * 32, "2" * 32
used = st.sets(st.integers(0, 20)).map(lambda positions: tuple(sorted(positions)))
libraries = st.builds(
    TracedLibrary, st.sampled_from([ONE, TWO]), st.just("libx.so"), st.just(21), used, st.just(100), st.integers(0, 100)
)
traces = st.builds(
    Trace,
    st.lists(libraries, max_size=2, unique_by=lambda one: one.identity).map(tuple),
    st.sets(st.sampled_from(["torch/a.so", "torch/b.so"])).map(tuple),
    processes=st.integers(0, 3),
)


@given(traces)
def test_read_as_written(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    path = tmp_path_factory.mktemp("trace") / "a.trace"
    write_trace(path, trace)
    assert read_trace(path) == trace
    assert read_trace(path).label == trace.label


@given(traces, traces, traces)
def test_merging_is_a_union(one: Trace, two: Trace, three: Trace) -> None:
    merged = merge_traces([one, two, three])
    assert merge_traces([merge_traces([one, two]), three]).digest == merged.digest
    assert merge_traces([three, two, one]).digest == merged.digest
    for trace in (one, two, three):
        for library in trace.libraries:
            there = next(other for other in merged.libraries if other.identity == library.identity)
            assert set(library.used) <= set(there.used)
        assert set(trace.opened) <= set(merged.opened)


def test_the_label_is_of_what_was_used() -> None:
    one = Trace((TracedLibrary(ONE, "libx.so", 5, (1, 3)),), processes=1, programs=("a",))
    same = Trace((TracedLibrary(ONE, "other.so", 5, (1, 3)), TracedLibrary(TWO, "y.so", 5, ())), programs=("b",))
    assert one.label == same.label and len(one.label) == 8
    assert one.label != Trace((TracedLibrary(ONE, "libx.so", 5, (1, 4)),)).label


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other"},
        {"schema": None},
        {"libraries": [{"identity": ONE, "name": "a", "containers": 2, "used": [1], "stored": 1, "stored_used": 2}]},
        {"version": 2},
        {"libraries": [{"identity": "../x", "name": "a", "containers": 1, "used": []}]},
        {"libraries": [{"identity": ONE, "name": "a", "containers": 2, "used": [2]}]},
        {"libraries": [{"identity": ONE, "name": "a", "containers": 2, "used": [1, 0]}]},
        {"libraries": [{"identity": ONE, "name": "a/b", "containers": 2, "used": [-1]}]},
        {"opened": ["../../etc/passwd"]},
        {"opened": ["/etc/passwd"]},
        {"libraries": [{"identity": ONE, "name": "a", "containers": 2, "used": [0, 1], "sizes": [0]}]},
        {"libraries": 5},
    ],
)
def test_hostile_traces(tmp_path: Path, change: dict[str, object]) -> None:
    document = {"schema": "torchtailor-trace", "version": 1, "libraries": [], "opened": [], **change}
    (tmp_path / "a.trace").write_text(json.dumps(document))
    with pytest.raises(BadInputError):
        read_trace(tmp_path / "a.trace")


@pytest.mark.parametrize("data", [b"", b"{}", b'{"name": "x", "version": 1}', b"\xff", b"[]", b"{", b"[" * 100_000])
def test_no_traces(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.trace").write_bytes(data)
    with pytest.raises(BadInputError):
        read_trace(tmp_path / "a.trace")
    with pytest.raises(NoMatchError):
        read_trace(tmp_path / "none")
    with pytest.raises(BadInputError):
        read_trace(tmp_path)


def test_margins() -> None:
    trace = Trace((TracedLibrary(ONE, "libx.so", 5, (1, 3)), TracedLibrary(TWO, "y.so", 3, ())))
    assert TracedWorkload(trace).stays(ONE, 5) == {1, 3}
    assert TracedWorkload(trace, "library").stays(ONE, 5) == {0, 1, 2, 3, 4}
    assert TracedWorkload(trace, "library").stays(TWO, 3) == frozenset() == TracedWorkload(trace).stays("3" * 32, 9)
    assert set(margins()) == {"exact", "library"}
    with pytest.raises(NoMatchError):
        TracedWorkload(trace, "wide")


def test_a_used_library_stays_though_only_misses_name_it() -> None:
    misses = Trace((TracedLibrary(ONE, "libother.so", 5, (1,)), TracedLibrary(TWO, "libunused.so", 5, ())))
    workload = TracedWorkload.of([Trace(opened=("torch/a.so",)), misses])
    names = ("torch/lib/libother.so", "torch/lib/libunused.so", "certifi/cacert.pem", "torch-2.dist-info/RECORD")
    sizes = dict.fromkeys(names, 1 << 20)
    assert workload.unopened(sizes) == ["torch/lib/libunused.so"]


def test_where_a_trace_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(UsageError):
            check_trace_output(place)
    for write in (check_trace_output, lambda path: write_trace(path, Trace())):
        with pytest.raises(EnvironmentProblem, match="cannot be written"):
            write(tmp_path / "file" / "a.trace")
    check_trace_output(tmp_path / "new" / "a.trace")
    assert list((tmp_path / "new").iterdir()) == []
    write_trace(tmp_path / "newer" / "a.trace", Trace())
    assert read_trace(tmp_path / "newer" / "a.trace") == Trace()


def test_unopened_files() -> None:
    workload = TracedWorkload(Trace(opened=("torch/lib/libtorch.so", "torch/data.bin")))
    sizes = {
        "lib/python3.12/site-packages/torch/lib/libtorch.so": 1 << 20,
        "torch/lib/libother.so": 1 << 20,
        "torch/include/a.h": 100,
        "torch/big.py": 1 << 20,
        "torch/small.json": 100,
        "torch-2.0.dist-info/LICENSE": 1 << 20,
        "torch/lib/NOTICES.txt": 1 << 20,
        "x.data/purelib/torch/data.bin": 1 << 20,
    }
    assert workload.unopened(sizes) == ["torch/lib/libother.so", "torch/include/a.h"]
    assert TracedWorkload(Trace()).unopened(sizes) == []  # nothing is known of what was opened


def test_files_that_a_trace_cannot_name_are_not_unopened() -> None:
    """Python itself and a model beside the packages, scripts of a wheel, and files of no package."""
    workload = TracedWorkload(Trace(opened=("torch/lib/libtorch.so", "numpy/a.so")))
    beside = (
        "bin/python3.12",
        "lib/libpython3.12.so.1.0",
        "lib/python3.12/lib-dynload/_ssl.so",
        "models/w.safetensors",
    )
    names = [*beside, "x-1.data/scripts/tool", "x-1.data/data/share/big", "x-1.data/platlib/x/big.bin"]
    names += [
        f"{site}/{name}" for site in ("lib/python3.12/site-packages", "opt/deps") for name in ("numpy/a.so", "y.so")
    ]
    names += ["opt/deps/y-1.dist-info/RECORD", "opt/deps/setuptools/_vendor/z-1.dist-info/RECORD"]
    found = workload.unopened(dict.fromkeys(names, 1 << 20))
    assert found == ["x-1.data/platlib/x/big.bin", "lib/python3.12/site-packages/y.so", "opt/deps/y.so"]


def test_dropping_needs_to_know_what_was_opened() -> None:
    for trace in (Trace(), Trace(opened=("a.so",), lost=(FILES_UNKNOWN,))):
        with pytest.raises(UsageError, match="do not say which files were opened"):
            cut_for("9.0", workload=TracedWorkload(trace), drop_unopened=True)


def test_bytecode_of_modules_that_were_not_imported_counts_as_unopened() -> None:
    opened = ("torch/__pycache__/used.cpython-312.pyc", "torch/compiled.py", "torch/lib/libc10.so")
    sizes = {
        "env/lib/python3.12/site-packages/torch/used.py": 10,
        "env/lib/python3.12/site-packages/torch/__pycache__/used.cpython-312.pyc": 10,
        "env/lib/python3.12/site-packages/torch/unused.py": 10,
        "env/lib/python3.12/site-packages/torch/__pycache__/unused.cpython-312.pyc": 10,
        "env/lib/python3.12/site-packages/torch/__pycache__/unused.cpython-312.opt-1.pyc": 10,
        "env/lib/python3.12/site-packages/torch/compiled.py": 10,  # recorded where there was no bytecode
        "env/lib/python3.12/site-packages/torch/__pycache__/compiled.cpython-312.pyc": 10,
        "env/lib/python3.12/site-packages/torch/__pycache__/sourceless.cpython-312.pyc": 10,
        "env/lib/python3.12/site-packages/torch/alone.pyc": 10,
    }
    assert TracedWorkload(Trace(opened=opened)).unopened(sizes) == [
        "env/lib/python3.12/site-packages/torch/__pycache__/unused.cpython-312.pyc",
        "env/lib/python3.12/site-packages/torch/__pycache__/unused.cpython-312.opt-1.pyc",
    ]
    assert TracedWorkload(Trace(opened=("torch/lib/libc10.so",))).unopened(sizes) == []


def test_the_size_of_a_union_counts_each_container_once() -> None:
    def used(*positions: int, size: int = 10) -> Trace:
        sizes = (size,) * len(positions)
        return Trace((TracedLibrary(ONE, "libx.so", 9, positions, 90, sum(sizes), sizes),))

    both = merge_traces([used(0, 1, 2), used(2, 3), used(4, size=1)])
    assert both.libraries[0].sizes == (10, 10, 10, 10, 1)
    assert both.stored_used == 41
    assert merge_traces([both, used(4)]).stored_used == 50  # of a cut library it is less than of stock
    without = Trace((TracedLibrary(ONE, "libx.so", 9, (5,), 90, 60),))
    assert merge_traces([both, without]).stored_used == 60


def test_a_folder_is_no_trace_and_can_become_one(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is a folder") as caught:
        read_trace(tmp_path)
    assert f"trace merge {tmp_path} -o" in caught.value.hint


def test_packs_are_never_unopened_wherever_packages_are_installed() -> None:
    for site in ("", "lib/python3.13/site-packages/", "opt/app/"):
        names = [f"{site}{path}" for path in ("torch-2.dist-info/RECORD", "torchtailor-packs/torch/a.ttpack")]
        workload = TracedWorkload(Trace(opened=("torch/lib/libc10.so",)))
        assert workload.unopened(dict.fromkeys(names, 1 << 20)) == []


def test_the_touched_pages_of_a_library_are_ranges_and_merge_by_identity() -> None:
    one = TracedLibrary("a" * 32, "libx.so", 0, (), pages=((1, 2), (9, 1)))
    other = TracedLibrary("a" * 32, "libx.so", 0, (), pages=((2, 4), (10, 1)))
    merged = merge_traces([Trace((one,)), Trace((other,))])
    assert merged.libraries[0].pages == ((1, 5), (9, 2))
    assert merged.libraries[0].touched == ((0x1000, 0x6000), (0x9000, 0xB000))
    assert decode_trace(merged.to_bytes()) == merged
    assert len({Trace((one,)).digest, Trace((other,)).digest, merged.digest}) == 3
    assert ranges_of_pages([7, 3, 4, 7]) == ((3, 2), (7, 1))


@pytest.mark.parametrize("pages", [((5, 1), (4, 1)), ((1, 3), (3, 1)), ((1, 0),)])
def test_pages_that_are_not_sorted_and_disjoint_are_refused(pages: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError, match="ranges of pages"):
        TracedLibrary("a" * 32, "libx.so", 0, (), pages=pages)

"""Which libraries get a stand-in, where it goes, and which functions are its."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.binary.symbols import NeededSymbol, dynamic_symbols
from torchtailor.surgery.cut import GPU_ONLY
from torchtailor.tailoring.gpu_stand_ins import AskingLibrary, AskingPackage, GpuStandIn, gpu_stand_ins
from torchtailor.tailoring.tree import Package
from torchtailor.tailoring.without_gpu import WithoutGpu
from torchtailor.trees.artifact.drops import DroppedFile
from torchtailor.trees.wheels.metadata import Metadata

TORCH = Package(Metadata("torch", "2.15.0", "", (), ()), "torch-2.15.0.dist-info")
CUDA = AskingLibrary(
    path="torch/lib/libtorch_cuda.so",
    machine=ElfMachine.X86_64,
    soname="libtorch_cuda.so",
    needed=("libcusparse.so.12", "libcusparseLt.so.0", "libnccl.so.2", "libcudart.so.13", "libc10.so", "libm.so.6"),
    run_path="$ORIGIN/../../nvidia/cu13/lib:$ORIGIN",
    symbols=(
        NeededSymbol("cusparseCreate", False, "libcusparse.so.12", "libcusparse.so.12"),
        NeededSymbol("cusparseLtInit", False),
        NeededSymbol("ncclCommInitRank", False),
        NeededSymbol("_ZN3c105ErrorE", False),
        NeededSymbol("curl_easy_init", False),
    ),
    defined=frozenset(),
)


def made(*libraries: AskingLibrary, files: tuple[str, ...] = ()) -> dict[str, GpuStandIn]:
    present = [*(library.path for library in libraries), *files]
    return {one.path: one for one in gpu_stand_ins([AskingPackage(TORCH, libraries, present)])}


def names(stand_in: GpuStandIn) -> set[str]:
    return {symbol.name for symbol in dynamic_symbols(ElfFile.from_buffer(stand_in.content)) if symbol.name}


def test_functions_go_to_the_library_of_their_version_or_name() -> None:
    found = made(CUDA)
    assert {path: names(one) for path, one in found.items()} == {
        "torch/lib/libcusparse.so.12": {"cusparseCreate"},
        "torch/lib/libcusparseLt.so.0": {"cusparseLtInit"},
        "torch/lib/libnccl.so.2": {"ncclCommInitRank"},
    }
    assert all(one.symbols == 1 for one in found.values())
    sentence = b"torchtailor: torch was cut for machines without a GPU (--gpu none): libnccl.so.2 is not there.\n"
    assert sentence in found["torch/lib/libnccl.so.2"].content


def test_what_the_package_has_or_defines_needs_none() -> None:
    own = replace(CUDA, path="torch/lib/libc10.so", soname="libc10.so", needed=(), symbols=(), run_path="")
    wrapped = replace(own, defined=frozenset({"ncclCommInitRank"}))
    found = made(CUDA, wrapped, files=("torch/lib/libcusparse.so.12",))
    assert set(found) == {"torch/lib/libcusparseLt.so.0", "torch/lib/libnccl.so.2"}
    assert names(found["torch/lib/libnccl.so.2"]) == set()


@pytest.mark.parametrize(
    ("run_path", "folder"),
    [
        ("$ORIGIN/../../nvidia/lib:${ORIGIN}/../lib", "torch/lib"),
        ("/usr/lib:$ORIGIN/../other", "torch/other"),
        ("$ORIGINS", None),
        ("$ORIGIN/../../elsewhere", None),
        ("", None),
    ],
)
def test_it_is_where_the_dynamic_linker_looks(run_path: str, folder: str | None) -> None:
    found = made(replace(CUDA, run_path=run_path), files=("torch/other/x.py",))
    assert {path.rpartition("/")[0] for path in found} == ({folder} if folder else set())


def test_the_driver_and_the_cuda_runtime_are_not_replaced() -> None:
    needed = ("libcuda.so.1", "libnvidia-ml.so.1", "libcudart.so.12", "libcudart.so.13")
    assert made(replace(CUDA, needed=needed)) == {}


def test_a_library_that_leaves_without_a_place_for_a_stand_in_is_noted() -> None:
    """faiss-gpu-cu12 looks for cuBLAS through its package, and could not be imported after the cut."""
    paths = [f"nvidia/lib/{name}" for name in ("libcusparse.so.12", "libnccl.so.2")]
    gone = {path: DroppedFile(path, GPU_ONLY, 9) for path in paths}
    for run_path, left in (("", ["libcusparse.so.12", "libnccl.so.2"]), ("$ORIGIN", [])):
        without = WithoutGpu(gone=gone, staying=((TORCH, (CUDA.path,)),))
        library = replace(CUDA, run_path=run_path)
        notes = without.with_stand_ins({CUDA.path: library}.get).notes
        assert [note.partition(" may not load: it needs ")[2].partition(", and ")[0] for note in notes] == (
            [", ".join(left)] if left else []
        )

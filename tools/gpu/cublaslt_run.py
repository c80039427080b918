"""Runs every kernel that libcublasLt.so offers for many problems on this machine's GPU, stock and cut, and compares.

    PYTHONPATH=src:.carry/py312 python3 tools/gpu/cublaslt_run.py --out stock.json LIBRARY
    PYTHONPATH=src:.carry/py312 python3 tools/gpu/cublaslt_run.py --out cut.json   CUT_LIBRARY
    PYTHONPATH=src:.carry/py312 python3 tools/gpu/cublaslt_run.py --compare stock.json cut.json

LIBRARY is libcublasLt.so.13 or .12; it is used through its C interface and the driver's, without torch. torch asks for
one algorithm for each problem; here all algorithms, tiles and stages are asked for, of all types, so that the kernels
in the library's zstd frames run too. The inputs are small whole numbers, so that sums are exact and every algorithm
gives the same bytes. Each group of problems runs in a process of its own; one that dies is recorded and the next runs.
--compare exits with 1 where an algorithm that stock offers is not offered by the cut, or its status or bytes differ.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from ctypes import byref, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

R32F, R64F, R16F, R8I, C32F, R32I, R16BF, E4M3, E5M2 = 0, 1, 2, 3, 4, 10, 14, 28, 29
C16F, C32F_COMPUTE, C32F_PEDANTIC, FAST_TF32, C64F, C32I = 64, 68, 69, 77, 70, 72
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8
TILE_IDS, STAGES_IDS = 6, 13
CONFIG_TILE, CONFIG_STAGES = 1, 6
EPILOGUES = {"plain": 1, "relu_bias": 6, "gelu_bias": 36}
WORKSPACE = 32 << 20
MAX_RUNS = 400  # of one problem
BUDGET_S = 60.0  # of one group
TIMEOUT_S = 150.0
BYTES = {R32F: 4, R64F: 8, R16F: 2, R8I: 1, C32F: 8, R32I: 4, R16BF: 2, E4M3: 1, E5M2: 1}


@dataclass(frozen=True)
class Group:
    """Problems of the same types."""

    name: str
    a: int
    b: int
    d: int
    compute: int
    scale: int
    c: int | None = None  # None: as d


GROUPS = (
    Group("fp32", R32F, R32F, R32F, C32F_COMPUTE, R32F),
    Group("fp32 pedantic", R32F, R32F, R32F, C32F_PEDANTIC, R32F),
    Group("tf32", R32F, R32F, R32F, FAST_TF32, R32F),
    Group("fp16", R16F, R16F, R16F, C32F_COMPUTE, R32F),
    Group("fp16 to fp32", R16F, R16F, R32F, C32F_COMPUTE, R32F),
    Group("fp16 in fp16", R16F, R16F, R16F, C16F, R16F),
    Group("bf16", R16BF, R16BF, R16BF, C32F_COMPUTE, R32F),
    Group("bf16 to fp32", R16BF, R16BF, R32F, C32F_COMPUTE, R32F),
    Group("fp64", R64F, R64F, R64F, C64F, R64F),
    Group("complex", C32F, C32F, C32F, C32F_COMPUTE, C32F),
    Group("int8", R8I, R8I, R32I, C32I, R32I),
    Group("fp8 e4m3", E4M3, E4M3, R16BF, C32F_COMPUTE, R32F, R16BF),
    Group("fp8 e4m3 e5m2", E4M3, E5M2, R16F, C32F_COMPUTE, R32F, R16F),
)
LAYOUTS = ((0, 0), (0, 1), (1, 0), (1, 1))
# m, n, k: aligned and not, thin, wide, deep
SHAPES = ((256, 256, 256), (128, 64, 512), (1024, 512, 64), (96, 80, 48), (33, 65, 17), (1, 512, 256), (512, 8, 1024))


class CudaError(Exception):
    """A call to the driver that failed."""


class Driver:
    """The few calls of the driver that are needed."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._lib, name)(*arguments)
        if status:
            raise CudaError(f"{name}: {status}")

    def allocate(self, size: int) -> c_uint64:
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        return pointer

    def upload(self, data: bytes) -> c_uint64:
        pointer = self.allocate(len(data))
        self.call("cuMemcpyHtoD_v2", pointer, data, c_size_t(len(data)))
        return pointer

    def clear(self, pointer: c_uint64, size: int) -> None:
        self.call("cuMemsetD8_v2", pointer, 0, c_size_t(size))

    def download(self, pointer: c_uint64, size: int) -> bytes:
        self.call("cuCtxSynchronize")
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, pointer, c_size_t(size))
        return data.raw

    def free(self, pointer: c_uint64) -> None:
        self.call("cuMemFree_v2", pointer)


def encoded(values: np.ndarray[Any, Any], kind: int) -> bytes:
    """Whole numbers from -2 to 2 in a type of CUDA's."""
    if kind == R16BF:
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    if kind in (E4M3, E5M2):
        one, step = (0x38, 8) if kind == E4M3 else (0x3C, 4)
        table = {-2: 0x80 | (one + step), -1: 0x80 | one, 0: 0, 1: one, 2: one + step}
        return bytes(table[int(value)] for value in values.ravel())
    types = {R32F: "<f4", R64F: "<f8", R16F: "<f2", R8I: "i1", C32F: "<c8", R32I: "<i4"}
    return values.astype(types[kind]).tobytes()


def scalar(value: int, kind: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(encoded(np.array([value]), kind), 16)


class Lt:
    """libcublasLt."""

    def __init__(self, path: str) -> None:
        self.lib = ctypes.CDLL(path)
        self.handle = c_void_p()
        self.check(self.lib.cublasLtCreate(byref(self.handle)))

    @staticmethod
    def check(status: int) -> None:
        if status:
            raise CudaError(f"cublasLt: {status}")

    def layout(self, kind: int, rows: int, columns: int) -> c_void_p:
        made = c_void_p()
        self.check(
            self.lib.cublasLtMatrixLayoutCreate(byref(made), kind, c_uint64(rows), c_uint64(columns), c_int64(rows))
        )
        return made

    def description(self, group: Group, layout: tuple[int, int], epilogue: int, bias: int) -> c_void_p:
        made = c_void_p()
        self.check(self.lib.cublasLtMatmulDescCreate(byref(made), group.compute, group.scale))
        values: list[tuple[int, Any]] = [(TRANSA, c_int32(layout[0])), (TRANSB, c_int32(layout[1]))]
        values.append((EPILOGUE, c_int32(epilogue)))
        if epilogue != EPILOGUES["plain"]:
            values.append((BIAS_POINTER, c_uint64(bias)))
        for attribute, value in values:
            size = c_size_t(ctypes.sizeof(value))
            self.check(self.lib.cublasLtMatmulDescSetAttribute(made, attribute, byref(value), size))
        return made

    def algorithms(self, group: Group) -> Iterator[tuple[str, ctypes.Array[ctypes.c_char]]]:
        """Every algorithm with each of its tiles and stages."""
        c = group.d if group.c is None else group.c
        types = (group.compute, group.scale, group.a, group.b, c, group.d)
        numbers, count = (c_int * 512)(), c_int()
        self.check(self.lib.cublasLtMatmulAlgoGetIds(self.handle, *types, 512, numbers, byref(count)))
        for number in numbers[: count.value]:
            first = ctypes.create_string_buffer(64)
            if self.lib.cublasLtMatmulAlgoInit(self.handle, *types, number, first):
                continue
            for tile in self._capability(first, TILE_IDS):
                for stages in self._capability(first, STAGES_IDS):
                    algorithm = ctypes.create_string_buffer(first.raw, 64)
                    for attribute, value in ((CONFIG_TILE, tile), (CONFIG_STAGES, stages)):
                        self.lib.cublasLtMatmulAlgoConfigSetAttribute(
                            algorithm, attribute, byref(c_int32(value)), c_size_t(4)
                        )
                    yield f"{number}/{tile}/{stages}", algorithm

    def _capability(self, algorithm: ctypes.Array[ctypes.c_char], which: int) -> list[int]:
        values, written = (c_int32 * 1024)(), c_size_t()
        status = self.lib.cublasLtMatmulAlgoCapGetAttribute(
            algorithm, which, values, c_size_t(ctypes.sizeof(values)), byref(written)
        )
        return list(values[: written.value // 4]) if status == 0 and written.value else [0]


def run_group(path: str, index: int) -> int:
    """In a process of its own: run a group, a line of JSON for each run."""
    driver, lt, group = Driver(), Lt(path), GROUPS[index]
    workspace = driver.allocate(WORKSPACE)
    started = time.monotonic()
    dice = np.random.default_rng(index)
    for shape in SHAPES:
        for layout in LAYOUTS:
            for epilogue in EPILOGUES if group.d in (R16F, R16BF, R32F) else ("plain",):
                if time.monotonic() - started < BUDGET_S:
                    _run_problem(driver, lt, group, shape, layout, epilogue, workspace, dice)
    return 0


def _run_problem(
    driver: Driver,
    lt: Lt,
    group: Group,
    shape: tuple[int, int, int],
    layout: tuple[int, int],
    epilogue: str,
    workspace: c_uint64,
    dice: np.random.Generator,
) -> None:
    m, n, k = shape
    name = f"{group.name} {m}x{n}x{k} {'NT'[layout[0]]}{'NT'[layout[1]]} {epilogue}"
    a = driver.upload(encoded(dice.integers(-2, 3, m * k), group.a))
    b = driver.upload(encoded(dice.integers(-2, 3, k * n), group.b))
    bias = driver.upload(encoded(dice.integers(-2, 3, m), group.d))
    size = m * n * BYTES[group.d]
    d = driver.allocate(size)
    layouts = (
        lt.layout(group.a, *((k, m) if layout[0] else (m, k))),
        lt.layout(group.b, *((n, k) if layout[1] else (k, n))),
        lt.layout(group.d if group.c is None else group.c, m, n),
        lt.layout(group.d, m, n),
    )
    description = lt.description(group, layout, EPILOGUES[epilogue], bias.value)
    one, zero = scalar(1, group.scale), scalar(0, group.scale)
    runs = 0
    for label, algorithm in lt.algorithms(group):
        result = ctypes.create_string_buffer(128)
        if lt.lib.cublasLtMatmulAlgoCheck(lt.handle, description, *layouts, algorithm, result):
            continue
        if int.from_bytes(result.raw[64:72], "little") > WORKSPACE:
            continue
        driver.clear(d, size)
        status = lt.lib.cublasLtMatmul(
            lt.handle, description, one, a, layouts[0], b, layouts[1], zero, d, layouts[2], d, layouts[3],
            algorithm, workspace, c_size_t(WORKSPACE), c_void_p(),
        )  # fmt: skip
        row = {"run": f"{name} {label}", "status": status}
        if status == 0:
            row["sha256"] = hashlib.sha256(driver.download(d, size)).hexdigest()
        print(json.dumps(row), flush=True)
        runs += 1
        if runs >= MAX_RUNS:
            break
    for pointer in (a, b, bias, d):
        driver.free(pointer)


def run_all(path: str, out: Path) -> int:
    rows: dict[str, Any] = {}
    ended: dict[str, str] = {}
    for index, group in enumerate(GROUPS):
        command = [sys.executable, __file__, "--group", str(index), path]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
            lines, how = done.stdout, f"exit {done.returncode}" + (f": {done.stderr[-300:]}" if done.returncode else "")
        except subprocess.TimeoutExpired as error:
            lines, how = (error.stdout or b"").decode(), "time out"
        ended[group.name] = how
        for line in lines.splitlines():
            row = json.loads(line)
            rows[row.pop("run")] = row
        print(f"{group.name}: {how}, {len(rows)} runs so far", flush=True)
    out.write_text(json.dumps({"library": path, "ended": ended, "runs": rows}, indent=1, sort_keys=True))
    return 0 if rows else 2


def compare(stock: Path, cut: Path) -> int:
    """Compare by run; a run that only one side reached within its time is not compared, but counted."""
    before, after = (json.loads(path.read_text()) for path in (stock, cut))
    counts: Counter[str] = Counter()
    for name, row in before["runs"].items():
        other = after["runs"].get(name)
        word = "not run in the cut" if other is None else "identical" if other == row else "differs"
        counts[word] += 1
        if word == "differs":
            print(f"differs: {name}: {row} in stock, {other} in the cut")
    for name, how in before["ended"].items():
        if after["ended"].get(name, "")[:6] != how[:6]:
            counts["group ended otherwise"] += 1
            print(f"group {name}: {how} in stock, {after['ended'].get(name)} in the cut")
    ok = sum(row["status"] == 0 for row in before["runs"].values())
    print(f"{len(before['runs'])} runs of stock, {ok} of them without error: {dict(counts)}")
    return 1 if counts["differs"] or counts["group ended otherwise"] or not counts["identical"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?", help="libcublasLt.so.13 or .12")
    parser.add_argument("--out", type=Path, help="where the results go")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("STOCK", "CUT"))
    parser.add_argument("--group", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare)
    if not options.library:
        parser.error("a library is needed")
    path = str(Path(options.library).resolve())
    if options.group is not None:
        return run_group(path, options.group)
    if options.out is None:
        parser.error("--out is needed")
    return run_all(path, options.out)


if __name__ == "__main__":
    sys.exit(main())

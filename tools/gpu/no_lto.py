"""What cuFFT loses without LTO-IR: transforms by stock, by a cut with LTO-IR and by one without, compared bit for bit.

    PYTHONPATH=src:.carry/py312 python3 tools/gpu/no_lto.py [--library libcufft.so.12] [--gpu 9.0] [--seconds 200]
        [--out no_lto.json]

Without --library it is the cuFFT beside the installed torch. Copies are cut in $WORK (default: a temporary folder) and
used through cuFFT's C interface and the driver's, without torch. Four processes work at the same time: stock twice, to
know which transforms repeat themselves, and the two cuts. One that dies is recorded with the transform that it died of,
and the next goes on behind it. What was done is kept in $WORK: after --seconds it ends with 2, and the same command
goes on from there. Exits with 1 where the cut that keeps LTO-IR differs from stock; what fails without LTO-IR is
listed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_char_p, c_int, c_longlong, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cublaslt_run import CudaError, Driver

R32F, R64F, R16F, C16F, C32F, C64F = 0, 1, 2, 6, 4, 5
FORWARD, INVERSE = -1, 1
LOAD_COMPLEX, STORE_COMPLEX = 0, 4  # callbacks
PATIENT_JIT = 1  # a property of plans: kernels are linked for the size
BYTES = {R32F: 4, R64F: 8, R16F: 2, C16F: 4, C32F: 8, C64F: 16}
MOST_VALUES = 1 << 21

POWERS = tuple(2**n for n in range(1, 23))
PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 31, 61, 97, 127, 131, 251, 257, 509, 1021, 2039, 4093, 7919, 65537, 1000003)
MIXED = (
    *(6, 10, 12, 15, 28, 30, 36, 60, 77, 96, 100, 105, 120, 143, 210, 360, 500, 1000, 1001, 1155, 1536, 2187, 2310),
    *(3125, 4095, 5040, 7776, 10000, 16807, 30030, 46656, 99999, 100000, 177147, 262143, 510510, 1000000, 1953125),
)
PLANES = ((16, 16), (17, 19), (64, 48), (100, 100), (127, 129), (256, 256), (500, 3), (1024, 1024), (1021, 64))
CUBES = ((8, 8, 8), (7, 11, 13), (32, 32, 32), (50, 60, 70), (128, 128, 128), (31, 64, 100))


@dataclass(frozen=True)
class Transform:
    """One plan: shape, types of input and output, direction, how many at once, and how it is asked for."""

    shape: tuple[int, ...]
    input: int
    output: int
    direction: int = FORWARD
    batch: int = 1
    patient: bool = False
    callback: str = ""

    @property
    def name(self) -> str:
        size = "x".join(map(str, self.shape))
        words = [f"batch {self.batch}"] if self.batch > 1 else []
        words += ["inverse"] if self.direction == INVERSE else []
        words += ["linked for the size"] if self.patient else []
        words += [f"{self.callback} callback"] if self.callback else []
        return " ".join([size, *words])

    @property
    def values(self) -> int:
        return int(np.prod(self.shape)) * self.batch


# name, type of the input, of the output, sizes
TYPES: tuple[tuple[str, int, int], ...] = (
    ("c2c", C32F, C32F),
    ("z2z", C64F, C64F),
    ("r2c", R32F, C32F),
    ("c2r", C32F, R32F),
    ("d2z", R64F, C64F),
    ("z2d", C64F, R64F),
)
SETS: dict[str, tuple[tuple[int, ...], ...]] = {
    "powers of two": tuple((n,) for n in POWERS),
    "primes": tuple((n,) for n in PRIMES),
    "mixed": tuple((n,) for n in MIXED),
    "2-D": PLANES,
    "3-D": CUBES,
}


def groups() -> dict[str, list[Transform]]:
    made: dict[str, list[Transform]] = {}
    for kind, source, target in TYPES:
        direction = INVERSE if kind in ("c2r", "z2d") else FORWARD
        for word, shapes in SETS.items():
            all_of = [Transform(shape, source, target, direction) for shape in shapes]
            all_of += [Transform(shape, source, target, direction, 7) for shape in shapes]
            if kind in ("c2c", "z2z"):
                all_of += [Transform(shape, source, target, INVERSE) for shape in shapes]
            made[f"{kind} {word}"] = [one for one in all_of if one.values <= MOST_VALUES]
    halves = [(2**n,) for n in range(1, 19)]
    made["half c2c"] = [Transform(shape, C16F, C16F, batch=batch) for shape in halves for batch in (1, 7)]
    made["half r2c"] = [Transform(shape, R16F, C16F, batch=batch) for shape in halves[1:] for batch in (1, 7)]
    some = [(n,) for n in (*POWERS[3:14:2], *MIXED[:26:3], *PRIMES[:14:3])]  # each is compiled: a second or more
    made["c2c linked for the size"] = [Transform(shape, C32F, C32F, patient=True) for shape in some]
    made["r2c linked for the size"] = [Transform(shape, R32F, C32F, patient=True) for shape in some]
    called = [(n,) for n in (16, 100, 127, 256, 1000, 4096, 7919, 65536)] + [(64, 64), (100, 120)]
    made["c2c with callbacks"] = [Transform(s, C32F, C32F, callback=word) for s in called for word in ("load", "store")]
    return made


@cache
def transforms() -> dict[str, Transform]:
    """By group and name, those first of which the fewest are needed to see something."""
    return {f"{group}: {one.name}": one for group, each in reversed(groups().items()) for one in each}


CALLBACKS = r"""
extern "C" __device__ float2 load_doubled(void *data, unsigned long long at, void *info, void *shared) {
    float2 value = ((float2 *)data)[at];
    return make_float2(2.0f * value.x, 2.0f * value.y);
}
extern "C" __device__ void store_halved(void *data, unsigned long long at, float2 value, void *info, void *shared) {
    ((float2 *)data)[at] = make_float2(0.5f * value.x, 0.5f * value.y);
}
"""


def callback_code(gpu: str) -> bytes:
    """The callbacks as LTO-IR, by NVRTC."""
    lib = ctypes.CDLL(os.environ.get("NVRTC", "libnvrtc.so.13"))
    program = c_void_p()

    def check(status: int) -> None:
        if status:
            raise CudaError(f"nvrtc: {status}")

    check(lib.nvrtcCreateProgram(byref(program), CALLBACKS.encode(), b"callbacks.cu", 0, None, None))
    words = [f"--gpu-architecture=sm_{gpu.replace('.', '')}", "-dlto", "--relocatable-device-code=true"]
    check(lib.nvrtcCompileProgram(program, len(words), (c_char_p * len(words))(*(word.encode() for word in words))))
    size = c_size_t()
    check(lib.nvrtcGetLTOIRSize(program, byref(size)))
    code = ctypes.create_string_buffer(size.value)
    check(lib.nvrtcGetLTOIR(program, code))
    return code.raw


class Fft:
    """libcufft."""

    def __init__(self, path: str, driver: Driver, gpu: str) -> None:
        self._lib = ctypes.CDLL(path)
        self._driver = driver
        self._gpu = gpu
        self._code: bytes | None = None

    def _check(self, step: str, status: int) -> None:
        if status:
            raise CudaError(f"{step}: {status}")

    def run(self, one: Transform) -> str:
        """The hash of the output's bytes; CudaError says which step failed and how."""
        plan = c_int()
        self._check("cufftCreate", self._lib.cufftCreate(byref(plan)))
        pointers: list[c_uint64] = []
        try:
            self._prepare(plan, one)
            lengths = (c_longlong * len(one.shape))(*one.shape)
            work = c_size_t()
            execution = {C16F: C16F, R16F: C16F}.get(one.input, C64F if C64F in (one.input, one.output) else C32F)
            status = self._lib.cufftXtMakePlanMany(
                plan, len(one.shape), lengths, None, c_longlong(1), c_longlong(0), one.input,
                None, c_longlong(1), c_longlong(0), one.output, c_longlong(one.batch), byref(work), execution,
            )  # fmt: skip
            self._check("cufftXtMakePlanMany", status)
            data, size = input_of(one), output_size(one)
            pointers += [self._driver.upload(data), self._driver.allocate(size)]
            self._driver.clear(pointers[1], size)
            status = self._lib.cufftXtExec(plan, pointers[0], pointers[1], one.direction)
            self._check("cufftXtExec", status)
            return hashlib.sha256(self._driver.download(pointers[1], size)).hexdigest()
        finally:
            for pointer in pointers:
                self._driver.free(pointer)
            self._lib.cufftDestroy(plan)

    def _prepare(self, plan: c_int, one: Transform) -> None:
        if one.patient:
            status = self._lib.cufftSetPlanPropertyInt64(plan, PATIENT_JIT, c_longlong(1))
            self._check("cufftSetPlanPropertyInt64", status)
        if one.callback:
            self._code = self._code or callback_code(self._gpu)
            name = b"load_doubled" if one.callback == "load" else b"store_halved"
            kind = LOAD_COMPLEX if one.callback == "load" else STORE_COMPLEX
            information = (c_void_p * 1)(None)
            status = self._lib.cufftXtSetJITCallback(
                plan, name, self._code, c_size_t(len(self._code)), kind, information
            )
            self._check("cufftXtSetJITCallback", status)


def half_size(one: Transform) -> int:
    """Values of the complex side of a transform with a real side."""
    return int(np.prod((*one.shape[:-1], one.shape[-1] // 2 + 1))) * one.batch


@cache
def noise(kind: str) -> bytes:
    """The same values for all transforms: making them takes longer than transforming them."""
    return np.random.default_rng(19).standard_normal(2 * MOST_VALUES + (1 << 20)).astype(kind).tobytes()


def input_of(one: Transform) -> bytes:
    real = one.output in (R32F, R64F)
    count = (half_size(one) if real else one.values) * (2 if one.input in (C16F, C32F, C64F) else 1)
    types = {R32F: "<f4", C32F: "<f4", R64F: "<f8", C64F: "<f8", R16F: "<f2", C16F: "<f2"}
    kind = types[one.input]
    return noise(kind)[: count * int(kind[-1])]


def output_size(one: Transform) -> int:
    real = one.input in (R32F, R64F, R16F)
    return (half_size(one) if real else one.values) * BYTES[one.output]


def work(library: str, journal: Path, gpu: str) -> int:
    """In a process of its own: what is not in the journal yet, a line before each transform and one after it."""
    begun, _ = read_journal(journal)
    driver = Driver()
    fft = Fft(library, driver, gpu)
    with journal.open("a") as lines:
        for name, one in transforms().items():
            if name in begun:
                continue
            print(json.dumps([name]), file=lines, flush=True)
            try:
                said = fft.run(one)
            except CudaError as error:
                said = f"error {error}"
            print(json.dumps([name, said]), file=lines, flush=True)
            if said.startswith("error") and not usable(driver):
                return 3  # all others would fail too: the next process goes on
    return 0


def usable(driver: Driver) -> bool:
    """Whether the context survived the last error."""
    try:
        driver.free(driver.upload(bytes(64)))
    except CudaError:
        return False
    return True


def read_journal(path: Path) -> tuple[set[str], dict[str, str]]:
    """The transforms that were begun, and what came of those that ended."""
    begun: set[str] = set()
    ended: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        name, *said = json.loads(line)
        begun.add(name)
        if said:
            ended[name] = said[0]
    return begun, ended


def run_to_end(library: Path, journal: Path, gpu: str, environment: dict[str, str], deadline: float) -> None:
    """Let processes work until all transforms were tried: one that dies takes a single transform with it."""
    command = [sys.executable, __file__, "--library", str(library), "--gpu", gpu, "--journal", str(journal)]
    while set(transforms()) - read_journal(journal)[0]:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        before = len(read_journal(journal)[1])
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=left)
        except subprocess.TimeoutExpired:
            forget_unfinished(journal)
            return
        begun, ended = read_journal(journal)
        lost = begun - set(ended)
        if not lost and len(ended) == before:
            raise SystemExit(f"{library} cannot be used: {done.stderr.strip()[-2000:]}")
        with journal.open("a") as lines:
            for name in lost:
                end = f"error exit {done.returncode} {done.stderr.strip()[-200:]}"
                print(json.dumps([name, end]), file=lines)


def forget_unfinished(journal: Path) -> None:
    """What the clock cut off is tried again by the next run."""
    _, ended = read_journal(journal)
    journal.write_text("".join(f"{json.dumps([name, said])}\n" for name, said in ended.items()))


def installed_library() -> Path:
    """The cuFFT that the installed torch uses."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("There is no torch here: name the library with --library.")
    found = sorted((Path(spec.origin).parents[1] / "nvidia").rglob("libcufft.so.*"))
    if not found:
        raise SystemExit("There is no libcufft.so beside torch: name the library with --library.")
    return found[0]


def environment_for(library: Path) -> dict[str, str]:
    """cuFFT opens nvJitLink and NVRTC by name when it needs them: they are somewhere in NVIDIA's folder."""
    nvidia = next((parent for parent in library.parents if parent.name == "nvidia"), library.parent)
    tools = sorted(nvidia.rglob("libnv[Jr]*.so.*"))
    nvrtc = [str(path) for path in tools if path.name.startswith("libnvrtc.so.")][:1]
    places = [*dict.fromkeys(str(path.parent) for path in tools), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    more = {"NVRTC": nvrtc[0]} if nvrtc else {}
    return {**os.environ, **more, "LD_LIBRARY_PATH": ":".join(places)}


def cut(library: Path, target: Path, gpu: str, *options: str) -> None:
    command = [sys.executable, "-m", "torchtailor", "tailor", str(library), "--gpu", gpu, "--nvidia", *options]
    subprocess.run([*command, "-o", str(target)], check=True)


def compared(
    names: list[str], stock: dict[str, str], again: dict[str, str], other: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Each transform that works with stock, and what the other library makes of it."""
    for name in names:
        expected = stock[name]
        if expected.startswith("error"):
            continue
        said = other[name]
        if said == expected:
            yield name, "identical"
        elif said.startswith("error"):
            yield name, said
        else:
            yield name, "differs" if again[name] == expected else "differs, as stock does from itself"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--gpu", default="9.0")
    parser.add_argument("--seconds", type=float, default=200, help="after so long, stop; run it again to go on")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    library = (options.library or installed_library()).resolve()
    if options.journal:
        return work(str(library), options.journal, options.gpu)
    deadline = time.monotonic() + options.seconds
    folder = Path(os.environ.get("WORK") or tempfile.mkdtemp()) / "no-lto"
    folder.mkdir(parents=True, exist_ok=True)
    builds = {"with LTO-IR": folder / "with" / library.name, "without LTO-IR": folder / "without" / library.name}
    for path, words in zip(builds.values(), ((), ("--no-lto",)), strict=True):
        if not path.exists():
            cut(library, path, options.gpu, *words)
    runs = {"stock": library, "stock again": library, **builds}
    journals = {name: folder / f"{name.replace(' ', '-')}.jsonl" for name in runs}
    environment = environment_for(library)
    with ThreadPoolExecutor(len(runs)) as pool:
        arguments = (options.gpu, environment, deadline)
        for future in [pool.submit(run_to_end, path, journals[name], *arguments) for name, path in runs.items()]:
            future.result()
    results = {name: read_journal(journal)[1] for name, journal in journals.items()}
    stock, again = results["stock"], results["stock again"]
    document: dict[str, Any] = {"library": library.name, "gpu": options.gpu, **results}
    sizes = {name: path.stat().st_size for name, path in builds.items()}
    print(f"{library.name}: stock {library.stat().st_size / 1e6:.1f} MB", end="")
    print("".join(f", {name} {size / 1e6:.1f} MB" for name, size in sizes.items()))
    tried = [name for name in transforms() if all(name in said for said in results.values())]
    print(f"{len(tried)} of {len(transforms())} transforms were tried with each library", end="; ")
    print(f"{sum(not stock[name].startswith('error') for name in tried)} of them work with stock")
    refused = sorted({f"{name.split(':')[0]}: {stock[name]}" for name in tried if stock[name].startswith("error")})
    for line in refused:
        print(f"  stock refuses {line}")
    failed = False
    for build in builds:
        found = dict(compared(tried, stock, again, results[build]))
        print(f"\n{build}:\n| transforms | number | identical | fail or differ |\n|---|---|---|---|")
        for group in groups():
            own = {key.split(": ", 1)[1]: said for key, said in found.items() if key.startswith(f"{group}: ")}
            wrong = {key: said for key, said in own.items() if said not in ("identical",)}
            shown = "; ".join(f"{key} ({said})" for key, said in list(wrong.items())[:8])
            rest = f"; and {len(wrong) - 8} more" if len(wrong) > 8 else ""
            print(f"| {group} | {len(own)} | {len(own) - len(wrong)} | {shown}{rest} |")
        bad = [said for said in found.values() if said.startswith("error") or said == "differs"]
        failed |= bool(bad) and build == "with LTO-IR"
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    if len(tried) < len(transforms()):
        print(f"\nThe time was up: run it again with the same $WORK to go on ({folder.parent}).")
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

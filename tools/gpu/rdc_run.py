"""Runs the libraries of tests/fixtures/rdc on this machine's GPU, stock and cut, and says where the two differ.

    PYTHONPATH=src:.carry/py312 python3 tools/gpu/rdc_run.py                the archive's libraries for x86_64
    PYTHONPATH=src:.carry/py312 python3 tools/gpu/rdc_run.py --folder X     other ones (rdc_fixtures.py --output X)
    PYTHONPATH=src:.carry/py312 python3 tools/gpu/rdc_run.py --gpu 9.0      for a GPU that is not a 9.0

Each library is loaded in a process of its own and asked for its answer: 42, or a CUDA error. The cut for this GPU must
answer as stock does. The cut for another GPU (8.0) is made, and asked too: it need not answer here. Then come probes:
copies with some GPU code emptied by hand, which tell what the driver takes. Where the libraries leave out the CUDA
runtime, libcudart.so.13 is loaded first: from --cudart, NVIDIA's wheels, a toolkit or the loader's own paths.
The exit status is 1 where a cut answers otherwise than stock, 2 where no stock library answers at all.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import struct
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests/fixtures/rdc/libraries.tar.xz"
ANSWER = 42
TIMEOUT_S = 120

CONTAINER = bytes.fromhex("50ed55ba01001000")
PTX, CUBIN, LTO, RELOCATABLE_PTX = 1, 2, 8, 64


def ask(path: Path, cudart: str) -> int:
    """In a process of its own: load a library and print its answer as JSON."""
    runtime = ctypes.CDLL(cudart, mode=ctypes.RTLD_GLOBAL) if cudart else None
    library = ctypes.CDLL(str(path))
    value = ctypes.c_int(-1)
    error = library.answer(ctypes.byref(value))
    name = ""
    if error > 0:
        name_of = (runtime or library).cudaGetErrorName
        name_of.restype = ctypes.c_char_p
        name = name_of(error).decode()
    print(json.dumps({"error": error, "name": name, "value": value.value}))
    return 0


def asked(path: Path, cudart: str) -> str:
    """`42`, the name of a CUDA error, or how the process ended."""
    command = [sys.executable, __file__, "--ask", str(path), "--cudart", cudart]
    environment = {**os.environ, "CUDA_CACHE_DISABLE": "1"}  # what was compiled once must not answer for another
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired:
        return f"no answer in {TIMEOUT_S} s"
    if done.returncode:
        return f"ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['?'])[-1][:60]}"
    said = json.loads(done.stdout)
    if said["error"]:
        return said["name"] or f"error {said['error']}"
    return str(said["value"])


def cut(path: Path, output: Path, gpu: str) -> tuple[Path | None, str]:
    """The cut library and what became of it."""
    command = [sys.executable, "-m", "torchtailor", "tailor", str(path), "--gpu", gpu, "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode or not output.is_file():
        message = (done.stderr.strip().splitlines() or ["no output"])[-1]
        nothing = "no GPU code that runs" in done.stderr
        return None, "nothing for it" if nothing else f"exit {done.returncode}: {message[:60]}"
    before, after = path.stat().st_size, output.stat().st_size
    return output, "unchanged" if before == after else f"{after / before:.0%}"


def find_cudart(folder: Path) -> str:
    """What to load before the libraries; empty where they have the runtime inside."""
    sample = next(iter(sorted(folder.glob("*-x86_64.so"))))
    alone = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(sample)]
    if subprocess.run(alone, capture_output=True, check=False).returncode == 0:
        return ""
    places = [Path(sysconfig.get_paths()[name]) / "nvidia" for name in ("purelib", "platlib")]
    found = [*(path for place in places for path in place.glob("*/lib/libcudart.so.1[3-9]"))]
    found += Path("/usr/local").glob("cuda*/lib64/libcudart.so.1[3-9]")
    for name in (*map(str, found), "libcudart.so.13"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    sys.exit("no libcudart.so.13 was found: pip install nvidia-cuda-runtime, or name it with --cudart")


Drop = Callable[[str, int, int], bool]  # section, kind, SM number


def probe(path: Path, output: Path, drop: Drop) -> None:
    """A copy without some entries, by hand: no line of torchtailor has a part in it."""
    data = bytearray(path.read_bytes())
    table, count, names = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQ", data, table + 64 * index) for index in range(count)]
    for name_at, _, _, _, offset, size in headers:
        start = headers[names][4] + name_at
        section = data[start : data.index(b"\0", start)].decode()
        if section not in ("__nv_relfatbin", ".nv_fatbin"):
            continue
        at = offset
        while (at := data.find(CONTAINER, at, offset + size)) >= 0:
            at = _without(data, at, section, drop)
    output.write_bytes(data)
    output.chmod(0o755)


def _without(data: bytearray, at: int, section: str, drop: Drop) -> int:
    """Close up the entries that stay; the container ends earlier. Where the container ended before."""
    size = int.from_bytes(data[at + 8 : at + 16], "little")
    end, position, kept = at + 16 + size, at + 16, bytearray()
    while position < end:
        kind, header, padded, sm = (
            int.from_bytes(data[position : position + 2], "little"),
            *struct.unpack_from("<IQ", data, position + 4),
            int.from_bytes(data[position + 28 : position + 32], "little"),
        )
        if not drop(section, kind, sm):
            kept += data[position : position + header + padded]
        position += header + padded
    data[at + 8 : at + 16] = len(kept).to_bytes(8, "little")
    data[at + 16 : end] = kept + bytes(end - at - 16 - len(kept))
    return end


def _prelinked(section: str) -> bool:
    return section == "__nv_relfatbin"


PROBES: dict[str, tuple[str, Drop]] = {
    "linked complete, objects emptied": ("rdc-sm75-sm90-ptx75", lambda s, k, n: _prelinked(s)),
    "linked emptied, objects with cubins and PTX": ("rdc-sm75-sm90-ptx75", lambda s, k, n: not _prelinked(s)),
    "linked emptied, objects with cubins only": (
        "rdc-sm75-sm90-ptx75",
        lambda s, k, n: not _prelinked(s) or k == PTX,
    ),
    "linked emptied, objects with PTX only": ("rdc-sm75-sm90-ptx75", lambda s, k, n: not _prelinked(s) or k == CUBIN),
    "linked for 8.0, objects with 9.0 cubins, PTX dropped": ("rdc-linked-less-ptx", lambda s, k, n: k == PTX),
    "linked for 8.0, objects with PTX, 9.0 cubins dropped": (
        "rdc-linked-less-ptx",
        lambda s, k, n: k == CUBIN and n == 90,
    ),
    "relocatable PTX in the linked container, objects emptied": ("rdc-reloc-ptx", lambda s, k, n: _prelinked(s)),
    "objects with PTX, relocatable PTX dropped": ("rdc-reloc-ptx", lambda s, k, n: k == RELOCATABLE_PTX),
    "linked for 8.0, objects with LTO-IR, PTX dropped": ("rdc-lto80-ptx80", lambda s, k, n: k == PTX),
    "linked for 8.0, objects with PTX, LTO-IR dropped": ("rdc-lto80-ptx80", lambda s, k, n: k == LTO),
    "linked for 8.0, the cubin kept, objects with PTX only": (
        "rdc-sm80-ptx80",
        lambda s, k, n: _prelinked(s) and k == CUBIN,
    ),
    "linked emptied, objects with PTX only, 8.0": ("rdc-sm80-ptx80", lambda s, k, n: k == CUBIN),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="libraries that are no archive's")
    parser.add_argument("--gpu", default="9.0", help="this machine's GPU")
    parser.add_argument("--other", default="8.0", help="a GPU to cut for that is not here")
    parser.add_argument("--cudart", help="libcudart.so to load before the libraries")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        return ask(options.ask, options.cudart or "")
    with tempfile.TemporaryDirectory() as work:
        return run(options, Path(work))


def run(options: argparse.Namespace, work: Path) -> int:
    folder = options.folder
    if not folder:
        folder = work / "stock"
        with tarfile.open(ARCHIVE) as tar:
            tar.extractall(folder, filter="data")
    cudart = options.cudart or find_cudart(folder)
    print(f"runtime: {cudart or 'inside the libraries'}")
    wrong = answered = 0
    header = ("library", "stock", f"for {options.gpu}", "cut answers", "must match", f"for {options.other}", "answers")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header), flush=True)
    for path in sorted(folder.glob("*-x86_64.so")):
        stock = asked(path, cudart)
        own, size = cut(path, work / f"own-{path.name}", options.gpu)
        answer = asked(own, cudart) if own else "-"
        # where stock fails, the cut may fail with another error: PTX of a newer toolkit than the driver's is one
        match = (answer == str(ANSWER)) == (stock == str(ANSWER))
        wrong += not match
        answered += stock == str(ANSWER)
        other, other_size = cut(path, work / f"other-{path.name}", options.other)
        there = asked(other, cudart) if other else "-"
        cells = (path.stem, stock, size, answer, "yes" if match else "NO", other_size, there)
        print("| " + " | ".join(cells) + " |", flush=True)
    print("\n| probe | made from | answers |\n|---|---|---|", flush=True)
    for name, (fixture, drop) in PROBES.items():
        path = folder / f"{fixture}-x86_64.so"
        if path.is_file():
            copy = work / "probe.so"
            probe(path, copy, drop)
            print(f"| {name} | {fixture} | {asked(copy, cudart)} |", flush=True)
            copy.unlink()
    print(f"\n{answered} stock libraries answer {ANSWER}; {wrong} cut libraries answer otherwise than stock")
    if not answered:
        print("no library answers: is there a GPU, and a driver for CUDA 13?")
        return 2
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

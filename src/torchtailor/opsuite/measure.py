"""Measures torch in this process: how long it takes to start, how much memory it needs, how fast it is.

Standard library and torch only; run by its path in a fresh process, since importing is a part of what is measured:

    python .../opsuite/measure.py --device cuda [--throughput]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 25
ROUND_SECONDS = 0.02


def memory() -> dict[str, int]:
    """Bytes of this process: resident, and its proportional share of what others have mapped too."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    except OSError:  # some sandboxes have no smaps
        lines = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    names = {"Rss": "rss", "VmRSS": "rss", "Pss": "pss", "Pss_File": "pss_file", "Pss_Anon": "pss_anon"}
    return {names[name]: size for name, size in sizes.items() if name in names}


def start(device: str) -> dict[str, Any]:
    """Import torch, run one kernel, then one call into each large library."""
    before = memory()
    clock = time.perf_counter
    began = clock()
    import torch

    imported = clock()
    result: dict[str, Any] = {"import_seconds": imported - began, "before": before, "imported": memory()}
    (torch.ones(1000, device=device) + 1).sum().item()
    first = clock()
    result |= {"first_kernel_seconds": first - imported, "first_kernel": _with_device(device)}
    for work in _library_calls(device):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return result | {
        "libraries_seconds": clock() - first,
        "libraries": _with_device(device),
        "torch": torch.__version__,
    }


def _with_device(device: str) -> dict[str, int]:
    """Memory of the process, and what the whole GPU has in use beyond torch's own allocator."""
    import torch

    used = memory()
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        used["device"] = total - free - torch.cuda.memory_reserved()
    return used


def _library_calls(device: str) -> list[Callable[[], Any]]:
    import torch
    import torch.nn.functional as F  # noqa: N812

    kind = torch.bfloat16 if device == "cuda" else torch.float32
    matrix = torch.ones(256, 256, device=device, dtype=kind)
    image = torch.ones(2, 16, 32, 32, device=device, dtype=kind)
    heads = torch.ones(1, 4, 64, 64, device=device, dtype=kind)
    return [
        lambda: matrix @ matrix,
        lambda: F.conv2d(image, torch.ones(16, 16, 3, 3, device=device, dtype=kind)),
        lambda: F.scaled_dot_product_attention(heads, heads, heads),
        lambda: torch.fft.fft(matrix.float()),
        lambda: torch.linalg.qr(matrix.float() + torch.eye(256, device=device)),
        lambda: matrix.float().to_sparse_csr() @ matrix.float(),
        lambda: torch.sort(matrix.float().flatten()),
    ]


def throughput(device: str) -> dict[str, Any]:
    """Seconds a call of a few ops: the median of many rounds, and how far the quarters lie apart."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    gpu = device == "cuda"
    kind = torch.bfloat16 if gpu else torch.float32
    size, side, tokens, count = (8192, 56, 2048, 1 << 24) if gpu else (512, 28, 128, 1 << 16)
    torch.manual_seed(1)
    matrix = torch.randn(size, size, device=device, dtype=kind)
    image = torch.randn(64 if gpu else 2, 64, side, side, device=device, dtype=kind)
    weight = torch.randn(64, 64, 3, 3, device=device, dtype=kind)
    heads = torch.randn(4, 16 if gpu else 4, tokens, 64, device=device, dtype=kind)
    numbers = torch.randn(count, device=device)
    signal = torch.randn(64, 1 << (16 if gpu else 10), device=device)
    works: dict[str, Callable[[], Any]] = {
        "matmul": lambda: matrix @ matrix,
        "convolution": lambda: F.conv2d(image, weight, padding=1),
        "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        "fft": lambda: torch.fft.rfft(signal),
        "sort": lambda: torch.sort(numbers),
        "softmax": lambda: torch.softmax(signal, -1),
    }
    if not gpu:  # what the flags of the compiler change most: reference counts, and torch's own loops
        few = torch.randn(8)
        works |= {"add of 8 numbers": lambda: few + few, "gelu": lambda: F.gelu(signal), "sum": numbers.sum}
    return {name: _time(work, gpu) for name, work in works.items()}


def _time(work: Callable[[], Any], gpu: bool) -> dict[str, float]:
    import torch

    def round_of(calls: int) -> float:
        if gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            work()
        if gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / calls

    round_of(3)
    calls = max(1, int(ROUND_SECONDS / round_of(3)))
    times = sorted(round_of(calls) for _ in range(ROUNDS))
    quarter = ROUNDS // 4
    return {
        "seconds": times[ROUNDS // 2],
        "best": times[0],
        "spread": (times[-1 - quarter] - times[quarter]) / times[ROUNDS // 2],
        "calls": calls * ROUNDS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="measure.py", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--throughput", action="store_true", help="also time a few ops")
    options = parser.parse_args()
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    result = start(options.device)
    if options.throughput:
        result["throughput"] = throughput(options.device)
    sys.stdout.write(f"\n{json.dumps(result)}\n")  # a line of its own, whatever torch printed
    return 0


if __name__ == "__main__":
    sys.exit(main())

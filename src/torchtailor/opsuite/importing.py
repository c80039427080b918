"""Imports torch and prints, as JSON, what it reports of itself, how long it took and how much memory it has.

Standard library and torch only; run by its path in a fresh process.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def describe() -> dict[str, Any]:
    before = _resident()
    started = time.perf_counter()
    import torch

    seconds = time.perf_counter() - started
    from importlib import metadata

    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        installed = None
    return {
        "seconds": seconds,
        "resident": _resident() - before,
        "version": torch.__version__,
        "installed_version": installed,
        "file": torch.__file__,
        "git_commit": torch.version.git_version,
        "cuda": torch.version.cuda,
        "python": ".".join(map(str, sys.version_info[:3])),
        "configuration": torch.__config__.show(),
        "parallel": torch.__config__.parallel_info(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "arch_list": torch.cuda.get_arch_list() if torch.version.cuda else [],
    }


def _resident() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS")), 0)


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    sys.stdout.write(f"\n{json.dumps(describe())}\n")  # a line of its own, whatever torch printed

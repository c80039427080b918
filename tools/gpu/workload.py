"""Workload mode on a GPU machine: record a program, cut to it, and run it and others on the cut.

    PYTHONPATH=src:.carry/py312 WORK=/scratch/workload OUT=out python3 tools/gpu/workload.py

Steps may be named: stock, arch, record, cut, run, nopack, unopened, suite, speed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stock import copy_stock, site_of  # beside this file

WORK, OUT = Path(os.environ["WORK"]), Path(os.environ["OUT"])
PROGRAMS = Path(__file__).parent / "programs"
NAMES = ("decoder", "cnn", "unet")
GPU = ["--gpu", "9.0", "--nvidia", "--strip"]
STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


def used(folder: Path, pattern: str = "*") -> int:
    """Bytes on the disk."""
    return sum(
        path.lstat().st_blocks * 512 for path in folder.rglob(pattern) if path.is_file() and not path.is_symlink()
    )


def torchtailor(*words: str | Path, check: bool = True, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if site:
        environment["PYTHONPATH"] = f"{site}:{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "torchtailor", *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"{words}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done


def program(name: str, folder: str, **variables: str) -> tuple[str, str, float]:
    """The result line, what else was said, and the seconds until the first result."""
    environment = {**os.environ, "PYTHONPATH": str(site_of(WORK / folder)), **variables}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / f"{name}.py")], capture_output=True, text=True, env=environment, check=False
    )
    match = re.search(r"result (\w+) first ([\d.]+)", done.stdout)
    return (match[1] if match else f"exit {done.returncode}"), done.stderr, time.monotonic() - began


def site_packages() -> Path:
    import torch

    return Path(torch.__file__).parent.parent


def stock() -> None:
    if not (WORK / "stock").is_dir():
        copy_stock(site_packages(), WORK / "stock")
    say(f"stock: {used(WORK / 'stock') / 1e9:.3f} GB")


def arch() -> None:
    torchtailor("tailor", WORK / "stock", *GPU, "-o", WORK / "arch")
    say(f"arch cut: {used(WORK / 'arch') / 1e9:.3f} GB")


def record() -> None:
    for name in NAMES:
        began = time.monotonic()
        done = torchtailor(
            "record",
            "-o",
            OUT / f"{name}.trace",
            "--",
            sys.executable,
            PROGRAMS / f"{name}.py",
            site=site_of(WORK / "stock"),
        )
        say(f"recorded {name} in {time.monotonic() - began:.1f} s")
        print("\n".join(done.stdout.splitlines()[-14:]), done.stderr[-600:])


def cut() -> None:
    shutil.rmtree(WORK / "decoder", ignore_errors=True)
    began = time.monotonic()
    done = torchtailor("tailor", WORK / "stock", *GPU, "--workload", OUT / "decoder.trace", "-o", WORK / "decoder")
    packs = used(WORK / "decoder", "*.ttpack")
    say(
        f"cut for the decoder in {time.monotonic() - began:.1f} s: {(used(WORK / 'decoder') - packs) / 1e9:.3f} GB "
        f"and packs of {packs / 1e6:.0f} MB"
    )
    print(done.stdout[-3500:], done.stderr[-1500:])
    kept = 0
    for manifest in (WORK / "decoder").rglob("torchtailor.json"):
        for library in json.loads(manifest.read_text())["libraries"]:
            kept += sum(row["stored"] for row in library.get("kept", {}).values())
            rows = {name: row["stored"] for name, row in library.get("kept", {}).items()}
            if sum(rows.values()) > 1 << 18:
                print(f"  stays in {library['path'].split('/')[-1]}: {rows}")
    say(f"GPU code left in the libraries: {kept / 1e6:.1f} MB")


def run() -> None:
    for name in NAMES:
        before, _, _ = program(name, "stock")
        again, _, _ = program(name, "stock")
        after, said, seconds = program(name, "decoder", TORCHTAILOR_MISSES=str(OUT / f"{name}.misses.tsv"))
        verdict = "identical" if before == after else "same as not" if before != again else "DIFFERENT"
        say(f"{name}: stock {before} {again}, cut {after}: {verdict} ({seconds:.1f} s)")
        print(said[-1500:])


def nopack() -> None:
    hidden = site_of(WORK / "decoder") / "torchtailor-packs"
    packs = list(hidden.rglob("*.ttpack"))
    for path in packs:
        path.rename(path.with_suffix(".away"))
    for name in NAMES:
        result, said, _ = program(name, "decoder")
        lines = [line for line in said.splitlines() if line.startswith("torchtailor:")]
        say(f"{name} without packs: {result}; {len(lines)} sentences; {lines[:1]} ... {said.strip().splitlines()[-1:]}")
    for path in packs:
        path.with_suffix(".away").rename(path)


def unopened() -> None:
    shutil.rmtree(WORK / "small", ignore_errors=True)
    trace = ["--workload", str(OUT / "decoder.trace"), "--drop-unopened"]
    torchtailor("tailor", WORK / "stock", *GPU, *trace, "-o", WORK / "small")
    packs = used(WORK / "small", "*.ttpack")
    left = (used(WORK / "small") - packs) / 1e9
    say(f"without what was never opened: {left:.3f} GB and packs of {packs / 1e6:.0f} MB")
    say(f"decoder on it: {program('decoder', 'small')[0]}, stock {program('decoder', 'stock')[0]}")


def packed_size() -> None:
    """What squashfs would make of it: zstd 15 in blocks of 128 KiB, files one by one."""
    import zstandard

    def blocks(path: Path) -> int:
        packer, total = zstandard.ZstdCompressor(level=15), 0
        with path.open("rb") as file:
            while block := file.read(128 << 10):
                total += min(len(packer.compress(block)), len(block))
        return total

    for name in ("decoder", "small"):
        files = [p for p in (WORK / name).rglob("*") if p.is_file() and not p.is_symlink() and p.suffix != ".ttpack"]
        with ThreadPoolExecutor(16) as pool:
            say(f"{name} packed as squashfs does, without packs: {sum(pool.map(blocks, files)) / 1e9:.3f} GB")


def speed() -> None:
    for name in ("stock", "decoder"):
        program("decoder", name)
    times: dict[str, list[float]] = {"stock": [], "decoder": []}
    for _ in range(5):
        for name, row in times.items():
            row.append(program("decoder", name)[2])
    ratio = statistics.median(times["decoder"]) / statistics.median(times["stock"])
    say(f"decoder from start to end: {times}; ratio of medians {ratio:.3f}")


def suite() -> None:
    """The op suite on stock, twice, and on the cut for the decoder with its packs."""
    from torchtailor.artifact.launch import op_suite
    from torchtailor.verification.compare import compare
    from torchtailor.verification.suite_results import load_results

    def one(name: str) -> None:
        tree = "stock" if name.startswith("stock") else name
        site = site_of(WORK / tree)
        arguments = ["--device", "cuda", "--out", str(OUT / f"suite-{name}.json"), "--quiet", "--case-timeout", "120"]
        environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "4", "TORCHTAILOR_QUIET": "1"}
        command = [sys.executable, str(folder / "suite.py"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=420)
        say(f"suite {name}: {done.stderr.strip().splitlines()[-1:]}")

    with op_suite() as folder, ThreadPoolExecutor(3) as pool:
        list(pool.map(one, ("stock-a", "stock-b", "decoder")))
    results = {name: load_results(OUT / f"suite-{name}.json") for name in ("stock-a", "stock-b", "decoder")}
    compared = compare([results["stock-a"], results["stock-b"]], results["decoder"])
    say(f"op suite on the cut against stock: {compared.summary()}")
    for case in compared.bad:
        say(f"  {case.verdict.value}: {case.name}: {case.reason}")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    for step in sys.argv[1:] or ["stock", "arch", "record", "cut", "run", "nopack", "unopened", "speed"]:
        try:
            globals()[step]()
        except Exception as error:  # the next step may still tell something
            say(f"{step} failed: {error!r:.3000}")

"""`torchtailor image` against `skopeo copy` of the same image with recompression, in the same run, and the sizes.

Run: .venv/bin/python benchmarks/image.py oci:FOLDER:NAME --gpu 9.0 [--rounds 1] [--work DIR] [-- OPTIONS of image]

Both read the image, whose layers are gzip, from an OCI folder and write one whose layers are zstd to the same disk:
skopeo packs a layer anew only where its compression changes. torchtailor does so for the layers that hold something to
cut. The limit is 1.5 times skopeo. Memory is that of all processes of a command
together, without the pages of files, sampled.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT = 1.5
MEMORY = 1 << 30


@dataclass(frozen=True)
class Run:
    """How long a command took, and how much memory of its own all its processes had at most."""

    seconds: float
    memory: int
    output: str


def measured(command: list[str]) -> Run:
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    most = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            most[0] = max(most[0], sum(anonymous(pid) for pid in family(process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    done.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}.")
    return Run(time.monotonic() - started, most[0], output)


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:
                continue
    return found


def anonymous(pid: int) -> int:
    """Memory that is not a file's: maps of libraries are the page cache's, and can be dropped at any time."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """The words for this program, and those after `--`, which are for `torchtailor image`."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image")
    parser.add_argument("--gpu", default="9.0")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    own, rest = split_words(sys.argv[1:])
    chosen = parser.parse_args(own)
    work = Path(tempfile.mkdtemp(dir=chosen.work))
    copies, cuts = [], []
    try:
        for number in range(chosen.rounds):
            line = ["skopeo", "--insecure-policy", "copy", "-q", "--dest-compress", "--dest-compress-format", "zstd"]
            line += [chosen.image, f"oci:{work}/copy:x"]
            copies.append(measured(line))
            copied = sum(path.stat().st_size for path in (work / "copy").rglob("*") if path.is_file())
            shutil.rmtree(work / "copy")
            line = [sys.executable, "-m", "torchtailor", "image", chosen.image, f"oci:{work}/cut:x"]
            cuts.append(measured([*line, "--gpu", chosen.gpu, "--compress", "zstd", "--json", *rest]))
            shutil.rmtree(work / "cut")
            print(f"round {number}: {cuts[-1].seconds:.0f} s against {copies[-1].seconds:.0f} s", file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    (image,) = json.loads(cuts[-1].output)["images"]
    ratio = statistics.median(cut.seconds for cut in cuts) / statistics.median(copy.seconds for copy in copies)
    memory = max(cut.memory for cut in cuts)
    print(f"packed {image['size_before'] / 1e9:.2f} -> {image['size_after'] / 1e9:.2f} GB")
    print(f"packed by skopeo {copied / 1e9:.2f} GB")
    print(f"unpacked {image['unpacked_before'] / 1e9:.2f} -> {image['unpacked_after'] / 1e9:.2f} GB")
    print(f"left {image['unpacked_after'] / image['unpacked_before']:.1%} of the files")
    print(f"time {ratio:.2f} x skopeo (limit {LIMIT}), memory {memory >> 20} MiB (limit {MEMORY >> 20})")
    return 0 if ratio <= LIMIT and memory <= MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())

"""`torchtailor tailor --recompress` with an empty cache against zstd's own time for the same bytes, side by side.

Run: .venv/bin/python benchmarks/recompress.py TREE --gpu 9.0 [--zstd-level 19] [--rounds 3] [--copy-to DIR]

TREE is a folder of unpacked wheels; it is only read. zstd's own time is that of a program that reads the payloads which
the cut recompresses, unpacks and compresses them at the same level, the largest first, in as many processes as there
are cores, and throws the result away: no cut, no comparison, no cache, no output. The limit is 1.2 times that. The same
cut without --recompress is measured beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tailor_stack import Run, empty, libraries, print_runs, processor, run, settle

from torchtailor.code.gpucode.fatbin import Compression, decompress_payload
from torchtailor.code.gpucode.kernels import kernel_names
from torchtailor.core.disk import CACHE_VARIABLE
from torchtailor.core.errors import TorchtailorError
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.files import open_file
from torchtailor.surgery.image_cache import StockPayloads
from torchtailor.surgery.opened import OpenLibrary
from torchtailor.surgery.recompress import worth_a_try
from torchtailor.tailoring.choices import cut_for

LIMIT = 1.2
Payload = tuple[str, int, int, str, int]  # file, offset, size, compression, size when unpacked


def payloads_of(library: Path, options: Cut) -> dict[str, Payload]:
    """What the cut compresses of a library, by the name that it has in the cache."""
    try:
        with open_file(library) as source:
            opened = OpenLibrary.read(source)
            policy = options.policy.for_library(library.name, opened.code.soname)
            kept = policy.keep(opened.code.containers, lambda image: kernel_names(source, image))
            stock = StockPayloads(source)
            loaded = zip(opened.code.containers, kept.images, strict=True)
            images = [image for found, own in loaded if found.loaded for image in own if worth_a_try(image)]
            return {
                stock.key(image, options.level).hex(): (
                    str(library), image.payload_offset, image.payload_size, image.compression.value, image.raw_size
                )
                for image in images
            } if kept.served else {}  # fmt: skip
    except TorchtailorError:
        return {}


def compress(payload: Payload, level: int) -> tuple[int, int]:
    """The bytes of a payload before and after."""
    import zstandard

    path, offset, size, compression, raw_size = payload
    with Path(path).open("rb") as file:
        stored = os.pread(file.fileno(), size, offset)
    raw = decompress_payload(stored, Compression(compression), raw_size)
    return size, len(zstandard.ZstdCompressor(level=level, write_content_size=True).compress(raw))


def compress_all(listed: Path, level: int) -> None:
    payloads = sorted(map(tuple, json.loads(listed.read_text())), key=lambda payload: -payload[4])
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(compress, payloads, [level] * len(payloads)):
            pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--gpu", default="9.0")
    parser.add_argument("--zstd-level", type=int, default=19)
    parser.add_argument("--copy-to", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--listed", action="store_true", help="TREE is a list of payloads: compress them, no more")
    options = parser.parse_args()
    if options.listed:
        compress_all(options.tree, options.zstd_level)
        return 0
    work = Path(tempfile.mkdtemp(dir=options.copy_to))
    cut = cut_for(options.gpu, nvidia=True, strip=True, recompress=True, level=options.zstd_level)
    level = ["--zstd-level", str(options.zstd_level)]
    tailor = [sys.executable, "-m", "torchtailor", "tailor", str(options.tree), "--gpu", options.gpu, "--nvidia"]
    tailor += ["--strip", "-o"]
    runs: dict[str, list[Run]] = {}
    try:
        payloads: dict[str, Payload] = {}
        for path in libraries(options.tree):
            payloads |= payloads_of(options.tree / path, cut)
        (work / "list").write_text(json.dumps(list(payloads.values())))
        for round_ in range(options.rounds):
            output, cache = work / f"tailored{round_}", work / f"cache{round_}"
            os.environ[CACHE_VARIABLE] = str(cache)
            sides = {
                "zstd alone": [sys.executable, __file__, str(work / "list"), "--listed", *level],
                "torchtailor tailor --recompress": [*tailor, f"{output}-zstd", "--recompress", *level],
                "torchtailor tailor": [*tailor, str(output)],
            }
            for name, command in sides.items() if round_ % 2 == 0 else reversed(sides.items()):
                settle(options.tree, cold=False)
                runs.setdefault(name, []).append(run(command))
            made = {path.name: path.stat().st_size for path in (cache / "images").glob("??/*")}
            if set(made) != set(payloads):
                raise SystemExit(f"the cut compressed {len(made)} images and not the {len(payloads)} that zstd did")
            for tree in (output, work / f"{output.name}-zstd", cache):
                empty(tree)
            seconds = (f"{name} {one[-1].seconds:.2f} s" for name, one in runs.items())
            print(f"round {round_}: {', '.join(seconds)}", file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print_runs(runs)
    zstd, whole = runs["zstd alone"], runs["torchtailor tailor --recompress"]
    ratio = statistics.median(b.seconds / a.seconds for a, b in zip(zstd, whole, strict=True))
    size, raw = (sum(sizes) / 1e6 for sizes in zip(*((one[2], one[4]) for one in payloads.values()), strict=True))
    print(f"\nratio {ratio:.2f} (median of {options.rounds}; limit {LIMIT}); {len(payloads)} images, ", end="")
    packed = sum(made.values()) / 1e6
    print(
        f"{size:.0f} MB ({raw:.0f} MB unpacked) -> {packed:.0f} MB, level {options.zstd_level}; {processor()}; ", end=""
    )
    print(f"load {os.getloadavg()[0]:.1f}")
    return ratio > LIMIT


if __name__ == "__main__":
    sys.exit(main())

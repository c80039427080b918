"""How large an index for several GPUs and Pythons is: split wheels against the stock wheels of these Pythons.

    python benchmarks/split_index.py --gpus 7.5,8.0,8.6,8.9,9.0,10.0,12.0,12.1 --work /scratch torch-*.whl

Every stock wheel that is given is split for all GPUs. `--pythons N` adds what N Pythons would take, if the others are
as large as the mean of those that were given: packs of the same name and bytes count once.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from torchtailor.core.disk import hash_file
from torchtailor.tailoring.inputs import tailor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--gpus", required=True)
    parser.add_argument("--pythons", type=int, default=0)
    parser.add_argument("--nvidia", action="store_true")
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    files: dict[tuple[str, str], int] = {}
    hosts: list[int] = []
    stock = sum(wheel.stat().st_size for wheel in given.wheels)
    for number, wheel in enumerate(given.wheels):
        began = time.monotonic()
        folder = given.work / str(number)
        (result,) = tailor(wheel, gpus=given.gpus, output=folder, split=True, nvidia=given.nvidia)
        assert result.output is not None
        hosts.append(result.output.stat().st_size)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", f"in {time.monotonic() - began:.0f} s", flush=True)
        for path in sorted(folder.glob("*.whl")):
            known = (path.name, hash_file(path))
            print(f"  {path.name}: {path.stat().st_size / 1e6:.1f} MB{' (the same bytes)' if known in files else ''}")
            files[known] = path.stat().st_size
    total = sum(files.values())
    print(f"{len(given.wheels)} Pythons: stock {stock / 1e6:.0f} MB, index {total / 1e6:.0f} MB: {total / stock:.3f} x")
    if given.pythons:
        packs = total - sum(hosts)
        mean = sum(hosts) / len(hosts)
        all_stock = stock / len(given.wheels) * given.pythons
        index = packs + mean * given.pythons
        print(
            f"{given.pythons} Pythons, computed: stock {all_stock / 1e6:.0f} MB, "
            f"index {index / 1e6:.0f} MB: {index / all_stock:.3f} x"
        )


if __name__ == "__main__":
    main()

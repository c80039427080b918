"""Mappings and processor time of a program that loads libraries, on a stock folder and on cut ones.

Run: .venv/bin/python benchmarks/mappings.py STOCK CUT... [--python PYTHON] [--program FILE] [--rounds 5]

Folders are site-packages; without --program, `import torch` is the program. Each mapping is a line of /proc/self/maps.
Those of a library's pack are counted with the library, and what has no name with what lies before it.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

RUN = """
import json, site, sys, time
site.addsitedir(sys.argv[1])
sys.path.insert(0, sys.argv[1])
began = time.process_time()
exec(compile(open(sys.argv[2]).read(), sys.argv[2], "exec"))
seconds = time.process_time() - began
with open("/proc/self/maps") as maps, open(sys.argv[3], "w") as out:
    json.dump([seconds, maps.read()], out)
"""


def run(python: str, folder: Path, program: Path, work: Path) -> tuple[float, Counter[str]]:
    """Processor seconds, and mappings by the name of a file."""
    out = work / "out.json"
    subprocess.run(
        [python, "-S", "-c", RUN, str(folder), str(program), str(out)], check=True, stdout=subprocess.DEVNULL
    )
    seconds, maps = json.loads(out.read_text())
    owners, owner, reached = Counter[str](), "", ""
    for line in maps.splitlines():
        fields = line.split(None, 5)
        start, end = fields[0].split("-")
        named = fields[5] if len(fields) > 5 else ""
        if named or start != reached:
            owner = re.sub(r"-[0-9a-f]{8}\.ttpack$", "", Path(named).name) or "without a name"
        owners[owner] += 1
        reached = end
    return seconds, owners


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="the stock one first")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    runs: dict[Path, list[tuple[float, Counter[str]]]] = {folder: [] for folder in options.folders}
    with tempfile.TemporaryDirectory(prefix="mappings-") as work:
        program = options.program or Path(work, "program.py")
        if not options.program:
            program.write_text("import torch\n")
        for _ in range(options.rounds):
            for folder, rows in runs.items():
                rows.append(run(options.python, folder.resolve(), program, Path(work)))
    before = runs[options.folders[0]][0][1]
    for folder, rows in runs.items():
        counts = [count.total() for _, count in rows]
        times = [seconds * 1000 for seconds, _ in rows]
        said = f"median {statistics.median(times):.0f}, least {min(times):.0f} ms of processor time"
        print(f"{folder}: {min(counts)} to {max(counts)} mappings, {said}")
        after = rows[0][1]
        names = sorted(before | after, key=lambda name: before[name] - after[name])
        print("".join(f"  {before[n]:3} -> {after[n]:3}  {n}\n" for n in names if before[n] != after[n]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long each file of a build took, from ninja's log: `tools/trixie/times.py FOLDER` prints a table, `--files` all.

FOLDER is the system that setup.sh created. Needs torchtailor, which knows the kinds of files.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from torchtailor.building.source.ninja import Timing, edges, read_log
from torchtailor.building.source.tables import FileKind, load_tables


def timings(build: Path) -> list[tuple[FileKind, Timing]]:
    """What was compiled or linked, the longest first."""
    log = read_log(build)
    made = [(kind, log[output]) for output, kind in edges(build, load_tables()).items() if output in log]
    return sorted(made, key=lambda row: -row[1].seconds)


def table(made: list[tuple[FileKind, Timing]]) -> list[str]:
    kinds: dict[str, list[float]] = {}
    for kind, timing in made:
        kinds.setdefault(kind.name, []).append(timing.seconds)
    lines = ["| kind | files | mean, s | longest, s | core-minutes |", "|---|---|---|---|---|"]
    for name, seconds in sorted(kinds.items(), key=lambda item: -sum(item[1])):
        mean, total = statistics.fmean(seconds), sum(seconds) / 60
        lines.append(f"| {name} | {len(seconds)} | {mean:.1f} | {max(seconds):.0f} | {total:.1f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the system that setup.sh created")
    parser.add_argument("--files", action="store_true", help="every file, separated by tabs")
    options = parser.parse_args()
    builds = sorted(options.folder.glob("work/cache/source/builds/*/src/build"), key=lambda one: one.stat().st_mtime)
    if not builds:
        sys.exit(f"There is no build in {options.folder}: run tools/trixie/build.sh first.")
    made = timings(builds[-1])
    if options.files:
        print("seconds\tkind\toutput")
        print("\n".join(f"{timing.seconds:.1f}\t{kind.name}\t{timing.output}" for kind, timing in made))
    else:
        print("\n".join(table(made)))


if __name__ == "__main__":
    main()

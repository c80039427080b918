"""The command: `python -m tests.torture`."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time

from tests.torture.events import EVENTS
from tests.torture.harness import Row, Torture, run_at_once, table
from tests.torture.inputs import INPUTS
from tests.torture.pages import Pages
from tests.torture.values import Values

LONG = (50_000, 200)  # mutants of libraries, kills
SHORT = (40, 2)


def plan(cases: int, kills: int) -> list[tuple[Torture, int]]:
    """Each class, and how many cases of it: the libraries together make the number of cases, the rest comes on top."""
    of_inputs: tuple[type[Torture], ...] = (*INPUTS, Pages, Values)
    inputs = [(one(), max(5, round(cases * one.share))) for one in of_inputs]
    events = [(one(), kills if one.name == "kills" else max(2, kills // 4)) for one in EVENTS]
    return [*inputs, *events]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--cases", type=int, default=None, help="mutants of libraries; others come on top")
    parser.add_argument("--kills", type=int, default=None)
    parser.add_argument("--only", default="", help="one class")
    parser.add_argument("--case", type=int, default=None, help="one case of it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    standard = SHORT if options.short else LONG
    seed = secrets.randbits(32) if options.seed is None else options.seed
    cases = standard[0] if options.cases is None else options.cases
    kills = standard[1] if options.kills is None else options.kills
    print(f"seed {seed}, {cases} mutants, {kills} kills", flush=True)
    began = time.monotonic()
    rows: list[Row] = []
    for torture, number in plan(cases, kills):
        if options.only in ("", torture.name):
            wanted = range(number) if options.case is None else [options.case]
            row = run_at_once(torture, seed, wanted, options.jobs)
            rows.append(row)
            print(f"{row.name}: {row.tries} in {row.seconds:.0f} s", file=sys.stderr, flush=True)
            for failure in row.failures[:20]:
                print(f"  {failure}", file=sys.stderr, flush=True)
    print(table(rows))
    print(f"{time.monotonic() - began:.0f} seconds on {os.cpu_count()} cores")
    return 1 if any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

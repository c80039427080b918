"""Verifies official wheels as they are and as `tailor` cuts them, with no options: all of them must pass.

    python tools/verify_wheels.py --gpu 9.0 WHEEL|FOLDER ...

Each wheel is verified, cut with --nvidia into a temporary folder, and what came out is verified too. A line for each,
and exit status 1 where one fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from torchtailor.core.errors import TorchtailorError
from torchtailor.tailoring.inputs import tailor
from torchtailor.trees.wheels.name import wheels_in
from torchtailor.verification.result import CheckOutcome, VerifyReport
from torchtailor.verification.verify import verify


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="wheels, or folders of wheels")
    parser.add_argument("--gpu", default="9.0", help="what the wheels are cut for")
    parser.add_argument("--stock-only", action="store_true", help="do not cut")
    options = parser.parse_args()
    wrong = 0
    wheels = [wheel for path in options.paths for wheel in (wheels_in(path) if path.is_dir() else (path,))]
    for wheel in wheels:
        for form, report, seconds in verified(wheel, options.gpu, cut=not options.stock_only):
            wrong += not report.passed
            verdict = "pass" if report.passed else "FAIL"
            counts = f"{report.count(CheckOutcome.PASS)} pass, {report.count(CheckOutcome.NOT_APPLICABLE)} n/a"
            print(f"{verdict}  {form:9}  {counts:16}  {seconds:5.0f} s  {wheel.name}", flush=True)
            for check in report.failures:
                print(f"      {check.name}: {check.reason}", flush=True)
    print(f"{len(wheels)} wheels, {wrong} failures")
    return 1 if wrong else 0


def verified(wheel: Path, gpu: str, *, cut: bool) -> Iterator[tuple[str, VerifyReport, float]]:
    """The reports of a wheel and of its cut."""
    started = time.monotonic()
    yield "stock", verify(wheel), time.monotonic() - started
    if not cut:
        return
    with tempfile.TemporaryDirectory(prefix="torchtailor-verify-") as folder:
        try:
            tailor(wheel, gpus=gpu, nvidia=True, output=folder)
        except TorchtailorError as error:  # a wheel without code for this GPU is not written
            print(f"n/a   cut        {error.message}", flush=True)
            return
        for made in wheels_in(Path(folder)):
            started = time.monotonic()
            form = "cut" if "+" in made.name else "unchanged"
            yield form, verify(made), time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())

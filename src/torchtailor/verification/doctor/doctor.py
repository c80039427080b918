"""The examination of one environment, from collecting the facts to the report."""

from __future__ import annotations

from pathlib import Path

from torchtailor.catalog import Catalog, load_catalog
from torchtailor.verification.doctor.collect import described_environment, local_environment, read_message
from torchtailor.verification.doctor.examine import DoctorReport, examine


def doctor(
    message: str = "",
    *,
    environment: Path | None = None,
    machine: Path | None = None,
    run: bool = True,
    catalog: Catalog | None = None,
) -> DoctorReport:
    """Find out why torch does not run.

    `message` is what was seen, or the path of a file that holds it; without one, torch is imported and runs one kernel
    (unless `run` is false). `environment` is by default the active one; `machine` is the description of another
    machine, written by `torchtailor detect --json`: its own torch is examined, or that of `environment`.
    """
    catalog = catalog or load_catalog()
    text = read_message(message)
    if machine is not None:
        examined = described_environment(machine, catalog, environment, text)
    else:
        examined = local_environment(catalog, environment, text, run=run and not text)
    return examine(examined, catalog)

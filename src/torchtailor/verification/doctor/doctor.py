"""The examination of one environment, from collecting the facts to the report."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from torchtailor.catalog import Catalog, load_catalog
from torchtailor.verification.doctor.collect import described_environment, local_environment, open_message
from torchtailor.verification.doctor.examine import DoctorReport, examine, explain_log
from torchtailor.verification.failures import diagnose


def doctor(
    message: str | IO[bytes] = "",
    *,
    environment: Path | str | None = None,
    machine: Path | str | None = None,
    run: bool = True,
    catalog: Catalog | None = None,
) -> DoctorReport:
    """Find out why torch does not run, or why a build failed.

    `message` is what was seen, the path of a log that holds it, or an open log; without one, torch is imported and runs
    one kernel (unless `run` is false). `environment` is by default the active one; `machine` is the description of
    another machine, written by `torchtailor detect --json`: its own torch is examined, or that of `environment`.
    """
    seen = None
    if message:
        stream, is_log = open_message(message) if isinstance(message, str) else (message, True)
        with stream:
            seen = diagnose(stream)
        if (is_log or not seen.clean) and (report := explain_log(seen)) is not None:
            return report
    catalog = catalog or load_catalog()
    place = Path(environment) if environment is not None else None
    if machine is not None:
        return examine(described_environment(Path(machine), catalog, place, seen), catalog)
    return examine(local_environment(catalog, place, seen, run=run and seen is None), catalog)

"""Lies that a worker can tell that has the secret of the store: what it signs is not what the job gives.

Run as a worker's sitecustomize; TORCHTAILOR_LIE names the lie. Its code is that of every other worker.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

LIE = "TORCHTAILOR_LIE"


def tell() -> None:
    """Replace how this process says what a job gave."""
    import msgspec

    from torchtailor.building.farm.records import FarmFile, JobRecord
    from torchtailor.building.farm.store import FarmStore

    earlier: dict[str, list[JobRecord]] = {}
    real = FarmStore.finish

    def other_bytes(store: FarmStore, file: FarmFile) -> FarmFile:
        with tempfile.NamedTemporaryFile() as other:
            other.write(b"of somebody else")
            other.flush()
            return store.put(Path(other.name), file.path)

    def finish(store: FarmStore, key: str, record: JobRecord) -> None:
        wheels = [file for file in record.files if file.path.endswith(".whl")]
        kind, _, what = os.environ[LIE].partition(" ")
        if record.kind == kind and wheels:
            old = earlier.setdefault(kind, [])
            old.append(record)
            match what:
                case "has other bytes":
                    files = [other_bytes(store, file) if file == wheels[0] else file for file in record.files]
                    record = msgspec.structs.replace(record, files=tuple(files))
                case "has another hash":
                    files = [
                        FarmFile(file.path, "0" * 64, file.size) if file == wheels[0] else file for file in record.files
                    ]
                    record = msgspec.structs.replace(record, files=tuple(files))
                case "is an earlier one":
                    record = old[0]
        real(store, key, record)

    FarmStore.finish = finish  # type: ignore[method-assign,assignment]


if os.environ.get(LIE):
    tell()

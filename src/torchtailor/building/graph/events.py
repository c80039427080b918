"""What happens on a farm, as it happens; for the live table, the ledger and scripts."""

from __future__ import annotations

from enum import Enum

import msgspec

from torchtailor.core.shapes import shaped


class JobOutcome(msgspec.Struct, frozen=True):
    """How a job ended on its worker; it is sent back as JSON, errors too."""

    done: bool
    worker: str = ""
    seconds: float = 0.0
    cached: bool = False  # all it should make was there
    hits: int = 0  # files that were not compiled, cut or fetched again
    misses: int = 0
    downloaded: int = 0
    error_class: str = ""
    error: str = ""
    hint: str = ""
    code: int = 0
    missing: str = ""  # the key of an input that the store has lost
    failure: str = ""  # what `torchtailor doctor` calls it
    log: str = ""  # the last lines of what it printed, or the traceback
    log_path: str = ""  # of the whole log, on the worker


def decode_outcome(data: bytes) -> JobOutcome:
    """What a worker sent back."""
    return msgspec.json.decode(data, type=shaped(JobOutcome))


class EventKind(Enum):
    """What happened."""

    DASHBOARD = "dashboard"  # the cluster has a page of its own
    UNPROTECTED = "unprotected"  # others can use the cluster
    DISTRUSTED = "outputs-distrusted"  # the store has outputs that somebody else wrote
    WORKER_JOINED = "worker-joined"
    WORKER_REFUSED = "worker-refused"
    WORKER_SILENT = "worker-silent"  # it has not answered yet
    WORKER_LOST = "worker-lost"
    WORKER_SET_ASIDE = "worker-set-aside"
    WAITING = "waiting-for-workers"  # nobody can run what is left; `seconds` until the run ends for that
    JOB_STARTED = "job-started"
    JOB_DONE = "job-done"
    JOB_AGAIN = "job-again"  # it failed once, or its worker was lost
    JOB_FAILED = "job-failed"


class FarmEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened, and where the farm stands after it."""

    kind: EventKind
    time: float  # seconds since the start
    worker: str = ""
    job: str = ""  # its label
    key: str = ""
    text: str = ""  # why, in a sentence
    seconds: float = 0.0
    hits: int = 0
    misses: int = 0
    standing: dict[str, int] = {}  # jobs done, running, waiting, failed

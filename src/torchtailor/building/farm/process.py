"""The engine of one process: one job after another, on this machine; no cluster is needed."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from torchtailor.building.farm.drive import JobNews, WorkerNews
from torchtailor.building.farm.events import EventKind, JobOutcome
from torchtailor.building.farm.fingerprint import describe_worker
from torchtailor.building.farm.graph import GraphJob
from torchtailor.building.farm.perform import WorkerSetup, perform_sent
from torchtailor.building.farm.policy import THIS_PROCESS, FarmWorker
from torchtailor.building.wheel_jobs import encode_job


class InProcess:
    """Runs jobs in this process, through the same JSON that a cluster's workers get."""

    patience: float = 5.0

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = msgspec.json.encode(setup)
        self._worker = FarmWorker(THIS_PROCESS, here=True, machine=platform.machine())
        self._news: list[WorkerNews | JobNews] = [WorkerNews(self._worker, EventKind.WORKER_JOINED)]
        self._began = time.monotonic()
        self._started: GraphJob | None = None
        self.known: tuple[FarmWorker, ...] = ()

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, job: GraphJob, worker: FarmWorker) -> None:
        self._started = job

    def drop(self, name: str) -> None:
        pass

    def end_worker(self, worker: FarmWorker) -> None:
        pass

    def wait(self, timeout: float) -> list[WorkerNews | JobNews]:
        if self._started is not None:
            job, self._started = self._started, None
            outcome = msgspec.json.decode(perform_sent(encode_job(job.job), self._setup), type=JobOutcome)
            self._news.append(JobNews(job.name, outcome))
        news, self._news = self._news, []
        self.known = (self._worker,)
        return news

    @property
    def time(self) -> float:
        return time.monotonic() - self._began

    @property
    def dashboard(self) -> str:
        return ""

    @property
    def warning(self) -> str:
        return ""

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        return {THIS_PROCESS: describe_worker()}

"""`farm check`: starts one worker and says what it is, what it reaches, and what it can build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchtailor.farm.drive import WorkerNews
from torchtailor.farm.events import EventKind
from torchtailor.farm.fingerprint import describe_worker
from torchtailor.farm.perform import WorkerSetup
from torchtailor.farm.store import absolute_store
from torchtailor.farm.where import PlaceKind, Where, check_answers, started

_PATIENCE = 300.0  # seconds for a queue to start one worker


@dataclass(frozen=True)
class WorkerCheck:
    """What one worker is."""

    worker: str
    usable: bool
    why: str  # it is not
    facts: Mapping[str, Any]

    @property
    def builds(self) -> tuple[str, ...]:
        """The methods that it has the tools for."""
        if not self.usable:
            return ()
        found = ["wheel"]
        if self.facts.get("compiler"):
            found.append("source")
        if self.facts.get("nix"):
            found.append("nix")
        return tuple(found)

    def to_json(self) -> dict[str, object]:
        return {
            "worker": self.worker,
            "usable": self.usable,
            "why": self.why,
            "builds": list(self.builds),
            "facts": dict(self.facts),
        }


def check_farm(where: Where, *, store: str | None = None, patience: float = _PATIENCE) -> tuple[WorkerCheck, ...]:
    """The workers of a place; of a cluster that Dask starts, one is started."""
    check_answers(where)
    setup = WorkerSetup(absolute_store(store or where.store))
    if where.kind is PlaceKind.PROCESS:
        return (WorkerCheck("this process", True, "", describe_worker()),)
    with started(where, setup) as engine:
        found: dict[str, WorkerCheck] = {}
        while not found and engine.time < patience:
            for news in engine.wait(1.0):
                if not isinstance(news, WorkerNews) or not news.worker.helps:
                    continue
                usable = news.kind is EventKind.WORKER_JOINED
                facts = engine.facts.get(news.worker.name, {})
                found[news.worker.name] = WorkerCheck(news.worker.name, usable, news.text, facts)
        return tuple(found.values())

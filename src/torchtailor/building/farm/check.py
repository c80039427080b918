"""`farm check`: starts one worker and says what it is, what it reaches, and what it can build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta

from torchtailor.building.farm.fingerprint import describe_worker
from torchtailor.building.farm.perform import WorkerSetup
from torchtailor.building.farm.store import open_farm_store
from torchtailor.building.farm.where import PlaceKind, Where, check_answers, chosen_store, started
from torchtailor.building.graph.drive import WorkerNews
from torchtailor.building.graph.events import EventKind
from torchtailor.building.graph.policy import THIS_PROCESS
from torchtailor.building.source.ccache import remote_storage
from torchtailor.building.source.objects import why_unreachable
from torchtailor.core.format import human_seconds
from torchtailor.core.urls import redact


@dataclass(frozen=True)
class WorkerCheck:
    """What one worker is."""

    worker: str
    usable: bool
    why: Annotated[str, Meta(description="why it is not usable")]
    builds: Annotated[tuple[str, ...], Meta(description="the build methods that it has the tools for")]
    facts: Annotated[
        Mapping[str, Any], Meta(description="host, version, python, glibc, compiler, cores, memory, disk_free, ...")
    ]

    @classmethod
    def of(cls, worker: str, usable: bool, why: str, facts: Mapping[str, Any]) -> WorkerCheck:
        tools = {"wheel": True, "source": facts.get("compiler"), "nix": facts.get("nix")}
        return cls(worker, usable, why, tuple(name for name, there in tools.items() if usable and there), facts)


@dataclass(frozen=True)
class FarmCheck:
    """A place: its workers, and what they share."""

    on: str
    store: str  # as it is shown, like `objects`, without passwords
    objects: Annotated[str, Meta(description="where compiled files are shared; empty: nowhere was named")]
    warning: Annotated[str, Meta(description="who can use the cluster without keys; empty: nobody on other machines")]
    workers: tuple[WorkerCheck, ...]


def check_farm(
    where: Where,
    *,
    store: str | None = None,
    objects: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> FarmCheck:
    """The workers of a place, of a cluster that Dask starts one; a store that cannot be used is an error."""
    shared = objects or where.settings.objects
    if shared:
        remote_storage(shared)
    chosen = chosen_store(where, store)
    check_answers(where)
    setup = WorkerSetup(chosen, objects=shared)
    opened = open_farm_store(setup.store)
    opened.check_writable()
    if where.kind.is_remote:
        say(f"Waiting for a worker of {where.name}, {human_seconds(where.patience)} at most ...")
    warning, workers = ("", _this_process(setup)) if where.kind is PlaceKind.PROCESS else _workers(where, setup, say)
    if warning:
        say(f"warning: {warning}")
    return FarmCheck(where.name, opened.shown, redact(shared), warning, workers)


def _this_process(setup: WorkerSetup) -> tuple[WorkerCheck, ...]:
    why = why_unreachable(setup.objects) if setup.objects else ""
    said = f"{why[0].upper()}{why[1:]} Start it, or give another place with --objects." if why else ""
    return (WorkerCheck.of(THIS_PROCESS, not why, said, describe_worker()),)


def _workers(where: Where, setup: WorkerSetup, say: Callable[[str], None]) -> tuple[str, tuple[WorkerCheck, ...]]:
    """Who else can use the place, and the first workers that come."""
    wanted = replace(where, workers=1) if where.kind is PlaceKind.CLUSTER else where
    with started(wanted, setup) as engine:
        found: dict[str, WorkerCheck] = {}
        while not found and engine.time < where.patience:
            for news in engine.wait(1.0):
                if not isinstance(news, WorkerNews) or not news.worker.helps:
                    continue
                if news.kind is EventKind.WORKER_SILENT:
                    say(news.text)
                    continue
                usable = news.kind is EventKind.WORKER_JOINED
                facts = engine.facts.get(news.worker.name, {})
                found[news.worker.name] = WorkerCheck.of(news.worker.name, usable, news.text, facts)
        return engine.warning, tuple(found.values())

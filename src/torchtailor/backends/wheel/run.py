"""Carries out a plan: fetch all inputs once, cut each for each GPU once, leave a wheelhouse per variant."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from torchtailor.backends.wheel.cut import Cut, Cutter
from torchtailor.backends.wheel.plan import BuildPlan, Input, Treatment, VariantPlan
from torchtailor.catalog import Capability, Catalog, Method
from torchtailor.disk import disk_errors
from torchtailor.errors import ImpossibleError
from torchtailor.fetch.download import Downloader, DownloadProgress, Fetched, NoDownloadProgress
from torchtailor.fetch.finder import Finder
from torchtailor.ledger.ledger import Ledger, Running
from torchtailor.ledger.rates import CUT_KEY, FETCH_KEY
from torchtailor.progress import NoProgress, Progress
from torchtailor.wheelhouse.variants_index import write_variants_index
from torchtailor.wheelhouse.wheelhouse import Placed, Wheelhouse, write_wheelhouse


class BuildProgress(DownloadProgress, Progress, Protocol):
    """Is told how a build goes on."""

    def stage(self, text: str) -> None: ...


class NoBuildProgress(NoDownloadProgress, NoProgress):
    """Progress of a build that nobody watches."""

    def stage(self, text: str) -> None:
        pass


@dataclass(frozen=True)
class Built:
    """What a build gave."""

    wheelhouses: tuple[Wheelhouse, ...]
    variants: Path | None  # the index of wheel variants, where it was asked for
    downloaded: int
    seconds: float

    def to_json(self) -> dict[str, object]:
        return {
            "wheelhouses": [house.to_json() for house in self.wheelhouses],
            "variants_index": str(self.variants) if self.variants else None,
            "downloaded": self.downloaded,
            "seconds": round(self.seconds, 2),
        }


def build(
    plan: BuildPlan,
    catalog: Catalog,
    finder: Finder,
    *,
    progress: BuildProgress | None = None,
    ledger: Ledger | None = None,
) -> Built:
    """Make every variant of a plan; each is in the ledger, and in its place only when it is whole."""
    progress = progress or NoBuildProgress()
    began = time.monotonic()
    ledger = ledger or Ledger()
    with ExitStack() as attempts:
        running, ended = {}, {}
        for item in plan.plans:
            ended[item.name] = attempts.enter_context(ExitStack())
            attempt = ledger.attempt(
                item.name, Method.WHEEL, options=plan.options.to_json(), configuration=_configuration(item)
            )
            running[item.name] = ended[item.name].enter_context(attempt)
        work = _Work(plan, Cutter(catalog, finder.cache, plan.options), progress, running)
        fetched = work.fetch(Downloader(finder.client, finder.cache))
        work.cut(fetched)
        houses = []
        for item in plan.plans:
            houses.append(work.make(item, fetched))
            ended[item.name].close()  # this one is done, whatever becomes of the next
        variants = work.variants_index() if plan.options.variants else None
    downloaded = sum(item.downloaded for item in fetched.values())
    return Built(tuple(houses), variants, downloaded, time.monotonic() - began)


def _configuration(plan: VariantPlan) -> dict[str, object]:
    return {"torch": str(plan.variant.release.version), "build": plan.label, "python": plan.variant.python}


class _Work:
    """One run through a plan; cuts that several variants share are made once."""

    def __init__(self, plan: BuildPlan, cutter: Cutter, progress: BuildProgress, running: dict[str, Running]) -> None:
        self._plan, self._cutter, self._progress, self._running = plan, cutter, progress, running
        self._cuts: dict[tuple[str, Capability], Cut] = {}
        self._made: list[tuple[VariantPlan, list[Placed]]] = []

    def fetch(self, downloader: Downloader) -> dict[str, Fetched]:
        self._say("fetch", f"Fetching {len(self._plan.files)} wheels")
        began = time.monotonic()
        with disk_errors(self._cutter.folder, unchanged="What was fetched so far is kept."):
            fetched = downloader.fetch(self._plan.files, self._progress)
        seconds = time.monotonic() - began
        downloaded = sum(item.downloaded for item in fetched.values())
        if downloaded > 10_000_000:
            for running in self._running.values():
                running.configuration[FETCH_KEY] = round(downloaded / seconds)
        return fetched

    def make(self, plan: VariantPlan, fetched: dict[str, Fetched]) -> Wheelhouse:
        placed = [self._place(plan, item, fetched[item.file.url]) for item in plan.inputs]
        self._made.append((plan, placed))
        self._say("wheelhouse", f"Writing {plan.name}", plan.name)
        with disk_errors(self._plan.out, unchanged="What was there before is as it was."):
            house = write_wheelhouse(plan, placed, self._plan.options, self._plan.out)
        running = self._running[plan.name]
        running.input_bytes, running.output_bytes = house.input_bytes, house.output_bytes
        running.stage = ""
        return house

    def variants_index(self) -> Path:
        self._progress.stage("Writing the index of wheel variants")
        with disk_errors(self._plan.out, unchanged="What was there before is as it was."):
            return write_variants_index(self._made, self._plan.out)

    def cut(self, fetched: dict[str, Fetched]) -> None:
        """Cut every input for all GPUs that ask for it, in one pass over it."""
        wanted: dict[str, tuple[Input, dict[Capability, None]]] = {}
        for plan in self._plan.plans:
            for item in plan.inputs:
                if item.treatment is Treatment.CUT and plan.variant.gpu:
                    wanted.setdefault(item.file.url, (item, {}))[1][plan.variant.gpu.capability] = None
        began, size = time.monotonic(), 0
        for url, (item, gpus) in wanted.items():
            making = partial(self._say_cutting, item.name)
            with disk_errors(self._cutter.folder, unchanged="The wheels that were fetched are kept."):
                cuts = self._cutter.cut(fetched[url], tuple(gpus), self._progress, making)
            self._cuts |= {(url, gpu): cut for gpu, cut in cuts.items()}
            size += sum(item.size for cut in cuts.values() if not cut.from_cache)
        if size > 10_000_000:
            for running in self._running.values():
                running.configuration[CUT_KEY] = round(size / (time.monotonic() - began))

    def _say_cutting(self, name: str, gpus: Sequence[Capability]) -> None:
        self._say("cut", f"Cutting {name} for {', '.join(map(str, gpus))}")

    def _place(self, plan: VariantPlan, item: Input, stock: Fetched) -> Placed:
        if item.treatment is not Treatment.CUT or plan.variant.gpu is None:
            return Placed(item, stock, None)
        gpu = plan.variant.gpu.capability
        if (item.file.url, gpu) not in self._cuts:
            raise ImpossibleError(
                f"{item.file.filename} holds GPU code, and none of it runs on {gpu}.",
                "Choose another release, or build it with --via source.",
            )
        return Placed(item, stock, self._cuts[item.file.url, gpu])

    def _say(self, stage: str, text: str, name: str | None = None) -> None:
        for key, running in self._running.items():
            if name is None or key == name:
                running.stage = stage
        self._progress.stage(text)

"""Several publishers at once, some of them killed: every change that was made is a generation, and none is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

from tests.torture.harness import Torture
from tests.torture.inputs import check_index
from tests.torture.stores import served
from tests.unit.building.conftest import Workshop

VARIANTS = ("sm80-avx2", "sm90-avx512", "sm100-avx2")


class Publishers(Torture):
    """Processes with a folder, threads with an object store; one of the processes may be killed."""

    name = "publishers"

    def prepare(self, folder: Path) -> None:
        from tests.catalogs import load_pinned
        from torchtailor.core import store

        store._TURN = 0.01
        self._serving = served()
        shop = Workshop(next(self._serving), load_pinned(Path("/")), folder)
        self.dists = []
        for name in VARIANTS:
            shop.out = folder / name
            shop.build(name)
            self.dists.append(shop.out)
        self.cases = 0

    def attempt(self, dice: random.Random, folder: Path) -> str:
        from torchtailor.core.store import FolderStore, RemoteStore
        from torchtailor.publish import lifecycle

        self.cases += 1
        local = dice.random() < 0.5
        public = folder / "public"
        shutil.rmtree(public, ignore_errors=True)
        where = f"memory://{os.getpid()}-{self.cases}"

        def publish(dist: Path, pause: float) -> None:
            time.sleep(pause)
            lifecycle.publish_recorded(dist, FolderStore(public) if local else RemoteStore(where))

        begun = [(dist, dice.choice((0.0, 0.0, 0.01, 0.05))) for dist in dice.sample(self.dists, dice.choice((2, 3)))]
        killed = local and dice.random() < 0.3
        if local:
            self._processes(publish, begun, dice.uniform(0.05, 0.5) if killed else 0.0)
        else:
            threads = [threading.Thread(target=publish, args=one) for one in begun]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        store = FolderStore(public) if local else RemoteStore(where)
        if killed:
            publish(begun[0][0], 0.0)
        listing = lifecycle.list_index(store)
        numbers = [one.number for one in listing.generations]
        assert numbers == [*range(1, len(numbers) + 1)], numbers
        assert listing.generations[-1].pages == listing.pages, "the last generation is not the index"
        actions = [one.action for one in listing.generations]
        assert len(listing.pages) == len(begun), f"{[*listing.pages]} of {len(begun)} are there"
        assert killed or len({*actions}) == len(begun), f"{len(begun)} publishers, and {actions}"
        if local:
            check_index(public)
        return f"{'folder' if local else 'object store'}{', killed' if killed else ''}"

    @staticmethod
    def _processes(publish: object, begun: list[tuple[Path, float]], kill_after: float) -> None:
        from tests.torture.events import OK, ended, spawn

        children = [spawn(lambda one=one: publish(*one)) for one in begun]  # type: ignore[misc, operator]
        if kill_after:
            time.sleep(kill_after)
            os.kill(children[0], signal.SIGKILL)
        codes = [ended(child) for child in children]
        assert all(code == OK for code in codes[bool(kill_after) :]), codes

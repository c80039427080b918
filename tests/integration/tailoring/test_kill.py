"""Killed at any moment, an environment is whole: every file is stock or cut, and the next run sets the rest right."""

from __future__ import annotations

import gc
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.killing import die_at
from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.core import processes
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.restore import restore_environment
from torchtailor.trees.wheels.record import Record

MOST_STEPS = 80  # of the main process, with workers
FIXTURES = Path(__file__).parents[2] / "unit" / "gpucode" / "fixtures"


class World:
    """An environment, and what it is before and after a cut."""

    def __init__(self, folder: Path) -> None:
        fat = (FIXTURES / "raw.so").read_bytes()
        self.site = folder / "env" / "lib" / "python3.13" / "site-packages"
        for name in ("one", "two"):
            files = {f"{name}/lib{number}.so": fat + bytes(8 * number) for number in range(2)}
            install(build_wheel(folder, {**files, f"{name}/__init__.py": b""}, name=name), self.site)
        self.spare = folder / "spare"
        shutil.copytree(self.site, self.spare)
        self.stock = tree(self.site)
        self.tailor()
        self.cut = self.seen()
        self.restore()
        assert tree(self.site) == self.stock

    def tailor(self) -> None:
        tailor_environment(self.site, options(keep_removed=True))

    def restore(self) -> None:
        restore_environment(self.site)

    def reset(self, *, cut: bool) -> None:
        shutil.rmtree(self.site)
        shutil.copytree(self.spare, self.site)
        if cut:
            self.tailor()

    def seen(self) -> dict[str, str]:
        """The environment without our own folder."""
        return {name: digest for name, digest in tree(self.site).items() if not name.startswith(".torchtailor/")}

    def check_whole(self) -> None:
        """What must hold right after a kill."""
        now = self.seen()
        assert set(self.stock) <= set(now), "a file is gone"
        assert set(now) - set(self.stock) <= set(self.cut), "a file is left"
        for name, digest in now.items():
            if name.endswith("/RECORD"):
                self.check_readable(self.site / name)
            elif not name.endswith("/torchtailor.json"):
                assert digest in (self.stock[name], self.cut[name]), f"{name} is neither stock nor cut"

    def check_readable(self, record: Path) -> None:
        """A RECORD may be behind, but it is whole, and each of its hashes was right at some time."""
        for row in Record.parse(record.read_bytes()):
            if row.hash and not row.path.endswith("/torchtailor.json"):
                assert row.hash.digest.hex() in (self.stock[row.path], self.cut[row.path])

    def check_settled(self, *, cut: bool) -> None:
        """What must hold after a run that ended well."""
        check_records(self.site)
        assert self.seen() == (self.cut if cut else self.stock)
        if not cut:
            assert not (self.site / ".torchtailor").exists()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def in_child(action: Callable[[], None], *, before: Callable[[], object]) -> int:
    """Fork, run the action there, and return the child's process id."""
    child = os.fork()
    if child == 0:
        try:
            gc.disable()
            before()
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child


def kill_at_every_step(world: World, action: Callable[[], None], *, cut: bool, stride: int) -> int:
    """Kill at step 1, 1 + stride, ... until the action comes to its end; each time look, then finish."""
    step, rounds = 1, 0
    while True:
        world.reset(cut=cut)
        _, status = os.waitpid(in_child(action, before=partial(die_at, step)), 0)
        world.check_whole()
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0
            world.check_settled(cut=not cut)
            return rounds
        goes_on = rounds % 2 == 0
        world.tailor() if goes_on else world.restore()
        world.check_settled(cut=goes_on)
        step += stride
        rounds += 1


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_step_of_tailor(world: World, stride: int) -> None:
    assert kill_at_every_step(world, world.tailor, cut=False, stride=stride) > 60 // stride


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_step_of_restore(world: World, stride: int) -> None:
    assert kill_at_every_step(world, world.restore, cut=True, stride=stride) > 30 // stride


@pytest.mark.parametrize("rounds", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_random_kills_with_workers(world: World, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the main process at random steps, often several times in a row; its workers must die with it."""
    monkeypatch.setattr(processes, "_WORTH_PROCESSES", 1)
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kills = done = 0
    while done < rounds or (kills <= rounds // 10 and done < 10 * rounds):  # one with nothing to do is over too soon
        done += 1
        action = chance.choice((world.tailor, world.restore))
        child = in_child(action, before=partial(die_at, chance.randint(1, MOST_STEPS)))
        _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        world.check_whole()
        if chance.random() < 0.3:
            cut = chance.random() < 0.5
            world.tailor() if cut else world.restore()
            world.check_settled(cut=cut)
    assert kills > rounds // 10
    world.restore()
    world.check_settled(cut=False)

"""What happens meanwhile: kills, neighbours, full disks, faulty servers; afterwards all is whole, or as before."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar

from tests.torture.harness import Torture, check_error
from tests.torture.hook import HOOKED
from tests.torture.inputs import FAT, check_index
from tests.torture.intruder import ATTACKS, intrude, listening
from tests.torture.places import Places
from tests.torture.publishers import Publishers
from tests.torture.stores import STORES
from tests.unit.building.conftest import Workshop
from tests.unit.building.stack import fill
from tests.unit.fetch.serving import Fault, Site, serve
from tests.unit.surgery.checks import options
from tests.unit.surgery.libraries import library
from tests.unit.surgery.test_tailor import rich
from tests.unit.tailoring.helpers import check_records, install
from tests.unit.tailoring.helpers import options as tailor_options
from tests.unit.wheels.builder import build_wheel
from tests.waiting import wait_until
from torchtailor.building.graph.drive import WorkerNews
from torchtailor.core.errors import TorchtailorError

OK, REFUSED, WRONG = 0, 3, 70


class Work:
    """The things that are done over and over: from the same beginning, to the same end."""

    def __init__(self, folder: Path, site: Site) -> None:
        from tests.catalogs import load_pinned

        self.folder = folder
        self.catalog = load_pinned(Path("/"))
        self.server = site
        self.library = folder / "libtest.so"
        self.library.write_bytes(library(rich()))
        wheels = folder / "wheels"
        wheels.mkdir()
        files = {"torch/__init__.py": b"", "torch/lib/libx.so": FAT, "torch/lib/liby.so": FAT}
        self.stock_env, self.cut_env = folder / "stock-env", folder / "cut-env"
        install(build_wheel(wheels, files, name="torch", version="2.10.0"), self.site_of(self.stock_env))
        shutil.copytree(self.stock_env, self.cut_env)
        self._tailor_env(self.cut_env)
        self.workshop().build("sm90-avx512")
        shutil.copytree(folder / "work" / "dist", folder / "dist")
        self.ends = {name: self.state(name, folder / "work") for name in ("build",)}
        for name in self.actions:
            if name != "build":
                self.begin(name)
                self.actions[name](self)
                self.ends[name] = self.state(name, folder / "work")

    @staticmethod
    def site_of(env: Path) -> Path:
        return env / "lib/python3.13/site-packages"

    def workshop(self) -> Workshop:
        return Workshop(self.server, self.catalog, self.folder / "work")

    def begin(self, name: str) -> None:
        """Everything as it was."""
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        if name == "tailor --env":
            shutil.copytree(self.stock_env, work / "env")
        elif name == "restore":
            shutil.copytree(self.cut_env, work / "env")

    def state(self, name: str, work: Path) -> dict[str, str]:
        """What matters of the result: names and bytes."""
        place = {"tailor": "out", "build": "dist", "publish": "public"}.get(name, "env")
        return {
            str(path.relative_to(work)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((work / place).rglob("*"))
            if path.is_file() and path.name not in ("lock", ".torchtailor.lock")
        }

    def check_between(self, name: str) -> None:
        """What must be true at any moment: outputs are whole or absent, an environment works."""
        work = self.folder / "work"
        if name in ("tailor --env", "restore"):
            both = {self.digest(self.site_of(env) / "torch/lib/libx.so") for env in (self.stock_env, self.cut_env)}
            for library_ in ("libx.so", "liby.so"):
                assert self.digest(self.site_of(work / "env") / "torch/lib" / library_) in both, "a library is neither"
            return
        if name == "publish" and (work / "public").exists():
            check_index(work / "public")
        for path, digest in self.state(name, work).items():
            temporary = ".torchtailor-" in path or ".link" in path
            assert temporary or name == "publish" or self.ends[name].get(path) == digest, f"{path} is half done"

    def check_end(self, name: str) -> None:
        state = self.state(name, self.folder / "work")
        assert state == self.ends[name], (
            f"not the same: {sorted(set(state.items()) ^ set(self.ends[name].items()))[:3]}"
        )
        if name in ("tailor --env", "restore"):
            check_records(self.site_of(self.folder / "work/env"))

    @staticmethod
    def digest(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def _tailor(self) -> None:
        from torchtailor.tailoring.folder import tailor_file

        tailor_file(self.library, self.folder / "work/out/libtest.so", options("9.0"))

    def _tailor_env(self, env: Path | None = None) -> None:
        from torchtailor.tailoring.environment import tailor_environment

        site = self.site_of(env or self.folder / "work/env")
        tailor_environment(site, tailor_options(keep_removed=True, processes=1))

    def _restore(self) -> None:
        from torchtailor.tailoring.restore import restore_environment

        restore_environment(self.site_of(self.folder / "work/env"))

    def _build(self) -> None:
        self.workshop().build("sm90-avx512")

    def _publish(self) -> None:
        from torchtailor.core.store import FolderStore
        from torchtailor.fetch.cache import Cache
        from torchtailor.publish.publish import publish

        publish(self.folder / "dist", FolderStore(self.folder / "work/public"), cache=Cache(self.folder / "work/cache"))

    actions: ClassVar[dict[str, Callable[[Work], None]]] = {
        "tailor": _tailor,
        "tailor --env": _tailor_env,
        "restore": _restore,
        "build": _build,
        "publish": _publish,
    }


def spawn(action: Callable[[], None], *, file_size: int | None = None) -> int:
    """Start it in a child; what the user would be told ends it with 3, and all that nobody expects with 70."""
    child = os.fork()
    if child:
        return child
    code = WRONG
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if file_size is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
        action()
        code = OK
    except TorchtailorError as error:
        check_error(error)
        code = REFUSED
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)
    return 0


def ended(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class Event(Torture):
    """Cases that need the served stack and all kinds of work."""

    def prepare(self, folder: Path) -> None:
        self._serving = serving()
        self.work = Work(folder / "all", next(self._serving))
        self.durations: dict[str, float] = {}

    def duration(self, name: str) -> float:
        """How long it takes when nothing happens."""
        if name not in self.durations:
            self.work.begin(name)
            began = time.monotonic()
            assert ended(spawn(lambda: self.work.actions[name](self.work))) == OK
            self.durations[name] = time.monotonic() - began
        return self.durations[name]


def serving() -> Iterator[Site]:
    with serve(Site()) as running:
        (Path(os.environ["HOME"]) / "all").mkdir(exist_ok=True)
        yield fill(running)


class Kills(Event):
    """SIGKILL at a random moment, sometimes of the second run too; then the same command goes on."""

    name = "kills"

    def attempt(self, dice: random.Random, folder: Path) -> str:
        name = dice.choice([*self.work.actions])
        whole = self.duration(name)
        self.work.begin(name)
        ends = []
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            child = spawn(lambda: self.work.actions[name](self.work))
            time.sleep(dice.uniform(0, whole * 1.1))
            os.kill(child, signal.SIGKILL)
            ends.append(ended(child))
            assert ends[-1] in (OK, -signal.SIGKILL), f"ended with {ends[-1]}"
            self.work.check_between(name)
        assert ended(spawn(lambda: self.work.actions[name](self.work))) == OK, "the next run fails"
        self.work.check_end(name)
        return name


class Neighbours(Event):
    """Two or three at once on the same files, cache and index."""

    name = "at once"

    def attempt(self, dice: random.Random, folder: Path) -> str:
        name = dice.choice([*self.work.actions])
        self.work.begin(name)
        children = []
        for _ in range(dice.choice((2, 3))):
            children.append(spawn(lambda: self.work.actions[name](self.work)))
            time.sleep(dice.choice((0, 0, 0.01, 0.05)))
        codes = [ended(child) for child in children]
        allowed = (OK, REFUSED) if name in ("tailor --env", "restore") else (OK,)  # one run at a time
        assert OK in codes and all(code in allowed for code in codes), f"{name}: {codes}"
        self.work.check_end(name)
        return name


class FullDisk(Event):
    """No file may grow beyond a random size, as on a disk that is full at that moment."""

    name = "full disk"

    def attempt(self, dice: random.Random, folder: Path) -> str:
        name = dice.choice([*self.work.actions])
        self.work.begin(name)
        limit = int(2 ** dice.uniform(6, 19))
        code = ended(spawn(lambda: self.work.actions[name](self.work), file_size=limit))
        assert code in (OK, REFUSED), f"{name} with {limit} bytes: {code}"
        self.work.check_between(name)
        assert ended(spawn(lambda: self.work.actions[name](self.work))) == OK, "with space again the next run fails"
        self.work.check_end(name)
        return f"{name}{'' if code == OK else ', refused'}"


class FaultyServer(Event):
    """Some answers of the index are broken; the build ends right or is refused, and works once the server does."""

    name = "faulty server"

    def attempt(self, dice: random.Random, folder: Path) -> str:
        server = self.work.server
        self.work.begin("build")
        faults = (
            Fault(status=500), Fault(status=404), Fault(status=503, retry_after="0"),
            Fault(drop_after=dice.randrange(5)), Fault(drop_after=dice.randrange(50_000)),
            Fault(wrong_bytes=True), Fault(ignore_range=True), Fault(lie_about_range=True), Fault(other_place=True),
            Fault(short=7), Fault(extra=9),
        )  # fmt: skip
        paths = list(server.content)
        broken = {path: [dice.choice(faults) for _ in range(dice.randrange(1, 4))] for path in dice.sample(paths, 4)}
        with faulty(server, broken):
            code = ended(spawn(self._impatient))
        assert code in (OK, REFUSED), code
        self.work.check_between("build")
        assert ended(spawn(lambda: self.work.actions["build"](self.work))) == OK, "with a good server it fails"
        self.work.check_end("build")
        return "right" if code == OK else "refused"

    def _impatient(self) -> None:
        from torchtailor.fetch import client

        client._FIRST_WAIT = 0.001
        self.work.workshop().build("sm90-avx512", timeout=1.0)


class Strangers(Torture):
    """Another user tries the ports of the workers of this machine; the workers go on, and are the same."""

    name = "strangers"

    def prepare(self, folder: Path) -> None:
        from torchtailor.building.farm.perform import WorkerSetup
        from torchtailor.building.farm.where import PlaceKind, Where, started

        os.setsid()  # whose ports these are
        os.environ["PYTHONWARNINGS"] = "ignore"  # of semaphores: nothing here ends as it should
        self._started = started(Where("local:1", PlaceKind.LOCAL), WorkerSetup(str(folder / "store")))
        self.engine = self._started.__enter__()
        wait_until(lambda: self._come() or self.engine.facts, "the worker is there")

    def attempt(self, dice: random.Random, folder: Path) -> str:
        ports = listening(os.getsid(0))
        assert len(ports) == 3, f"the scheduler, a nanny and a worker listen, and {ports}"
        assert all(ip_address(address).is_loopback for address in ports.values()), ports
        attacks = dice.sample([*ATTACKS], 2)
        reached = intrude(attacks, ports)
        assert not reached, reached
        assert [news.kind for news in self._come()] == [], "workers came or went"
        return "refused"

    def _come(self) -> list[WorkerNews]:
        return [news for news in self.engine.wait(0.6) if isinstance(news, WorkerNews)]


@contextmanager
def faulty(server: Site, broken: dict[str, list[Fault]]) -> Iterator[None]:
    server.faults.update(broken)
    try:
        yield
    finally:
        server.faults.clear()


EVENTS: tuple[type[Torture], ...] = (
    Kills,
    Neighbours,
    FullDisk,
    FaultyServer,
    Strangers,
    Publishers,
    Places,
    *STORES,
    *HOOKED,
)

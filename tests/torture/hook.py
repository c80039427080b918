"""The hook in a program: forks while libraries are loaded, and folders in which another user can write."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.integration.surgery.builds import TOOLCHAINS
from tests.integration.workload.rig import FOLDER, Pack, Rig, arrival, container, entry, key_of, ticket
from tests.torture.harness import Torture

STRANGER, OWNER = 65534, 4711
STOCK = [container(entry(f"stock code {number}".encode() * 40)) for number in range(4)]
MOVED = [container(entry(f"moved code {number}".encode() * (5 + number))) for number in range(4)]
PACK = Pack({key_of(stock): moved for stock, moved in zip(STOCK, MOVED, strict=True)})
EVIL = Pack({key_of(stock): container(entry(b"a stranger's code")) for stock in STOCK})
QUIET = {"TORCHTAILOR_QUIET": "1", "TORCHTAILOR_MISSES": "none"}
NO_BINARY = "209"


class Hooked(Torture):
    """Cases with the stand-in for CUDA; without a C compiler there are none."""

    rig: Rig | None = None

    def prepare(self, folder: Path) -> None:
        tools = TOOLCHAINS[os.uname().machine]
        if tools.missing():
            return
        folder.chmod(0o755)
        (folder / "rig").mkdir()
        self.rig = Rig(tools, folder / "rig").build()
        self.rig.folder.chmod(0o1777)  # each user's program writes its log there
        codes = [ticket(stock) for stock in STOCK]
        # It needs the driver, so that a child loads no library: that may hang without us as well.
        self.library = self.rig.library(folder / "cut" / "libcode.so", codes, renamed=True, imports=True)
        PACK.write(self.library.parent / FOLDER / "a.ttpack")

    def attempt(self, dice: random.Random, folder: Path) -> str:
        return self.case(self.rig, dice, folder) if self.rig else "no C compiler"

    def case(self, rig: Rig, dice: random.Random, folder: Path) -> str:
        raise NotImplementedError


class Forks(Hooked):
    """Children that begin while other threads load and list libraries; none hangs."""

    name = "forks"

    def case(self, rig: Rig, dice: random.Random, folder: Path) -> str:
        forks = dice.randrange(20, 80)
        loads, records, preloads = dice.random() < 0.7, dice.random() < 0.5, dice.random() < 0.5
        record = folder / "record"
        shutil.rmtree(record, ignore_errors=True)
        words = [f"open={self.library}", f"storm={forks},{rig.storm()}{',library' if loads else ''}"]
        settings = {"TORCHTAILOR_RECORD": str(record)} if records else {}
        done = rig.run(*words, preload=[rig.preload] if preloads else [], variables=settings | QUIET)
        assert (done.code, done.answers, done.said) == (0, [f"{forks} forks, 0 hung, 0 wrong"], ""), done
        assert set(done.arrived) == ({arrival("library", code) for code in MOVED[:2]} if loads else set()), done.arrived
        return f"{'loading' if loads else 'opening'}{', recording' if records else ''}"


# What a stranger makes at a path in a folder that they can write to.


def evil_pack(path: Path) -> None:
    EVIL.write(path)


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o666)


def link(path: Path) -> None:
    aim = Path(f"/tmp/torture-{os.getpid()}.ttpack")
    EVIL.write(aim)
    path.symlink_to(aim)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def note(path: Path) -> None:
    path.write_text("evil-package\n6.6.6\nlibcode.so\n")


MADE: tuple[Callable[[Path], None], ...] = (evil_pack, fifo, link, device, sparse, note)
NAMES = ("a.ttpack", "0.ttpack", "z.ttpack", "torch/a.ttpack", "torch/split.txt", "evil/split.txt", "evil/x.ttpack",
         "\x1b]0;evil\x07\n.ttpack", "\u202e.ttpack", "torch", "")  # fmt: skip


def intrude(dice: random.Random, places: list[Path]) -> None:
    """As the stranger: some of it may be refused by the kernel."""
    for _ in range(dice.randrange(1, 5)):
        path = dice.choice(places) / FOLDER / dice.choice(NAMES)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o777)
        with suppress(OSError):
            if dice.random() < 0.3 and path.is_file():
                os.truncate(path, dice.randrange(2000))
            else:
                path.unlink(missing_ok=True)
                dice.choice(MADE)(path)
        with suppress(OSError):
            path.chmod(dice.choice((0o644, 0o666, 0o000, 0o4755)))


@contextmanager
def stranger(dice: random.Random, places: list[Path], *, goes_on: bool) -> Iterator[None]:
    """Another user's process, which has done its work when this begins, or goes on meanwhile."""
    child = os.fork()
    if not child:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.setgroups([])
            os.setresgid(STRANGER, STRANGER, STRANGER)
            os.setresuid(STRANGER, STRANGER, STRANGER)
            os.umask(0)
            intrude(dice, places)
            while goes_on:
                intrude(dice, places)
        finally:
            os._exit(0)
    if not goes_on:
        os.waitpid(child, 0)
    try:
        yield
    finally:
        if goes_on:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


class Folders(Hooked):
    """Packs and notes of a stranger around a library; what its owner put there is used, and nothing else."""

    name = "strangers' packs"

    def case(self, rig: Rig, dice: random.Random, folder: Path) -> str:
        if os.geteuid():
            return "not root: no other user"
        base = folder / "shared"
        shutil.rmtree(base, ignore_errors=True)
        library = base / "env" / "lib" / "libcode.so"
        library.parent.mkdir(parents=True)
        shutil.copy(self.library, library)
        own = [library.parent, library.parent.parent, base]
        careful = dice.random() < 0.6  # the pack lies where nobody else can write
        pack = PACK.write(own[0 if careful else dice.randrange(3)] / FOLDER / "torch" / "a.ttpack")
        owner = dice.choice((0, OWNER))
        for path in (base, *base.rglob("*")):
            os.chown(path, owner, owner)
        base.chmod(dice.choice((0o777, 0o1777, 0o755)))
        if not careful:
            for path in (pack, pack.parent, pack.parent.parent, pack.parent.parent.parent):
                if dice.random() < 0.5:
                    path.chmod(dice.choice((0o777, 0o1777) if path.is_dir() else (0o666, 0o644)))
        before = ("setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups") if owner else ()
        victim = Rig(rig.tools, rig.folder, before=before)
        with stranger(dice, [base, *own], goes_on=dice.random() < 0.3):
            changes = [f"truncate={pack},{dice.randrange(2000)}"] if owner and dice.random() < 0.2 else []
            loads = [f"load={number},library" for number in range(len(STOCK))]
            whole = PACK.to_bytes()
            intact = pack.exists() and pack.stat().st_size == len(whole) and pack.read_bytes() == whole
            done = victim.run(f"open={library}", loads[0], *changes, *loads, STANDIN_SM="90", variables=QUIET)
        allowed = {arrival("library", code) for code in (*MOVED, *(ticket(stock)[:16] for stock in STOCK))}
        assert set(done.arrived) <= allowed, f"a stranger's code: {done.arrived}"
        assert len(done.arrived) == len(done.answers) == len(STOCK) + 1, done
        assert "evil-package" not in done.said, done.said
        assert done.said.replace("\n", "").isprintable(), done.said
        if careful and intact and not changes:
            assert done.answers == ["0"] * len(done.answers), done
        if not careful and _others_can_write(pack, base):
            assert "0" not in done.answers, done
        return "used" if done.answers[0] == "0" else "refused"


def _others_can_write(pack: Path, base: Path) -> bool:
    """By the end; the stranger changes no rights but their own files'."""
    with suppress(OSError):
        chain = (pack, *pack.parents[:3])
        return any(path.lstat().st_mode & stat.S_IWOTH for path in chain if path == base or base in path.parents)
    return False


HOOKED: tuple[type[Torture], ...] = (Forks, Folders)

"""Places that somebody else can write to: an index, an OCI layout, a wheelhouse, as the next command finds them."""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.torture.harness import Torture
from tests.torture.hook import STRANGER
from tests.torture.values import make_place, run
from torchtailor.core.errors import EXIT_MEANINGS, ExitCode

SECRET = b"of somebody else"
_CUT = ("--gpu", "9.0")
# What is made, and the lines that then use it; HERE is the damaged copy.
_MADE: dict[str, tuple[str, ...]] = {
    "dist": ("build", "sm90-avx2", "--release", "main", "--quiet"),
    "public": ("publish", "dist", "--to", "public", "--publish-nvidia"),
    "copy": ("image", "oci:layout", "oci:copy:x", *_CUT, "--attest"),
}
_LINES: dict[str, tuple[tuple[str, ...], ...]] = {
    "dist": (
        ("publish", "HERE", "--to", "new", "--publish-nvidia"),
        ("verify", "HERE", "--level", "static", "--plain"),
        ("sizes", "HERE"),
        ("build", "sm90-avx2", "--release", "main", "--quiet", "--out", "HERE"),
    ),
    "public": (
        ("publish", "dist", "--to", "HERE", "--publish-nvidia"),
        ("publish", "--to", "HERE", "--list"),
        ("publish", "--to", "HERE", "--prune"),
        ("publish", "--to", "HERE", "--rollback"),
    ),
    "copy": (
        ("image", "oci:layout", "oci:HERE:x", *_CUT, "--attest"),
        ("image", "oci:layout", "oci:HERE:y", "--gpu", "8.0"),
        ("image", "oci:HERE:x", "oci:new:z", *_CUT),
        ("verify", "oci:HERE:x", "--plain"),
    ),
}


def hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def listening(path: Path) -> None:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as end:  # a long path has none
        end.bind(str(path))


class Places(Torture):
    """Files and folders in it become links to other people's, pipes, devices, holes, folders, garbage, or go."""

    name = "strangers' places"

    def prepare(self, folder: Path) -> None:
        self.base, self.victim = folder / "here", folder / "victim"
        os.environ |= make_place(self.base)
        os.chdir(self.base)
        for words in _MADE.values():
            code, said = run([*words])
            assert code == 0, said
        self.harms: dict[str, Callable[[Path], object]] = {
            "gone": lambda path: None,
            "folder": Path.mkdir,
            "pipe": os.mkfifo,
            "hole": hole,
            "socket": listening,
            "garbage": lambda path: path.write_bytes(random.Random(1).randbytes(500)),
            "half": lambda path: path.write_bytes(b"{"),
            "deep": lambda path: path.write_bytes(b"[" * 200_000),
            "device": lambda path: path.symlink_to("/dev/zero"),
            "loop": lambda path: path.symlink_to(path.name),
            "link": lambda path: path.symlink_to(self.victim / "secret"),
            "link to a folder": lambda path: path.symlink_to(self.victim / "folder"),
        }

    def attempt(self, dice: random.Random, folder: Path) -> str:
        made = dice.choice([*_LINES])
        here = folder / "damaged"
        for old in (here, self.base / "new", self.victim):
            shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(self.base / made, here, symlinks=True)
        (self.victim / "folder").mkdir(parents=True)
        (self.victim / "secret").write_bytes(SECRET)
        done = [self._harm(dice, here) for _ in range(dice.randrange(1, 4))]
        before = _state(self.victim)
        words = [word.replace("HERE", str(here)) for word in dice.choice(_LINES[made])]
        code, said = run(words)
        what = f"{words} after {done}: {said[-300:]!r}"
        assert code in EXIT_MEANINGS and code != ExitCode.INTERNAL, f"exit code {code}: {what}"
        assert "Traceback" not in said and SECRET.decode() not in said, what
        assert _state(self.victim) == before, f"something of somebody else was changed: {what}"
        assert SECRET not in {content for place in (here, self.base / "new") for content in _small_files(place)}, what
        return f"{made}, {ExitCode(code).name.lower()}"

    def _harm(self, dice: random.Random, here: Path) -> str:
        path = dice.choice(sorted(here.rglob("*")))
        name = dice.choice([*self.harms])
        if os.geteuid() and name.startswith("link"):
            name = "gone"  # one's own links are followed
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            self.harms[name](path)
            if os.geteuid() == 0:
                os.lchown(path, STRANGER, STRANGER)
        return f"{name} {path.relative_to(here)}"


def _state(folder: Path) -> list[tuple[str, int, bytes]]:
    return sorted(
        (str(path), path.lstat().st_mode, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")
    )


def _small_files(folder: Path) -> list[bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path.read_bytes() for path in files if path.stat().st_size < 1 << 20]

"""Runs `make build` and `make test` in bare Debian systems: a clean clone of the current commit, none of this machine's
settings for pip, and nothing installed but python3-venv, make, git and ca-certificates.

    sudo python3 tools/bare_commands.py                            both, as root and as a user; then what can be missing
    sudo python3 tools/bare_commands.py trixie --account user      in one system, as one of them
    sudo python3 tools/bare_commands.py trixie --short             `make build` and some of the tests (.ci/run)
    sudo python3 tools/bare_commands.py --only "no network"        one thing that can be missing

Needs root, debootstrap (tools/bare.sh) and 4 GB of disk. The systems are kept in --systems; every run works in a copy.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"
PACKAGES = "python3-venv,make,git,ca-certificates"
SUITES = ("bookworm", "trixie")  # Debian 12 and 13: Python 3.11 and 3.13
HOMES = {"root": "/root", "user": "/home/user"}
CLONE = "a clone/torchtailor"  # `make` and all scripts must bear a space

# Some 350 tests, chosen for what they ask of the machine: indexes, terminals, compiled code, other programs.
SMOKE = (
    "tests/integration/host",
    "tests/unit/building/test_install.py",
    "tests/unit/cli",
    "tests/unit/docs/test_bootstrap.py",
    "tests/unit/fetch/test_settings.py",
    "tests/unit/host/test_detect.py",
    "tests/unit/surgery/test_workload.py",
    "tests/unit/tailoring/test_workload.py",
    "tests/unit/test_isolation.py",
    "tests/unit/workload",
)
SHORT = ("make build", f".venv/bin/pytest -q -n $(nproc) --dist loadgroup -m 'not slow' {' '.join(SMOKE)}")
BOTH = ("make build", "make test")


@dataclass(frozen=True)
class Situation:
    """Something that a machine can lack, and what `make build` does there, as a user."""

    name: str
    says: str  # in the output
    prepare: str = ""  # a script, run by root in the system; HOME is the user's
    command: str = "make build"
    succeeds: bool = False
    seconds: float = 900  # at most; a machine may be busy
    suite: str = "trixie"
    namespaces: str = ""
    clone: str = f"{HOMES['user']}/{CLONE}"


SITUATIONS = (
    Situation("no network", "error: The package index cannot be reached.", namespaces="--net", seconds=20),
    Situation(
        "a full disk",
        "error: The disk is full.",
        'mount -t tmpfs -o size=150m disk /mnt && cp -a "$1" /mnt && set -- /mnt/torchtailor "$2"',
    ),
    Situation(
        "a full disk for wheels",
        " MB are free for ",
        'cache="$HOME/.cache/torchtailor" && runuser -u user -- mkdir -p "$cache"\n'
        'mount -t tmpfs -o size=50m,mode=777 disk "$cache"',
    ),
    Situation(
        "a read-only home",
        "import and matmul test passed",
        'mount --bind "$HOME" "$HOME" && mount -o remount,bind,ro "$HOME"',
        succeeds=True,
        clone=f"/srv/{CLONE}",
    ),
    Situation(
        "an old pip",
        "import and matmul test passed",
        "python3 -m venv /tmp/env && cd /usr/share/python-wheels && rm pip-*\n"
        "/tmp/env/bin/pip download --quiet --no-deps pip==21.3.1",
        succeeds=True,
        suite="bookworm",
    ),
    Situation(
        "no venv",
        "apt-get install python3-venv",
        "dpkg --purge python3-venv $(dpkg-query -W -f '${Package} ' 'python3.*-venv')",
        seconds=20,
    ),
    Situation("Python 3.9", "is too old: torchtailor needs 3.11", suite="bullseye", seconds=20),
)


@dataclass(frozen=True)
class Outcome:
    """What a command in a system did."""

    status: int
    output: str
    seconds: float
    received: int  # by the whole machine meanwhile


@dataclass(frozen=True)
class System:
    """A copy of a bare system, with a clone in it."""

    folder: Path

    def run(self, command: str, account: str, *, clone: str = "", prepare: str = "", namespaces: str = "") -> Outcome:
        """`command` in the clone. It and all that it started end with this process."""
        home = HOMES[account]
        clone = clone or f"{home}/{CLONE}"
        script = f'set -e\nexport HOME={home}\n{prepare}\ncd "$1"\nexec runuser -u {account} -- sh -c "$2"'
        variables = {**os.environ, "namespaces": f"--pid --fork --kill-child {namespaces}"}
        before, began = received(), time.monotonic()
        with subprocess.Popen(
            [*entering(self.folder), "sh", "-c", script, "sh", clone, command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=variables,
        ) as process:  # fmt: skip
            assert process.stdout
            lines = []
            for text in process.stdout:
                print(text, end="", flush=True)
                lines.append(text)
        return Outcome(process.returncode, "".join(lines), time.monotonic() - began, received() - before)


def entering(folder: Path) -> list[str]:
    """`enter` of tools/debian.sh, before the command."""
    return ["sh", "-c", 'name=bare root=$1; shift; . "$0"; enter "$@"', str(TOOLS / "debian.sh"), str(folder)]


def prepare(systems: Path, suite: str) -> Path:
    """The bare system of a release, made if it is not there, in which commands can be run."""
    systems.mkdir(parents=True, exist_ok=True)
    bare = systems / suite
    for line in ([str(TOOLS / "bare.sh"), str(bare), suite, "--with", PACKAGES], [*entering(bare), "true"]):
        if subprocess.run(line, check=False).returncode:
            raise CannotTellError(f"{bare} cannot be made or entered; see above.")
    return bare


@contextlib.contextmanager
def system(systems: Path, suite: str, account: str, clone: str = "") -> Iterator[System]:
    """A copy of the bare system, with a clone that `account` owns."""
    bare = prepare(systems, suite)
    work = Path(tempfile.mkdtemp(dir=systems, prefix=f"{suite}-"))
    try:
        folder = work / suite
        subprocess.run(["cp", "-a", str(bare), str(folder)], check=True)
        subprocess.run(["chroot", str(folder), "useradd", "--create-home", "user"], check=True)
        into = Path(clone or f"{HOMES[account]}/{CLONE}")
        inside = folder / into.relative_to("/")
        inside.parent.mkdir()
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(inside)], check=True)
        subprocess.run(["chroot", str(folder), "chown", "-R", f"{account}:", str(into.parent)], check=True)
        yield System(folder)
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", str(work)], check=False)  # in a tenth of Python's time


def received() -> int:
    """Bytes that this machine has received from others."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(
        int(numbers.split()[0]) for name, _, numbers in (line.partition(":") for line in lines) if name.strip() != "lo"
    )


def run_commands(systems: Path, suite: str, account: str, commands: tuple[str, ...]) -> bool:
    """The commands one after the other; what each of them took."""
    with system(systems, suite, account) as made:
        for command in commands:
            print(f"== {suite}, {account}: {command}", flush=True)
            outcome = made.run(command, account)
            say(
                f"{suite}, {account}: {command}: {'passed' if not outcome.status else f'exit {outcome.status}'}, "
                f"{outcome.seconds:.0f} s, {outcome.received / 1e6:.0f} MB received by this machine"
            )
            if outcome.status:
                return False
    return True


def run_situation(systems: Path, situation: Situation) -> bool:
    """Whether `make build` does what is expected, in time, and without a traceback."""
    with system(systems, situation.suite, "user", situation.clone) as made:
        print(f"== {situation.suite}, {situation.name}", flush=True)
        outcome = made.run(
            situation.command,
            "user",
            clone=situation.clone,
            prepare=situation.prepare,
            namespaces=situation.namespaces,
        )
    wrong = [
        text
        for text, is_so in (
            (f"exit {outcome.status}", (outcome.status == 0) != situation.succeeds),
            (f"{situation.says!r} is not said", situation.says not in outcome.output),
            (f"{outcome.seconds:.0f} s, more than {situation.seconds:.0f}", outcome.seconds > situation.seconds),
            ("a traceback", "Traceback" in outcome.output),
        )
        if is_so
    ]
    say(f"{situation.name}: {', '.join(wrong) or f'as expected, {outcome.seconds:.0f} s'}")
    return not wrong


class CannotTellError(Exception):
    """Why nothing can be said about the commands."""


def say(text: str) -> None:
    print(f"bare: {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help=f"Debian's releases (default: {' '.join(SUITES)})")
    parser.add_argument("--account", choices=HOMES, action="append", help="only as root, or only as a user")
    parser.add_argument("--short", action="store_true", help="`make build` and some of the tests, as a user")
    parser.add_argument(
        "--only", choices=[situation.name for situation in SITUATIONS], help="one thing that is missing"
    )
    parser.add_argument("--prepare", action="store_true", help="only make the bare systems")
    parser.add_argument("--systems", type=Path, default=Path("/var/cache/torchtailor-bare"), help="where they are kept")
    options = parser.parse_args()
    if os.geteuid() or not shutil.which("debootstrap"):
        print("error: This needs root and debootstrap (on Debian: apt-get install debootstrap).", file=sys.stderr)
        return 2
    suites, commands = options.suites or SUITES, SHORT if options.short else BOTH
    accounts = options.account or (["user"] if options.short else list(HOMES))
    situations = [situation for situation in SITUATIONS if options.only in (None, situation.name)]
    passed = True
    try:
        if options.prepare:
            for suite in suites:
                prepare(options.systems, suite)
            return 0
        if not options.only:
            for suite, account in itertools.product(suites, accounts):
                passed &= run_commands(options.systems, suite, account, commands)
        if options.only or not (options.suites or options.short):
            for situation in situations:
                passed &= run_situation(options.systems, situation)
    except CannotTellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

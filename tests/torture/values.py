"""Hostile values for every option and argument of every command, taken from the table of commands.

No value may end in "this is a bug" (exit code 1), a traceback or a wait without end: whoever calls torchtailor from a
script puts into options what came from elsewhere.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.torture.harness import Torture
from tests.unit.building.stack import FAT, packages
from tests.unit.oci.builder import stock, tar_of
from tests.unit.tailoring.helpers import install
from torchtailor.cli import COMMANDS, main
from torchtailor.core.errors import EXIT_MEANINGS, ExitCode

# A line that each command accepts; one value of it is exchanged or added. Nothing of it writes, but into this folder.
WHEEL = "torch-2.8.0-cp313-cp313-manylinux_2_28_x86_64.whl"
_CUT = ("--gpu", "9.0")
LINES: dict[str, tuple[str, ...]] = {
    "detect": ("--from", "machine.json"),
    "recommend": ("--gpu", "9.0", "--cpu", "zen4", "--driver", "580.65", "--python", "3.13"),
    "matrix": ("sm90-avx2",),
    "inspect": ("lib.so",),
    "sizes": ("lib.so",),
    "diff": ("lib.so", "lib.so"),
    "tailor": (WHEEL, *_CUT, "--dry-run"),
    "image": ("oci:layout", "oci:copy", *_CUT, "--dry-run"),
    "record": ("--out", "new.trace", "--", "./no-program"),
    "trace show": ("a.trace",),
    "trace merge": ("a.trace", "--out", "merged.trace"),
    "run": ("./no-program",),
    "restore": ("--env", "env", "--dry-run"),
    "verify": (WHEEL, "--level", "static", "--plain"),
    "build": ("sm90-avx2", "--release", "main", "--dry-run"),
    "install": ("sm90-avx2", "--release", "main", "--into", "env", "--dry-run"),
    "farm check": ("here",),
    "ci": ("github", "sm90-avx2", "--dry-run"),
    "publish": ("dist", "--to", "public", "--publish-nvidia", "--dry-run"),
    "packs pull": ("oci:layout", "--out", "pulled", "--dry-run"),
    "recipes write": ("tree", "sm90-avx2", "--dry-run"),
    "recipes check": ("tree", "--no-nix"),
    "recipes migrate": ("tree", "--dry-run"),
    "recipes hash": ("--tree", "tree", "--dry-run"),
    "recipes build": ("--tree", "tree", "--dry-run"),
    "recipes rules": (),
    "site": ("site-out", "--dry-run"),
    "catalog update": ("--dry-run",),
    "history": (),
    "cache list": (),
    "cache prune": ("--dry-run",),
    "cache dir": (),
    "doctor": ("CUDA error: no kernel image", "--from", "machine.json"),
    "help": (),
}
# Other lines for options that only belong to another way of the same command.
FURTHER: dict[str, tuple[tuple[str, ...], ...]] = {
    "build": (
        ("sm90-avx2", "--release", "main", "--dry-run", "--via", "source"),
        ("sm90-avx2", "--release", "main", "--dry-run", "--on", "here"),
    ),
    "ci": (("gitlab", "sm90-avx2", "--dry-run", "--publish", "s3://bucket/torch"),),
    "publish": (("--to", "public", "--list"), ("--to", "public", "--prune", "--dry-run")),
    "tailor": (("--env", "env", *_CUT, "--dry-run"), ("lib.so", "--out", "new.so", *_CUT)),
    "verify": (("lib.so", "--gpu", "9.0", "--level", "static"),),
}
# What the lines need, made by the commands that make it.
_MADE = (
    ("build", "sm90-avx2", "--release", "main", "--quiet"),
    ("publish", "dist", "--to", "public", "--publish-nvidia"),
    ("recipes", "write", "tree", "sm90-avx2"),
)
_WORDS = (
    "foo", "-", "--", "-1", "0", "1", "99", "007", str(10**30), "-" + "9" * 5000, "1e999", "nan", "inf", "0x10", "1_0",
    "٣", "²", "½", "3.", ".3", "..", ".", "3.13.", "3.x", "9.0a", "9.0,", ",", ",,", "9.0,9.0", "sm", "sm90",
    "sm999999", "0.0", "99999999999.1", "12.8.9.9.9.9", "v12", "cu128", "12,8", "none", "all", "auto", "native", "null",
    "true",
    "*", "**", "[", "[!", "{", "{a,b", "{}", "{,}" * 30, "%s", "%", "{0}", "$(id)", "`id`", "'", '"', "\\", ";", "|",
    " x", "x ", "a\nb", "a\tb", "\r", "\x1b[2J", "\u2028", "\u202e", "\ufeff", "\udcff", "a\udcffb", "é", "漢" * 50,
    "A" * 300, "a" * 9000, "=", "a=", "=b", "a=b", "a==b", "x86_64=", "=x", "sm90=a,b", "a:b", ":", "::", "local:",
    "local:0", "local:-1", "local:x", "local:²", "here", "torch", "torch==", "torch==99", "torch[x", "pkg @ http://h/x",
    "http://", "http://[", "http://[::1", "http://user:kept-4711@127.0.0.1:1/", "http://127.0.0.1:99999/", "http://h:x/",
    "https://127.0.0.1:1/simple", "s3://", "s3:///x", "gs://b", "az://", "memory://x", "file://", "file:///nowhere",
    "ftp://h/x", "git+", "git+https://", "@", "a@b", "x@sha256:", "docker://", "docker://a/b:c@d", "oci:", "oci:layout",
    "docker-archive:", "127.0.0.1:1/a/b", "* * * * *", "0 3 * * 1", "61 * * * *", "@daily", "1d", "-1d", "9" * 30 + "d",
    "1.5h", "linux/amd64", "linux/", "/", "linux/amd64/v8/x", "avx2", "avx999", "sm90-avx2", "sm90-avx2@", "full",
)  # fmt: skip
PATHS = (
    "lib.so", WHEEL, "a.trace", "machine.json", "build.log", "garbage", "empty", "folder", "tree", "dist", "env",
    "layout", "missing", "missing/deep/x", "garbage/x", "folder/", "loop", "dangling", "pipe", "socket", "forbidden",
    "n" * 255, "d/" * 2000, "/dev/null", "/dev/full", "/dev/zero", "/dev/stdin", "/dev/fd/99", "/proc/self/mem", "~",
    "~nobody-here/x", "bytes\udcff", "bytes\udcff/x", "../../../../../../../proc/version", "sparse", "deep.json",
)  # fmt: skip
# Options whose values are addresses, which may have passwords.
_ADDRESSES = frozenset(
    (
        "-i",
        "--index-url",
        "--extra-index-url",
        "-f",
        "--find-links",
        "--to",
        "--publish",
        "--store",
        "--objects",
        "--on",
    )
) | {"--source", "--push", "--package", "--build-options"}
_NUMBERS = tuple(str(n) for n in (0, 1, 2, 3, 100, -1, 2**31, 2**63, 2**64, 10**18, 10**30, 10**400))


@dataclass(frozen=True)
class Parameter:
    """An option or argument of a command, as the table of commands has it."""

    command: str
    option: str  # empty: an argument
    flag: bool

    @property
    def shown(self) -> str:
        return f"{self.command} {self.option or 'ARGUMENT'}"


def parameters() -> list[Parameter]:
    """Every option and argument of every command; a new command without a line here is an error."""
    from torchtailor.cli._dispatch import load_command

    rows = []
    for name in COMMANDS:
        loaded: Any = load_command(name)
        for part, command in (getattr(loaded, "commands", None) or {"": loaded}).items():
            whole = f"{name} {part}".strip()
            for item in command.params:
                counted = bool(getattr(item, "is_flag", False) or getattr(item, "count", False))
                option = item.opts[-1] if item.param_type_name == "option" else ""
                rows.append(Parameter(whole, option, counted))
    missing = {row.command for row in rows} ^ LINES.keys()
    assert not missing, f"LINES has no line for {sorted(missing)}, or one too many"
    return rows


def hostile_word(dice: random.Random) -> str:
    """A word from the lists, or two of them, or one with a letter that does not belong."""
    match dice.randrange(8):
        case 0:
            return dice.choice(_NUMBERS)
        case 1 | 2:
            return dice.choice(PATHS)
        case 3:
            return dice.choice(_WORDS) + dice.choice((",", "=", ":", ".", "-", "/", "@", "")) + dice.choice(_WORDS)
        case 4:
            letters = [*dice.choice(_WORDS)]
            odd = chr(dice.choice((9, 10, 34, 92, 0x661, 0xB2, 0x2028, 0xDCFF)))
            letters.insert(dice.randrange(len(letters) + 1), odd)
            return "".join(letters)
        case _:
            return dice.choice(_WORDS)


class Values(Torture):
    """One hostile value, and sometimes a second or a flag, in a line that works without it."""

    name = "values"
    share = 0.06
    leave_out: frozenset[str] = frozenset({"site"})  # takes seconds

    def prepare(self, folder: Path) -> None:
        os.environ |= make_place(folder / "here")
        os.chdir(folder / "here")
        no_programs()
        for words in _MADE:
            code, said = run([*words])
            assert code == 0, said
        (folder / "here" / "machine.json").write_text(run(["detect", "--json"])[1])
        self.rows = [row for row in parameters() if row.option != "--verbose"]
        self.valued = [row for row in self.rows if not row.flag and row.command not in self.leave_out]

    def attempt(self, dice: random.Random, folder: Path) -> str:
        return self.try_value(dice.choice(self.valued), dice, hostile_word(dice))

    def try_value(self, row: Parameter, dice: random.Random, word: str) -> str:
        line = [*dice.choice((LINES[row.command], *FURTHER.get(row.command, ())))]
        exchange(line, row, word)
        if dice.random() < 0.3:
            other = dice.choice([one for one in self.rows if one.command == row.command])
            if other.flag:
                line.insert(0, other.option)
            else:
                exchange(line, other, hostile_word(dice))
        words = [*row.command.split(), *line]
        code, said = run(words)
        what = f"{said[-250:].strip()!r} of {' '.join(words)[:200]!r}"
        assert code in EXIT_MEANINGS and code != ExitCode.INTERNAL, f"exit code {code}: {what}"
        assert "Traceback" not in said, what
        assert row.option not in _ADDRESSES or "kept-4711" not in said, f"a password is shown: {what}"
        return ExitCode(code).name.lower()


class EveryOption(Values):
    """The same in order: each option in turn, with the next word of the lists."""

    name = "every option"

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        self.number = 0

    def attempt(self, dice: random.Random, folder: Path) -> str:
        words = (*_WORDS, *PATHS, *_NUMBERS)
        row = self.valued[self.number % len(self.valued)]
        self.number += 1
        return self.try_value(row, dice, dice.choice(words))


def exchange(line: list[str], row: Parameter, word: str) -> None:
    """Give the option, or the first argument, this value."""
    if not row.option:
        if line and not line[0].startswith("-"):
            line[0] = word
        else:
            line.insert(0, word)
    elif row.option in line:
        line[line.index(row.option) + 1] = word
    else:
        line[0:0] = [row.option, word]


def run(words: list[str]) -> tuple[int, str]:
    """The exit code, and all that was printed."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(words)
    return code, out.buffer.getvalue().decode("utf-8", "replace")


def make_place(folder: Path) -> dict[str, str]:
    """Files of every kind that a value may name, and what the environment has to say so that no network is needed."""
    folder.mkdir()
    wheels = folder / "wheels"
    wheels.mkdir()
    for package in packages():
        (wheels / package.filename).write_bytes(package.wheel())
    shutil.copy(wheels / WHEEL, folder)
    install(wheels / WHEEL, folder / "env/lib/python3.13/site-packages")
    (folder / "env/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.13.0\n")
    stock(folder / "layout", [tar_of({"usr/lib/libx.so": FAT})])
    (folder / "lib.so").write_bytes(FAT)
    (folder / "garbage").write_bytes(random.Random(3).randbytes(2000))
    (folder / "empty").touch()
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    with open(os.fsencode(folder) + b"/bytes\xff", "wb"):  # noqa: PTH123
        pass
    with (folder / "sparse").open("wb") as file:
        file.truncate(3 << 30)
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "forbidden").mkdir(mode=0)
    (folder / "build.log").write_text("ninja: build stopped: subcommand failed.\n")
    (folder / "a.trace").write_bytes(_trace(folder))
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "TORCHTAILOR_WORK": str(folder / "work")}


def _trace(folder: Path) -> bytes:
    from torchtailor.workload.events import make_trace, read_events

    record = folder / "record.tsv"
    record.write_text("proc\t1\t/usr/bin/python3\nopen\t/env/torch/lib/libx.so\n")
    return make_trace(read_events([record]), ["python a.py"]).to_bytes()


def no_programs() -> None:
    """`run` would become its program, and the reading of a terminal would wait for a person."""
    os.execve = os.execv = os.execvp = os.execvpe = _refuse  # type: ignore[assignment]
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115


def _refuse(*_: object) -> NoReturn:
    raise FileNotFoundError(2, "No such file or directory", "program")

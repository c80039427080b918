"""What is printed, and how a process ends that is stopped or has nowhere to print."""

from __future__ import annotations

import io
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import torchtailor
from torchtailor.cli import main
from torchtailor.cli.ui import console
from torchtailor.cli.ui.documents import ErrorDocument
from torchtailor.core.errors import ExitCode
from torchtailor.core.format import printable

_ONLY_US = {"PYTHONPATH": str(Path(torchtailor.__file__).parents[1])}
COMMAND = (sys.executable, "-m", "torchtailor")
ESCAPES = "\x1b[2J\x1b]0;title\x07 \x9b31m \u202egnp.exe \r over \udcff\x00"


def test_what_a_terminal_would_obey_is_spelt_out() -> None:
    assert printable("a\tb\nc é 漢") == "a\tb\nc é 漢"
    shown = printable(ESCAPES)
    assert shown == r"\x1b[2J\x1b]0;title\x07 \x9b31m \u202egnp.exe \x0d over \xff\x00"
    assert all(letter.isprintable() for letter in shown)


@pytest.mark.parametrize("terminal", [True, False])
def test_everything_that_is_printed_is_clean(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("NO_COLOR", "1")
    shown = console._console(stderr=True)
    from rich.text import Text

    shown.print(ESCAPES, markup=False)
    shown.print(Text(ESCAPES))
    shown.print(console.table(("name", "size"), [(ESCAPES, 5)]))
    for bad in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\u202e", "\r", "\x00"):
        assert bad not in written.getvalue()
    assert written.getvalue().count("gnp.exe") == 3


def test_json_of_names_that_are_not_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json("error", ErrorDocument("lib\udcff.so", "\x9b\u202e\u061c", 3))
    document = json.loads(text := capsys.readouterr().out)
    assert (document["error"], document["hint"]) == ("lib\udcff.so", "\x9b\u202e\u061c")
    assert text.isascii()


def test_json_has_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json("error", ErrorDocument("\x9b\u202e", "\u061c\u2066", 3))
    assert (text := capsys.readouterr().out).isascii()
    assert json.loads(text)["hint"] == "\u061c\u2066"


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, timeout=60, **options)  # type: ignore[call-overload,no-any-return]


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/lib\xff\x1b[2J.so"
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(b"no library")
    for words in ((), ("--json",)):
        done = subprocess.run([*COMMAND, "inspect", path, *words], capture_output=True, check=False, timeout=60)
        assert done.returncode == 4, done.stderr
        assert b"\x1b" not in done.stderr + done.stdout
        assert b"bug" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams(closed: str) -> None:
    for words in ("cache list --json", "--help", "matrix nosuch"):
        code = {"matrix nosuch": 3}.get(words, 0)
        line = f"exec {shlex.quote(sys.executable)} -m torchtailor {words} {closed}"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == code, (words, done.returncode, done.stderr)
        assert "Traceback" not in done.stderr


def test_nothing_is_imported_before_ctrl_c_is_seen_to() -> None:
    code = "import sys; before = set(sys.modules); import torchtailor; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=_ONLY_US)
    assert set(done.stdout.split()) <= {"torchtailor", "__future__"}


def test_ctrl_c_at_the_start() -> None:
    """No traceback, whenever it comes; before Python itself has started nobody can do anything about it."""
    dice = random.Random(5)
    for _ in range(6):
        process = subprocess.Popen([*COMMAND, "matrix"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(dice.uniform(0.03, 0.25))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode in (0, 130, -signal.SIGINT) or "torchtailor" not in errors, errors
        assert "__main__.py" not in errors, errors


def test_ctrl_c_while_a_class_is_made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load(_: str) -> object:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("torchtailor.cli._dispatch.load_command", load)
    assert main(["matrix"]) == ExitCode.INTERRUPTED
    assert "bug" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["inspect", ""], "An argument"),
        (["verify", ""], "An argument"),
        (["tailor", "", "--gpu", "9.0"], "An argument"),
        (["tailor", "--env", "", "--gpu", "9.0"], "--env"),
        (["restore", "--env="], "--env"),
        (["restore", "--env= "], "--env"),
        (["ci", "github", "sm90-avx2", "--publish", " "], "--publish"),
        (["tailor", "x.whl", "--gpu", "9.0", "-o", ""], "-o"),
        (["build", "cpu-avx2", "--on", "here", "--store", ""], "--store"),
    ],
)
def test_an_empty_word_is_no_folder(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`torchtailor tailor --env "$VENV"` without a VENV would cut the current folder."""
    assert main(words) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith(f"error: {named} is empty.")


def test_a_program_may_have_an_empty_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "/nonexistent/program", ""]) != ExitCode.OK
    assert "is empty" not in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--version", "--help", "matrix --help", "matrix sm90-avx2"])
def test_a_full_disk_behind_stdout(words: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m torchtailor {words} > /dev/full"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == ExitCode.ENVIRONMENT
    assert done.stderr.startswith("error: There is no space left to write to.")


def test_a_full_disk_behind_stderr() -> None:
    line = f"{shlex.quote(sys.executable)} -m torchtailor no-such-command 2> /dev/full"
    assert subprocess.run(["sh", "-c", line], check=False, timeout=60).returncode == ExitCode.USAGE


@pytest.mark.parametrize("cuda", ["foo", "²", "9" * 5000, "12,8", "\udcff"])
@pytest.mark.parametrize("command", [["build", "sm90-avx2", "--dry-run"], ["ci", "github", "sm90-avx2", "--dry-run"]])
def test_a_cuda_that_is_no_version(command: list[str], cuda: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*command, "--cuda", cuda])
    said = capsys.readouterr().err
    if code == ExitCode.USAGE:  # a workflow takes only what YAML can hold
        assert command[0] == "ci" and not cuda.isprintable()
    else:
        assert (code, "is not in the catalog." in said) == (ExitCode.NO_MATCH, True)

"""A wheel that one command refuses all refuse, in the same words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.wheels.hostile import LIBRARIES, TABLES, with_library
from torchtailor.cli import main
from torchtailor.core.errors import BadInputError, ExitCode
from torchtailor.fetch.metadata import read_local
from torchtailor.trees.artifact.launch import open_target

COMMANDS = {
    "inspect": ["inspect", "{wheel}"],
    "tailor": ["tailor", "{wheel}", "--gpu", "9.0", "-o", "{out}"],
    "verify": ["verify", "{wheel}"],
    "verify a wheelhouse": ["verify", "{folder}"],
    "inspect a wheelhouse": ["inspect", "{folder}"],
}


def run(command: str, wheel: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    words = {"wheel": wheel, "out": wheel.parent.parent / "out", "folder": wheel.parent}
    code = main([word.format(**words) for word in COMMANDS[command]])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out + captured.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", TABLES)
def test_no_command_takes_it(folder: Path, capsys: pytest.CaptureFixture[str], command: str, name: str) -> None:
    code, text = run(command, TABLES[name].make(folder), capsys)
    assert code == ExitCode.BAD_INPUT
    assert re.search(TABLES[name].said, text)
    assert not list((folder.parent).glob("out/*"))


@pytest.mark.parametrize("name", TABLES)
def test_neither_do_python_and_the_index(folder: Path, name: str) -> None:
    wheel = TABLES[name].make(folder)
    with pytest.raises(BadInputError, match=TABLES[name].said), open_target(wheel):
        pass
    with pytest.raises(BadInputError, match=TABLES[name].said):
        read_local(wheel)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_not_what_the_table_says(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    code, text = run(command, LIBRARIES[name].make(folder), capsys)
    assert code in (ExitCode.BAD_INPUT, ExitCode.CHECK_FAILED)
    assert re.search(rf"{LIBRARIES[name].said}|bytes long and RECORD", text)


def test_the_wheel_that_they_were_made_of_is_sound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        assert run(command, with_library(folder, {"demo/b.py": b"1"}), capsys)[0] == ExitCode.OK

"""Help: options in groups, words for values, pages that are installed, completion by the shell."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import torchtailor
from torchtailor.catalog import load_catalog
from torchtailor.cli import COMMANDS, main
from torchtailor.cli._dispatch import load_command
from torchtailor.cli._pages import Page, find_page, pages
from torchtailor.core.errors import ExitCode

ROOT = Path(torchtailor.__file__).parent
COMMAND_LINES = [
    *([name] for name in COMMANDS),
    *(["recipes", name] for name in ("write", "check", "migrate", "hash", "rules")),
    *(["cache", name] for name in ("list", "prune", "dir")),
    ["catalog", "update"],
]


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--help"]) == ExitCode.OK
    return capsys.readouterr().out


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_no_python_types_and_no_long_lines(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, *words)
    assert not re.search(r"<(list|str|int|path|Path)", text)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "docs/" not in text


def test_every_command_has_the_short_option_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        inner = getattr(load_command(name), "commands", {})
        for words in ([name], *([name, one] for one in inner)):
            text = help_of(capsys, *words)
            assert main([*words, "-h"]) == ExitCode.OK, words
            assert capsys.readouterr().out == text


def test_the_first_screen_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert max(len(line) for line in help_of(capsys).splitlines()) <= 80


def test_the_options_of_build_are_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "build")
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == [
        "Arguments",
        "Options",
        "From official wheels (--via wheel)",
        "How wheels are cut (--via wheel)",
        "Where wheels come from (--via wheel)",
        "From source (--via source)",
        "On many machines",
        "Output",
    ]
    output = text[text.index("\nOutput:") :]
    assert all(option in output for option in ("--out", "--dry-run", "--json", "--quiet", "--plain"))
    assert "--ccache" in text[text.index("From source") : text.index("\nOutput:")]
    assert "--via wheel|source|nix" in text


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_a_title_names_the_methods_only_where_they_can_be_chosen(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(capsys, *words)
    assert ("--via" in text) == bool(re.search(r"^  --via ", text, re.MULTILINE))


def test_no_message_names_a_file_that_is_not_installed() -> None:
    """Only docstrings and comments, which developers read, name files of `docs`."""
    named = []
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if "docs/" not in text:
            continue
        tree = ast.parse(text)
        documented = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        named += [
            f"{path.name}: {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in documented and re.search(r"docs/[a-z-]+\.md", node.value)
        ]
    for path in ROOT.rglob("*.toml"):
        fixes = (line for line in path.read_text().splitlines() if line.startswith(("fix", "cause", "text")))
        named += [f"{path.name}: {line}" for line in fixes if "docs/" in line]
    assert named == []


def test_every_page_that_a_message_names_is_there() -> None:
    topics = {page.topic for page in pages()}
    for path in [*ROOT.rglob("*.py"), *ROOT.rglob("*.toml")]:
        for topic in re.findall(r"torchtailor help ([a-z-]+)", path.read_text()):
            assert topic in topics, f"{path.name} names {topic}"


def test_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == ExitCode.OK
    listed = capsys.readouterr().out
    assert "licences" in listed and "docker" in listed
    assert main(["help", "Licences.md"]) == ExitCode.OK
    assert capsys.readouterr().out == find_page("licences").text
    assert main(["help", "licence"]) == ExitCode.NO_MATCH
    assert "torchtailor help licences" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_topic_whose_page_covers_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", name]) == ExitCode.OK
    shown, said = capsys.readouterr()
    assert f"torchtailor {name}" in shown
    assert (f"`torchtailor {name} --help`" in said) == (find_page(name).topic != name)


def test_a_link_on_a_terminal_is_the_command_that_follows_it() -> None:
    page = Page(
        "x", "# X\n\nSee [licences.md](licences.md#a), [the proof](elf-surgery.md) and [a site](https://a.b).\n"
    )
    shown = page.for_terminal()
    assert (
        "See `torchtailor help licences`, the proof (`torchtailor help elf-surgery`) and [a site](https://a.b)."
        in shown
    )


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("torchtailor ta", {"tailor"}),
        ("torchtailor re", {"record", "recommend", "restore", "recipes"}),
        ("torchtailor tailor --nv", {"--nvidia"}),
        ("torchtailor build --via ", set(load_catalog().methods)),
        ("torchtailor recipes mi", {"migrate"}),
    ],
)
def test_bash_completes(typed: str, expected: set[str], tmp_path: Path) -> None:
    """With the script of --show-completion, in a real bash."""
    program = tmp_path / "torchtailor"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torchtailor "$@"\n')
    program.chmod(0o755)
    words = typed.split() + ([""] if typed.endswith(" ") else [])
    script = (
        'eval "$(torchtailor --show-completion bash)"\n'
        f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}\n"
        '_torchtailor_completion torchtailor; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    line = ["bash", "-c", script]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    assert set(done.stdout.split()) == expected, done.stderr

"""actions/diff as a workflow runs it: an exceeded budget fails the step, and the pull request gets the reason."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.programs import write_program
from tests.unit.gpucode.builders import FIXTURES
from tests.unit.wheels.builder import build_wheel

pytestmark = pytest.mark.xdist_group("farm")  # with the other tests that run scripts
ROOT = Path(__file__).parents[3]
ACTION = YAML(typ="safe").load(ROOT / "actions/diff/action.yml")
EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")
MARKER = re.compile(r"^<!-- torchtailor diff [0-9a-f]{16} -->\n\n")
BUDGET = '[budget.library."libx.so"]\ngrowth = "1 kB"\n'
# In place of what a runner has: an environment with this torchtailor, and a gh that writes down what it is asked.
PYTHON3 = """#!/bin/sh
mkdir -p "$3/bin"
printf '#!/bin/sh\\n' > "$3/bin/python"
printf '#!/bin/sh\\nexec "{torchtailor}" "$@"\\n' > "$3/bin/torchtailor"
chmod +x "$3/bin/python" "$3/bin/torchtailor"
"""
GH = """import json, os, pathlib, sys
words = sys.argv[1:]
if pathlib.Path(__file__).with_name("refused").exists():
    sys.exit("GraphQL: Resource not accessible by integration")
state = pathlib.Path(__file__).with_name("comments.json")
comments = json.loads(state.read_text()) if state.exists() else []
fields = dict(word.split("=", 1) for flag, word in zip(words, words[1:]) if flag in ("-f", "-F"))
if words[0] == "pr":
    body = pathlib.Path(words[words.index("--body-file") + 1]).read_text()
    own = [comment for comment in comments if comment["viewerDidAuthor"]]
    if "--edit-last" in words and own:
        own[-1]["body"] = body
    else:
        comments.append({"id": f"IC_{len(comments)}", "viewerDidAuthor": True, "body": body, "of": words[2]})
elif "updateIssueComment" in fields["query"]:
    body = pathlib.Path(fields["body"].removeprefix("@")).read_text()
    next(comment for comment in comments if comment["id"] == fields["id"])["body"] = body
else:
    wanted = words[words.index("--jq") + 1]
    for comment in comments:
        others = ".viewerDidAuthor and" in wanted and not comment["viewerDidAuthor"]
        if not others and (".body | startswith(env.MARKER)" not in wanted
                           or comment["body"].startswith(os.environ["MARKER"])):
            print(comment["id"])
state.write_text(json.dumps(comments))
"""


class Runner:
    """Runs the steps of the action as a runner does: expressions are put into the environment, not into the script."""

    def __init__(self, folder: Path, torchtailor: Path | None) -> None:
        self.temp, self.tools = folder / "temp", folder / "tools"
        self.temp.mkdir()
        self.tools.mkdir()
        self.output, self.summary = folder / "output", folder / "summary.md"
        write_program(self.tools / "gh", GH)
        if torchtailor:
            (self.tools / "python3").write_text(PYTHON3.replace("{torchtailor}", str(torchtailor)))
            (self.tools / "python3").chmod(0o755)

    def run(self, given: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        inputs = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()} | dict(given)
        assert set(inputs) == set(ACTION["inputs"])
        (step,) = ACTION["runs"]["steps"]
        assert "${{" not in step["run"]
        environment = {
            **os.environ,
            **{
                name: EXPRESSION.sub(lambda found: self._value(found[1], inputs), text)
                for name, text in step["env"].items()
            },
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_REPOSITORY": "OWNER/mypackage",
            "GITHUB_WORKFLOW": "size --> of <b>it",
            "GITHUB_JOB": "diff",
            "PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}",
        }
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(line, cwd=self.temp.parent, env=environment, capture_output=True, text=True, check=False)

    def _value(self, expression: str, inputs: Mapping[str, str]) -> str:
        first, _, otherwise = expression.partition(" || ")
        if otherwise and not self._value(first, inputs):
            assert otherwise == "format('{0}/../..', github.action_path)"
            return str(ROOT / "actions" / "diff" / ".." / "..")
        return EXPRESSION.sub("token", inputs[first.removeprefix("inputs.")])

    @property
    def comments(self) -> list[dict[str, Any]]:
        path = self.tools / "comments.json"
        return list(json.loads(path.read_text())) if path.exists() else []

    def said(self, body: str, *, mine: bool = True) -> None:
        """A comment that somebody wrote meanwhile."""
        comments = self.comments
        comments.append({"id": f"IC_{len(comments)}", "viewerDidAuthor": mine, "body": body})
        (self.tools / "comments.json").write_text(json.dumps(comments))


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.network])])
def test_a_budget_that_is_exceeded_fails_the_step(tmp_path: Path, warm: Path, real: bool) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    plain, fat = ((FIXTURES / name).read_bytes() for name in ("size.so", "raw.so"))
    old = build_wheel(tmp_path, {"x/libx.so": plain}, name="mypackage", version="1.4.0")
    (tmp_path / "my dist").mkdir()
    new = build_wheel(tmp_path / "my dist", {"x/libx.so": fat}, name="mypackage", version="1.5.0")
    (tmp_path / "budget.toml").write_text(BUDGET)
    runner = Runner(tmp_path, None if real else warm / "torchtailor")
    given = {"old": str(old), "new": str(new), "pull-request": "17", "options": "--kernels --report page.html"}
    done = runner.run({**given, "budget": "budget.toml"})
    assert done.returncode == 10, done.stderr
    assert "libx.so" in done.stdout
    assert "allowed" in done.stdout or "budget" in done.stdout.lower()
    (comment,) = runner.comments
    assert (comment["of"], MARKER.sub("", comment["body"])) == ("17", done.stdout)
    assert runner.summary.read_text() == done.stdout
    (name, _, place) = runner.output.read_text().partition("=")
    assert (name, Path(place.strip()).read_text()) == ("summary", done.stdout)
    assert (tmp_path / "page.html").stat().st_size > 10_000
    kept = runner.run({**given, "budget": "", "pull-request": "", "options": ""})
    assert kept.returncode == 0, kept.stderr


def test_what_is_given_is_no_command(tmp_path: Path, warm: Path) -> None:
    runner = Runner(tmp_path, warm / "torchtailor")
    done = runner.run({"old": "$(touch hacked)", "new": "`touch hacked`", "pull-request": "1"})
    assert done.returncode not in (0, 10)
    assert not (tmp_path / "hacked").exists()
    assert not runner.comments  # nothing to say


def test_it_edits_only_the_comment_that_it_wrote(tmp_path: Path, warm: Path) -> None:
    (tmp_path / "libx.so").write_bytes((FIXTURES / "size.so").read_bytes())
    runner = Runner(tmp_path, warm / "torchtailor")
    given = {"old": "libx.so", "new": "libx.so", "pull-request": "17"}
    runner.said("the lint job, with the same token")
    runner.run(given)
    runner.run({**given, "comment": "arm64"})
    first, second = (comment["body"] for comment in runner.comments[1:])
    assert MARKER.match(first) and MARKER.sub("", first) == MARKER.sub("", second) and first != second
    runner.said(first + "quoted by somebody else", mine=False)
    runner.said("the lint job again")
    (tmp_path / "libx.so").write_bytes((FIXTURES / "raw.so").read_bytes())
    done = runner.run(given)
    assert done.returncode == 0, done.stderr
    bodies = [comment["body"] for comment in runner.comments]
    assert MARKER.sub("", bodies[1]) == done.stdout and bodies[1] != first
    assert [bodies[0], *bodies[2:]] == [
        "the lint job, with the same token",
        second,
        first + "quoted by somebody else",
        "the lint job again",
    ]


def test_a_token_that_may_not_comment_does_not_hide_the_result(tmp_path: Path, warm: Path) -> None:
    for name, fixture in (("old.so", "size.so"), ("new.so", "raw.so")):
        (tmp_path / name).write_bytes((FIXTURES / fixture).read_bytes())
    (tmp_path / "budget.toml").write_text('[budget.total]\ngrowth = "1 kB"\n')
    runner = Runner(tmp_path, warm / "torchtailor")
    (runner.tools / "refused").touch()
    done = runner.run({"old": "old.so", "new": "new.so", "budget": "budget.toml", "pull-request": "17"})
    assert done.returncode == 10
    assert "::warning::The summary is no comment of the pull request" in done.stdout
    assert "Resource not accessible" in done.stderr

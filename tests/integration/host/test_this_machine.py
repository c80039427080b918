"""The commands on the real machine, as a user runs them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.calling import call
from tests.waiting import processes_naming, wait_until
from torchtailor.advise.host import store
from torchtailor.advise.host.detect import detect
from torchtailor.advise.host.probe import ReplayProbe

pytestmark = pytest.mark.xdist_group("host")  # the commands run once for several tests


def run(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return call(*arguments, cwd=cwd, environment={**os.environ, **env})


@pytest.fixture(scope="module")
def detected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `detect --json --record machine.json` printed (host.json) and recorded."""
    folder = tmp_path_factory.mktemp("detected")
    result = run("detect", "--json", "--record", "machine.json", cwd=folder)
    assert result.returncode == 0, result.stderr
    (folder / "host.json").write_text(result.stdout)
    return folder


@pytest.fixture(scope="module")
def recommended(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """What `recommend --json` says here."""
    return run("recommend", "--json", cwd=tmp_path_factory.mktemp("recommended"))


def test_detect_agrees_with_what_the_system_says(detected: Path) -> None:
    host = store.loads((detected / "host.json").read_bytes(), "stdout")
    assert host.cpu.arch == platform.machine()
    assert host.cpu.usable <= len(os.sched_getaffinity(0)) <= host.cpu.threads
    assert set(host.cpu.flags) >= {"fpu"} or set(host.cpu.flags) >= {"fp"}
    assert host.cpu.microarchitecture != "unknown"
    assert host.system.kernel == platform.release()
    assert host.room.memory_total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert abs(host.room.disk_free - shutil.disk_usage(detected).free) < 20e9
    git = host.tool("git")
    assert (git is not None) == (shutil.which("git") is not None)
    assert not any(note.topic == "failed" for note in host.notes)
    if shutil.which("nvidia-smi") is None and not Path("/proc/driver/nvidia").exists():
        assert host.gpus == ()


def test_detect_is_quick(tmp_path: Path) -> None:
    """Counted in time of the processor, its own and that of the commands it runs: a busy machine does not matter."""
    detect()
    before = os.times()
    detect()
    assert sum(os.times()[:4]) - sum(before[:4]) < 3.0


def test_recommend_fits_this_machine(recommended: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    assert recommended.returncode in (0, 3), recommended.stderr
    answer = json.loads(recommended.stdout)
    host = detect()
    if not host.gpus:
        assert answer["best"] is None or answer["best"]["gpu"] is None
    if answer["best"]:
        from torchtailor.catalog import load_catalog

        isa = load_catalog(tmp_path).isas[answer["best"]["isa"]]
        assert isa.arch == platform.machine()
        assert isa.runs_on(host.cpu.flags)


def test_a_saved_description_gives_the_same_recommendation(
    detected: Path, recommended: subprocess.CompletedProcess[str]
) -> None:
    here = json.loads(recommended.stdout)
    python = ("--python", here["python"])  # a description says nothing of environments
    there = json.loads(run("recommend", "--json", "--from", "host.json", *python, cwd=detected).stdout)
    here.pop("command"), there.pop("command")  # only this machine has an environment to install into
    assert here == there


def test_a_recording_of_this_machine_replays(detected: Path) -> None:
    first = store.loads((detected / "host.json").read_bytes(), "stdout")
    again = detect(ReplayProbe.load(detected / "machine.json"))
    assert msgspec.structs.replace(again, taken=first.taken, room=first.room) == first


def test_a_row_of_ones_own_leads_to_a_recommendation(tmp_path: Path) -> None:
    """Orin end to end, as a user does it: ask, paste the row, ask again."""
    orin = ("recommend", "--gpu", "Jetson Orin", "--jetpack", "6.2", "--json")
    before = run(*orin, cwd=tmp_path)
    assert before.returncode == 3
    row = next(one["toml"] for one in json.loads(before.stdout)["alternatives"] if one["toml"])
    (tmp_path / "torchtailor.toml").write_text(row)
    after = run(*orin, cwd=tmp_path)
    assert after.returncode == 0
    best = json.loads(after.stdout)["best"]
    assert (best["short_name"], best["method"], best["cuda"]) == ("sm87-armv8_2", "source", "12.6")


def test_a_hanging_nvidia_smi_does_not_hang_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtailor.advise.host import gpus

    fake = tmp_path / "nvidia-smi"
    seconds = f"1000.{os.getpid()}"  # nobody else sleeps so long
    fake.write_text(f"#!/bin/sh\nexec sleep {seconds}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(gpus, "SMI_TIMEOUT", 0.5)
    host = detect()
    wait_until(lambda: not processes_naming(seconds), "the command is dead")
    if not host.gpus:
        assert any(note.topic == "nvidia-smi-hangs" for note in host.notes)


@pytest.mark.parametrize("said", ["0, x", *(pytest.param(said, marks=pytest.mark.slow) for said in ("garbage", "-"))])
def test_a_nonsensical_nvidia_smi_is_said(said: str, tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a real driver")
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\necho '{said}'\n")
    fake.chmod(0o755)
    result = run("detect", cwd=tmp_path, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert result.returncode == 0
    assert "malformed output" in result.stdout

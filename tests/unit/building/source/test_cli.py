"""`torchtailor build --via source` and `doctor --last`: what is wrong is a sentence, and plans change nothing."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from torchtailor.cli import main
from torchtailor.core.errors import ExitCode

ISA = {"x86_64": "avx2", "aarch64": "armv8_2"}.get(platform.machine(), "avx2")
BUILD = ["build", f"cpu-{ISA}", "--via", "source"]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TORCHTAILOR_WORK", str(tmp_path / "work"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([*BUILD, "--jobs", "many"], ExitCode.USAGE, "neither a positive number nor auto"),
        ([*BUILD, "--jobs", "0"], ExitCode.USAGE, "neither a positive number nor auto"),
        ([*BUILD, "--toolchain", "mine"], ExitCode.USAGE, "is not system or wheels"),
        ([*BUILD, "--set", "USE_X"], ExitCode.USAGE, "NAME=VALUE"),
        ([*BUILD, "--profile", "tiny"], ExitCode.NO_MATCH, "full, inference, minimal"),
        ([*BUILD, "--skip-check", "luck"], ExitCode.USAGE, "There is no check 'luck'"),
        ([*BUILD, "--skip-check", "luck", "--dry-run"], ExitCode.USAGE, "There is no check 'luck'"),
        ([*BUILD, "--set", "CXXFLAGS=-O2 -march=native", "--dry-run"], ExitCode.USAGE, "cannot add -march=native"),
        ([*BUILD, "--source", "no/such/thing"], ExitCode.NO_MATCH, "does not exist, and is no git URL"),
        (["build", f"cpu-{ISA}", "--set", "USE_X=1"], ExitCode.USAGE, "Use --via source"),
        (["doctor", "--last"], ExitCode.NO_MATCH, "No build has left a log"),
        (["doctor", "a.log", "--last"], ExitCode.USAGE, "either MESSAGE|LOG or --last"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str], code: ExitCode, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    said = capsys.readouterr().err
    assert words in " ".join(said.split())
    assert "Traceback" not in said


def test_a_plan_shows_checks_switches_and_cost_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*BUILD, "--profile", "minimal", "--set", "USE_NUMPY=0", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (build,) = document["builds"]
    assert build["configuration"]["USE_NUMPY"] == "0"
    assert {"machine", "compiler", "cmake", "ninja", "memory", "disk"} <= {item["name"] for item in build["preflight"]}
    assert document["plan"]["core_hours_naive"] > 1
    assert main([*BUILD, "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "-fno-semantic-interposition" in said.out
    assert "With " in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_plan_says_whether_the_build_would_start(capsys: pytest.CaptureFixture[str]) -> None:
    other = "armv8_2" if ISA == "avx2" else "avx2"
    build = ["build", f"cpu-{other}", "--via", "source", "--dry-run"]
    assert main(build) == 0
    said = capsys.readouterr().out
    assert "MISSING" in said
    assert "would not start here: " in said
    assert main([*build, "--json"]) == 0
    (planned,) = json.loads(capsys.readouterr().out)["builds"]
    assert "machine" in planned["blocking"]
    assert {check["fix"] for check in planned["preflight"] if check["passed"]} == {""}
    skipped = [word for name in planned["blocking"] for word in ("--skip-check", name)]
    assert main([*build, *skipped]) == 0
    said = capsys.readouterr().out
    assert "skipped" in said
    assert "would not start" not in said


def test_a_plan_warns_of_options_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--set", "USE_XNNPAK=0", "--set", "USE_SOMETHING_ELSE=1", "--all-gpus", "--toolchain", "wheels"]
    assert main([*BUILD, *words, "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "Did you mean USE_XNNPACK?" in said
    assert "SOMETHING_ELSE" not in said
    assert "--all-gpus has no effect" in said
    assert "--toolchain wheels has no effect" in said
    assert "--objects" not in said
    assert main([*BUILD, "--objects", "file:///srv/objects", "--no-ccache", "--dry-run"]) == 0
    assert "--objects has no effect: ccache is switched off" in " ".join(capsys.readouterr().err.split())


def test_a_plan_gives_every_setting_with_its_last_reason(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--profile", "minimal", "--set", "USE_MKLDNN=1", "--set", "CXXFLAGS=-g1", "--no-bundle"]
    assert main([*BUILD, *words, "--dry-run", "--json"]) == 0
    (build,) = json.loads(capsys.readouterr().out)["builds"]
    settings: dict[str, str] = {}
    for reason in build["reasons"]:
        assert not settings.keys() & reason["settings"].keys()
        settings |= reason["settings"]
        if "USE_MKLDNN" in reason["settings"]:
            assert reason["why"] == "From --set."
    assert settings["USE_MKLDNN"] == "1"
    assert settings.items() <= build["configuration"].items()
    assert build["bundle"] is False


def test_a_plan_names_the_variant_of_the_source(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "pytorch"
    source.mkdir()
    for name, text in {"setup.py": "", "CMakeLists.txt": "", "version.txt": "2.7.1\n"}.items():
        (source / name).write_text(text)
    assert main([*BUILD, "--source", str(source), "--dry-run", "--json"]) == 0
    (build,) = json.loads(capsys.readouterr().out)["builds"]
    assert build["variant"].startswith("pytorch27-")

"""The commands detect and recommend."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest

from tests import machines
from torchtailor.advise.host import store
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode
from torchtailor.core.pythons import running_python


@pytest.fixture
def described(tmp_path: Path) -> Path:
    path = tmp_path / "server.json"
    store.write(msgspec.json.encode(machines.host("h200-driver-550")), path)
    return path


def test_detect_shows_a_description_from_elsewhere(described: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "--from", str(described)]) == 0
    shown = capsys.readouterr().out
    for part in ("Xeon(R) Platinum 8480+", "GPU 7", "NVIDIA H200", "550.54.15", "CUDA up to 12.4", "Ubuntu 22.04"):
        assert part in shown


def test_json_of_detect_can_be_loaded_again(described: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "--json", "--from", str(described)]) == 0
    assert store.loads(capsys.readouterr().out.encode(), "stdout") == store.load(described)


@pytest.mark.parametrize("name", ["dgx-spark", "orin-jetpack-6", "h100-mig", "alpine", "power9", "kubernetes-pod"])
def test_strange_machines_can_be_shown(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "host.json"
    store.write(msgspec.json.encode(machines.host(name)), path)
    assert main(["detect", "--from", str(path)]) == 0
    assert "CPU" in capsys.readouterr().out


def test_recommend_from_a_file(described: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--from", str(described)]) == 0
    shown = capsys.readouterr().out
    command, reason, *_ = shown.splitlines()
    assert command == "torchtailor install pytorch214-python313-cuda12_6-sm90-avx512 --into .venv"
    assert reason.startswith("PyTorch 2.14.1 with CUDA 12.6 for Python 3.13, from the official wheel, cut to ")
    assert "Driver 580.65.06 or newer (595.71.05 for full support) enables PyTorch 2.15.0" in shown
    assert "Rejected:" not in shown and "Other variants that run:" not in shown and "Add --why" in shown
    assert main(["recommend", "--from", str(described), "--why"]) == 0
    shown = capsys.readouterr().out
    assert "Rejected:" in shown and "Other variants that run:" in shown and "Add --why" not in shown


def test_where_nothing_runs_it_says_what_the_gpu_needs_and_how_to_use_the_cpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--gpu", "RTX 5090", "--driver", "535.104.05", "--cpu", "zen4"]
    assert main(["recommend", *words]) == ExitCode.NO_MATCH
    shown = capsys.readouterr().out
    assert "Note: Driver 535.104.05 is too old for SM120, which needs 570.26 or newer." in shown
    assert "`torchtailor install pytorch215-python313-cpu-avx512 --into .venv`" in shown


def test_recommend_from_standard_input(
    described: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(described.read_bytes())))
    assert main(["recommend", "--from", "-", "--json", "--driver", "580.95.05"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["best"]["variant"] == "pytorch215-python313-cuda13_2-sm90-avx512"


def test_recommend_for_a_named_machine_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--cpu", "zen4", "--driver", "570.26", "--cpu-work", "int8-inference", "--python", "3.12", "--json"]
    assert main(["recommend", "--gpu", "RTX 4090", *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["best"]["name"] == "pytorch-python312-cuda12_6-sm89-avx512vnni"
    assert answer["upgrades"][0]["needs"] == "driver 580.65.06"
    assert set(answer) == {
        "schema", "machine", "workload", "python", "best", "per_gpu", "other_variants", "rejected", "upgrades",
        "alternatives", "notes", "compiling", "command", "stock_command",
    }  # fmt: skip


def test_the_answer_begins_with_the_command(described: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--from", str(described)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.strip().startswith("python -m pip install torch==2.14.1+cu126 --extra-index-url ")
    assert main(["recommend", "--gpu", "T4G", "--cpu", "Graviton2", "--driver", "535"]) == 0
    command, reason, *_ = capsys.readouterr().out.splitlines()
    assert command.endswith("--via source")
    assert "built from source: " in reason


def test_the_python_is_that_of_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not 3.13, for which `install --into` would refuse that environment."""
    for place, version in (("active", "3.12"), ("given", "3.10")):
        python = tmp_path / place / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\necho {version} x86_64\n")
        python.chmod(0o755)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    monkeypatch.setattr("torchtailor.advise.recommendation.hypothetical.detect", lambda catalog: machines.host("zen3"))
    assert main(["recommend", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["python"], answer["command"]) == ("3.12", "torchtailor install")
    assert main(["recommend", "--json", "--into", str(tmp_path / "given")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["command"] == f"torchtailor install --into {tmp_path / 'given'}"
    assert answer["best"]["variant"] == "pytorch214-python310-cpu-avx2"
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert main(["recommend", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["python"], answer["command"]) == (running_python(), "torchtailor install --into .venv")
    assert main(["recommend", "--json", "--release", "2.14", "--python", "3.12"]) == 0  # what `install` does not choose
    command = json.loads(capsys.readouterr().out)["command"]
    assert command == "torchtailor install pytorch214-python312-cpu-avx2 --into .venv"


def test_where_nothing_fits_the_alternatives_are_shown_and_the_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--gpu", "Jetson Orin", "--jetpack", "6.2"]) == ExitCode.NO_MATCH
    shown = capsys.readouterr().out
    assert "No variant in the matrix runs on this machine." in shown
    assert 'gpus = ["8.7"]' in shown and 'release = "2.14"' in shown
    assert "pytorch215-python313-cpu-armv8_2 runs on this machine" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["recommend", "--gpu", "Foo"], ExitCode.NO_MATCH, "No GPU is known as 'Foo'"),
        (["recommend", "--cpu", "zen4", "--python", "3.7"], ExitCode.NO_MATCH, "Supported are 3.8, 3.9, 3.10"),
        (["recommend", "--cpu", "zen4", "--release", "1.0"], ExitCode.NO_MATCH, "No release is called '1.0'"),
        (["recommend", "--cpu-work", "mining"], ExitCode.USAGE, "cpu-work"),
        (["recommend", "--via", "magic"], ExitCode.USAGE, "via"),
        (["recommend", "--from", "/nonexistent"], ExitCode.NO_MATCH, "does not exist"),
        (["detect", "--from", "/nonexistent"], ExitCode.NO_MATCH, "does not exist"),
        (["detect", "--from", "a", "--record", "b"], ExitCode.USAGE, "are mutually exclusive"),
    ],
)
def test_mistakes_are_sentences(
    arguments: list[str], code: ExitCode, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert says in captured.err and captured.out == "" and "Traceback" not in captured.err


def test_a_corrupted_file_is_a_sentence(described: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described.write_bytes(described.read_bytes()[:500])
    assert main(["recommend", "--from", str(described)]) == ExitCode.BAD_INPUT
    assert "is not JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "driver", "says", "never"),
    [
        (["Tesla K80"], "390.157", "Driver 450.80.02 or newer, up to branch R470, enables PyTorch 2.0.1", "515"),
        (["GTX 680", "GTX 1080"], "470", "but SM30 would be lost: R470 is the last branch", "560"),
        (["B200", "V100", "GTX 1060"], "575", "Driver 580.65.06 or newer, up to branch R580, enables", "595"),
    ],
)
def test_a_driver_that_drops_a_gpu_of_the_machine_is_no_advice(
    gpus: list[str], driver: str, says: str, never: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [word for gpu in gpus for word in ("--gpu", gpu)]
    main(["recommend", *named, "--cpu", "haswell", "--driver", driver])
    out = capsys.readouterr().out
    assert says in out
    assert f"{never}." not in out.partition("Rejected")[0]


def test_an_environment_that_install_refuses_is_not_recommended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        assert main(["recommend", "--into", str(place)]) == ExitCode.USAGE
        assert "neither empty nor a Python environment" in capsys.readouterr().err
    assert main(["recommend", "--into", str(tmp_path / "new")]) == ExitCode.OK


def test_torch_compile_needs_volta(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--gpu", "GTX 1080 Ti", "--cpu", "haswell", "--driver", "580.95.05"]) == ExitCode.OK
    assert "torch.compile does not work on this GPU" in capsys.readouterr().out

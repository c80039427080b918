"""The command: lines, exit codes, JSON, JUnit, report."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.verification.conftest import HOST
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode


def test_everything_passes(stock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(stock), "--gpu", "9.0", "--cpu", "avx2"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "Level 1: static" in said
    assert "pass  GPU code for sm90: libtorch_cuda.so: native" in said
    assert "n/a   import torch: a wheel alone lacks its dependencies" in said
    assert "0 failed" in said


def test_where_the_gpu_is_from_is_said(stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tailor", str(stock), "--gpu", "9.0", "-o", str(tmp_path)]) == ExitCode.OK
    (cut,) = tmp_path.glob("*.whl")
    capsys.readouterr()
    for options, source in (((), "torchtailor.json"), (("--gpu", "9.0"), "--gpu, as in torchtailor.json")):
        assert main(["verify", str(cut), *options, "--level", "static"]) == ExitCode.OK
        assert f" as GPU 9.0 (from {source})" in capsys.readouterr().out


def test_an_environment_without_libraries_has_nothing_to_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As pip's own: two packages of text, and launchers for Windows."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    (site / "pip-24.0.dist-info").mkdir(parents=True)
    (site / "pip-24.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: pip\nVersion: 24.0\n")
    (site / "pip").mkdir()
    (site / "pip" / "t64.exe").write_bytes(b"MZ" + bytes(62))
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    assert main(["verify", str(tmp_path)]) == ExitCode.BAD_INPUT
    assert "holds no libraries" in capsys.readouterr().err


def test_a_failure_is_exit_code_6(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["verify", str(HOST / "x86_64" / "startup_wide.so"), "--cpu", "avx2", "--level", "static"])
    assert code == ExitCode.CHECK_FAILED
    assert "FAIL  host code within avx2: startup_wide.so: needs avx512f" in capsys.readouterr().out


def test_json_junit_report_and_plot(stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit, page = tmp_path / "out" / "junit.xml", tmp_path / "out" / "report.html"
    arguments = ["verify", str(stock), "--gpu", "8.0", "--level", "static", "--json", "--plot"]
    assert main([*arguments, "--junit", str(junit), "--report", str(page)]) == ExitCode.OK
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["passed"]
    assert document["facts"]["expected"]["gpus"] == ["8.0"]
    assert {check["level"] for check in document["checks"]} == {"static"}
    library = next(row for row in document["facts"]["libraries"] if row["name"].endswith("libtorch_cuda.so"))
    assert sum(library["bytes"].values()) == library["size"]
    assert "libtorch_cuda.so" in printed.err  # bars do not mix with JSON
    suites = ElementTree.parse(junit).getroot()
    assert suites.attrib["failures"] == "0"
    assert page.read_text().count('data-outcome="pass"') == document["counts"]["pass"]


@pytest.mark.parametrize("option", ["--junit", "--report"])
def test_a_place_that_cannot_be_written_loses_no_result(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["verify", str(HOST / "aarch64" / "startup_base.so"), "--level", "static", option]
    assert main([*line, str(tmp_path)]) == ExitCode.USAGE
    assert not capsys.readouterr().out  # said before anything is read
    (tmp_path / "file").touch()
    assert main([*line, str(tmp_path / "file" / "page")]) == ExitCode.ENVIRONMENT
    assert "Level 1: static" in capsys.readouterr().out


def test_progress_does_not_mix_with_json() -> None:
    """A terminal on stderr sees what is being done, a file does not, and --plain says it in lines anywhere."""
    line = [sys.executable, "-m", "torchtailor", "verify", str(HOST / "aarch64" / "startup_base.so"), "--json"]
    watcher, terminal = pty.openpty()
    shown = b""
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=terminal) as process, os.fdopen(watcher, "rb", 0) as eye:
        os.close(terminal)
        with suppress(OSError):  # nobody has the terminal any more
            while part := eye.read(1 << 16):  # all of it: who prints waits where nobody reads
                shown += part
        assert process.stdout and json.loads(process.stdout.read())["passed"]
    assert process.returncode == 0 and b"Reading libraries" in shown  # after "Looking at files"
    assert subprocess.run(line, capture_output=True, check=True).stderr == b""
    done = subprocess.run([*line, "--plain"], capture_output=True, check=True)
    assert json.loads(done.stdout)["passed"]
    assert done.stderr == b"Reading startup_base.so ...\n"


def test_bad_names(stock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(stock), "--cpu", "avx99"]) == ExitCode.NO_MATCH
    assert main(["verify", str(stock), "--gpu", "Voodoo 2"]) == ExitCode.NO_MATCH
    assert main(["verify", str(stock), "--variant", "sm90-avx99"]) in (ExitCode.NO_MATCH, ExitCode.USAGE)
    assert main(["verify", "/nowhere"]) == ExitCode.NO_MATCH
    assert main(["verify", str(stock), "--level", "moon"]) == ExitCode.USAGE
    assert "Traceback" not in capsys.readouterr().err


def test_an_empty_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "libempty.so"
    empty.touch()
    assert main(["verify", str(empty), "--level", "static"]) == ExitCode.BAD_INPUT
    assert "is empty" in capsys.readouterr().err

"""Real pip and real uv accept what was cut: wheels with labels, and environments changed in place."""

from __future__ import annotations

import ctypes
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.tailoring.conftest import ROOT, Venv, run, torchtailor
from tests.unit.tailoring.helpers import check_records, tree
from tests.unit.wheels.builder import build_wheel

pytestmark = pytest.mark.network

PACKAGE, VERSION = "nvidia-nvjpeg-cu12", "12.4.0.76"
LIBRARY = "nvidia/nvjpeg/lib/libnvjpeg.so.12"


def files_of_package(venv: Venv) -> list[Path]:
    """What is there of the package; compiled Python is not the package's."""
    found = venv.site.rglob("nvidia*/**/*")
    return [path for path in found if path.is_file() and path.suffix != ".pyc"]


def test_cut_wheel_is_installed_for_its_dependants(tmp_path: Path, nvjpeg: Path, venv: Venv) -> None:
    out = tmp_path / "out"
    torchtailor("tailor", nvjpeg, "--gpu", "9.0", "--nvidia", "-o", out)
    shutil.copy(nvjpeg, out)  # beside the stock one, the cut one is preferred
    build_wheel(out, {"dependant.py": b""}, name="dependant", metadata=f"Requires-Dist: {PACKAGE}=={VERSION}\n")
    venv.pip("install", "--no-index", "--find-links", out, "dependant")
    venv.pip("check")
    assert re.search(rf"{PACKAGE}\s+{re.escape(VERSION)}\+sm90\b", venv.pip("list").stdout)
    check_records(venv.site)
    ctypes.CDLL(str(venv.site / LIBRARY))
    venv.pip("uninstall", "-y", PACKAGE)
    assert not files_of_package(venv)


def test_environment_in_place_and_back(nvjpeg: Path, venv: Venv) -> None:
    venv.pip("install", "--no-index", nvjpeg)
    before = tree(venv.site / "nvidia") | tree(next(venv.site.glob("nvidia_nvjpeg*.dist-info")))
    size = (venv.site / LIBRARY).stat().st_size
    said = torchtailor("tailor", "--env", venv.folder, "--gpu", "9.0", "--nvidia", "--keep-removed").stdout
    assert LIBRARY in said
    assert (venv.site / LIBRARY).stat().st_size < size / 2
    check_records(venv.site)
    venv.pip("check")
    ctypes.CDLL(str(venv.site / LIBRARY))
    torchtailor("restore", "--env", venv.folder)
    after = tree(venv.site / "nvidia") | tree(next(venv.site.glob("nvidia_nvjpeg*.dist-info")))
    assert after == before


def test_the_reinstall_command_works(nvjpeg: Path, venv: Venv) -> None:
    venv.pip("install", "--no-index", nvjpeg)
    stock = (venv.site / LIBRARY).read_bytes()
    torchtailor("tailor", "--env", venv.folder, "--gpu", "9.0", "--nvidia")
    done = torchtailor("restore", "--env", venv.folder, check=False)
    assert done.returncode == 7
    command = done.stdout.strip().splitlines()[-1].strip()
    words = command.split()
    if words[0] == "uv":  # also where pip installed it and the environment has none of its own
        Venv.uv(venv).pip(*(word for word in words[2:] if word not in ("--python", str(venv.python))), "--no-index")
    else:
        assert words[:3] == [str(venv.python), "-m", "pip"]
        venv.pip(*words[3:], "--no-index")
    assert (venv.site / LIBRARY).read_bytes() == stock
    assert "nothing to restore" in torchtailor("restore", "--env", venv.folder).stdout
    check_records(venv.site)
    assert not (venv.site / ".torchtailor").exists()


def test_uninstall_takes_everything_of_ours_but_the_journal(nvjpeg: Path, venv: Venv) -> None:
    venv.pip("install", "--no-index", nvjpeg)
    torchtailor("tailor", "--env", venv.folder, "--gpu", "9.0", "--nvidia")
    venv.pip("uninstall", "-y", PACKAGE)
    assert not files_of_package(venv)
    torchtailor("restore", "--env", venv.folder)
    assert not (venv.site / ".torchtailor").exists()


def test_uvs_cache_keeps_its_bytes(tmp_path: Path, nvjpeg: Path) -> None:
    """uv links its cache into environments: a second environment must get the stock library."""
    if not shutil.which("uv", path=str(Path(sys.executable).parent)):
        pytest.skip("uv is not installed")
    first, second = Venv(tmp_path / "one", "uv"), Venv(tmp_path / "two", "uv")
    first.pip("install", "--no-index", "--link-mode", "hardlink", nvjpeg)
    stock = (first.site / LIBRARY).read_bytes()
    if (first.site / LIBRARY).stat().st_nlink < 2:
        pytest.skip("uv could not link its cache here")
    torchtailor("tailor", "--env", first.folder, "--gpu", "9.0", "--nvidia")
    assert (first.site / LIBRARY).read_bytes() != stock
    second.pip("install", "--no-index", "--link-mode", "hardlink", nvjpeg)
    assert (second.site / LIBRARY).read_bytes() == stock
    check_records(second.site)


@pytest.mark.slow
def test_the_line_of_the_dockerfile(tmp_path: Path, nvjpeg: Path) -> None:
    """A line of docs/docker.md, run as a shell would, with a small package in the place of torch."""
    match = re.search(
        r"^RUN (python -m venv /tmp/t && .* \\\n && pip install .*) && rm -rf /tmp/t$",
        (ROOT / "docs/docker.md").read_text(),
        re.M,
    )
    assert match
    venv = Venv(tmp_path / "venv", "pip", with_pip=True)
    line = match[1].replace("'torchtailor @ git+URL@COMMIT'", f"'{ROOT}'")
    line = line.replace("--no-cache-dir torch ", f"{nvjpeg} ").replace("/usr/local", str(venv.folder))
    line = line.replace("/tmp/t", str(tmp_path / "tool"))
    assert str(ROOT) in line and str(nvjpeg) in line and str(venv.folder) in line
    path = f"{venv.folder}/bin:/usr/bin:/bin"
    done = run("/bin/sh", "-ec", line, PATH=path)
    assert LIBRARY in done.stdout
    assert (venv.site / LIBRARY).stat().st_size < 5_000_000
    check_records(venv.site)
    venv.pip("check")

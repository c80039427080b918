"""README word by word, in a fresh environment from the built wheel: its commands are taken from its fenced blocks.

The words after a block's language say what it needs: `torch` an environment with PyTorch (here a small package with GPU
code stands for it), `network` an index or gigabytes, `gpu` a GPU; the last two are skipped, visibly.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.tailoring.helpers import install
from tests.unit.wheels.builder import build_wheel

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FAT = ROOT / "tests" / "unit" / "gpucode" / "fixtures"


class Step(NamedTuple):
    language: str
    needs: frozenset[str]
    text: str


def steps() -> list[Step]:
    found = []
    for language, needs, text in re.findall(r"^```(sh|python)([^\n]*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        parts = text.splitlines() if language == "sh" else [text]
        found += [Step(language, frozenset(needs.split()), part) for part in parts if part.strip()]
    return found


STEPS = steps()


def test_the_readme_has_what_is_walked_through() -> None:
    assert {"sh", "python"} == {step.language for step in STEPS}
    assert {need for step in STEPS for need in step.needs} == {"torch", "network", "gpu"}
    assert sum(step.text.startswith("torchtailor ") for step in STEPS) >= 6
    fences = len(re.findall(r"^```\S", README, re.MULTILINE))
    assert fences == len(re.findall(r"^```(?:sh|python)\b", README, re.MULTILINE))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with nothing but the built wheel and its dependencies."""
    if shutil.which("uv") is None:
        pytest.skip("uv is not installed")
    root = tmp_path_factory.mktemp("readme")
    subprocess.run(["uv", "build", "--quiet", "--wheel", "-o", str(root / "dist"), str(ROOT)], check=True)
    (wheel,) = (root / "dist").glob("*.whl")
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(root / "env")], check=True)
    python = str(root / "env" / "bin" / "python")
    subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, str(wheel)], check=True)
    return root / "env"


@pytest.fixture(scope="module")
def project(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `.venv` in which a package with GPU code is installed."""
    folder = tmp_path_factory.mktemp("project")
    site = folder / ".venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    library = (FAT / "raw.so").read_bytes()
    wheel = build_wheel(folder, {"torch/lib/libtorch_cuda.so": library}, name="torch", version="2.10.0")
    install(wheel, site)
    (folder / ".venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    return folder


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("step", STEPS, ids=[re.sub(r"\s+", " ", step.text.partition("  #")[0])[:60] for step in STEPS])
def test_step(step: Step, environment: Path, project: Path) -> None:
    if missing := step.needs & {"network", "gpu"}:
        pytest.skip(f"needs {' and '.join(sorted(missing))}")
    if step.language == "python":
        line = [str(environment / "bin" / "python"), "-c", step.text]
    else:
        program, *arguments = shlex.split(step.text, comments=True)
        line = [str(environment / "bin" / program), *arguments]
    variables = {**os.environ, "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    variables.pop("VIRTUAL_ENV", None)
    done = subprocess.run(line, cwd=project, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
@pytest.mark.network
def test_the_wheel_brings_its_pages_and_little_else(environment: Path) -> None:
    site = next(environment.glob("lib/python*/site-packages"))
    assert not (site / "numpy").exists()
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    assert size < 75e6  # half of what it was with numpy and capstone
    program = str(environment / "bin" / "torchtailor")
    page = subprocess.run([program, "help", "licences"], capture_output=True, text=True, check=True)
    assert page.stdout == (ROOT / "docs" / "licences.md").read_text()
    refused = subprocess.run([program, "verify", "x.whl"], capture_output=True, text=True, check=False)
    assert refused.returncode == 7
    assert "torchtailor[verify]" in refused.stderr


@pytest.mark.slow
@pytest.mark.network
def test_the_action_runs(environment: Path, tmp_path: Path) -> None:
    """The shell script of action.yml, as a runner would call it."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    (step,) = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    library = (FAT / "raw.so").read_bytes()
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    build_wheel(wheels, {"torch/lib/libtorch_cuda.so": library}, name="torch", version="2.10.0")
    (wheel,) = (environment.parent / "dist").glob("*.whl")
    variables = {
        **os.environ,
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
        "GPU": "9.0",
        "ENVIRONMENT": "",
        "WHEELS": str(wheels),
        "OUTPUT": str(tmp_path / "out"),
        "OPTIONS": "--no-strip --jobs 1",
        "PACKAGE": str(wheel),
    }
    line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(line, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = dict(row.split("=", 1) for row in (tmp_path / "outputs").read_text().splitlines())
    assert int(outputs["saved"]) > 0
    assert Path(outputs["result"]).is_file()
    assert list((tmp_path / "out").glob("torch-2.10.0+*sm90*.whl"))
    refused = subprocess.run(line, env={**variables, "GPU": "Voodoo 2"}, cwd=tmp_path, capture_output=True, check=False)
    assert refused.returncode == 3

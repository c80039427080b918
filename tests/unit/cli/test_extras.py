"""What an installation without extras can do, and what it says about the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode

LIBRARY = Path(__file__).parents[2] / "fixtures" / "hostcode" / "x86_64" / "startup_base.so"
FAT = Path(__file__).parents[1] / "gpucode" / "fixtures" / "raw.so"
# As in an environment without the `verify` extra: importing these fails.
WITHOUT = "import sys\nfor name in ('numpy', 'capstone'): sys.modules[name] = None\n"


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False)


def test_only_verification_needs_its_extra() -> None:
    """Everything else is imported without it: `tailor` in an image must not bring 80 MB of its own."""
    code = (
        "import importlib, pkgutil, torchtailor\n"
        "from torchtailor.core.errors import EnvironmentProblem\n"
        "for module in pkgutil.walk_packages(torchtailor.__path__, 'torchtailor.', onerror=lambda name: None):\n"
        "    if any(part in module.name for part in ('__main__', '.opsuite', '.bundling.program')): continue\n"
        "    try: importlib.import_module(module.name)\n"
        "    except EnvironmentProblem as error: print('.'.join(module.name.split('.')[1:4]))\n"
    )
    found = python(code)
    assert found.stderr == ""
    needing = set(found.stdout.split())
    assert {name.split(".")[0] for name in needing} == {"code", "fetch", "verification"}
    assert {name for name in needing if name.startswith(("code", "fetch"))} == {"code.hostcode", "fetch.upkeep.measure"}
    assert {name for name in needing if name.startswith("verification")} == {"verification.static.host_checks"}


@pytest.mark.parametrize(
    "arguments",
    [["verify", str(LIBRARY), "--cpu", "avx2"], ["catalog", "update", "--measure", "--dry-run"]],
)
def test_without_the_extra_a_sentence_names_it(arguments: list[str]) -> None:
    result = python(f"from torchtailor.cli import main\nsys.exit(main({arguments!r}))")
    assert result.returncode == ExitCode.ENVIRONMENT
    assert "is not installed." in result.stderr
    assert "[verify]'`" in result.stderr and "pip install '" in result.stderr


def test_what_needs_no_extra_is_verified_without() -> None:
    result = python(f"from torchtailor.cli import main\nsys.exit(main(['verify', {str(LIBRARY)!r}]))")
    assert (result.returncode, result.stderr) == (ExitCode.OK, "")
    said = " ".join(result.stdout.split())
    assert "n/a host code: Reading the host code of libraries needs the Python package capstone" in said
    assert "[verify]'`" in said and " 0 failed" in said


def test_a_cut_needs_no_extra_to_be_verified(tmp_path: Path) -> None:
    """Its instructions are stock's, which its manifest says: there is nothing to read."""
    cut = tmp_path / "cut"
    stock = build_wheel(tmp_path, {"x/libx.so": FAT.read_bytes()}, name="x")
    assert main(["tailor", str(stock), "--gpu", "9.0", "-o", f"{cut}/"]) == ExitCode.OK
    (wheel,) = cut.iterdir()
    result = python(f"from torchtailor.cli import main\nsys.exit(main(['verify', {str(wheel)!r}]))")
    assert (result.returncode, result.stderr) == (ExitCode.OK, "")
    said = " ".join(result.stdout.split())
    assert "pass host code as stock: 1 library has the instructions of stock" in said
    assert "capstone" not in said


def test_a_source_build_asks_before_it_compiles() -> None:
    """Without the extra, the checks before a build say so; hours later would be too late."""
    code = (
        "from torchtailor.building.source.preflight import Inspector\n"
        "check = Inspector.verifying()\nprint(check.passed, check.fix)"
    )
    said = python(code).stdout
    assert said.startswith("False")
    assert "[verify]'" in said
    assert "--no-verify" in said


def test_the_extras_are_those_of_the_package() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    needed = {line.split(">")[0] for line in project["dependencies"]}
    assert not needed & {"numpy", "capstone"}
    assert {line.split(">")[0] for line in project["optional-dependencies"]["verify"]} == {"numpy", "capstone"}

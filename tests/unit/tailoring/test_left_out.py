"""Extension modules that --drop-unopened leaves out: importing one names the command that brings it back."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.surgery.cut import Cut
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.folder import tailor_folder
from torchtailor.tailoring.restore import restore_environment
from torchtailor.tailoring.wheel import tailor_wheel
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import Trace


def module(name: str) -> bytes:
    """What an extension module has that others have not, far into a large file."""
    return b"\x7fELF" + bytes(1 << 20) + f"\0PyInit_{name}\0".encode() + bytes(1 << 17)


FILES = {
    "triton/__init__.py": b"",
    "triton/_C/libtriton.so": module("libtriton"),
    "triton/_C/_fast.cpython-313-x86_64-linux-gnu.so": module("_fast"),
    "triton/_C/_slow.abi3.so": module("_slow"),
    "triton/_C/_slow.py": b"answer = 42\n",
    "triton/_C/libplain.so": module("something_else"),
    "triton/_C/liblinked.so.3": module("liblinked"),
}
STUBS = {"triton/_C/libtriton.py", "triton/_C/_fast.py"}
GONE = {name for name in FILES if ".so" in name}


def chosen(**more: object) -> Cut:
    trace = Trace(opened=("torch/lib/libtorch_cuda.so",))
    return replace(options(), workload=TracedWorkload(trace), drop_unopened=True, **more)  # type: ignore[arg-type]


@pytest.fixture
def wheel(tmp_path: Path, fat: bytes) -> Path:
    return build_wheel(tmp_path, {**FILES, "torch/lib/libtorch_cuda.so": fat}, name="triton", version="3.4.0")


@pytest.fixture
def site(tmp_path: Path, wheel: Path) -> Path:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(wheel, site)
    return site


def importing(site: Path, name: str) -> str:
    code = f"import {name}; print(getattr({name}, 'answer', ''))"
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=site, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def check(site: Path, command: str) -> None:
    check_records(site)
    names = {path for path in tree(site) if path.startswith("triton/")}
    assert names == set(FILES) - GONE | STUBS
    for name in ("libtriton", "_fast"):
        said = importing(site, f"triton._C.{name}").splitlines()[-1]
        assert said.startswith(f"ModuleNotFoundError: {name}")
        assert command in said
    assert importing(site, "triton._C._slow") == "42\n"
    assert "No module named 'triton._C.libplain'" in importing(site, "triton._C.libplain")


def test_in_an_environment_and_back(site: Path) -> None:
    before = tree(site)
    tailor_environment(site, chosen(keep_removed=True))
    check(site, "`torchtailor restore` brings it back")
    tailor_environment(site, chosen(keep_removed=True))
    check(site, "`torchtailor restore` brings it back")
    restore_environment(site)
    assert tree(site) == before


def test_in_a_folder(tmp_path: Path, site: Path) -> None:
    tailor_folder(tmp_path / "env", tmp_path / "out", chosen())
    check(tmp_path / "out" / "lib" / "python3.13" / "site-packages", "installing triton 3.4.0 again")


def test_in_a_wheel(tmp_path: Path, wheel: Path) -> None:
    result = tailor_wheel(wheel, tmp_path / "made", chosen())
    assert result.output is not None
    install(result.output, tmp_path / "site")
    check(tmp_path / "site", "`pip install --force-reinstall --no-deps triton==3.4.0`")


def test_a_module_that_a_user_wrote_in_its_place_stays(site: Path) -> None:
    tailor_environment(site, chosen(keep_removed=True))
    (site / "triton/_C/libtriton.py").write_text("mine = 1\n")
    restore_environment(site)
    assert (site / "triton/_C/libtriton.py").read_text() == "mine = 1\n"
    assert (site / "triton/_C/libtriton.so").is_file()


def test_a_folder_on_pythonpath_has_its_packs_too(tmp_path: Path, fat: bytes) -> None:
    """Python runs `.pth` files in site folders only; the `sitecustomize` that a company has still runs."""
    files = {"demo/__init__.py": b"", "demo/cold.py": b"value = 7\n", "demo/libdemo.so": fat}
    install(build_wheel(tmp_path, files, name="demo", version="1.0"), tmp_path / "site")
    trace = Trace(opened=("demo/__init__.py", "demo/libdemo.so"))
    cut = replace(options(), workload=TracedWorkload(trace), drop_unopened=True)
    tailor_folder(tmp_path / "site", tmp_path / "out", cut)
    assert not (tmp_path / "out/demo/cold.py").exists()
    check_records(tmp_path / "out")
    other = tmp_path / "company"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys\nsys.company = __name__\n")
    program = "import sys, demo.cold; print(demo.cold.value, getattr(sys, 'company', None), len(sys.meta_path))"

    def said(*folders: Path, first: str = "") -> str:
        path = os.pathsep.join(map(str, folders))
        line = [sys.executable, "-c", f"{first}\n{program}"]
        done = subprocess.run(line, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)
        return done.stdout or done.stderr

    alone = said(tmp_path / "out")
    assert alone.startswith("7 None "), alone
    assert said(tmp_path / "out", other).startswith("7 sitecustomize ")
    assert "No module named 'demo.cold'" in said(
        other, first=f"sys = __import__('sys'); sys.path.append({str(tmp_path / 'out')!r})"
    )

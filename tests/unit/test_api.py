"""The Python API: docs/api.md is run word by word, and importing it stays quick."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchtailor

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
FIXTURES = Path(__file__).parent / "gpucode" / "fixtures"
_BLOCK = re.compile(r"<!-- test -->\n```python\n(.*?)```", re.DOTALL)


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All marked blocks, in their order, in one namespace."""
    blocks = _BLOCK.findall(PAGE.read_text("utf-8"))
    assert len(blocks) >= 6
    (tmp_path / "libexample.so").write_bytes((FIXTURES / "raw.so").read_bytes())
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/api.md block {number}", "exec"), namespace)
    assert (tmp_path / "libtailored.so").is_file()


def test_all_names_can_be_used() -> None:
    for name in torchtailor.__all__:
        assert getattr(torchtailor, name) is not None, name
    assert set(torchtailor.__all__) <= set(dir(torchtailor))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = torchtailor.nothing


def test_functions_stay_functions_whatever_is_imported() -> None:
    """No subpackage has the name of a function, so that importing one cannot replace it."""
    code = (
        "import torchtailor, pkgutil, importlib\n"
        "for info in pkgutil.iter_modules(torchtailor.__path__):\n"
        "    if info.name not in ('__main__', 'opsuite'): importlib.import_module(f'torchtailor.{info.name}')\n"
        "assert all(callable(getattr(torchtailor, name)) for name in torchtailor.__all__ if name[0].islower())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, torchtailor; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"typer", "rich", "numpy", "msgspec", "urllib3", "torchtailor.catalog"}


def test_plain_values_are_taken() -> None:
    """One GPU as a string is one GPU, and a level goes by its name."""
    library = FIXTURES / "raw.so"
    assert [str(device) for device in torchtailor.inspect(library, gpus="9.0").devices] == ["9.0"]
    best = torchtailor.recommend(gpus="H100", cpu="zen4", driver="580.95.05", python="3.13").best
    assert best is not None and best.gpu == "sm90"
    (result,) = torchtailor.tailor(library, gpus="9.0", output="cut.so", dry_run=True)
    assert result.dry_run
    report = torchtailor.verify(str(library), gpus="9.0", level="static")
    assert {check.level for check in report.checks} == {torchtailor.Level.STATIC}

"""`make` gives uv the indexes that pip is configured for: uv does not read pip's settings."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("bootstrap", Path(__file__).parents[3] / "tools" / "bootstrap.py")
assert _SPEC and _SPEC.loader
_BOOTSTRAP = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_BOOTSTRAP)
for_uv = _BOOTSTRAP.for_uv


def test_a_variable_wins_over_install_and_that_over_global() -> None:
    listed = """\
:env:.index-url='https://variable.example/simple'
global.index-url='https://global.example/simple'
install.index-url='https://install.example/simple'
global.find-links='/one /two'
install.timeout='60'
freeze.extra-index-url='https://unrelated.example'
"""
    assert for_uv(listed) == {
        "UV_DEFAULT_INDEX": "https://variable.example/simple",
        "UV_FIND_LINKS": "/one,/two",
    }


def test_it_reads_what_pip_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nextra-index-url =\n    https://user:pa'ss@one.example/simple\n    https://two.example/simple\n"
        "trusted-host = one.example\n[install]\nindex-url = https://three.example/simple\n"
    )
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "PIP_TRUSTED_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found = for_uv(done.stdout)
    assert found["UV_DEFAULT_INDEX"] == "https://three.example/simple"
    assert found["UV_INDEX"] == "https://user:pa'ss@one.example/simple https://two.example/simple"
    assert found["UV_INSECURE_HOST"] == "one.example"

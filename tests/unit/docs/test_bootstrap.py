"""`make` sets up its environment, gives uv the indexes that pip is configured for, and says what is in its way."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("bootstrap", Path(__file__).parents[3] / "tools" / "bootstrap.py")
assert _SPEC and _SPEC.loader
_BOOTSTRAP = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_BOOTSTRAP)
for_uv = _BOOTSTRAP.for_uv
# Nothing listens there, and no setting of this machine names another index.
_UNREACHABLE = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "UV_NO_CONFIG": "1",
    "UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple",
}


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


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in _UNREACHABLE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


def test_older_pythons_can_read_that_they_are_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (_BOOTSTRAP.ROOT / "tools" / "bootstrap.py").read_text("utf-8")
    ast.parse(text, feature_version=(3, 6))
    assert "from __future__" not in text  # 3.6 does not know annotations
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", str(tmp_path / "venv"), "test"])
    assert _BOOTSTRAP.main() == 1
    assert capsys.readouterr().err.startswith("error: Python 3.10.13 is too old: torchtailor needs 3.11 or newer.\n")
    assert not (tmp_path / "venv").exists()


def test_without_venv_the_package_is_named_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", str(tmp_path / "venv"), "test"])
    assert _BOOTSTRAP.main() == 1
    error = capsys.readouterr().err
    assert "it has no ensurepip." in error and "apt-get install python3-venv" in error
    assert not (tmp_path / "venv").exists()


def python_without_uv(folder: Path) -> Path:
    """This Python, where there is no uv beside it; a link would not find its packages."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.usefixtures("unreachable")
def test_an_index_that_cannot_be_reached_is_said_at_once(tmp_path: Path) -> None:
    """By uv, and by pip, which installs uv where it is not there yet; pip is not tried after uv."""
    with pytest.raises(_BOOTSTRAP.SetUpError, match="The package index cannot be reached"):
        _BOOTSTRAP.install(Path(sys.executable), "--target", str(tmp_path), "-r", str(_BOOTSTRAP.LOCKS / "hook.txt"))
    wrapper = python_without_uv(tmp_path)
    with pytest.raises(_BOOTSTRAP.SetUpError, match="The package index cannot be reached"):
        _BOOTSTRAP.install(wrapper, "--target", str(tmp_path), "-r", str(_BOOTSTRAP.LOCKS / "hook.txt"))


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    for output in ("OSError: [Errno 28] No space left on device", "failed to copy: Disk full (os error 28)"):
        with pytest.raises(_BOOTSTRAP.SetUpError, match="The disk is full"):
            _BOOTSTRAP.check_known(output)
    _BOOTSTRAP.check_known("error: the hash does not fit")


def test_a_home_that_cannot_be_written_to_has_no_caches(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert _BOOTSTRAP.with_caches({"HOME": str(file)}).keys() == {"HOME", "UV_NO_CACHE", "PIP_NO_CACHE_DIR"}
    assert _BOOTSTRAP.with_caches({"HOME": str(tmp_path)}) == {"HOME": str(tmp_path)}


def test_an_interrupted_run_is_begun_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    venv, made, installed = tmp_path / "venv", [], []

    def make_environment(folder: Path) -> None:
        made.append(folder)
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / ".unfinished").unlink(missing_ok=True)
        (folder / "bin" / "python").unlink(missing_ok=True)
        (folder / "bin" / "python").symlink_to("/bin/true")

    def install(python: Path, *what: str) -> None:
        installed.append(Path(what[-1]).name)
        if len(installed) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(_BOOTSTRAP, "make_environment", make_environment)
    monkeypatch.setattr(_BOOTSTRAP, "install", install)
    monkeypatch.setattr(_BOOTSTRAP, "compile_hook", lambda python: None)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", str(venv), "test"])
    assert _BOOTSTRAP.main() == 130
    assert (venv / ".unfinished").exists() and not (venv / ".test").exists()
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", str(venv), "docs"])
    assert _BOOTSTRAP.main() == 0
    assert made == [venv, venv]
    assert installed == ["test.txt", "test.txt", _BOOTSTRAP.ROOT.name, "docs.txt"]
    assert {file.name for file in venv.glob(".*")} == {".test", ".docs"}
    assert _BOOTSTRAP.main() == 0  # what is there is kept
    assert made == [venv, venv] and installed[4:] == ["docs.txt"]


def test_a_moved_environment_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its programs name the Python of the old place."""
    venv = tmp_path / "venv"
    made: list[Path] = []
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to("/bin/true")
    monkeypatch.setattr(_BOOTSTRAP, "make_environment", made.append)
    monkeypatch.setattr(_BOOTSTRAP, "install", lambda python, *what: None)
    monkeypatch.setattr(_BOOTSTRAP, "compile_hook", lambda python: None)
    _BOOTSTRAP.set_up(venv, ["test"])
    assert made == []
    (venv / ".test").write_text("/another/place")
    _BOOTSTRAP.set_up(venv, ["docs"])
    assert made == [venv]
    assert (venv / ".test").read_text() == str(_BOOTSTRAP.ROOT)


def test_make_sees_a_moved_environment(tmp_path: Path) -> None:
    """The stamp of a copy is as new as that of the original; only what it says differs."""
    (tmp_path / "Makefile").write_text((_BOOTSTRAP.ROOT / "Makefile").read_text())
    for name in ("requirements/test.txt", "pyproject.toml", "tools/bootstrap.py", "tools/build_hook.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    python, stamp = tmp_path / ".venv" / "bin" / "python", tmp_path / ".venv" / ".test"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)

    def would_do() -> str:
        command = ["make", "--dry-run", "--no-print-directory", ".venv/.test"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    stamp.write_text(str(tmp_path.resolve()))
    assert "bootstrap" not in would_do()
    stamp.write_text("/another/place")
    assert "bootstrap" in would_do()
    stamp.write_text(str(tmp_path.resolve()))
    python.unlink()
    python.symlink_to("/gone/python3")
    assert "bootstrap" in would_do()


def test_a_file_in_the_place_of_the_environment_is_said(tmp_path: Path) -> None:
    (tmp_path / "venv").touch()
    with pytest.raises(_BOOTSTRAP.SetUpError, match="is not a folder"):
        _BOOTSTRAP.make_environment(tmp_path / "venv")
    assert (tmp_path / "venv").exists()


def test_what_venv_refuses_is_not_a_missing_package(tmp_path: Path) -> None:
    with pytest.raises(_BOOTSTRAP.SetUpError, match="could not make") as raised:
        _BOOTSTRAP.make_environment(tmp_path / "a:b")  # bin cannot be on a PATH
    assert "apt-get" not in raised.value.hint


def test_only_settings_that_reach_an_index_are_kept() -> None:
    kept = (
        "PIP_INDEX_URL",
        "PIP_NO_INDEX",
        "PIP_PROXY",
        "UV_DEFAULT_INDEX",
        "UV_INDEX_MINE_PASSWORD",
        "HOME",
        "UV_OFFLINE",
    )
    lost = ("PIP_TARGET", "PIP_USER", "PIP_PREFIX", "PIP_CONSTRAINT", "UV_PYTHON", "UV_OVERRIDE", "UV_EXCLUDE_NEWER")
    assert [name for name in (*kept, *lost) if _BOOTSTRAP.is_kept(name)] == list(kept)


@pytest.mark.usefixtures("unreachable")
def test_packages_are_not_installed_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither where pip's variables point, nor from an index that they forbid."""
    seen: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        seen.append((command, environment or {}))
        listed = ":env:.no-index='yes'\n:env:.proxy='http://proxy.example:3128'\n" if command[-1] == "list" else ""
        return subprocess.CompletedProcess(command, 0, listed)

    monkeypatch.setattr(_BOOTSTRAP, "run", run)
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    (tmp_path / "uv").touch()
    _BOOTSTRAP.install(tmp_path / "python", "-r", "some.txt")
    command, environment = seen[-1]
    assert "--no-index" in command
    assert environment["ALL_PROXY"] == "http://proxy.example:3128"
    assert not any("PIP_TARGET" in environment for _, environment in seen)


@pytest.mark.usefixtures("unreachable")
def test_the_settings_in_force_are_named_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "ftp:/nowhere")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(_BOOTSTRAP.SetUpError) as raised:
        _BOOTSTRAP.install(python_without_uv(tmp_path), "--target", str(tmp_path), "no-such-project-x")
    assert "PIP_INDEX_URL, PIP_NO_INDEX" in raised.value.hint
    assert capfd.readouterr().err.count("No matching distribution") == 1

"""What holds for all tests: none of them sees or changes the user's cache, state, settings or current folder.

Every test has a home and a current folder of its own. What pip, uv and torchtailor download from a real index is shared
by the tests of one run, and by several runs in the folder that TORCHTAILOR_TEST_CACHE names.
"""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from tests import skips
from tests.examples import examples

# How long an example takes depends on what else the machine does; what is slow is seen by its place in --durations.
hypothesis_settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(200),
)
hypothesis_settings.load_profile("busy")

# A runner that was started in the background ignores Ctrl-C, and every process it starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Variables of ours that are meant for the tests.
_OF_TESTS = ("TORCHTAILOR_TEST_", "TORCHTAILOR_FUZZ_", "TORCHTAILOR_TRIXIE")
_FOLDERS = {
    "XDG_CONFIG_HOME": ".config",
    "XDG_CACHE_HOME": ".cache",
    "XDG_STATE_HOME": ".local/state",
    "XDG_DATA_HOME": ".local/share",
}
_HOME = Path.home()
_CONFIG, _DATA = (
    Path(os.environ.get(name) or _HOME / _FOLDERS[name]).absolute() for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME")
)
# Where the user says which index is used, by its place in a home.
_SETTINGS = {
    ".pip/pip.conf": _HOME / ".pip" / "pip.conf",
    ".config/pip/pip.conf": _CONFIG / "pip" / "pip.conf",
    ".config/uv/uv.toml": _CONFIG / "uv" / "uv.toml",
    ".netrc": _HOME / ".netrc",
}
# Files that settings name; a relative name means the folder that the tests were started in.
_FILES = ("PIP_CONFIG_FILE", "PIP_CERT", "UV_CONFIG_FILE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NETRC")
# Pythons that are installed in the user's home.
_PYTHONS = {"PYENV_ROOT": _HOME / ".pyenv", "UV_PYTHON_INSTALL_DIR": _DATA / "uv" / "python"}


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Long texts are numbered, not spelled out: nobody reads them, and those of random bytes differ between workers."""
    return argname if isinstance(val, bytes | str) and len(val) > 120 else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """All tests are there to stay: looking through them for garbage was a third of the time that collecting takes."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """A test that uses the workload hook of a machine for which none was compiled is skipped."""
    from torchtailor.core.errors import EnvironmentProblem

    try:
        return (yield)
    except EnvironmentProblem as error:
        if "has no workload hook" in error.message:
            pytest.skip(error.message)
        raise


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Last, after pytest's own list: how much was skipped for lack of what, and how to get it."""
    yield
    reports = terminalreporter.stats.get("skipped", [])
    for line in skips.summary(report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def homes(tmp_path_factory: pytest.TempPathFactory, downloads: Path) -> Iterator[Iterator[Path]]:
    """New homes, one after the other; the first is that of fixtures which several tests share."""
    root = tmp_path_factory.mktemp("homes")
    places = (root / str(number) for number in itertools.count())
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("TORCHTAILOR_") and not name.startswith(_OF_TESTS):
                patch.delenv(name)
        for name in _FILES:
            if name in os.environ:
                patch.setenv(name, str(Path(os.environ[name]).expanduser().absolute()))
        for name, folder in _PYTHONS.items():
            if name not in os.environ and folder.is_dir():
                patch.setenv(name, str(folder))
        patch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)  # would name a GPU where a test names none
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # what tests start hundreds of times is compiled once
        patch.setenv("UV_CACHE_DIR", str(downloads / "uv"))
        patch.setenv("PIP_CACHE_DIR", str(downloads / "pip"))
        patch.setattr(os, "fsync", lambda _: None)  # what is lost without power no test can see, but all would wait
        patch.setattr(sqlite3, "connect", partial(_connect, sqlite3.connect))
        move_into(next(places), patch)
        link_settings()
        yield places


def _connect(real: Callable[..., sqlite3.Connection], *arguments: Any, **more: Any) -> sqlite3.Connection:
    connection = real(*arguments, **more)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what was downloaded is kept for other tests."""
    kept = os.environ.get("TORCHTAILOR_TEST_CACHE")
    return Path(kept).expanduser().absolute() if kept else tmp_path_factory.mktemp("downloads")


@pytest.fixture(autouse=True)
def home(homes: Iterator[Path]) -> Iterator[Path]:
    """A home and a current folder for one test."""
    with pytest.MonkeyPatch.context() as patch:
        yield move_into(next(homes), patch)


@pytest.fixture(autouse=True)
def json_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every JSON document that a test prints in this process is one of docs/json.md."""
    from torchtailor.cli import ui

    printing = ui.print_json

    def checked(name: str, result: object, **more: object) -> None:
        import json

        from tests.documents import document_validator

        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            printing(name, result, **more)
        if name != "build-toy":  # whose method says itself what its documents have
            document_validator(name).validate(json.loads(text.getvalue()))
        sys.stdout.write(text.getvalue())

    monkeypatch.setattr(ui, "print_json", checked)


@pytest.fixture(autouse=True)
def own_consoles() -> Iterator[None]:
    """What one test printed to, such as a terminal, is not what the next one prints to."""
    yield
    if console := sys.modules.get("torchtailor.cli.ui.console"):
        for one in (console.out, console.err):
            if hasattr(one, "cache_clear"):  # not where a test put its own
                one.cache_clear()


def move_into(place: Path, patch: pytest.MonkeyPatch) -> Path:
    home, current = place / "home", place / "current"
    home.mkdir(parents=True)
    current.mkdir()
    patch.setenv("HOME", str(home))
    for name, folder in _FOLDERS.items():
        patch.setenv(name, str(home / folder))
    patch.chdir(current)
    return home


def link_settings() -> None:
    """Show pip and uv the user's own settings, so that they use the configured index."""
    for name, settings in _SETTINGS.items():
        if settings.is_file():
            place = Path.home() / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(settings)

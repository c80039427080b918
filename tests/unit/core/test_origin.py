"""Where torchtailor is installed from, before and after it is on the package index."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import msgspec
import pytest

from tests.calling import call
from torchtailor.core import origin, version
from torchtailor.core.errors import ExitCode

ROOT = Path(__file__).parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LINES = ("ci", "github", "sm90-avx2", "--dry-run")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    kept = (origin.commit, origin.repository, origin._installed_from)
    for function in kept:
        function.cache_clear()
    yield
    for function in kept:
        function.cache_clear()


def installed_so(monkeypatch: pytest.MonkeyPatch, checkout: Path, **noted: object) -> None:
    """An installation outside of a checkout, of which the installer noted this."""

    def none_of(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(origin, "_CHECKOUT", checkout)
    monkeypatch.setattr(origin, "_installed_from", lambda: msgspec.convert(noted, origin._Noted))
    monkeypatch.setattr(origin, "distribution", none_of)


@pytest.fixture
def from_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    installed_so(monkeypatch, tmp_path, url="https://example.org/t.git", vcs_info={"vcs": "git", "commit_id": COMMIT})
    monkeypatch.setattr(origin._installed_from, "cache_clear", lambda: None, raising=False)
    return f"git+https://example.org/t.git@{COMMIT}"


@pytest.fixture
def from_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed_so(monkeypatch, tmp_path)


def test_the_version_says_the_commit_of_a_checkout() -> None:
    git = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    more = f" (commit {git.stdout[:12]})" if git.returncode == 0 else ""
    assert call("--version").stdout == f"torchtailor {version.__version__}{more}\n"


def test_what_was_installed_from_a_commit_is_installed_from_it_again(from_commit: str) -> None:
    assert origin.requirement("verify") == f"torchtailor[verify] @ {from_commit}"
    assert origin.shown_version() == f"{version.__version__} (commit {COMMIT[:12]})"
    done = call(*LINES)
    assert done.returncode == 0, done.stderr
    assert f'TORCHTAILOR: "torchtailor[verify] @ {from_commit}"' in done.stdout


@pytest.mark.usefixtures("from_nowhere")
def test_a_workflow_never_installs_a_name_that_is_not_ours() -> None:
    done = call(*LINES)
    assert done.returncode == ExitCode.USAGE and "is not on the package index yet" in done.stderr
    assert origin.requirement("ci") == "torchtailor[ci] @ git+URL@COMMIT"
    done = call(*LINES, "--package", f"git+https://example.org/t@{COMMIT}")
    assert done.returncode == 0 and f"@{COMMIT}" in done.stdout


def test_what_was_installed_from_a_checkout_is_installed_from_it_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "a b"
    place.mkdir()
    installed_so(monkeypatch, tmp_path, url=place.as_uri(), dir_info={})
    assert origin.requirement("verify") == f"{place}[verify]"
    place.rmdir()
    assert origin.requirement("verify") == "torchtailor[verify] @ git+URL@COMMIT"


def test_once_published_it_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "PUBLISHED", True)
    assert origin.requirement("ci") == "torchtailor[ci]"
    assert f"torchtailor[verify]=={version.__version__}" in call(*LINES).stdout

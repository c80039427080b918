"""No test sees or changes what is the user's own, nor what another test has left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest
from torchtailor.core.disk import cache_folder, state_folder, work_folder

ROOT = Path(__file__).parents[2]


def test_our_folders_are_in_a_home_of_the_tests(home: Path) -> None:
    assert Path.home() == home != conftest._HOME
    for folder in (cache_folder(), state_folder(), work_folder()):
        assert folder.is_relative_to(home)
    assert not {name for name in os.environ if name.startswith("TORCHTAILOR_")} - {
        name for name in os.environ if name.startswith(conftest._OF_TESTS)
    }


@pytest.mark.parametrize("number", [1, 2])
def test_every_test_begins_with_empty_folders(home: Path, number: int) -> None:
    assert not list(home.iterdir())
    assert not list(Path.cwd().iterdir())
    (home / "left").touch()
    Path("left").touch()


TEST = """
import os
import subprocess
import sys
from pathlib import Path
from tests.conftest import link_settings

def test_it(home):
    link_settings()
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    assert "global.index-url='https://configured.invalid/simple'" in said
    assert Path(os.environ["NETRC"]) == Path(__file__).with_name("netrc")
    assert "TORCHTAILOR_CACHE" not in os.environ
    (home / ".cache").mkdir()
"""


def test_a_run_of_tests_leaves_the_home_alone_and_sees_its_settings(tmp_path: Path) -> None:
    user = tmp_path / "user"
    (user / ".config" / "pip").mkdir(parents=True)
    (user / ".config" / "pip" / "pip.conf").write_text("[global]\nindex-url = https://configured.invalid/simple\n")
    (tmp_path / "test_inside.py").write_text(TEST)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "XDG_", "PYTEST_"))}
    environment = {"HOME": str(user), "TORCHTAILOR_CACHE": str(user / "cache"), "NETRC": "netrc"}
    line = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", "-c", os.devnull, "test_inside.py"]
    done = subprocess.run(
        [sys.executable, *line],
        cwd=tmp_path,
        env=kept | environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    left = [path.relative_to(user).as_posix() for path in user.rglob("*") if path.is_file()]
    assert left == [".config/pip/pip.conf"]


@pytest.mark.xdist_group("kept-together")
def test_groups_are_kept_on_one_worker(request: pytest.FixtureRequest) -> None:
    """Else what tests of a group share is made once for each worker, and nothing but the time it takes says so."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("workers are not given groups: this is no run with --dist loadgroup")
    assert request.node.nodeid.endswith("@kept-together"), "this pytest-xdist does not know this pytest"

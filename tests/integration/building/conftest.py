"""A served stack, and torchtailor as a person runs it, with a cache, a state and settings of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.calling import call
from tests.unit.building.stack import fill
from tests.unit.fetch.serving import Site, serve


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Site()) as running:
        yield fill(running)


def clean_environment(root: Path) -> dict[str, str]:
    """This process's environment without anybody's index settings."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_", "NV_VARIANT"))}
    return kept | {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(root / "uv-cache"),
        "TORCHTAILOR_CACHE": str(root / "cache"),
        "TORCHTAILOR_STATE": str(root / "state"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


class Shell:
    """Runs programs in a folder of its own."""

    def __init__(self, root: Path, site: Site) -> None:
        self.root, self.site = root, site
        self.environment = clean_environment(root) | {"PIP_INDEX_URL": f"{site.url}/simple"}

    def line(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "torchtailor", *words]

    def torchtailor(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """In this process; `process` starts one."""
        done = call(*words, cwd=self.root, environment=self.environment)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def process(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.line(*words), cwd=self.root, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def run(self, *line: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = clean_environment(self.root) | variables
        return subprocess.run(line, cwd=self.root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def shell(tmp_path: Path, site: Site) -> Shell:
    return Shell(tmp_path, site)

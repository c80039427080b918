"""c10 and a part of ATen of the real PyTorch in two shards, with workers and Redis killed; needs tools/trixie/setup.sh.

sudo TORCHTAILOR_TRIXIE=FOLDER .venv/bin/pytest -m slow tests/integration/farm/test_trixie.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "trixie" / "shards.py"
FOLDER = os.environ.get("TORCHTAILOR_TRIXIE", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("trixie"),
    pytest.mark.skipif(not FOLDER, reason="TORCHTAILOR_TRIXIE names no system of tools/trixie/setup.sh"),
    pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root"),
    pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server here"),
]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each stage gave; the script itself fails unless all objects and libraries have the same bytes."""
    scratch = tmp_path_factory.mktemp("trixie")
    line = [sys.executable, str(SCRIPT), FOLDER, "--scratch", str(scratch), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    return {stage["stage"]: stage for stage in json.loads(done.stdout)}


def test_two_workers_compile_each_file_once_and_the_link_finds_all(stages: dict[str, dict[str, Any]]) -> None:
    one, two = stages["one"], stages["two"]
    assert one["files"] > 80 and len({stage["files"] for stage in stages.values()}) == 1
    assert one["compiled"] == two["compiled"]
    found = two["link_hits"] / (two["link_hits"] + two["link_misses"])
    assert found >= 0.95
    assert len(os.sched_getaffinity(0)) < 2 or two["compile_seconds"] < 0.8 * one["compile_seconds"]


def test_twenty_random_kills_cost_only_files_in_flight(stages: dict[str, dict[str, Any]]) -> None:
    kills = stages["kills"]
    assert kills["kills"] == 20
    assert kills["link_hits"] / (kills["link_hits"] + kills["link_misses"]) >= 0.95


def test_without_redis_it_is_slower_and_not_wrong(stages: dict[str, dict[str, Any]]) -> None:
    assert stages["redis"]["link_misses"] > stages["two"]["link_misses"]

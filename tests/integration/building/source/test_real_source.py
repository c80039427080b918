"""c10 and kernels of a real PyTorch for several ISAs; needs root and a folder made by tools/trixie/setup.sh."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "tools" / "trixie" / "c10.sh"


@pytest.mark.slow
def test_the_instruction_set_is_in_the_code() -> None:
    folder = os.environ.get("TORCHTAILOR_TRIXIE")
    if not folder:
        pytest.skip("TORCHTAILOR_TRIXIE does not name a folder made by tools/trixie/setup.sh")
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    done = subprocess.run([str(SCRIPT), folder], stdout=subprocess.PIPE, text=True, check=True)
    libraries = [row for row in _rows(done.stdout) if row["file"] == "libc10.so"]
    low, high = libraries[0], libraries[-1]
    assert int(low["instructions"]) > 10_000
    if platform.machine() == "aarch64":
        assert int(low["sve"]) == 0
        assert int(high["sve"]) > 0
        assert int(low["lse"]) > 100
        assert int(low["outline"]) == 0
    else:
        assert int(low["zmm"]) == 0
        assert int(high["zmm"]) > 0
        kernels = {
            (row["isa"], row["file"].split(".")[2]): int(row["zmm"])
            for row in _rows(done.stdout)
            if row not in libraries
        }
        assert kernels["avx2", "AVX2"] == 0
        assert kernels["avx512", "AVX512"] > 0
        assert ("avx2", "AVX512") not in kernels


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines(), delimiter="\t"))


def test_the_script_needs_a_folder() -> None:
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "usage" in done.stderr


def test_setup_shows_its_steps(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(SCRIPT.with_name("setup.sh")), str(tmp_path / "root"), "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MIRROR": "http://mirror.invalid/debian"},
    )
    assert done.returncode == 0, done.stderr
    assert "libopenblas-dev" in done.stdout
    assert "http://mirror.invalid/debian" in done.stdout
    assert not (tmp_path / "root").exists()

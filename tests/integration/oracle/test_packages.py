"""Real packages from the configured index, cut for several GPUs and judged by the oracle: 6 GB of downloads, an hour.

TORCHTAILOR_PACKAGES names a folder in which downloads stay for the next time.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.integration.oracle.packages import GPUS, Package, check, download, load_packages, print_table

pytestmark = [pytest.mark.slow, pytest.mark.network]


def cases() -> list[object]:
    broken = pytest.mark.xfail(strict=True, reason="the engine loses or leaves code here")
    return [
        pytest.param(package, gpu, id=f"{package.id}-{gpu}", marks=[broken] if gpu in package.broken else [])
        for package in load_packages()
        for gpu in GPUS
    ]


@pytest.mark.parametrize(("package", "gpu"), cases())
def test_package(package: Package, gpu: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = Path(os.environ.get("TORCHTAILOR_PACKAGES", tmp_path_factory.getbasetemp() / "packages"))
    try:
        wheel = download(package, cache)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{package.id} could not be downloaded: {error.stderr.strip().splitlines()[-1:]}")
    with tempfile.TemporaryDirectory(dir=tmp_path) as work:  # gigabytes: not kept as tmp_path is
        findings = list(check(wheel, [gpu], Path(work), nvidia=package.nvidia))
    print_table(package, findings, [gpu])
    assert not [one.row for one in findings if one.wrong]

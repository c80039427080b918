"""A docker daemon, where one runs: `docker save | torchtailor image | docker load`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.oci.conftest import need
from tests.integration.oci.test_image import FIXTURES
from tests.unit.oci.test_cut import SITE, package
from tests.waiting import LONG

NAME = "torchtailor-test"


def docker(*arguments: str, given: bytes = b"") -> bytes:
    done = subprocess.run(["docker", *arguments], input=given, capture_output=True, check=False, timeout=LONG)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[str]:
    """An image that docker itself made of a tar."""
    need("docker")
    if subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=LONG).returncode:
        pytest.skip("needs a docker daemon")
    files = package((FIXTURES / "raw.so").read_bytes())
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    docker("import", "--change", "CMD /x", "-", f"{NAME}:stock", given=archive.getvalue())
    yield f"{NAME}:stock"
    docker("rmi", "-f", f"{NAME}:stock", f"{NAME}:cut")


def test_saved_cut_and_loaded(stock: str, tmp_path: Path) -> None:
    saved = docker("save", stock)
    line = [sys.executable, "-m", "torchtailor", "image", "docker-archive:-", f"docker-archive:-:{NAME}:cut"]
    done = subprocess.run([*line, "--gpu", "9.0"], input=saved, capture_output=True, check=True, timeout=LONG)
    assert b"libdemo.so" in done.stderr
    docker("load", given=done.stdout)
    (found,) = json.loads(docker("inspect", f"{NAME}:cut"))
    assert found["Config"]["Labels"]["torchtailor.gpus"] == "9.0"
    assert found["Config"]["Cmd"] == ["/bin/sh", "-c", "/x"]
    made = docker("create", f"{NAME}:cut").decode().strip()
    try:
        docker("cp", f"{made}:/{SITE}/demo/lib/libdemo.so", str(tmp_path / "cut.so"))
    finally:
        docker("rm", made)
    assert (tmp_path / "cut.so").stat().st_size < (FIXTURES / "raw.so").stat().st_size

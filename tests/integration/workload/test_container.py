"""A program is recorded in a container that podman runs from an image with nothing of torchtailor in it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.calling import call
from tests.integration.oci.conftest import need
from torchtailor.workload.caches import read_caches
from torchtailor.workload.trace import read_trace

pytestmark = pytest.mark.xdist_group("podman")  # one image for all
PYTHON = Path("/usr/bin/python3")
IMAGE = f"localhost/torchtailor-record-test:{os.getpid()}"  # two runs of the tests may share podman's storage
SITE = "opt/venv/lib/python3/site-packages"
# What runs containers where resource limits may not be raised, and with cgroups of both versions.
SETTINGS = """
[engine]
runtime="{runtime}"
[containers]
default_ulimits=["nofile=1000:1000", "nproc=1000:1000"]
netns="none"
"""


def podman(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["podman", *arguments], input=given, capture_output=True, check=False, timeout=120)


def libraries(program: Path) -> Iterator[str]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    yield from (word for word in said.split() if word.startswith("/"))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Python, what it needs, and a package."""
    need("podman", "ldd")
    if not PYTHON.exists():
        pytest.skip("needs the system's Python")
    conf = tmp_path_factory.mktemp("podman") / "containers.conf"
    conf.write_text(SETTINGS.format(runtime="runc" if shutil.which("runc") else "crun"))
    before = os.environ.get("CONTAINERS_CONF")
    os.environ["CONTAINERS_CONF"] = str(conf)
    try:
        real = PYTHON.resolve()
        standard = Path(f"/usr/lib/{real.name}")
        every = {str(real), *libraries(real)}
        for library in (standard / "lib-dynload").glob("*.so"):
            every.update(libraries(library))
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
            for path in sorted(every):
                tar.add(path)
            tar.add(standard, filter=lambda one: None if "/test" in one.name or "__pycache__" in one.name else one)
            own = (
                "demo/__init__.py",
                "demo/used.py",
                "demo/cold.py",
                "torch/__init__.py",
                "torch-2.9.0.dist-info/RECORD",
            )
            for name in own:
                tar.addfile(tarfile.TarInfo(f"{SITE}/{name}"))
        podman("rmi", "--force", IMAGE)
        made = podman("import", "--change", f"ENV PYTHONPATH=/{SITE}", "-", IMAGE, given=buffer.getvalue())
        started = podman("run", "--rm", IMAGE, str(real), "-c", "pass") if made.returncode == 0 else made
        if started.returncode:
            pytest.skip(f"podman runs no containers here: {started.stderr.decode(errors='replace').strip()[-200:]}")
        yield IMAGE
        podman("rmi", "--force", IMAGE)
    finally:
        os.environ.pop("CONTAINERS_CONF")
        if before is not None:
            os.environ["CONTAINERS_CONF"] = before


def test_a_program_in_a_container(image: str, tmp_path: Path) -> None:
    program = (
        "import demo.used, json, subprocess, sys\n"
        "if len(sys.argv) == 1: subprocess.run([sys.executable, '-c', 'import ctypes', 'child'])\n"
        "sys.exit(3)"
    )
    output = tmp_path / "app.trace"
    words = ["--", str(PYTHON.resolve()), "-c", program]
    done = call("record", "--image", image, "-o", str(output), "--engine-options", "--env WORDS='two words'", *words)
    assert done.returncode == 3, done.stderr
    trace = read_trace(output)
    assert trace.programs[0].startswith(f"{image}: {PYTHON.resolve()} -c") and trace.processes == 2
    assert {"demo/__init__.py", "demo/used.py"} <= set(trace.opened) and "demo/cold.py" not in trace.opened
    pages = {library.name: library.touched_size for library in trace.libraries}
    assert pages["libc.so.6"] > 100_000 and any(name.startswith("_ctypes.") for name in pages)
    assert not trace.lost
    assert image not in podman("ps", "--all", "--format", "{{.Image}}").stdout.decode()


def test_caches_that_a_program_in_a_container_wrote(image: str, tmp_path: Path) -> None:
    """They are noted with what the image has, and with the path that the program saw; a link brings nothing along."""
    (tmp_path / "secret").write_text("secret")
    program = (
        "import os, torch\n"
        "folder = os.environ['TORCHINDUCTOR_CACHE_DIR']\n"
        "there = len(os.listdir(folder))\n"
        "os.makedirs(folder + '/ab', exist_ok=True)\n"
        "open(folder + '/ab/made.py', 'w').write(folder)\n"
        f"os.path.lexists(folder + '/link') or os.symlink('{tmp_path}/secret', folder + '/link')\n"
        "raise SystemExit(there)"
    )
    words = ["-o", str(tmp_path / "app.trace"), "--", str(PYTHON.resolve()), "-c", program]
    for there in range(2):
        done = call("record", "--image", image, "--caches", str(tmp_path / "caches"), *words)
        assert done.returncode == there, done.stderr
    found = read_caches(tmp_path / "caches")
    assert list(found.files) == ["inductor/ab/made.py"] and found.made_for.torch == "2.9.0"
    assert found.files["inductor/ab/made.py"].read_text() == f"{found.written_at}/inductor"
    assert ZipFile(io.BytesIO(found.packed())).comment.decode() == found.written_at == "/torchtailor-caches"
    assert not (tmp_path / "caches/inductor").stat().st_mode & 0o022


def test_traces_of_a_fleet_are_merged(image: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        words = ["--", str(PYTHON.resolve()), "-c", f"import demo.{'used' if name == 'one' else 'cold'}"]
        assert call("record", "--image", image, "-o", str(tmp_path / name), *words).returncode == 0
    merged = tmp_path / "all"
    assert call("trace", "merge", str(tmp_path / "one"), str(tmp_path / "two"), "-o", str(merged)).returncode == 0
    trace = read_trace(merged)
    assert len(trace.programs) == 2 and {"demo/used.py", "demo/cold.py"} <= set(trace.opened)

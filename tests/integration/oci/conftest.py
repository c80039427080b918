"""Real images and registries: made by umoci, served by docker-registry, judged by skopeo."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import LONG


def need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")


def skopeo(*arguments: str) -> str:
    line = ["skopeo", "--insecure-policy", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def umoci_layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layout with the image `stock`: two layers from a small root file system."""
    need("umoci")
    folder = tmp_path_factory.mktemp("umoci")
    layout, bundle = folder / "layout", folder / "bundle"

    def umoci(*arguments: str) -> None:
        subprocess.run(["umoci", *arguments], check=True, capture_output=True, timeout=LONG)

    umoci("init", "--layout", str(layout))
    umoci("new", "--image", f"{layout}:stock")
    umoci("unpack", "--rootless", "--image", f"{layout}:stock", str(bundle))
    for number, name in enumerate(("etc/os-release", "usr/lib/libx.so")):
        place = bundle / "rootfs" / name
        place.parent.mkdir(parents=True)
        place.write_bytes(bytes([number]) * 300_000)
        umoci("repack", "--refresh-bundle", "--image", f"{layout}:stock", str(bundle))
    return layout


@dataclass(frozen=True)
class RealRegistry:
    """A docker-registry that runs."""

    host: str
    folder: Path


Start = Callable[..., RealRegistry]


@contextmanager
def running_registry(folder: Path, **variables: str) -> Iterator[RealRegistry]:
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(config)],
            env={"PATH": "/usr/bin:/bin", **variables},
            stdout=log,
            stderr=log,
        )
        try:
            _wait_for(port, process)
            yield RealRegistry(f"localhost:{port}", folder)
        finally:
            process.terminate()
            process.wait(LONG)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + LONG
    while time.monotonic() < give_up:
        assert process.poll() is None, "docker-registry ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("docker-registry does not answer")


@pytest.fixture
def start_registry(tmp_path: Path) -> Iterator[Start]:
    """Starts a docker-registry with these variables; it ends with the test."""
    need("docker-registry")
    with ExitStack() as stack:
        yield lambda **variables: stack.enter_context(running_registry(tmp_path / "registry", **variables))


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    need("docker-registry")
    with running_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started

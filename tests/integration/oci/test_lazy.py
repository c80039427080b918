"""eStargz in the hands of its makers' snapshotter: an image is mounted, and what is fetched before it is read is what a
trace names."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.oci.conftest import RealRegistry, Start, need
from tests.unit.oci.builder import TarFile, stock, tar_of
from tests.unit.tailoring.helpers import options as tailoring
from tests.waiting import LONG
from torchtailor.oci.compression import LayerCompression
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import Trace

LARGE = random.Random(3).randbytes(9_000_000)
LAYER = tar_of(
    [
        TarFile("usr/"),
        TarFile("usr/cold.bin", LARGE[::-1]),
        TarFile("usr/hot.bin", LARGE, mode=0o755, uid=7, pax={"SCHILY.xattr.user.a": "b"}),
        TarFile("usr/link", kind=b"2", link="hot.bin"),
        TarFile("usr/name", kind=b"1", link="usr/hot.bin"),
        TarFile("usr/empty"),
    ]
)


@pytest.fixture
def ctr(tmp_path: Path, start_registry: Start) -> Iterator[tuple[RealRegistry, list[str]]]:
    """A containerd with the snapshotter, and the command that asks it."""
    need("containerd", "ctr-remote", "containerd-stargz-grpc", "docker-registry")
    if os.geteuid():
        pytest.skip("mounting layers needs root")
    if not Path("/dev/fuse").exists():
        pytest.skip("there is no /dev/fuse")
    registry = start_registry()
    lazy, socket = tmp_path / "lazy.sock", tmp_path / "ctr.sock"
    (tmp_path / "lazy.toml").write_text("no_background_fetch = true\n")
    (tmp_path / "ctr.toml").write_text(
        f'version = 2\nroot = "{tmp_path}/root"\nstate = "{tmp_path}/state"\n[grpc]\naddress = "{socket}"\n'
        f'[proxy_plugins.stargz]\ntype = "snapshot"\naddress = "{lazy}"\n'
    )
    snapshotter = ["containerd-stargz-grpc", "-address", str(lazy), "-config", str(tmp_path / "lazy.toml")]
    with ExitStack() as stack:
        for listens, line in (
            (lazy, [*snapshotter, "-root", str(tmp_path / "snapshots")]),
            (socket, ["containerd", "-c", str(tmp_path / "ctr.toml")]),
        ):
            log = stack.enter_context((tmp_path / f"{listens.stem}.log").open("wb"))
            process = subprocess.Popen(line, stdout=log, stderr=log)
            stack.callback(process.wait, LONG)
            stack.callback(process.terminate)
            until = time.monotonic() + LONG
            while not listens.exists() and time.monotonic() < until:
                time.sleep(0.02)
        stack.callback(unmount, tmp_path)
        yield registry, ["ctr-remote", "--address", str(socket)]


def unmount(folder: Path) -> None:
    rows = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in (row for row in reversed(rows) if row.startswith(f"{folder}/")):
        subprocess.run(["umount", "--lazy", place], check=True, timeout=LONG)


def test_a_snapshotter_mounts_what_was_written(tmp_path: Path, ctr: tuple[RealRegistry, list[str]]) -> None:
    registry, command = ctr
    trace = Trace(elsewhere=("usr/hot.bin",))
    cut = tailoring("9.0", workload=TracedWorkload.of([trace]), no_pack=True)
    name = registry.host.replace("localhost", "127.0.0.1") + "/lazy:1"
    options = ImageOptions(cut, compression=LayerCompression.ESTARGZ)
    cut_image(stock(tmp_path / "stock", [LAYER]), f"docker://{name}", options)

    def ask(*words: str) -> str:
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=LONG)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ask("images", "rpull", "--plain-http", name)
    (layer,) = {row.split()[0] for row in ask("snapshots", "--snapshotter", "stargz", "ls").splitlines()[1:]}
    ask("snapshots", "--snapshotter", "stargz", "prepare", "app", layer)
    root = tmp_path / "mounted"
    root.mkdir()
    line = ask("snapshots", "--snapshotter", "stargz", "mounts", str(root), "app")
    subprocess.run(line, shell=True, check=True, timeout=LONG)
    assert sorted(path.name for path in root.rglob("*")) == ["cold.bin", "empty", "hot.bin", "link", "name", "usr"]
    hot = root / "usr/hot.bin"

    def fetched() -> int:
        return sum(path.stat().st_size for path in (tmp_path / "snapshots/stargz").rglob("*") if path.is_file())

    until = time.monotonic() + LONG
    while fetched() < 2 * len(LARGE) and time.monotonic() < until:  # packed and unpacked; nobody has read it
        time.sleep(0.05)
    assert 2 * len(LARGE) <= fetched() < 3 * len(LARGE)
    assert hot.read_bytes() == LARGE == (root / "usr/name").read_bytes()
    assert (root / "usr/cold.bin").read_bytes() == LARGE[::-1] and not (root / "usr/empty").read_bytes()
    assert (hot.stat().st_mode & 0o777, hot.stat().st_uid, os.getxattr(hot, "user.a")) == (0o755, 7, b"b")
    assert (root / "usr/link").readlink() == Path("hot.bin")

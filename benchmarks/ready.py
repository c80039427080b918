"""From "nothing is there" to the first result of a program in an image: stock, and cut in several ways, side by side.

Run: sudo .venv/bin/python benchmarks/ready.py oci:FOLDER:NAME [--options "--gpu 9.0 --nvidia"] [--trace app.trace]
         [--snapshotter /usr/bin/containerd-stargz-grpc] [--mbit 1000 100] [--rounds 1] [--work DIR] -- COMMAND...

The image is pushed to a docker-registry on this machine, as it is and cut: for the options alone, and with the trace
with `--cold layer` and `--cold artifact`. Each is then pulled through a limit on the bytes of all connections together
(skopeo), unpacked (umoci), and COMMAND runs in a chroot of it, with /proc and /dev. The clock stops at its first line
of output. The packs of the artifact are pulled while it runs, and it waits for those that it needs
(TORCHTAILOR_PACK_WAIT).
With `--snapshotter` the same is measured with lazy pulling: eStargz of the stock image, as the snapshotter's own
`ctr-remote images convert` makes it, and the images cut to the trace, with `--compress estargz`. containerd mounts them
(`ctr-remote images rpull`), each time with nothing kept, and COMMAND runs in a chroot of the mount; their MB are what
came until its first line.
Needs root, for umoci and chroot, and docker-registry, skopeo and umoci, which Debian has; for lazy pulling /dev/fuse,
containerd, Debian's stargz-snapshotter (ctr-remote), and the snapshotter, which its makers publish.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TORCHTAILOR = Path(sys.executable).with_name("torchtailor")
PIECE = 1 << 16
ENDS_WITH_US = ("setpriv", "--pdeathsig", "TERM")  # also if this is killed
LAZY = ("stock-lazy", "layer-lazy", "artifact-lazy")
WITH_PACKS = ("artifact", "artifact-lazy")
ENTER = """PATH=$PATH:/usr/sbin:/sbin root=$1; shift
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && exec chroot "$root" "$@"
"""


class Limit:
    """Bytes a second of all who share it."""

    def __init__(self, mbit: int) -> None:
        self._rate = mbit * 125_000
        self._free = time.monotonic()
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self._rate
            wait = self._free - time.monotonic()
        if wait > 0:
            time.sleep(wait)


class Way:
    """A port of this machine that leads to another; what comes from there comes no faster than a limit."""

    def __init__(self, port: int, limit: Limit) -> None:
        self._behind, self._limit = port, limit
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.came = 0  # bytes
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                behind = socket.create_connection(("127.0.0.1", self._behind))
                threading.Thread(target=self._copy, args=(client, behind), daemon=True).start()
                threading.Thread(target=self._copy, args=(behind, client, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, limited: bool = False) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE):
                if limited:
                    self._limit.take(len(piece))
                    self.came += len(piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)


@contextmanager
def registry(folder: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/registry}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}', relativeurls: true}}\n"
    )
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen([*ENDS_WITH_US, "docker-registry", "serve", str(config)], stdout=log, stderr=log)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def run(*command: str | Path) -> str:
    done = subprocess.run([*ENDS_WITH_US, *map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class Ctr:
    """A containerd with a snapshotter that mounts eStargz."""

    def __init__(self, folder: Path, snapshotter: str, port: int) -> None:
        self._folder, self._snapshotter, self._port = folder, snapshotter, port
        self._socket, self._processes = folder / "ctr.sock", contextlib.ExitStack()

    def __enter__(self) -> Ctr:
        lazy = self._folder / "lazy.sock"
        host = f"127.0.0.1:{self._port}"
        self._write("lazy.toml", f'[[resolver.host."{host}".mirrors]]\nhost = "{host}"\ninsecure = true\n')
        self._write(
            "ctr.toml",
            f'version = 2\nroot = "{self._folder}/root"\nstate = "{self._folder}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self._socket}"\n'
            f'[proxy_plugins.stargz]\ntype = "snapshot"\naddress = "{lazy}"\n',
        )
        words = ("-address", str(lazy), "-config", "lazy.toml", "-root", str(self._folder / "snapshots"))
        self._start(lazy, self._snapshotter, *words)
        self._start(self._socket, "containerd", "-c", "ctr.toml")
        return self

    def __exit__(self, *_: object) -> None:
        rows = (line.split()[1] for line in Path("/proc/mounts").read_text().splitlines())
        for place in sorted((row for row in rows if row.startswith(f"{self._folder}/")), reverse=True):
            subprocess.run(["umount", "--lazy", place], check=False)
        self._processes.close()

    def __call__(self, *words: str | Path) -> str:
        return run("ctr-remote", "--address", self._socket, *words)

    def mount(self, name: str) -> Path:
        """Mount an image, and give the folder of its root."""
        self("images", "rpull", "--plain-http", name)
        rows = [line.split() for line in self("snapshots", "--snapshotter", "stargz", "ls").splitlines()[1:]]
        (last,) = {row[0] for row in rows} - {row[1] for row in rows}
        self("snapshots", "--snapshotter", "stargz", "prepare", "app", last)
        root = self._folder / "mounted"
        root.mkdir()
        run("sh", "-c", self("snapshots", "--snapshotter", "stargz", "mounts", root, "app"))
        return root

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def _start(self, listens: Path, *command: str) -> None:
        with (self._folder / f"{listens.stem}.log").open("wb") as log:
            process = subprocess.Popen([*ENDS_WITH_US, *command], cwd=self._folder, stdout=log, stderr=log)
        self._processes.callback(process.wait)
        self._processes.callback(process.terminate)
        for _ in range(200):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as there:
                there.connect(str(listens))
                return
            time.sleep(0.05)
        raise SystemExit(f"{command[0]} did not start: {(self._folder / listens.stem).with_suffix('.log').read_text()}")


def ready(
    port: int, limit: Limit, variant: str, command: list[str], folder: Path, snapshotter: str
) -> tuple[float, float, float]:
    """Seconds until the image is there, and until the first line of the program's output; megabytes of the image."""
    with contextlib.ExitStack() as stack:
        way, beside = (stack.enter_context(Way(port, limit)) for _ in range(2))
        name = f"127.0.0.1:{way.port}/app:{variant}"
        lazy = stack.enter_context(Ctr(folder, snapshotter, way.port)) if variant in LAZY else None
        began = time.monotonic()
        if lazy:
            root = lazy.mount(name)
        else:
            root = folder / "bundle/rootfs"
            run("skopeo", "copy", "--src-tls-verify=false", f"docker://{name}", f"oci:{folder}/image:x")
            run("umoci", "unpack", "--image", f"{folder}/image:x", folder / "bundle")
        there = time.monotonic() - began
        settings = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "TORCHTAILOR_PACK_WAIT": "600"}
        pulling = None
        if variant in WITH_PACKS:
            packs = root / "packs"
            packs.mkdir()
            source = f"docker://127.0.0.1:{beside.port}/app:{variant}"
            words = [*ENDS_WITH_US, "nice", "-n", "19", str(TORCHTAILOR), "packs", "pull", source, "-o", str(packs)]
            pulling = subprocess.Popen(words, stdout=subprocess.PIPE)  # the program comes first
            settings["TORCHTAILOR_PACK"] = "/packs"
        line = [*ENDS_WITH_US, "unshare", "--mount", "sh", "-c", ENTER, "sh", str(root), *command]
        program = subprocess.Popen(line, env=settings, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        stack.enter_context(program)
        stack.callback(program.kill)  # where this is interrupted
        assert program.stdout
        first = program.stdout.readline()
        seconds, size = time.monotonic() - began, way.came
        program.stdout.read()
        program.wait()
        if program.returncode or not first:
            raise SystemExit(f"{variant}: the program ended with {program.returncode}.")
        if pulling and pulling.wait():
            raise SystemExit("The packs were not pulled.")
        return there, seconds, size / 1e6


def make(port: int, images: Path, image: str, variants: dict[str, list[str]], folder: Path, snapshotter: str) -> None:
    """Put into the registry what is not there yet."""
    target = f"127.0.0.1:{port}/app"
    tags = images / "registry/docker/registry/v2/repositories/app/_manifests/tags"
    made = {tag.name for tag in tags.iterdir()} if tags.is_dir() else set()
    if "stock" not in made:
        run("skopeo", "copy", "--dest-tls-verify=false", image, f"docker://{target}:stock")
    for variant, words in variants.items():
        if words and variant not in made:
            run(TORCHTAILOR, "image", image, f"docker://{target}:{variant}", *words)
    if "stock-lazy" in variants and "stock-lazy" not in made:
        folder.mkdir()
        with Ctr(folder, snapshotter, port) as ctr:
            ctr("content", "fetch", "--plain-http", f"{target}:stock")
            ctr("images", "convert", "--estargz", "--oci", f"{target}:stock", f"{target}:stock-lazy")
            ctr("images", "push", "--plain-http", f"{target}:stock-lazy")
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("image")
    parser.add_argument("--options", default="", help="of torchtailor image; none for programs that use no GPU")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--snapshotter", default="", help="containerd-stargz-grpc, for lazy pulling")
    parser.add_argument("--mbit", type=int, nargs="+", default=[1000, 100])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the images, which are made where it lacks them")
    parser.add_argument("--only", nargs="+", help="these rows")
    parser.add_argument("command", nargs="+")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what is mounted is unmounted
    with tempfile.TemporaryDirectory(prefix="ready-", dir=chosen.work) as place, contextlib.ExitStack() as stack:
        folder, options = Path(place).resolve(), chosen.options.split()
        images: Path = chosen.keep.resolve() if chosen.keep else folder
        images.mkdir(exist_ok=True)
        port = stack.enter_context(registry(images))
        variants: dict[str, list[str]] = {"stock": []}
        variants |= {"cut": options} if options else {}
        estargz = ["--compress", "estargz"]
        if chosen.trace:
            program = [*options, "--workload", str(chosen.trace), "--drop-unopened"]
            variants |= {cold: [*program, "--cold", cold] for cold in ("layer", "artifact")}
        if chosen.snapshotter:
            variants["stock-lazy"] = []
        if chosen.snapshotter and chosen.trace:
            variants |= {f"{cold}-lazy": [*variants[cold], *estargz] for cold in ("layer", "artifact")}
        variants = {name: words for name, words in variants.items() if name in (chosen.only or variants)}
        make(port, images, chosen.image, variants, folder / "convert", chosen.snapshotter)
        print("| Mbit/s | image | MB | there after | first result after |\n|---:|---|---:|---:|---:|")
        for mbit in chosen.mbit:
            for variant in variants:
                times = []
                for number in range(chosen.rounds):
                    work = folder / f"{mbit}-{variant}-{number}"
                    work.mkdir()
                    times.append(ready(port, Limit(mbit), variant, chosen.command, work, chosen.snapshotter))
                    shutil.rmtree(work)
                there, seconds, size = (statistics.median(column) for column in zip(*times, strict=True))
                print(f"| {mbit} | {variant} | {size:.1f} | {there:.1f} s | {seconds:.1f} s |", flush=True)


if __name__ == "__main__":
    main()

"""From "nothing is there" to the first result of a program in an image: stock, and cut in several ways, side by side.

Run: sudo .venv/bin/python benchmarks/ready.py oci:FOLDER:NAME [--options "--gpu 9.0 --nvidia"] [--trace app.trace]
         [--mbit 1000 100] [--rounds 1] [--work DIR] -- COMMAND...

The image is pushed to a docker-registry on this machine, as it is and cut: for the options alone, and with the trace
with `--cold layer` and `--cold artifact`. Each is then pulled through a limit on the bytes of all connections together
(skopeo), unpacked (umoci), and COMMAND runs in a chroot of it, with /proc and /dev. The clock stops at its first line
of output. The packs of the artifact are pulled while it runs, and it waits for those that it needs
(TORCHTAILOR_PACK_WAIT).
Needs root, for umoci and chroot, and docker-registry, skopeo and umoci, which Debian has.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
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
LAST = "artifact"
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


def copy(source: socket.socket, target: socket.socket, limit: Limit | None) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE):
            if limit:
                limit.take(len(piece))
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def limited(port: int, mbit: int) -> Iterator[int]:
    """A port that leads to another, and what comes from there comes no faster."""
    limit = Limit(mbit)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                behind = socket.create_connection(("127.0.0.1", port))
                threading.Thread(target=copy, args=(client, behind, None), daemon=True).start()
                threading.Thread(target=copy, args=(behind, client, limit), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        server.close()


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
        process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def run(*command: str | Path) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stdout}{done.stderr}")


def ready(port: int, variant: str, command: list[str], folder: Path) -> tuple[float, float, float]:
    """Seconds until the image is unpacked, and until the first line of the program's output; megabytes of the image."""
    name, packs = f"docker://127.0.0.1:{port}/app:{variant}", folder / "bundle/rootfs/packs"
    began = time.monotonic()
    pulling = None
    run("skopeo", "copy", "--src-tls-verify=false", name, f"oci:{folder}/image:x")
    run("umoci", "unpack", "--image", f"{folder}/image:x", folder / "bundle")
    unpacked = time.monotonic() - began
    size = sum(path.stat().st_size for path in (folder / "image/blobs").rglob("*") if path.is_file())
    settings = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "TORCHTAILOR_PACK_WAIT": "600"}
    if variant == LAST:
        packs.mkdir()
        pull = [
            "nice",
            "-n",
            "19",
            str(TORCHTAILOR),
            "packs",
            "pull",
            name,
            "-o",
            str(packs),
        ]  # the program comes first
        pulling = subprocess.Popen(pull, stdout=subprocess.PIPE)
        settings["TORCHTAILOR_PACK"] = "/packs"
    line = ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(folder / "bundle/rootfs"), *command]
    with subprocess.Popen(line, env=settings, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as program:
        assert program.stdout
        first = program.stdout.readline()
        seconds = time.monotonic() - began
        program.stdout.read()
    if program.returncode or not first:
        raise SystemExit(f"{variant}: the program ended with {program.returncode}.")
    if pulling and pulling.wait():
        raise SystemExit("The packs were not pulled.")
    return unpacked, seconds, size / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("image")
    parser.add_argument("--options", default="", help="of torchtailor image; none for programs that use no GPU")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--mbit", type=int, nargs="+", default=[1000, 100])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", type=Path)
    parser.add_argument("command", nargs="+")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ready-", dir=chosen.work) as place, registry(Path(place)) as port:
        folder, options = Path(place), chosen.options.split()
        variants: dict[str, list[str] | None] = {"stock": None}
        variants |= {"cut": options} if options else {}
        if chosen.trace:
            program = [*options, "--workload", str(chosen.trace), "--drop-unopened"]
            variants |= {cold: [*program, "--cold", cold] for cold in ("layer", LAST)}
        target = f"docker://127.0.0.1:{port}/app"
        for variant, words in variants.items():
            if words is None:
                run("skopeo", "copy", "--dest-tls-verify=false", chosen.image, f"{target}:{variant}")
            else:
                run(TORCHTAILOR, "image", chosen.image, f"{target}:{variant}", *words)
        print("| Mbit/s | image | MB | unpacked after | first result after |\n|---:|---|---:|---:|---:|")
        for mbit in chosen.mbit:
            for variant in variants:
                times = []
                for number in range(chosen.rounds):
                    work = folder / f"{mbit}-{variant}-{number}"
                    work.mkdir()
                    with limited(port, mbit) as slow:
                        times.append(ready(slow, variant, chosen.command, work))
                    shutil.rmtree(work)
                unpacked, seconds, size = (statistics.median(column) for column in zip(*times, strict=True))
                print(f"| {mbit} | {variant} | {size:.1f} | {unpacked:.1f} s | {seconds:.1f} s |", flush=True)


if __name__ == "__main__":
    main()

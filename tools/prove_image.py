"""Proves a cut of a real image with real tools: into a registry, pulled, run as a container, and in a chroot.

Run: .venv/bin/python tools/prove_image.py oci:FOLDER:NAME --gpu 9.0 [--work DIR] [--no-run] [-- OPTIONS of image]
     .venv/bin/python tools/prove_image.py --large ...

Needs docker-registry, skopeo and umoci, and root for what runs; buildah and podman run the image where they are
installed. The image must have a Python with torch in it, for this processor; with --no-run any will do. What runs is
the image's own Python with the image's own torch; torchtailor comes in as a folder of its own. The image is cut from
registry to registry; --large first makes the one that large_image.toml describes (see large_image.py), and cuts it from
its folder, so that it is on the disk only once. The work folder needs room for the packed image three times, and once
for the unpacked one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from large_image import make_image

TAILOR = (sys.executable, "-m", "torchtailor")
SOURCE = Path(__file__).resolve().parent.parent / "src"
IMPORT = "import torch; x = torch.ones(64, 64); print(torch.__version__, torch.version.cuda, float((x @ x).sum()))"


def run(*words: object, quiet: bool = False) -> str:
    """A command that must work; how long it took is said."""
    line = [str(word) for word in words]
    started = time.monotonic()
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(done.stdout)
        raise SystemExit(f"{' '.join(line)} failed with {done.returncode}.")
    print(f"{time.monotonic() - started:7.1f} s  {' '.join(line)[:150]}", flush=True)
    if not quiet:
        print("".join(f"           {text}\n" for text in done.stdout.splitlines()), end="", flush=True)
    return done.stdout


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A docker-registry on this machine."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.02)
        yield f"localhost:{port}"
    finally:
        process.terminate()
        process.wait()


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """The words for this program, and those after `--`, which are for `torchtailor image`."""
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def print_table(image: dict[str, Any]) -> None:
    """The layers before and after, in MB of 10^6 bytes."""
    print("\n| layer | packed | cut | unpacked | cut |\n|---|---:|---:|---:|---:|")
    rows = [*image["layers"], {**image, "created_by": "all", "digest_before": "", "digest_after": None}]
    for row in rows:
        numbers = [row[f"{kind}_{when}"] / 1e6 for kind in ("size", "unpacked") for when in ("before", "after")]
        cells = [f"{number:,.0f}" for number in numbers]
        if row["digest_after"] == row["digest_before"]:
            cells[1] = cells[3] = "the same"
        if row["created_by"] == "all":
            cells[1] += f" ({numbers[1] / numbers[0]:.1%})"
            cells[3] += f" ({numbers[3] / numbers[2]:.1%})"
        print(f"| {row['created_by']} | {' | '.join(cells)} |")
    print(f"\n{image['doubled'] / 1e6:,.0f} MB are in several layers; {image['shadowed'] / 1e6:,.0f} MB are hidden.")
    gone: dict[str, int] = {}
    for file in image["dropped_files"]:
        gone[file["rule"]] = gone.get(file["rule"], 0) + file["size"]
    for rule, size in gone.items():
        print(f"{rule}: {size / 1e6:,.0f} MB left out")
    for row in image["droppable"]:
        print(f"{row['rule']}: {row['size'] / 1e6:,.0f} MB more could be")
    for note in image["notes"]:
        print(note)
    print(flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--gpu", default="9.0")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--no-run", action="store_true")
    own, rest = split_words(sys.argv[1:])
    chosen = parser.parse_args(own)
    if bool(chosen.image) == chosen.large:
        parser.error("name an image, or write --large")
    work = Path(tempfile.mkdtemp(dir=chosen.work))
    try:
        stock = chosen.image
        if chosen.large:
            make_image(work / "large", "stock", work)
            stock = f"oci:{work}/large:stock"
        back = cut_and_pull(work, stock, chosen.gpu, rest, through_registry=not chosen.large)
        run(*TAILOR, "verify", f"oci:{back}", "--level", "static", "--against", stock)
        if chosen.large:
            shutil.rmtree(work / "large")
        if not chosen.no_run:
            in_containers(work / "storage", f"oci:{back}")
            run("umoci", "unpack", "--image", back, work / "bundle", quiet=True)
            shutil.rmtree(work / "back")
            in_chroot(work / "bundle" / "rootfs")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


def cut_and_pull(work: Path, image: str, gpu: str, rest: list[str], *, through_registry: bool) -> str:
    """Cut an image into a registry, and pull the result with skopeo; where it lies."""
    skopeo = ["skopeo", "--insecure-policy"]
    with registry(work / "registry") as host:
        stock, cut = image, f"docker://{host}/proof:cut"
        if through_registry:
            stock = f"docker://{host}/proof:stock"
            run(*skopeo, "copy", "-q", "--dest-tls-verify=false", image, stock, quiet=True)
        text = run(*TAILOR, "image", stock, cut, "--gpu", gpu, "--json", *rest, quiet=True)
        (found,) = json.loads(text)["images"]
        print_table(found)
        seen = json.loads(run(*skopeo, "inspect", "--tls-verify=false", cut, quiet=True))
        assert seen["Labels"]["torchtailor.source.digest"] == found["digest_before"]
        assert seen["Layers"] == [layer["digest_after"] for layer in found["layers"]], "skopeo sees other layers"
        run(*skopeo, "copy", "-q", "--src-tls-verify=false", cut, f"oci:{work}/back:cut", quiet=True)
    shutil.rmtree(work / "registry")
    return f"{work}/back:cut"


LEVEL_2 = """
import sys
sys.path.append("/opt/torchtailor-proof")
from pathlib import Path
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.catalog import load_catalog
from torchtailor.verification.levels import running_checks
from torchtailor.verification.result import Level
from torchtailor.verification.static.expect import Expectation
artifact = open_artifact(Path(sys.argv[1]))
python = Path("/usr/bin/python3")
checks = list(running_checks(artifact, Expectation(), load_catalog(), Level.IMPORT, python=python, asked=True))
for check in checks:
    print(check.outcome.value, check.name, check.reason, sep=": ")
sys.exit(any(check.failed for check in checks) or not checks)
"""


def in_containers(storage: Path, image: str) -> None:
    """Import torch in containers of the image, by each of the tools that are installed."""
    where = ["--root", storage / "root", "--runroot", storage / "run"]
    try:
        if shutil.which("buildah"):
            name = run("buildah", *where, "from", image).strip()
            run("buildah", *where, "run", "--isolation", "chroot", name, "--", "python3", "-c", IMPORT)
            run("buildah", *where, "rm", "--all", quiet=True)
        if shutil.which("podman"):
            runtime = ["--runtime", "runc"] if shutil.which("runc") else []
            limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]  # root of a container has no more
            line = ["run", "--rm", "--network", "none", *limits, image, "python3", "-c", IMPORT]
            run("podman", *where, *runtime, *line)
    finally:
        if storage.exists() and shutil.which("buildah"):
            run("buildah", *where, "rmi", "--all", "--force", quiet=True)
        for place in storage.glob("root/*"):
            if place.is_mount():  # what the tools keep mounted for their next run
                run("umount", place)
        shutil.rmtree(storage, ignore_errors=True)


def in_chroot(root: Path) -> None:
    """Import torch as the image's own Python does, and the second level of `verify` on it."""
    run("mount", "--bind", "/proc", root / "proc")
    try:
        run("chroot", root, "python3", "-c", IMPORT)
        place = root / "opt" / "torchtailor-proof"
        shutil.copytree(sysconfig.get_path("purelib"), place, ignore=shutil.ignore_patterns("torch", "__pycache__"))
        shutil.copytree(SOURCE / "torchtailor", place / "torchtailor", dirs_exist_ok=True)
        site = "/" + str(next(root.glob("**/*-packages/torch/__init__.py")).parents[1].relative_to(root))
        run("chroot", root, "python3", "-c", LEVEL_2, site)
    finally:
        run("umount", root / "proc")


if __name__ == "__main__":
    sys.exit(main())

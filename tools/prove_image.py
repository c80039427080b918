"""Proves a cut of a real image with real tools: registry to registry, pulled, unpacked, and torch imported in a chroot.

Run: .venv/bin/python tools/prove_image.py oci:FOLDER:NAME --gpu 9.0 [--work DIR] [--no-chroot] [-- OPTIONS of image]

Needs docker-registry, skopeo and umoci, and root for the chroot. The image must have a Python with torch in it, for
this processor; with --no-chroot any will do. What the chroot runs is the image's own Python with the image's own torch;
torchtailor comes in as a folder of its own. The work folder needs room for the image three times.
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image")
    parser.add_argument("--gpu", default="9.0")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--no-chroot", action="store_true")
    own, rest = split_words(sys.argv[1:])
    chosen = parser.parse_args(own)
    work = Path(tempfile.mkdtemp(dir=chosen.work))
    tailor = [sys.executable, "-m", "torchtailor"]
    try:
        with registry(work / "registry") as host:
            stock, cut = f"docker://{host}/proof:stock", f"docker://{host}/proof:cut"
            skopeo = ["skopeo", "--insecure-policy"]
            run(*skopeo, "copy", "-q", "--dest-tls-verify=false", chosen.image, stock, quiet=True)
            text = run(*tailor, "image", stock, cut, "--gpu", chosen.gpu, "--json", *rest, quiet=True)
            (image,) = json.loads(text)["images"]
            for layer in image["layers"]:
                after = "same blob" if layer["digest_after"] == layer["digest_before"] else f"{layer['size_after']:,}"
                print(f"           layer {layer['number']}: {layer['size_before']:,} -> {after}  {layer['created_by']}")
            unpacked = image["unpacked_before"], image["unpacked_after"]
            print(f"           unpacked {unpacked[0]:,} -> {unpacked[1]:,} ({unpacked[1] / unpacked[0]:.1%})")
            seen = json.loads(run(*skopeo, "inspect", "--tls-verify=false", cut, quiet=True))
            assert seen["Labels"]["torchtailor.source.digest"] == image["digest_before"]
            same = [layer["digest_after"] for layer in image["layers"]]
            assert seen["Layers"] == same, "skopeo sees other layers"
            run(*skopeo, "copy", "-q", "--src-tls-verify=false", cut, f"oci:{work}/back:cut", quiet=True)
        shutil.rmtree(work / "registry")
        run(*tailor, "verify", f"oci:{work}/back:cut", "--level", "static", "--against", chosen.image)
        run("umoci", "unpack", "--image", f"{work}/back:cut", work / "bundle", quiet=True)
        shutil.rmtree(work / "back")
        if not chosen.no_chroot:
            in_chroot(work / "bundle" / "rootfs")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


def in_chroot(root: Path) -> None:
    run("chroot", root, "python3", "-c", IMPORT)
    place = root / "opt" / "torchtailor-proof"
    shutil.copytree(sysconfig.get_path("purelib"), place, ignore=shutil.ignore_patterns("torch", "__pycache__"))
    shutil.copytree(SOURCE / "torchtailor", place / "torchtailor", dirs_exist_ok=True)
    site = "/" + str(next(root.glob("**/*-packages/torch/__init__.py")).parents[1].relative_to(root))
    verify = "import sys; sys.path.append('/opt/torchtailor-proof'); from torchtailor.cli import main; "
    verify += f"sys.exit(main(['verify', {site!r}, '--level', 'import', '--python', '/usr/bin/python3']))"
    run("chroot", root, "python3", "-c", verify)


if __name__ == "__main__":
    sys.exit(main())

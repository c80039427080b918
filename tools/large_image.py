"""Makes the image that large_image.toml describes, in an OCI folder: layer by layer, so that little disk is needed.

Run: .venv/bin/python tools/large_image.py FOLDER [--name stock] [--work DIR]

Needs root, debootstrap and overlayfs. Each step runs in a chroot on what the steps before it left, with this machine's
configuration of pip; what it wrote becomes a layer, packed as torchtailor packs one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchtailor.oci.compression import LayerCompression, LayerWriter, WrittenLayer

RECIPE = Path(__file__).with_suffix(".toml")
_EPOCH = "2026-01-01T00:00:00Z"
_ARCHS = {"x86_64": "amd64", "aarch64": "arm64"}
_SUFFIXES = {LayerCompression.NONE: "", LayerCompression.GZIP: "+gzip"}
_BLOCK, _PIECE = 512, 1 << 20
_OPAQUE = "trusted.overlay.opaque"
_CAPABILITY = "security.capability"
# What a step sees of this machine and cannot change: its network, and the certificates that pip trusts.
_SHARED = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs")
_ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_NO_COMPILE": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_PROGRESS_BAR": "off",
    "PIP_QUIET": "1",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}


@dataclass(frozen=True)
class MadeLayer:
    """A layer that is in the folder."""

    name: str
    packed: WrittenLayer


def make_image(folder: Path, name: str, work: Path) -> list[MadeLayer]:
    """Make every layer, and then the image of them."""
    recipe = tomllib.loads(RECIPE.read_text())
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    place = Path(tempfile.mkdtemp(dir=work))
    made: list[MadeLayer] = []
    try:
        base = place / "base"
        line = ["debootstrap", "--variant=minbase", f"--include={','.join(recipe['include'])}"]
        line += [f"--components={','.join(recipe['components'])}", recipe["suite"], str(base)]
        _call(line, place / "log")
        below = [base]
        made.append(pack_layer(f"Debian ({recipe['suite']})", base, blobs))
        for number, step in enumerate(recipe["layer"]):
            upper = place / f"layer-{number}"
            with _mounted(below, upper, place / "root") as root:
                _call(["chroot", str(root), "sh", "-ec", step["run"]], place / "log")
            made.append(pack_layer(step["name"], upper, blobs))
            if step.get("last_reader"):
                shutil.rmtree(upper)
            else:
                below.append(upper)
    finally:
        shutil.rmtree(place)
    describe_image(folder, name, made)
    return made


def _call(line: list[str], log: Path) -> None:
    with log.open("wb") as out:
        done = subprocess.run(line, stdout=out, stderr=out, env={**os.environ, **_ENVIRONMENT}, check=False)
    if done.returncode:
        print(log.read_text(errors="replace")[-4000:])
        raise SystemExit(f"{' '.join(line)[:200]} failed with {done.returncode}.")


@contextmanager
def _mounted(below: list[Path], upper: Path, root: Path) -> Iterator[Path]:
    """The layers so far as one tree, whose changes go to `upper`."""
    scratch, downloads = upper.with_suffix(".work"), upper.with_suffix(".tmp")
    for folder in (upper, scratch, downloads, root):
        folder.mkdir(exist_ok=True)
    lower = ":".join(str(one) for one in reversed(below))
    with ExitStack() as stack:
        options = f"lowerdir={lower},upperdir={upper},workdir={scratch}"
        _mount(stack, root, "-t", "overlay", "overlay", "-o", options)
        for path in ("/proc", "/dev"):
            _mount(stack, Path(f"{root}{path}"), "--bind", path)
        for path in _SHARED:
            _mount(stack, Path(f"{root}{path}"), "--bind", path)
            subprocess.run(["mount", "-o", "remount,bind,ro", f"{root}{path}"], check=True)
        _mount(stack, root / "tmp", "--bind", str(downloads))
        yield root
    shutil.rmtree(scratch)
    shutil.rmtree(downloads)


def _mount(stack: ExitStack, place: Path, *words: str) -> None:
    subprocess.run(["mount", *words, str(place)], check=True)
    stack.callback(subprocess.run, ["umount", str(place)], check=True)


class _Tar:
    """The files of a folder as a tar: what the file system on top of others notes as deleted becomes whiteouts."""

    def __init__(self, writer: LayerWriter) -> None:
        self._writer = writer
        self._links: dict[tuple[int, int], str] = {}

    def add_all(self, root: Path) -> None:
        for path in sorted(root.rglob("*")):
            self._add(path, str(path.relative_to(root)))
        self._writer.write(bytes(2 * _BLOCK))

    def _add(self, path: Path, name: str) -> None:
        status = path.lstat()
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            self._put(tarfile.TarInfo(str(Path(name).with_name(f".wh.{path.name}"))))
            return
        if stat.S_ISSOCK(status.st_mode):
            return
        member = tarfile.TarInfo(name)
        member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        member.uid, member.gid = status.st_uid, status.st_gid
        own = os.listxattr(path, follow_symlinks=False)
        if _CAPABILITY in own:
            value = os.getxattr(path, _CAPABILITY)
            member.pax_headers = {f"SCHILY.xattr.{_CAPABILITY}": value.decode("utf-8", "surrogateescape")}
        if stat.S_ISREG(status.st_mode):
            self._add_file(path, member, status)
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
            self._put(member)
        elif stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
            self._put(member)
            if _OPAQUE in own:
                self._put(tarfile.TarInfo(f"{name}/.wh..wh..opq"))

    def _add_file(self, path: Path, member: tarfile.TarInfo, status: os.stat_result) -> None:
        first = self._links.setdefault((status.st_dev, status.st_ino), member.name)
        if first != member.name:
            member.type, member.linkname = tarfile.LNKTYPE, first
            self._put(member)
            return
        member.size = status.st_size
        self._put(member)
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                self._writer.write(piece)
        self._writer.write(bytes(-member.size % _BLOCK))

    def _put(self, member: tarfile.TarInfo) -> None:
        self._writer.write(member.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape"))


def pack_layer(name: str, root: Path, blobs: Path, compression: LayerCompression = LayerCompression.GZIP) -> MadeLayer:
    """A folder as a layer."""
    started = time.monotonic()
    place = blobs / "unfinished"
    with LayerWriter(place, compression, os.cpu_count() or 1) as writer:
        _Tar(writer).add_all(root)
        packed = writer.finish()
    place.rename(blobs / packed.digest.removeprefix("sha256:"))
    seconds = time.monotonic() - started
    print(f"{seconds:7.1f} s  {name}: {packed.unpacked_size:,} bytes, packed {packed.size:,}", flush=True)
    return MadeLayer(name, packed)


def describe_image(folder: Path, name: str, made: list[MadeLayer]) -> None:
    """The configuration, the manifest and the index."""
    config = {
        "created": _EPOCH,
        "architecture": _ARCHS[platform.machine()],
        "os": "linux",
        "config": {"Env": [f"PATH={_ENVIRONMENT['PATH']}"], "Cmd": ["python3"]},
        "rootfs": {"type": "layers", "diff_ids": [one.packed.diff_id for one in made]},
        "history": [{"created": _EPOCH, "created_by": one.name} for one in made],
    }
    kind = "application/vnd.oci.image"
    layers = [
        _described(f"{kind}.layer.v1.tar{_SUFFIXES[one.packed.compression]}", one.packed.digest, one.packed.size)
        for one in made
    ]
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": _stored(folder, f"{kind}.config.v1+json", config),
        "layers": layers,
    }
    entry = _stored(folder, f"{kind}.manifest.v1+json", manifest)
    entry["annotations"] = {"org.opencontainers.image.ref.name": name}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def _described(kind: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest, "size": size}


def _stored(folder: Path, kind: str, document: object) -> dict[str, object]:
    data = json.dumps(document).encode()
    digest = hashlib.sha256(data).hexdigest()
    (folder / "blobs" / "sha256" / digest).write_bytes(data)
    return _described(kind, f"sha256:{digest}", len(data))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="stock")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    chosen = parser.parse_args()
    made = make_image(chosen.folder, chosen.name, chosen.work)
    whole = sum(one.packed.unpacked_size for one in made), sum(one.packed.size for one in made)
    print(f"           all: {whole[0]:,} bytes, packed {whole[1]:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Every source to every destination, and skopeo takes what we wrote for what it was."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.oci.conftest import RealRegistry, need, skopeo
from tests.unit.oci.transports.samples import copy_image, read_image
from torchtailor.oci.transports.choose import open_destination, open_source

KINDS = ("docker", "oci", "oci-archive", "docker-archive")


def place(kind: str, name: str, registry: RealRegistry, folder: Path) -> str:
    return {
        "docker": f"docker://{registry.host}/places/{name}:v1",
        "oci": f"oci:{folder}/{name}:v1",
        "oci-archive": f"oci-archive:{folder}/{name}.oci.tar:v1",
        "docker-archive": f"docker-archive:{folder}/{name}.docker.tar:places/{name}:v1",
    }[kind]


def tls(name: str, side: str) -> list[str]:
    return [f"--{side}tls-verify=false"] if name.startswith("docker://") else []


@pytest.fixture(scope="session")
def by_skopeo(umoci_layout: Path, registry: RealRegistry, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The image in each kind of place, as skopeo puts it there."""
    need("skopeo")
    folder = tmp_path_factory.mktemp("skopeo")
    names = {kind: place(kind, "stock", registry, folder) for kind in KINDS}
    for name in names.values():
        skopeo("copy", *tls(name, "dest-"), f"oci:{umoci_layout}:stock", name)
    return names


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("origin", KINDS)
def test_each_to_each(
    origin: str, target: str, by_skopeo: dict[str, str], registry: RealRegistry, tmp_path: Path, umoci_layout: Path
) -> None:
    new = place(target, f"from-{origin}", registry, tmp_path)
    copy_image(open_source(by_skopeo[origin]), open_destination(new))
    seen = json.loads(skopeo("inspect", *tls(new, ""), new))
    stock = json.loads(skopeo("inspect", f"oci:{umoci_layout}:stock"))
    assert (seen["Architecture"], len(seen["Layers"])) == (stock["Architecture"], 2)
    # unpacked, the layers are what they were: skopeo checks each against the diff_ids of the configuration
    skopeo("copy", *tls(new, "src-"), "--dest-decompress", new, f"dir:{tmp_path}/unpacked")
    config = json.loads(skopeo("inspect", "--config", *tls(new, ""), new))
    assert (
        config["rootfs"]["diff_ids"]
        == json.loads(skopeo("inspect", "--config", f"oci:{umoci_layout}:stock"))["rootfs"]["diff_ids"]
    )
    layers = json.loads((tmp_path / "unpacked" / "manifest.json").read_text())["layers"]
    assert [layer["digest"] for layer in layers] == config["rootfs"]["diff_ids"]
    assert read_image(open_source(new))[1]


@pytest.mark.parametrize("target", ["docker", "oci", "oci-archive"])
def test_digests_stay(target: str, umoci_layout: Path, registry: RealRegistry, tmp_path: Path) -> None:
    need("skopeo")
    new = place(target, "same", registry, tmp_path)
    root = copy_image(open_source(f"oci:{umoci_layout}:stock"), open_destination(new))
    assert json.loads(skopeo("inspect", *tls(new, ""), new))["Digest"] == root.descriptor.digest


def test_umoci_takes_our_layouts(by_skopeo: dict[str, str], tmp_path: Path) -> None:
    need("umoci")
    copy_image(open_source(by_skopeo["docker-archive"]), open_destination(f"oci:{tmp_path}/x:v1"))
    line = ["umoci", "unpack", "--rootless", "--image", f"{tmp_path}/x:v1", f"{tmp_path}/bundle"]
    subprocess.run(line, check=True, capture_output=True)
    assert (tmp_path / "bundle/rootfs/usr/lib/libx.so").read_bytes() == bytes([1]) * 300_000

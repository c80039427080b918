"""Real tools around a cut: umoci builds the image, docker-registry serves it, skopeo and umoci judge the result."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.integration.oci.conftest import RealRegistry, need, skopeo
from tests.integration.oci.test_places import KINDS, place, tls
from tests.unit.oci.builder import read_image
from tests.unit.oci.test_cut import SITE, package
from tests.unit.tailoring.helpers import check_records, options
from tests.waiting import LONG
from torchtailor.core.errors import UsageError
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.transports.registry import RegistryDestination, RegistrySource
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions

FIXTURES = Path(__file__).parents[2] / "unit" / "gpucode" / "fixtures"


def umoci(*arguments: object) -> None:
    subprocess.run(["umoci", *map(str, arguments)], check=True, capture_output=True, timeout=LONG)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of four layers by umoci: a system, a package, a file of it replaced and another deleted."""
    need("umoci", "skopeo")
    folder = tmp_path_factory.mktemp("stock")
    layout, bundle = folder / "layout", folder / "bundle"
    root = bundle / "rootfs"
    umoci("init", "--layout", layout)
    umoci("new", "--image", f"{layout}:stock")
    umoci("unpack", "--rootless", "--image", f"{layout}:stock", bundle)

    def repack(line: str) -> None:
        umoci("repack", "--refresh-bundle", "--history.created_by", line, "--image", f"{layout}:stock", bundle)

    (root / "etc").mkdir()
    (root / "etc" / "os-release").write_text("ID=test\n")
    (root / "usr" / "lib").mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    repack("the system")
    for name, data in package((FIXTURES / "raw.so").read_bytes()).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "usr" / "lib" / "second.so").hardlink_to(root / SITE / "demo" / "lib" / "libdemo.so")
    (root / "usr" / "lib" / "libcublas.so.12").write_bytes((FIXTURES / "raw.so").read_bytes())
    os.utime(root / "usr" / "lib" / "libcublas.so.12", (1_600_000_000, 1_600_000_000))
    (root / "usr" / "lib" / "libcublas.so.12").chmod(0o511)
    (root / "big").write_bytes(b"b" * 100_000)
    repack("the package")
    (root / "etc" / "os-release").write_text("ID=other\n")
    repack("replaced")
    (root / "big").unlink()
    repack("deleted")
    return layout


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """What every file is: type, mode, time, and the size of what is not a library or RECORD."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        same = status.st_size if not path.name.endswith((".so", ".so.12", "RECORD")) and path.is_file() else None
        link = str(path.readlink()) if path.is_symlink() else ""
        found[path.relative_to(root).as_posix()] = (status.st_mode, status.st_mtime_ns, status.st_nlink, same, link)
    return found


def unpacked(layout: Path, name: str, folder: Path) -> Path:
    umoci("unpack", "--rootless", "--image", f"{layout}:{name}", folder)
    return folder / "rootfs"


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("origin", KINDS)
def test_each_form_to_each(origin: str, target: str, stock: Path, registry: RealRegistry, tmp_path: Path) -> None:
    source, new = (
        place(origin, f"stock-{target}", registry, tmp_path),
        place(target, f"cut-{origin}", registry, tmp_path),
    )
    skopeo("copy", *tls(source, "dest-"), f"oci:{stock}:stock", source)
    report = cut_image(source, new, ImageOptions(options(nvidia=True)))
    (image,) = report.images
    assert [layer.changed for layer in image.layers] == [False, True, False, False]
    assert len(image.changed) == 2
    seen = json.loads(skopeo("inspect", *tls(new, ""), new))
    assert seen["Labels"]["torchtailor.gpus"] == "9.0"
    skopeo("copy", *tls(new, "src-"), new, f"oci:{tmp_path}/back:cut")
    after = unpacked(tmp_path / "back", "cut", tmp_path / "after")
    before = unpacked(stock, "stock", tmp_path / "before")
    now = tree(after)
    assert now.pop(f"{SITE}/demo-1.0.dist-info/torchtailor.json")
    assert now == tree(before)
    check_records(after / SITE)
    cut = after / SITE / "demo" / "lib" / "libdemo.so"
    assert cut.samefile(after / "usr" / "lib" / "second.so")
    assert cut.stat().st_size < (before / SITE / "demo" / "lib" / "libdemo.so").stat().st_size
    assert not (after / "big").exists()


def test_unchanged_layers_keep_their_digests(stock: Path, registry: RealRegistry) -> None:
    source, new = (f"docker://{registry.host}/digests/{name}:1" for name in ("stock", "cut"))
    skopeo("copy", *tls(source, "dest-"), f"oci:{stock}:stock", source)
    cut_image(source, new, ImageOptions(options(nvidia=True)))
    layers = [json.loads(skopeo("inspect", *tls(name, ""), name))["Layers"] for name in (source, new)]
    same = [before == after for before, after in zip(*layers, strict=True)]
    assert same == [True, False, True, True]


def test_a_remote_layer_is_fetched_once_and_stored_only_if_it_may_change(
    stock: Path, registry: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers without libraries go on at once; the others are kept until they are written."""
    source = f"docker://{registry.host}/once/stock:1"
    skopeo("copy", *tls(source, "dest-"), f"oci:{stock}:stock", source)
    fetched: list[str] = []
    reading = RegistrySource.blob

    def counted(self: RegistrySource, descriptor: Descriptor) -> AbstractContextManager[Iterator[bytes]]:
        fetched.append(descriptor.digest)
        return reading(self, descriptor)

    monkeypatch.setattr(RegistrySource, "blob", counted)
    report = cut_image(source, f"oci:{tmp_path}/cut:x", ImageOptions(options(nvidia=True)))
    layers = [layer.digest_before for layer in report.images[0].layers]
    assert [fetched.count(digest) for digest in layers] == [1, 1, 1, 1]


def test_docker_manifests_stay_dockers(stock: Path, registry: RealRegistry) -> None:
    source, new = (f"docker://{registry.host}/v2s2/{name}:1" for name in ("stock", "cut"))
    skopeo("copy", "--format", "v2s2", *tls(source, "dest-"), f"oci:{stock}:stock", source)
    cut_image(source, new, ImageOptions(options(nvidia=True)))
    raw = json.loads(skopeo("inspect", "--raw", *tls(new, ""), new))
    assert raw["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert "annotations" not in raw


def test_nvidia_leaves_the_machine_only_when_asked_for(
    stock: Path, registry: RealRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RegistryDestination, "is_local", property(lambda _: False))
    target = f"docker://{registry.host}/elsewhere/cut:1"
    source = f"oci:{stock}:stock"
    with pytest.raises(UsageError, match=r"libcublas.so.12") as error:
        cut_image(source, target, ImageOptions(options(nvidia=True)))
    assert "--publish-nvidia" in error.value.hint
    line = ["skopeo", "inspect", "--tls-verify=false", target]
    assert subprocess.run(line, capture_output=True, check=False).returncode != 0
    cut_image(source, target, ImageOptions(options()))
    cut_image(source, target, ImageOptions(options(nvidia=True), publish_nvidia=True))
    assert json.loads(skopeo("inspect", *tls(target, ""), target))["Labels"]["torchtailor.core.version"]


def test_same_digest_from_every_place(stock: Path, registry: RealRegistry, tmp_path: Path) -> None:
    source = f"docker://{registry.host}/same/stock:1"
    skopeo("copy", *tls(source, "dest-"), f"oci:{stock}:stock", source)
    for number, origin in enumerate((f"oci:{stock}:stock", source, source)):
        cut_image(origin, f"oci:{tmp_path}/{number}:x", ImageOptions(options()))
    here, there, again = (read_image(tmp_path / f"{number}") for number in range(3))
    assert there.digest == again.digest
    # Only who can find the stock image by a name gets told that name.
    assert there.manifest["annotations"].pop("org.opencontainers.image.base.name") == source.removeprefix("docker://")
    assert there.manifest == here.manifest


def test_what_is_attached_in_a_real_registry(stock: Path, registry: RealRegistry, tmp_path: Path) -> None:
    """This registry does not list what refers to an image: a tag does, as the specification has it."""
    source, target = f"docker://{registry.host}/attest/app:1", f"docker://{registry.host}/attest/app:1-sm90"
    skopeo("copy", *tls(source, "dest-"), f"oci:{stock}:stock", source)
    chosen = ImageOptions(options(), attest=True)
    digest = cut_image(source, target, chosen).digest
    assert cut_image(source, target, chosen).digest == digest
    assert digest is not None
    listed = json.loads(
        skopeo("inspect", "--raw", *tls(target, ""), f"{target.rpartition(':')[0]}:{digest.replace(':', '-')}")
    )
    assert [row["annotations"]["in-toto.io/predicate-type"] for row in listed["manifests"]] == [
        "https://slsa.dev/provenance/v1",
        "https://cyclonedx.org/bom",
    ]
    place = f"{target.rpartition(':')[0]}@{listed['manifests'][0]['digest']}"
    manifest = json.loads(skopeo("inspect", "--raw", *tls(target, ""), place))
    assert manifest["subject"]["digest"] == digest
    notes = json.loads(skopeo("inspect", "--raw", *tls(target, ""), target))["annotations"]
    assert notes["org.opencontainers.image.base.name"] == source.removeprefix("docker://")
    # A signature of the stock image, as cosign of version 2 stores it
    base = json.loads(skopeo("inspect", *tls(source, ""), source))["Digest"]
    skopeo(
        "copy", *tls(source, "dest-"), f"oci:{stock}:stock", f"{source.rpartition(':')[0]}:{base.replace(':', '-')}.sig"
    )
    assert "has 1 signature" in " ".join(cut_image(source, target, chosen).notes)

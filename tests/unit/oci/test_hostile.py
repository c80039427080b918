"""Images that were made to break something: one sentence each, and nothing half-written."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.oci.builder import GZIP, ZSTD, Layout, TarFile, read_image, stock, tar_of
from tests.unit.oci.test_cut import cut, package
from torchtailor.core.documents import plain
from torchtailor.core.errors import BadInputError, TorchtailorError
from torchtailor.oci import compression
from torchtailor.oci.compression import UnpackedLayer
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.image.cut import ANNOTATION_GPUS
from torchtailor.tailoring.image.opened import opened_image


def refused(source: str, tmp_path: Path, match: str) -> None:
    with pytest.raises(BadInputError, match=match) as error:
        cut(source, tmp_path)
    assert "\n" not in error.value.message
    assert error.value.hint
    assert not (tmp_path / "cut").exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../../x", "./../x"])
def test_paths_out_of_the_root(tmp_path: Path, fat: bytes, name: str) -> None:
    refused(stock(tmp_path / "stock", [tar_of({name: fat})]), tmp_path, "leads out of it")


def test_a_hard_link_out_of_the_root(tmp_path: Path) -> None:
    link = TarFile("x", kind=tarfile.LNKTYPE, link="../../etc/passwd")
    refused(stock(tmp_path / "stock", [tar_of([link])]), tmp_path, "leads out of it")


def test_what_looks_dangerous_and_survives(tmp_path: Path, fat: bytes) -> None:
    """Absolute names, links anywhere, devices, odd names: copied as they are, and nothing of it is followed."""
    members = [
        TarFile("/opt/abs.so", fat),
        TarFile("etc/shadow", kind=tarfile.SYMTYPE, link="/../../../../etc/shadow"),
        TarFile("up", kind=tarfile.SYMTYPE, link="../../.."),
        TarFile("up/through.so", fat),
        TarFile("dev/sda", kind=tarfile.BLKTYPE),
        TarFile("new\nline.so", fat),
        TarFile(os.fsdecode(b"\xff\xfe.so"), fat),
        TarFile("x" * 300 + ".so", fat),
    ]
    source = stock(tmp_path / "stock", [tar_of(members, tarfile.GNU_FORMAT)])
    report = cut(source, tmp_path)
    (image,) = report.images
    assert len(image.changed) == 5
    before, after = (read_image(tmp_path / name).files(0) for name in ("stock", "cut"))
    assert list(before) == list(after)
    json.dumps(plain(report.document)).encode()
    with opened_image(source) as artifact:
        assert {library.size for library in artifact.libraries} == {len(fat)}
        inside = list(artifact.path.rglob("*"))
        assert all(artifact.path.resolve() in path.resolve().parents for path in inside)
        assert not any(path.is_symlink() for path in inside)


def test_the_same_name_twice(tmp_path: Path, fat: bytes) -> None:
    files = package(fat)
    library = next(name for name in files if name.endswith(".so"))
    members = [TarFile(library, b"first"), *(TarFile(name, data) for name, data in files.items())]
    cut(stock(tmp_path / "stock", [tar_of(members)]), tmp_path)
    with tarfile.open(fileobj=__import__("io").BytesIO(read_image(tmp_path / "cut").tars[0])) as archive:
        sizes = [info.size for info in archive if info.name == library]
    assert sizes[0] == 5 and 0 < sizes[1] < len(fat)


def test_layers_of_unknown_kinds(tmp_path: Path, fat: bytes) -> None:
    layout = Layout(tmp_path / "stock")
    good = layout.image([tar_of(package(fat))])
    manifest = json.loads((layout.folder / "blobs" / good["digest"].replace(":", "/")).read_text())
    for kind, match in {
        f"{GZIP}+encrypted": r"Layer 1 of .* is encrypted",
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip": "is a foreign layer",
        "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip": "is a foreign layer",
        "application/x-squashfs": "unknown type 'application/x-squashfs'",
    }.items():
        manifest["layers"][0]["mediaType"] = kind
        refused(layout.name(layout.blob(json.dumps(manifest).encode(), manifest["mediaType"])), tmp_path, match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"layers": [{"digest": "sha256:xyz", "size": 1, "mediaType": GZIP}]}, "digest"),
        ({"layers": "all"}, "is damaged"),
        ({"layers": [{"digest": "sha256:" + "0" * 64, "size": -1, "mediaType": GZIP}]}, "impossible size|damaged"),
        (
            {"config": {"digest": "sha256:" + "0" * 64, "size": 3, "mediaType": "application/x"}},
            "not a container image",
        ),
    ],
)
def test_damaged_manifests(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    source = stock(tmp_path / "stock", [tar_of({"a": b"1"})], manifest=change)
    refused(source, tmp_path, match)


@pytest.mark.parametrize("config", [{"rootfs": None}, {"rootfs": {"diff_ids": [1]}}, {"rootfs": {"diff_ids": []}}])
def test_damaged_configurations(tmp_path: Path, config: dict[str, Any]) -> None:
    refused(stock(tmp_path / "stock", [tar_of({"a": b"1"})], config=config), tmp_path, "configuration of")


@pytest.mark.parametrize("label", [None, 5, ["9.0"]])
def test_a_label_that_is_no_text(tmp_path: Path, label: object) -> None:
    config = {"config": {"Labels": {ANNOTATION_GPUS: label}}}
    source = stock(tmp_path / "stock", [tar_of({"a": b"1"})], config=config)
    with pytest.raises(BadInputError, match="is not text"), opened_image(source):
        pass


@pytest.mark.parametrize(
    "manifest",
    [{"layers": 5}, {"layers": [5]}, {"blobs": "all"}, {"config": [1]}, {"layers": [{"digest": 1}]}],
)
@pytest.mark.parametrize("attestation", [False, True])
def test_damaged_artifacts_beside_an_image(tmp_path: Path, manifest: dict[str, Any], attestation: bool) -> None:
    """Those of an index that are no images are copied."""
    layout = Layout(tmp_path / "stock")
    kind = "application/vnd.oci.image.manifest.v1+json"
    config = layout.blob(b"{}", "application/vnd.oci.empty.v1+json")
    data = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": config, **manifest}).encode()
    odd = layout.blob(data, kind)
    if attestation:
        odd["annotations"] = {"vnd.docker.reference.type": "attestation-manifest"}
    rows = [layout.image([tar_of({"a": b"1"})]), odd]
    index = "application/vnd.oci.image.index.v1+json"
    data = json.dumps({"schemaVersion": 2, "mediaType": index, "manifests": rows}).encode()
    refused(layout.name(layout.blob(data, index)), tmp_path, "A manifest is damaged")


def test_a_layer_with_another_digest(tmp_path: Path, fat: bytes) -> None:
    source = stock(tmp_path / "stock", [tar_of(package(fat))])
    blob = next(path for path in (tmp_path / "stock/blobs/sha256").iterdir() if path.read_bytes()[:2] == b"\x1f\x8b")
    blob.write_bytes(blob.read_bytes()[:-1] + b"!")
    with pytest.raises(TorchtailorError):
        cut(source, tmp_path)
    assert not (tmp_path / "cut").exists()


@pytest.mark.parametrize("packing", [GZIP, ZSTD])
def test_truncated_layers(tmp_path: Path, fat: bytes, packing: str) -> None:
    """Packed streams that end early, stored under their right digests."""
    layout = Layout(tmp_path / "stock")
    tar = tar_of(package(fat))
    image = layout.image([tar], packing=packing)
    manifest = json.loads((layout.folder / "blobs" / image["digest"].replace(":", "/")).read_text())
    whole = (layout.folder / "blobs" / manifest["layers"][0]["digest"].replace(":", "/")).read_bytes()
    for size in (3, len(whole) // 2, len(whole) - 1):
        manifest["layers"][0] = layout.blob(whole[:size], packing)
        refused(layout.name(layout.blob(json.dumps(manifest).encode(), manifest["mediaType"])), tmp_path, "Layer 1 of")


def test_a_truncated_tar(tmp_path: Path, fat: bytes) -> None:
    refused(stock(tmp_path / "stock", [tar_of(package(fat))[:30000]]), tmp_path, "ends in the middle of a file")


def test_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte of zeros is a megabyte of gzip; it is given up long before it fills anything."""
    monkeypatch.setattr(compression, "_HARMLESS", 128 << 20)
    bomb = gzip.compress(bytes(64 << 20), 9)

    def pieces() -> Iterator[bytes]:
        while True:
            yield bomb

    layer = UnpackedLayer(pieces(), len(bomb), "Layer 1")
    with pytest.raises(BadInputError, match="unpacks to more than 200 times"):
        for piece in layer:
            assert len(piece) <= 1 << 20


def test_a_member_larger_than_the_disk(tmp_path: Path) -> None:
    info = tarfile.TarInfo("lib/huge.so")
    info.size = 1 << 49
    tar = info.tobuf(tarfile.GNU_FORMAT) + b"\x7fELF" + bytes(1 << 20)
    with pytest.raises(TorchtailorError, match=f"needs about 563 TB of disk, and .* are free for {tmp_path}/cut"):
        cut(stock(tmp_path / "stock", [tar]), tmp_path)
    assert not (tmp_path / "cut").exists()


def test_damaged_libraries_stay_and_are_named(tmp_path: Path, fat: bytes) -> None:
    files = {"opt/whole.so": fat, "opt/cut_short.so": fat[:20000], "opt/other.so": b"\x7fELF" + b"\xff" * 500}
    (image,) = cut(stock(tmp_path / "stock", [tar_of(files)]), tmp_path).images
    left = {one.result.path: one.result for one in image.libraries if one.result.status is LibraryStatus.SKIPPED}
    assert "opt/cut_short.so" in left and left["opt/cut_short.so"].reason
    after = read_image(tmp_path / "cut").files(0)
    assert after["opt/cut_short.so"] == files["opt/cut_short.so"]
    assert len(after["opt/whole.so"]) < len(fat)


def test_damaged_records_are_named(tmp_path: Path, fat: bytes) -> None:
    files = package(fat)
    record = next(name for name in files if name.endswith("RECORD"))
    files[record] = b"not,a\nrecord"
    (image,) = cut(stock(tmp_path / "stock", [tar_of(files)]), tmp_path).images
    assert "RECORD of demo-1.0 is damaged" in image.notes[0]
    assert read_image(tmp_path / "cut").files(0)[record] == files[record]


@pytest.mark.slow
def test_many_tiny_files(tmp_path: Path, fat: bytes) -> None:
    """A hundred thousand files are a matter of seconds."""
    members = {f"usr/share/{number // 1000}/{number}.txt": b"x" for number in range(100_000)}
    source = stock(tmp_path / "stock", [tar_of(members, tarfile.USTAR_FORMAT), tar_of(package(fat))])
    started = time.process_time()
    cut(source, tmp_path)
    assert time.process_time() - started < 20


def test_a_tree_too_deep_for_recursion(tmp_path: Path, fat: bytes) -> None:
    deep = "/".join(["d"] * 3000)
    layers = [tar_of({f"{deep}/x": b"1", "lib.so": fat}), tar_of({".wh.d": b""})]
    (image,) = cut(stock(tmp_path / "stock", layers), tmp_path, squash_shadowed=True).images
    assert image.layers[0].squashed == 1


def test_indexes_in_indexes(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "stock")
    row = layout.image([tar_of({"a": b"1"})])
    for _ in range(5):
        kind = "application/vnd.oci.image.index.v1+json"
        data = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": [row]}).encode()
        row = layout.blob(data, kind)
    refused(layout.name(row), tmp_path, "indexes in indexes")


def test_digests_are_of_the_bytes(tmp_path: Path, fat: bytes) -> None:
    """The reader of these tests is not torchtailor's: it compares every size and digest."""
    cut(stock(tmp_path / "stock", [tar_of(package(fat))]), tmp_path)
    image = read_image(tmp_path / "cut")
    assert image.config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in image.tars]

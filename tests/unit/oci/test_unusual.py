"""Images that are right and unusual, and names that lead to something else than an image."""

from __future__ import annotations

import gzip
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.unit.oci.builder import CONFIG, GZIP, INDEX, MANIFEST, ZSTD, Layout, TarFile, read_image, stock, tar_of
from tests.unit.oci.test_cut import SITE, cut, package
from tests.unit.tailoring.helpers import options
from torchtailor.cli import main
from torchtailor.core.errors import BadInputError, ExitCode, ImpossibleError
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.opened import opened_image
from torchtailor.tailoring.image.options import ImageOptions

LIBRARY = f"{SITE}/demo/lib/libdemo.so"


def index_of(layout: Layout, rows: list[dict[str, Any]]) -> str:
    data = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}).encode()
    return layout.name(layout.blob(data, INDEX))


def manifest_of(layout: Layout, config: str, layer: str) -> dict[str, Any]:
    parts = {"config": layout.blob(b"{}", config), "layers": [layout.blob(b"content", layer)]}
    data = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, **parts}).encode()
    return layout.blob(data, MANIFEST)


def attestation(layout: Layout) -> dict[str, Any]:
    return {
        **manifest_of(layout, CONFIG, "application/vnd.in-toto+json"),
        "platform": {"os": "unknown", "architecture": "unknown"},
        "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
    }


def test_no_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["image", stock(tmp_path / "stock", []), f"oci:{tmp_path}/cut:x", "--gpu", "9.0"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "there was nothing to cut" in out and "would be" not in out


def test_empty_layers_stay_the_same_blobs(tmp_path: Path, fat: bytes) -> None:
    tars = [tar_of({}), b"", bytes(1024), tar_of({"lib.so": fat}), tar_of({})]
    (image,) = cut(stock(tmp_path / "stock", tars), tmp_path).images
    assert [layer.changed for layer in image.layers] == [False, False, False, True, False]
    assert next(tar for tar in read_image(tmp_path / "cut").tars if len(tar) > 10240) != tars[3]


@pytest.mark.parametrize("squash", [False, True])
def test_the_same_layer_twice(tmp_path: Path, fat: bytes, squash: bool) -> None:
    layer = tar_of(package(fat))
    report = cut(stock(tmp_path / "stock", [layer, layer]), tmp_path, squash_shadowed=squash)
    after = read_image(tmp_path / "cut")
    assert len(after.files(1)[LIBRARY]) < len(fat)
    assert (LIBRARY in after.files(0)) is not squash
    assert report.images[0].shadowed > len(fat)


def test_layers_that_can_be_fetched_in_parts(tmp_path: Path, fat: bytes) -> None:
    """zstd:chunked: a frame for each file, and a table in frames that are skipped, of which annotations tell."""
    tar = tar_of(package(fat))
    frames = b"".join(
        zstandard.ZstdCompressor().compress(tar[start : start + 4096]) for start in range(0, len(tar), 4096)
    )
    table = b"GNUlInUx" * 10
    packed = frames + struct.pack("<II", 0x184D2A50, len(table)) + table
    layout = Layout(tmp_path / "stock")
    notes = {"io.containers.zstd-chunked.manifest-position": f"{len(frames) + 8}:{len(table)}:1:1", "kept": "1"}
    row = layout.blob(packed, ZSTD, annotations=notes)
    image = layout.image([tar], packing=GZIP, manifest={"layers": [row]})
    cut(layout.name(image), tmp_path)
    after = read_image(tmp_path / "cut")
    assert len(after.files(0)[LIBRARY]) < len(fat)
    assert after.manifest["layers"][0]["mediaType"] == ZSTD
    assert after.manifest["layers"][0]["annotations"] == {"kept": "1"}


def test_site_packages_behind_a_link(tmp_path: Path, fat: bytes) -> None:
    real = {path.replace(SITE, "opt/venv/lib/site-packages"): data for path, data in package(fat).items()}
    link = TarFile(SITE, kind=tarfile.SYMTYPE, link="/opt/venv/lib/site-packages")
    members = [link, *(TarFile(path, data) for path, data in real.items())]
    source = stock(tmp_path / "stock", [tar_of(members)])
    (image,) = cut(source, tmp_path).images
    assert [one.result.path for one in image.changed] == ["opt/venv/lib/site-packages/demo/lib/libdemo.so"]
    with opened_image(f"oci:{tmp_path}/cut:latest") as artifact:
        assert (artifact.path / SITE / "demo" / "__init__.py").exists()


def test_a_library_through_a_linked_folder(tmp_path: Path, fat: bytes) -> None:
    """A layer may write below a link of a layer before it; nothing is taken for hidden that may be seen."""
    link = TarFile("usr/local/cuda", kind=tarfile.SYMTYPE, link="cuda-12.8")
    first = tar_of([link, TarFile("usr/local/cuda-12.8/lib64/libx.so", fat)])
    second = tar_of({"usr/local/cuda/lib64/liby.so": fat})
    (image,) = cut(stock(tmp_path / "stock", [first, second]), tmp_path, squash_shadowed=True).images
    assert len(image.changed) == 2
    assert read_image(tmp_path / "cut").files(0).keys() >= {"usr/local/cuda-12.8/lib64/libx.so"}


def test_a_conda_tree_with_its_packages(tmp_path: Path, fat: bytes) -> None:
    """conda links what it unpacked in pkgs into its environments: one file with two names."""
    members = [
        TarFile("opt/conda/pkgs/libx-1.0/lib/libx.so", fat),
        TarFile("opt/conda/lib/libx.so", kind=tarfile.LNKTYPE, link="opt/conda/pkgs/libx-1.0/lib/libx.so"),
        TarFile("opt/conda/conda-meta/libx-1.0.json", json.dumps({"name": "libx", "files": ["lib/libx.so"]}).encode()),
    ]
    (image,) = cut(stock(tmp_path / "stock", [tar_of(members)]), tmp_path).images
    (library,) = image.changed
    assert library.result.size_after < len(fat)
    (image,) = cut(f"oci:{tmp_path}/stock:latest", tmp_path, to="dropped", drop=("pip-cache",)).images
    assert not image.dropped_files  # the environment has it still
    assert len(image.changed) == 1


def test_an_image_that_was_cut_for_another_gpu(tmp_path: Path, fat: bytes) -> None:
    cut(stock(tmp_path / "stock", [tar_of(package(fat))]), tmp_path, gpu="9.0")
    with pytest.raises(ImpossibleError, match=r"no GPU code that runs on 8\.0") as caught:
        cut(f"oci:{tmp_path}/cut:latest", tmp_path, gpu="8.0", to="again")
    assert caught.value.hint == "It was cut for 9.0 before: cut the stock image."


@pytest.mark.parametrize("target", ["oci", "oci-archive", "docker-archive"])
def test_an_index_of_attestations_alone(tmp_path: Path, target: str) -> None:
    layout = Layout(tmp_path / "stock")
    source = index_of(layout, [attestation(layout)])
    with pytest.raises(BadInputError, match="has no image, only attestations"):
        cut_image(source, f"{target}:{tmp_path}/cut", ImageOptions(options()))
    with pytest.raises(BadInputError, match="has no image, only attestations"), opened_image(source):
        pass
    assert not (tmp_path / "cut").exists()


def test_an_index_of_artifacts_alone(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "stock")
    empty = "application/vnd.oci.empty.v1+json"
    source = index_of(layout, [manifest_of(layout, empty, "application/octet-stream")])
    with pytest.raises(BadInputError, match="has no image, only other artifacts"):
        cut(source, tmp_path)
    assert not (tmp_path / "cut").exists()


def test_artifacts_beside_an_image_stay(tmp_path: Path, fat: bytes) -> None:
    layout = Layout(tmp_path / "stock")
    image = {**layout.image([tar_of({"lib.so": fat})]), "platform": {"os": "linux", "architecture": "amd64"}}
    model = manifest_of(layout, "application/vnd.oci.empty.v1+json", "application/octet-stream")
    cut(index_of(layout, [image, model, attestation(layout)]), tmp_path)
    rows = json.loads((tmp_path / "cut" / "index.json").read_text())["manifests"]
    inner = json.loads((tmp_path / "cut" / "blobs" / rows[0]["digest"].replace(":", "/")).read_text())["manifests"]
    assert [row["digest"] == model["digest"] for row in inner] == [False, True]


def test_gzip_in_several_members(tmp_path: Path, fat: bytes) -> None:
    """pigz, estargz and others write them; a reader of the first alone would see half a layer."""
    tar = tar_of(package(fat))
    packed = b"".join(gzip.compress(tar[start : start + 10000], mtime=0) for start in range(0, len(tar), 10000))
    layout = Layout(tmp_path / "stock")
    image = layout.image([tar], manifest={"layers": [layout.blob(packed, GZIP)]})
    (result,) = cut(layout.name(image), tmp_path).images
    assert len(result.changed) == 1

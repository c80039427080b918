"""A whole image: what changes, what stays, and that the same input gives the same digest."""

from __future__ import annotations

import io
import json
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.unit.oci.builder import (
    CONFIG,
    GZIP,
    INDEX,
    PLAIN,
    TIME,
    ZSTD,
    Layout,
    TarFile,
    read_image,
    stock,
    tar_of,
)
from tests.unit.surgery.libraries import Recipe, library
from tests.unit.tailoring.helpers import options as tailoring
from tests.unit.wheels.builder import METADATA, digest, record_of
from torchtailor.core.errors import BadInputError, ImpossibleError, NoMatchError, UsageError
from torchtailor.oci.compression import LayerCompression
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.opened import opened_image
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.tailoring.image.result import ImageReport
from torchtailor.verification.inspection.inspect import inspect

SITE = "usr/lib/python3/site-packages"
BASE = tar_of({"etc/os-release": b"Debian\n", "bin/true": b"\x7fELF" + bytes(100)})


def cut(source: str, tmp_path: Path, gpu: str = "9.0", to: str = "cut", **more: Any) -> ImageReport:
    own = {key: more.pop(key) for key in ("squash_shadowed", "compression", "publish_nvidia") if key in more}
    place = {key: more.pop(key) for key in ("platform",) if key in more}
    return cut_image(source, f"oci:{tmp_path / to}:latest", ImageOptions(tailoring(gpu, **more), **own), **place)


def package(
    fat: bytes, name: str = "demo", place: str = "", licence: str = "BSD-3-Clause", terms: bytes = b""
) -> dict[str, bytes]:
    """The files of an installed package with one library."""
    inside = place or f"{name}/lib/lib{name}.so"
    files = {inside: fat, f"{name}/__init__.py": b"1"}
    dist_info = f"{name.replace('-', '_')}-1.0.dist-info"
    text = METADATA.format(name=name, version="1.0", licence=licence, extra="")
    files[f"{dist_info}/METADATA"] = text.encode()
    if terms:
        files[f"{dist_info}/licenses/License.txt"] = terms
    files[f"{dist_info}/RECORD"] = record_of(files, dist_info).encode()
    return {f"{SITE}/{path}": data for path, data in files.items()}


def record_row(record: bytes, path: str) -> str:
    return next(line for line in record.decode().splitlines() if line.startswith(f"{path},"))


@pytest.mark.parametrize("packing", [GZIP, ZSTD, PLAIN])
def test_only_the_layer_with_code_changes(tmp_path: Path, fat: bytes, packing: str) -> None:
    last = tar_of({"srv/app.py": b"print()"})
    source = stock(tmp_path / "stock", [BASE, tar_of(package(fat)), last], packing=packing)
    before = read_image(tmp_path / "stock")
    report = cut(source, tmp_path)
    after = read_image(tmp_path / "cut")
    assert [row["digest"] for row in after.manifest["layers"]][::2] == [
        row["digest"] for row in before.manifest["layers"]
    ][::2]
    assert after.manifest["layers"][1]["mediaType"] == packing
    library = after.files(1)[f"{SITE}/demo/lib/libdemo.so"]
    assert len(library) < len(fat)
    row = record_row(after.files(1)[f"{SITE}/demo-1.0.dist-info/RECORD"], "demo/lib/libdemo.so")
    assert row == f"demo/lib/libdemo.so,sha256={digest(library)},{len(library)}"
    (image,) = report.images
    assert [layer.changed for layer in image.layers] == [False, True, False]
    assert image.layers[1].size_after == after.manifest["layers"][1]["size"]
    assert image.layers[1].unpacked_after == len(after.tars[1])
    assert report.digest == image.digest_after == after.digest


def test_documents(tmp_path: Path, fat: bytes) -> None:
    source = stock(tmp_path / "stock", [BASE, tar_of(package(fat))])
    before = read_image(tmp_path / "stock")
    cut(source, tmp_path)
    after = read_image(tmp_path / "cut")
    assert after.config["x-unknown"] == before.config["x-unknown"]
    assert after.config["config"]["Env"] == ["PATH=/bin"]
    assert after.config["config"]["Labels"]["a"] == "b"
    assert after.config["created"] == before.config["created"]
    assert after.config["history"][:-1] == before.config["history"]
    assert after.config["history"][-1] == {
        "created": "2024-01-02T03:04:05Z",
        "created_by": "torchtailor image --gpu 9.0",
        "empty_layer": True,
    }
    notes = dict(after.manifest["annotations"])
    assert notes.pop("org.opencontainers.image.base.digest") == before.digest
    assert notes["torchtailor.source.digest"] == before.digest
    assert notes["torchtailor.gpus"] == "9.0"
    assert notes.items() <= after.config["config"]["Labels"].items()


def test_same_input_same_digest(tmp_path: Path, fat: bytes) -> None:
    source = stock(tmp_path / "stock", [BASE, tar_of(package(fat))])
    first = cut(source, tmp_path, to="a", processes=1)
    second = cut(source, tmp_path, to="b", processes=3)
    assert first.digest == second.digest


def test_a_cut_image_is_not_cut_again(tmp_path: Path, fat: bytes) -> None:
    cut(stock(tmp_path / "stock", [tar_of(package(fat))]), tmp_path, to="a")
    report = cut(f"oci:{tmp_path / 'a'}:latest", tmp_path, to="b")
    assert not report.differs
    assert read_image(tmp_path / "a").digest == read_image(tmp_path / "b").digest


def test_nothing_to_cut_is_a_copy(tmp_path: Path) -> None:
    source = stock(tmp_path / "stock", [BASE])
    report = cut(source, tmp_path)
    assert not report.differs
    assert read_image(tmp_path / "cut").digest == read_image(tmp_path / "stock").digest


def test_dry_run_writes_nothing(tmp_path: Path, fat: bytes) -> None:
    source = stock(tmp_path / "stock", [BASE, tar_of(package(fat))])
    report = cut(source, tmp_path, dry_run=True)
    (image,) = report.images
    assert not (tmp_path / "cut").exists()
    assert image.layers[1].size_after is None
    real = cut(source, tmp_path).images[0]
    assert abs(image.unpacked_after - real.unpacked_after) <= 4096
    assert image.unpacked_after < image.unpacked_before


def test_record_before_and_after_its_library(tmp_path: Path, fat: bytes) -> None:
    files = list(package(fat).items())
    cut(stock(tmp_path / "a", [tar_of(dict(files))]), tmp_path, to="x")
    cut(stock(tmp_path / "b", [tar_of(dict(reversed(files)))]), tmp_path, to="y")
    first, second = read_image(tmp_path / "x").files(0), read_image(tmp_path / "y").files(0)
    assert first == second
    written = f"{SITE}/demo-1.0.dist-info/torchtailor.json"
    assert [name for name in second if name != written] == [name for name in first if name != written][::-1]


def test_the_manifest_of_a_package(tmp_path: Path, fat: bytes) -> None:
    """Beside RECORD, listed in it, and with its owner, mode and time: what was done to the package."""
    long = "d" * 120
    for number, format in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        prefix = "" if format == tarfile.USTAR_FORMAT else f"{long}/"
        members = [TarFile(f"./{prefix}{name}", data, uid=1234, mode=0o640) for name, data in package(fat).items()]
        cut(stock(tmp_path / f"stock{number}", [tar_of(members, format)]), tmp_path, to=f"{number}")
        image = read_image(tmp_path / f"{number}")
        with tarfile.open(fileobj=io.BytesIO(image.tars[0])) as archive:
            names = archive.getnames()
            record, written = (
                archive.getmember(f"./{prefix}{SITE}/demo-1.0.dist-info/{name}")
                for name in ("RECORD", "torchtailor.json")
            )
            assert names.index(written.name) == names.index(record.name) + 1
            assert (written.uid, written.mode, written.mtime, written.type) == (1234, 0o640, TIME, tarfile.REGTYPE)
            file = archive.extractfile(written)
            assert file is not None
            data = file.read()
        listed = record_row(image.files(0)[record.name], "demo-1.0.dist-info/torchtailor.json")
        assert listed.split(",")[1:] == [f"sha256={digest(data)}", str(len(data))]
        document = json.loads(data)
        assert document["target"]["gpus"] == ["9.0"]
        assert [row["path"] for row in document["libraries"]] == ["demo/lib/libdemo.so"]
    again = cut(f"oci:{tmp_path}/0:latest", tmp_path, to="again", gpu="9.0", drop=("static-libs",))
    assert not again.differs


def test_the_manifest_of_a_package_that_was_cut_before(tmp_path: Path, wide: bytes) -> None:
    cut(stock(tmp_path / "stock", [tar_of(package(wide))]), tmp_path, gpu="8.0,9.0", to="a")
    cut(f"oci:{tmp_path}/a:latest", tmp_path, gpu="9.0", to="b")
    files = read_image(tmp_path / "b").files(0)
    written = [name for name in files if name.endswith("torchtailor.json")]
    assert len(written) == 1
    assert json.loads(files[written[0]])["target"]["gpus"] == ["9.0"]
    record = files[f"{SITE}/demo-1.0.dist-info/RECORD"]
    assert f"sha256={digest(files[written[0]])}" in record_row(record, "demo-1.0.dist-info/torchtailor.json")


def test_record_in_a_later_layer(tmp_path: Path, fat: bytes) -> None:
    files = package(fat)
    record = f"{SITE}/demo-1.0.dist-info/RECORD"
    layers = [tar_of(files), BASE, tar_of({record: files[record] + b"new.txt,,\n"})]
    cut(stock(tmp_path / "stock", layers), tmp_path)
    after = read_image(tmp_path / "cut")
    library = after.files(0)[f"{SITE}/demo/lib/libdemo.so"]
    for layer in (0, 2):
        row = record_row(after.files(layer)[record], "demo/lib/libdemo.so")
        assert row.split(",")[1] == f"sha256={digest(library)}"


def test_record_of_a_layer_below_a_replaced_library(tmp_path: Path, fat: bytes) -> None:
    """The later layer's library is another one: the RECORD below says what its own layer holds."""
    files = package(fat)
    library = f"{SITE}/demo/lib/libdemo.so"
    layers = [tar_of(files), tar_of({library: fat + bytes(4096)})]
    cut(stock(tmp_path / "stock", layers), tmp_path)
    after = read_image(tmp_path / "cut")
    row = record_row(after.files(0)[f"{SITE}/demo-1.0.dist-info/RECORD"], "demo/lib/libdemo.so")
    assert row.split(",")[1] == f"sha256={digest(after.files(0)[library])}"


def test_a_licence_file_of_nvidias_counts_more_than_what_is_declared(tmp_path: Path, fat: bytes) -> None:
    terms = b"End User License Agreement\n---\n"
    files = package(fat, "nvidia-demo", "nvidia/demo/lib/odd.so", "BSD-3-Clause", terms)
    source = stock(tmp_path / "stock", [BASE, tar_of(files)])
    report = cut(source, tmp_path, to="a")
    assert [one.result.status for one in report.images[0].libraries] == [LibraryStatus.NEEDS_NVIDIA_OPTION]
    with opened_image(source) as image:
        assert inspect(image).libraries[0].proprietary


def test_nvidia_only_when_asked_for(tmp_path: Path, fat: bytes) -> None:
    files = package(fat, "nvidia-demo", "nvidia/demo/lib/odd.so", "LicenseRef-NVIDIA-Proprietary")
    files["usr/lib/x86_64-linux-gnu/libcudnn_ops.so.9"] = fat
    source = stock(tmp_path / "stock", [tar_of(files)])
    report = cut(source, tmp_path)
    (image,) = report.images
    assert {one.result.status for one in image.libraries} == {LibraryStatus.NEEDS_NVIDIA_OPTION}
    assert image.could_save > 0 and not report.differs
    report = cut(source, tmp_path, to="b", nvidia=True)
    assert len(report.images[0].changed) == 2


def test_metadata_in_a_later_layer_decides_too(tmp_path: Path, fat: bytes) -> None:
    files = package(fat, "nvidia-demo", "nvidia/demo/lib/odd.so", "LicenseRef-NVIDIA-Proprietary")
    library = {f"{SITE}/nvidia/demo/lib/odd.so": fat}
    rest = {name: data for name, data in files.items() if name not in library}
    report = cut(stock(tmp_path / "stock", [tar_of(library), tar_of(rest)]), tmp_path)
    assert report.images[0].libraries[0].result.status is LibraryStatus.NEEDS_NVIDIA_OPTION


def test_every_place(tmp_path: Path, fat: bytes) -> None:
    """System folders, conda, CUDA's own tree, programs and many small libraries: wherever an ELF file lies."""
    files = {
        "opt/conda/lib/libx.so.1.2": fat,
        "usr/local/cuda-12.8/targets/x86_64-linux/lib/libmine.so": fat,
        **{f"opt/flashinfer/jit/{number}/kernel_{number}.so": fat for number in range(20)},
        "usr/bin/tool": fat,
        "root/notes.txt": fat,  # a name that no library has
    }
    report = cut(stock(tmp_path / "stock", [tar_of(files)]), tmp_path)
    changed = {one.result.path for one in report.images[0].changed}
    assert changed == set(files) - {"root/notes.txt"}


def test_hard_links(tmp_path: Path, fat: bytes) -> None:
    files = package(fat)
    members = [TarFile(name, data) for name, data in files.items()]
    members.append(TarFile("usr/lib/second.so", kind=tarfile.LNKTYPE, link=f"{SITE}/demo/lib/libdemo.so"))
    cut(stock(tmp_path / "stock", [tar_of(members)]), tmp_path)
    after = read_image(tmp_path / "cut")
    with tarfile.open(fileobj=io.BytesIO(after.tars[0])) as archive:
        second = archive.getmember("usr/lib/second.so")
        assert second.islnk() and second.linkname == f"{SITE}/demo/lib/libdemo.so"
        file = archive.extractfile(second)
        assert file is not None and len(file.read()) < len(fat)


def test_record_that_lists_the_hard_link(tmp_path: Path, fat: bytes) -> None:
    files = package(fat)
    library = f"{SITE}/demo/lib/libdemo.so"
    members = [TarFile("opt/first.so", files.pop(library))]
    members += [TarFile(name, data) for name, data in files.items()]
    members.append(TarFile(library, kind=tarfile.LNKTYPE, link="opt/first.so"))
    cut(stock(tmp_path / "stock", [tar_of(members)]), tmp_path)
    after = read_image(tmp_path / "cut").files(0)
    row = record_row(after[f"{SITE}/demo-1.0.dist-info/RECORD"], "demo/lib/libdemo.so")
    assert row.split(",")[1] == f"sha256={digest(after['opt/first.so'])}"


def test_shadowed_files_are_counted_and_dropped_when_asked_for(tmp_path: Path, fat: bytes) -> None:
    layers = [
        tar_of({"a/kept": b"k" * 5000, "a/replaced": b"r" * 6000, "b/deleted": b"d" * 7000, "c/x": b"x" * 8000}),
        tar_of({"a/replaced": b"R" * 9000, "b/.wh.deleted": b"", "c/.wh..wh..opq": b"", "c/y": b"y"}),
        tar_of({"lib/libx.so": fat}),
    ]
    source = stock(tmp_path / "stock", layers)
    (image,) = cut(source, tmp_path).images
    assert [layer.shadowed for layer in image.layers] == [21000, 0, 0]
    assert read_image(tmp_path / "cut").tars[:2] == layers[:2]
    (image,) = cut(source, tmp_path, to="b", squash_shadowed=True).images
    after = read_image(tmp_path / "b")
    assert set(after.files(0)) == {"a/kept"}
    assert after.tars[1] == layers[1]
    assert image.layers[0].squashed == 21000


def test_shadowed_bytes_that_a_hard_link_still_has_stay(tmp_path: Path, fat: bytes) -> None:
    members = [TarFile("a/one", b"1" * 5000), TarFile("a/two", kind=tarfile.LNKTYPE, link="a/one")]
    layers = [tar_of(members), tar_of({"a/.wh.one": b""}), tar_of({"lib/libx.so": fat})]
    (image,) = cut(stock(tmp_path / "stock", layers), tmp_path, squash_shadowed=True).images
    assert image.layers[0].shadowed == 0
    assert read_image(tmp_path / "cut").tars[0] == layers[0]


@pytest.mark.parametrize("by", ["shadowed", "rule"])
def test_a_link_that_another_link_names_stays(tmp_path: Path, fat: bytes, by: str) -> None:
    """Without `two` nothing could unpack `three`, nor without that `four`."""
    members = [TarFile("a/one", b"1" * 5000), TarFile("lib/libx.so", fat)]
    chain = ["a/one", "a/two.a", "a/three.a", "a/four"]
    members += [TarFile(name, kind=tarfile.LNKTYPE, link=link) for link, name in pairwise(chain)]
    members.append(TarFile("a/other.a", kind=tarfile.LNKTYPE, link="a/one"))
    hidden = {"a/.wh.two.a": b"", "a/.wh.three.a": b"", "a/.wh.other.a": b""}
    layers = [tar_of(members), *([tar_of(hidden)] if by == "shadowed" else [])]
    more: dict[str, Any] = {"squash_shadowed": True} if by == "shadowed" else {"drop": ("static-libs",)}
    cut(stock(tmp_path / "stock", layers), tmp_path, **more)
    with tarfile.open(fileobj=io.BytesIO(read_image(tmp_path / "cut").tars[0])) as archive:
        infos = archive.getmembers()
    names = [info.name for info in infos]
    assert set(chain) <= set(names)
    assert "a/other.a" not in names
    assert all(info.linkname in names[: names.index(info.name)] for info in infos if info.islnk())


def test_doubled(tmp_path: Path, fat: bytes) -> None:
    same = b"m" * 9000
    layers = [tar_of({"a/model": same, "a/tiny": b"1"}), tar_of({"b/model": same, "a/tiny": b"1"})]
    (image,) = cut(stock(tmp_path / "stock", layers), tmp_path).images
    (file,) = image.doubled
    assert (file.path, file.size, file.layers, image.wasted) == ("a/model", 9000, (1, 2), 9000)


def test_drop(tmp_path: Path, fat: bytes) -> None:
    files = package(fat)
    record = f"{SITE}/demo-1.0.dist-info/RECORD"
    files[f"{SITE}/demo/lib/libdemo_static.a"] = b"!<arch>\n" + bytes(3000)
    files[record] = files[record].replace(b"demo/__init__.py", b"demo/lib/libdemo_static.a,,\ndemo/__init__.py")
    files["usr/local/cuda/include/cuda.h"] = b"// header"
    files["usr/share/doc/pkg/README"] = b"text"
    files["usr/share/doc/pkg/copyright"] = b"licence"
    files["root/.cache/pip/http/1/2/3"] = bytes(500)
    source = stock(tmp_path / "stock", [tar_of(files)])
    (image,) = cut(source, tmp_path).images
    assert {"static-libs", "headers", "docs", "pip-cache"} <= set(image.droppable)
    assert image.droppable["pip-cache"] == (1, 500)
    (image,) = cut(source, tmp_path, to="b", drop=("static-libs", "docs", "pip-cache")).images
    after = read_image(tmp_path / "b").files(0)
    gone = set(files) - set(after)
    assert gone == {
        f"{SITE}/demo/lib/libdemo_static.a",
        "usr/share/doc/pkg/README",
        "root/.cache/pip/http/1/2/3",
    }
    assert b"libdemo_static.a" not in after[record]
    assert "headers" in image.droppable and "docs" not in image.droppable


def test_index(tmp_path: Path, fat: bytes) -> None:
    layout = Layout(tmp_path / "stock")
    one = {**layout.image([tar_of(package(fat))]), "platform": {"os": "linux", "architecture": "amd64"}}
    two = {
        **layout.image([tar_of({"opt/other.so": fat})], architecture="arm64"),
        "platform": {"os": "linux", "architecture": "arm64"},
    }
    proof = {
        **layout.image([tar_of({"sbom.json": b"{}"})]),
        "platform": {"os": "unknown", "architecture": "unknown"},
        "annotations": {
            "vnd.docker.reference.type": "attestation-manifest",
            "vnd.docker.reference.digest": one["digest"],
        },
    }
    document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [one, two, proof], "annotations": {"a": "b"}}
    source = layout.name(layout.blob(json.dumps(document).encode(), INDEX))
    report = cut(source, tmp_path)
    after = read_image(tmp_path / "cut")
    assert after.manifest["annotations"] == {"a": "b"}
    assert [row["platform"]["architecture"] for row in after.manifest["manifests"]] == ["amd64", "arm64"]
    for row in after.manifest["manifests"]:
        assert len(read_image(tmp_path / "cut", row["digest"]).tars) == 1
    assert "attestation" in report.notes[0]
    assert [image.platform for image in report.images] == ["linux/amd64", "linux/arm64"]
    single = cut(source, tmp_path, to="b", platform="linux/arm64")
    assert read_image(tmp_path / "b").digest == after.manifest["manifests"][1]["digest"] == single.digest
    with pytest.raises(NoMatchError, match="no image for linux/riscv64"):
        cut(source, tmp_path, to="c", platform="linux/riscv64")
    assert not (tmp_path / "c").exists()


def test_the_platform_of_a_single_image(tmp_path: Path, fat: bytes) -> None:
    source = stock(tmp_path / "stock", [tar_of(package(fat))])
    with pytest.raises(NoMatchError, match="is for linux/amd64, not for linux/arm64"):
        cut(source, tmp_path, platform="linux/arm64")
    assert cut(source, tmp_path, platform="linux/amd64").differs


def test_compress(tmp_path: Path, fat: bytes) -> None:
    docker = {
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
    }
    layout = Layout(tmp_path / "stock")
    image = layout.image([BASE, tar_of(package(fat))])
    manifest = json.loads((layout.folder / "blobs" / image["digest"].replace(":", "/")).read_text()) | docker
    manifest["config"]["mediaType"] = "application/vnd.docker.container.image.v1+json"
    for row in manifest["layers"]:
        row["mediaType"] = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    source = layout.name(layout.blob(json.dumps(manifest).encode(), docker["mediaType"]))
    cut(source, tmp_path, to="b", compression=LayerCompression.ZSTD)
    after = read_image(tmp_path / "b")
    assert after.manifest["mediaType"].startswith("application/vnd.oci.")
    assert after.manifest["config"]["mediaType"] == CONFIG
    assert [row["mediaType"] for row in after.manifest["layers"]] == [GZIP, ZSTD]


def test_nothing_for_the_target(tmp_path: Path, fat: bytes) -> None:
    with pytest.raises(ImpossibleError, match="no GPU code that runs on"):
        cut(stock(tmp_path / "stock", [tar_of(package(fat))]), tmp_path, gpu="3.5")
    assert not (tmp_path / "cut").exists()


def test_onto_itself(tmp_path: Path, fat: bytes) -> None:
    source = stock(tmp_path / "stock", [tar_of(package(fat))])
    with pytest.raises(UsageError, match="never changed"):
        cut(source, tmp_path, to="stock")


def test_onto_itself_under_another_name(tmp_path: Path, fat: bytes) -> None:
    source = stock(tmp_path / "stock", [tar_of(package(fat))])
    archive = tmp_path / "stock.tar"
    options = ImageOptions(tailoring("9.0"))
    cut_image(source, f"oci-archive:{archive}:a", ImageOptions(tailoring("8.0,9.0")))
    (tmp_path / "link").symlink_to(tmp_path / "stock")
    before = {path: path.read_bytes() for path in (archive, tmp_path / "stock" / "index.json")}
    for origin, goal in (
        (f"oci:{tmp_path}/stock", f"oci:{tmp_path}/stock:latest"),
        (f"oci:{tmp_path}/stock:@0", f"oci:{tmp_path}/stock:latest"),
        (f"oci:{tmp_path}/link:latest", f"oci:{tmp_path}/stock:latest"),
        (f"oci-archive:{archive}:a", f"oci-archive:{archive}:b"),  # an archive is written whole
        (f"oci-archive:{archive}", f"docker-archive:{archive}:b"),
    ):
        with pytest.raises(UsageError, match="never changed"):
            cut_image(origin, goal, options)
    assert before == {path: path.read_bytes() for path in before}
    cut_image(f"oci:{tmp_path}/stock", f"oci:{tmp_path}/stock:cut", options)  # beside it is no problem


def test_a_dry_run_is_refused_where_the_cut_would_be(tmp_path: Path, fat: bytes) -> None:
    layout = Layout(tmp_path / "stock")
    images = [
        {**layout.image([tar_of({"libcublas.so.12": fat})], architecture=name), "platform": platform}
        for name in ("amd64", "arm64")
        for platform in [{"os": "linux", "architecture": name}]
    ]
    source = layout.name(layout.blob(json.dumps({"schemaVersion": 2, "manifests": images}).encode(), INDEX))
    options = ImageOptions(tailoring("9.0", nvidia=True, dry_run=True))
    for goal, says in (
        ("nowhere", "does not say where"),
        (source, "never changed"),
        (f"docker-archive:{tmp_path}/x.tar", "holds one platform"),
        ("docker://registry.example.com/app:1", "is not on this machine"),
    ):
        with pytest.raises(UsageError, match=says):
            cut_image(source, goal, options)
    assert cut_image(source, "docker://registry.local/app:1", options).digest is None


def test_libraries_that_were_not_kept(tmp_path: Path, fat: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk has no room for the libraries of all layers, layers are read once more, in batches."""
    files = {f"opt/lib{number}.so": fat for number in range(7)} | package(fat)
    source = stock(tmp_path / "stock", [tar_of(files)])
    whole = cut(source, tmp_path, to="a").digest
    monkeypatch.setattr("torchtailor.tailoring.image.cut._KEPT", len(fat) * 2)
    monkeypatch.setattr("torchtailor.tailoring.image.libraries._BATCH", len(fat) * 2)
    assert cut(source, tmp_path, to="b").digest == whole


def test_wrong_diff_id(tmp_path: Path, fat: bytes) -> None:
    wrong = {"rootfs": {"type": "layers", "diff_ids": ["sha256:" + "0" * 64]}}
    with pytest.raises(BadInputError, match=r"Layer 1 of .* unpacks to"):
        cut(stock(tmp_path / "stock", [tar_of(package(fat))], config=wrong), tmp_path)
    assert not (tmp_path / "cut").exists()


def test_symbol_tables_go_with_the_code_of_their_package(tmp_path: Path, fat: bytes) -> None:
    """As `tailor` does: of a package that GPU code is cut from, all libraries lose them, and no others do."""
    plain = library(Recipe(wrapped=[], symtab=True))
    files = package(fat)
    files |= package(plain, "other")
    beside = f"{SITE}/demo/lib/libplain.so"
    record = f"{SITE}/demo-1.0.dist-info/RECORD"
    files[beside] = plain
    files[record] = f"demo/lib/libplain.so,sha256={digest(plain)},{len(plain)}\n".encode() + files[record]
    source = stock(tmp_path / "stock", [tar_of({**files, "usr/lib/libsystem.so": plain})])
    cut(source, tmp_path)
    after = read_image(tmp_path / "cut").files(0)
    assert len(after[beside]) < len(plain)
    assert f"sha256={digest(after[beside])}" in record_row(after[record], "demo/lib/libplain.so")
    assert after[f"{SITE}/other/lib/libother.so"] == after["usr/lib/libsystem.so"] == plain
    cut(source, tmp_path, to="kept", strip=False)
    assert read_image(tmp_path / "kept").files(0)[beside] == plain
    cut(source, tmp_path, to="all", strip=True)
    after = read_image(tmp_path / "all").files(0)
    assert max(len(after[name]) for name in after if name.endswith(("other.so", "system.so"))) < len(plain)


def test_debian_packages_whose_files_changed_are_named(tmp_path: Path, fat: bytes) -> None:
    """dpkg's sums say what Debian distributes; they stay, and the report says what dpkg will say."""
    sums = "0" * 32
    lists = {
        "var/lib/dpkg/info/libgpu1:amd64.md5sums": f"{sums}  usr/lib/x86_64-linux-gnu/libgpu.so.1\n",
        "var/lib/dpkg/info/libgpu-dev.md5sums": f"{sums}  usr/include/gpu.h\n{sums}  usr/lib/libgpu.a\n",
        "var/lib/dpkg/info/libold.md5sums": f"{sums}  lib/libold.so\n",
        "var/lib/dpkg/info/other.md5sums": f"{sums}  usr/bin/other\n",
        "var/lib/dpkg/info/broken.md5sums": "\n\0\n  \n",
    }
    files = {
        "usr/lib/x86_64-linux-gnu/libgpu.so.1": fat,
        "usr/lib/libold.so": fat,  # Debian merged /lib into /usr/lib
        "usr/include/gpu.h": b"#define GPU",
        "usr/bin/other": b"1",
        **{path: text.encode() for path, text in lists.items()},
    }
    source = stock(tmp_path / "stock", [tar_of(files)])
    (image,) = cut(source, tmp_path).images
    assert len(image.notes) == 1
    assert "2 Debian packages (libgpu1, libold)" in image.notes[0]
    (image,) = cut(source, tmp_path, to="dropped", drop=("headers",)).images
    assert "3 Debian packages (libgpu-dev, libgpu1, libold)" in image.notes[0]
    after = read_image(tmp_path / "cut").files(0)
    assert all(after[path] == files[path] for path in lists)


def test_packed_relocations_need_a_glibc_in_the_image_that_reads_them(tmp_path: Path, fat: bytes) -> None:
    older, newer = fat + b"GLIBC_2.35\0", fat + b"GLIBC_ABI_DT_RELR\0"
    libc = "usr/lib/x86_64-linux-gnu/libc.so.6"
    for number, libcs in enumerate([(), (older,), (newer, older)]):
        source = stock(tmp_path / f"stock{number}", [tar_of(package(fat)), *(tar_of({libc: one}) for one in libcs)])
        with pytest.raises(ImpossibleError, match=r"--relr needs glibc 2\.36"):
            cut(source, tmp_path, relr=True)
    source = stock(tmp_path / "stock", [tar_of({**package(fat), libc: newer})])
    (image,) = cut(source, tmp_path, relr=True).images
    (library,) = (one.result for one in image.libraries if one.result.path.endswith("libdemo.so"))
    assert library.status is LibraryStatus.CUT and library.not_packed  # it was tried
    assert "--relr" in read_image(tmp_path / "cut").config["history"][-1]["created_by"]

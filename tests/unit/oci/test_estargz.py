"""eStargz, read back with the standard library alone: all of it as gzip, and each file by the table of contents."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.oci.builder import GZIP, TarFile, read_image, stock, tar_of
from tests.unit.tailoring.helpers import options as tailoring
from torchtailor.core.errors import ImpossibleError, UsageError
from torchtailor.oci import estargz
from torchtailor.oci.compression import LayerCompression, WrittenLayer
from torchtailor.oci.estargz import layer_writer
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.tailoring.image.result import ImageReport
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import Trace

LANDMARKS = (".prefetch.landmark", ".no.prefetch.landmark")
OWN = (*LANDMARKS, "stargz.index.json")
CHUNK = 4 << 20
LINKED = (tarfile.LNKTYPE, tarfile.SYMTYPE)


def packed(path: Path, tar: bytes, first: Iterable[str] = (), threads: int = 2) -> WrittenLayer:
    with layer_writer(path, LayerCompression.ESTARGZ, threads, first) as writer:
        for start in range(0, len(tar), 1_000_003):
            writer.write(tar[start : start + 1_000_003])
        return writer.finish()


@dataclass
class Lazy:
    """A layer as a snapshotter reads it: from its end."""

    toc: dict[str, Any]
    digest: str
    files: dict[str, bytes]  # what the parts of each file hold, checked by their digests
    landmark: int  # where what is fetched at once ends

    @property
    def names(self) -> list[str]:
        return [entry["name"].rstrip("/") for entry in self.toc["entries"] if entry["type"] != "chunk"]


def member(blob: bytes, offset: int) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(blob[offset:])


def lazily(blob: bytes) -> Lazy:
    footer = blob[-51:]
    assert footer[:10] == b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" and footer[10:16] == b"\x1a\0SG\x16\0"
    assert footer[32:38] == b"STARGZ" and gzip.decompress(footer) == b""
    with tarfile.open(fileobj=io.BytesIO(member(blob, int(footer[16:32], 16)))) as last:
        assert last.getnames() == ["stargz.index.json"]
        file = last.extractfile("stargz.index.json")
        assert file is not None
        text = file.read()
    toc = json.loads(text)
    files: dict[str, bytes] = {}
    whole: dict[str, str] = {}
    sizes: dict[str, int] = {}
    landmark = 0
    for entry in toc["entries"]:
        if entry["type"] not in ("reg", "chunk"):
            continue
        name = entry["name"]
        if entry["type"] == "reg":
            files[name], whole[name], sizes[name] = b"", entry["digest"], entry.get("size", 0)
        assert entry.get("chunkOffset", 0) == len(files[name])
        if sizes[name]:
            part = member(blob, entry["offset"])
            assert len(part) == entry.get("chunkSize", sizes[name] - len(files[name])) <= CHUNK
            assert f"sha256:{hashlib.sha256(part).hexdigest()}" == entry["chunkDigest"]
            files[name] += part
        if name in LANDMARKS:
            landmark = entry["offset"]
    for name, data in files.items():
        assert len(data) == sizes[name] and f"sha256:{hashlib.sha256(data).hexdigest()}" == whole[name]
    return Lazy(toc, f"sha256:{hashlib.sha256(text).hexdigest()}", files, landmark)


def members(tar: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        read = ((info, archive.extractfile(info) if info.isreg() else None) for info in archive)
        return [(info, file.read() if file else b"") for info, file in read]


def facts(info: tarfile.TarInfo) -> tuple[Any, ...]:
    return info.name, info.type, info.mode, info.uid, info.gid, info.mtime, info.linkname, info.size, info.pax_headers


names = st.lists(st.sampled_from(["a", "b", "é", "x" * 70]), min_size=1, max_size=4).map("/".join)
plain = st.builds(
    TarFile,
    names,
    st.binary(max_size=3000) | st.integers(0, 2500).map(lambda size: b"0123456" * size),
    uid=st.sampled_from([0, 5, 1 << 24]),
    pax=st.sampled_from([{}, {"SCHILY.xattr.user.a": "b\n"}, {"mtime": "1234.75"}]),
)
others = st.builds(
    TarFile, names, kind=st.sampled_from([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE]), link=names
)
trees = st.lists(plain | others, max_size=8, unique_by=lambda one: one.name)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    trees,
    st.lists(names, max_size=4),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.integers(1000, 9000),
)
def test_any_tree_is_read_back_in_parts_and_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: list[TarFile], first: list[str], format: int, chunk: int
) -> None:
    tar = tar_of(tree, format)
    monkeypatch.setattr(estargz, "_CHUNK", chunk)
    written = packed(tmp_path / "layer", tar, first)
    blob = (tmp_path / "layer").read_bytes()
    whole = gzip.decompress(blob)
    assert written.digest == f"sha256:{hashlib.sha256(blob).hexdigest()}" and written.size == len(blob)
    assert written.diff_id == f"sha256:{hashlib.sha256(whole).hexdigest()}" and written.unpacked_size == len(whole)
    before = {info.name: (facts(info), data) for info, data in members(tar)}
    after = [(info, data) for info, data in members(whole) if info.name not in OWN]
    assert {info.name: (facts(info), data) for info, data in after} == before
    assert len(after) == len(tree)
    lazy = lazily(blob)
    assert written.annotations == {
        "containerd.io/snapshot/stargz/toc.digest": lazy.digest,
        "io.containers.estargz.uncompressed-size": str(len(whole)),
    }
    assert lazy.names == [info.name for info, _ in members(whole)][:-1]
    assert {name: data for name, data in lazy.files.items() if name not in OWN} == {
        info.name: data for info, data in after if info.isreg()
    }
    for (info, _), entry in zip(
        members(whole)[:-1], (e for e in lazy.toc["entries"] if e["type"] != "chunk"), strict=True
    ):
        assert (entry["mode"], entry["uid"], entry["gid"]) == (info.mode, info.uid, info.gid)
        if info.type in LINKED:
            assert entry["linkName"] == info.linkname
        xattrs = {key: base64.b64decode(value).decode() for key, value in entry.get("xattrs", {}).items()}
        assert {f"SCHILY.xattr.{key}": value for key, value in xattrs.items()} == {
            key: value for key, value in info.pax_headers.items() if "xattr" in key
        }
    there = [name for name in dict.fromkeys(first) if name in before]
    ahead = lazy.names[: next(index for index, name in enumerate(lazy.names) if name in LANDMARKS)]
    assert [name for name in ahead if name in there] == there or any(f"{a}/" in b for a in there for b in there)
    assert (".prefetch.landmark" in lazy.names) == bool(there)


@pytest.fixture(scope="module")
def layer() -> bytes:
    """What makes an order hard: folders, hard links, whiteouts, a path that is there twice."""
    return tar_of(
        [
            TarFile("./"),
            TarFile("./lib/"),
            TarFile("./lib/.wh.late.so"),
            TarFile("./lib/.wh..wh..opq"),
            TarFile("./lib/large.so", os.urandom(CHUNK) + b"end"),
            TarFile("./lib/unused.so", b"unused"),
            TarFile("./lib/real.so", b"real"),
            TarFile("./lib/name.so", kind=tarfile.LNKTYPE, link="./lib/real.so"),
            TarFile("./lib/late.so", b"late"),
            TarFile("./twice", b"one"),
            TarFile("./twice", b"two"),
            TarFile("./stargz.index.json", b"of a layer that was packed before"),
            TarFile("./.no.prefetch.landmark", b"\x0f"),
        ]
    )


def test_files_that_a_trace_names_come_first_in_its_order(tmp_path: Path, layer: bytes) -> None:
    packed(tmp_path / "layer", layer, ["lib/late.so", "no/such", "twice", "lib/name.so", "lib/large.so"])
    lazy = lazily((tmp_path / "layer").read_bytes())
    assert lazy.names == [
        ".",
        "./lib",
        "./lib/.wh..wh..opq",
        "./lib/.wh.late.so",
        "./lib/late.so",
        "./lib/real.so",
        "./lib/name.so",
        "./lib/large.so",
        ".prefetch.landmark",
        "./lib/unused.so",
        "./twice",
        "./twice",
    ]
    after = {entry["name"]: entry["offset"] for entry in lazy.toc["entries"] if entry.get("offset", 0) > lazy.landmark}
    assert set(after) == {"./lib/unused.so", "./twice"}


def test_without_a_trace_nothing_is_fetched_at_once(tmp_path: Path, layer: bytes) -> None:
    packed(tmp_path / "layer", layer)
    lazy = lazily((tmp_path / "layer").read_bytes())
    assert lazy.names[0] == ".no.prefetch.landmark" and lazy.names.count(".no.prefetch.landmark") == 1
    assert lazy.names[1:4] == [".", "./lib", "./lib/.wh.late.so"]


def test_the_same_bytes_for_any_number_of_threads(tmp_path: Path, layer: bytes) -> None:
    assert len({packed(tmp_path / f"{n}", layer, ["lib/late.so"], n).digest for n in (1, 2, 5)}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "5"]


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (tar_of([TarFile("a", pax={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})]), "a is a sparse file"),
        (tar_of([TarFile("a", kind=b"V")], tarfile.GNU_FORMAT), "of the kind b'V'"),
        (tar_of([TarFile(os.fsdecode(b"\xff"))], tarfile.GNU_FORMAT), "no UTF-8"),
        (tar_of([TarFile("a", pax={"uid": "many"})]), "numbers that are none"),
    ],
)
def test_what_it_cannot_hold_is_refused(tmp_path: Path, tree: bytes, why: str) -> None:
    with pytest.raises(ImpossibleError, match=why):
        packed(tmp_path / "layer", tree)
    assert not list(tmp_path.iterdir())


def test_links_that_lead_in_circles(tmp_path: Path) -> None:
    chain = [TarFile(f"{n}", kind=tarfile.LNKTYPE, link=f"{n - 1}") for n in range(1, 3000)]
    packed(
        tmp_path / "layer",
        tar_of([TarFile("0"), *chain, TarFile("x", kind=tarfile.LNKTYPE, link="x")]),
        ["2999", "x", "5"],
    )
    assert lazily((tmp_path / "layer").read_bytes()).names[:7] == ["0", "1", "2", "3", "4", "5", ".prefetch.landmark"]


BASE = tar_of(
    {
        "usr/": b"",
        "usr/lib/": b"",
        "usr/lib/libc.so.6": b"c",
        "usr/lib/libz.so": b"z",
        "usr/bin/sh": b"sh",
        "app.py": b"old",
    }
)
APP = tar_of([TarFile("lib", kind=tarfile.SYMTYPE, link="usr/lib"), TarFile("other"), TarFile("app.py", b"new")])
TRACE = Trace(elsewhere=("app.py", "lib/libc.so.6", "home/me/x"))


def cut(tmp_path: Path, source: str, to: str = "oci:", **more: Any) -> ImageReport:
    options = ImageOptions(tailoring("9.0", **more), compression=LayerCompression.ESTARGZ)
    return cut_image(source, f"{to}{tmp_path / 'cut'}:b", options)


def test_every_layer_of_an_image_is_written_so(tmp_path: Path) -> None:
    """Also those in which nothing is cut; a file that a later layer replaces is not fetched."""
    source = stock(tmp_path / "stock", [BASE, APP])
    report = cut(tmp_path, source, workload=TracedWorkload.of([TRACE]), no_pack=True)
    image = read_image(tmp_path / "cut")
    for row, before in zip(image.manifest["layers"], (BASE, APP), strict=True):
        lazy = lazily((tmp_path / "cut/blobs" / row["digest"].replace(":", "/")).read_bytes())
        assert row["mediaType"] == GZIP
        assert row["annotations"]["containerd.io/snapshot/stargz/toc.digest"] == lazy.digest
        assert {*lazy.names} == {info.name for info, _ in members(before)} | {".prefetch.landmark"}
        ahead = lazy.names[: lazy.names.index(".prefetch.landmark")]
        assert ahead == (["usr", "usr/lib", "usr/lib/libc.so.6"] if before is BASE else ["app.py"])
    assert report.images[0].differs and [layer.packing for layer in report.images[0].layers] == ["estargz"] * 2
    again = cut_image(f"oci:{tmp_path}/cut:b", f"oci:{tmp_path}/plain:b", ImageOptions(tailoring("9.0")))
    assert not again.differs


def test_an_archive_without_annotations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no annotations"):
        cut(tmp_path, stock(tmp_path / "stock", [BASE]), "docker-archive:")


def test_where_a_trace_was_recorded_does_not_matter() -> None:
    """Packages and Python's own modules are known by their places, bytecode that is not there by its source."""
    opened = ("torch/__pycache__/b.cpython-311.pyc", "torch/a.py", "gone.py")
    trace = Trace(opened=opened, standard=("abc.py", "json/__init__.py"), elsewhere=("bin/python3",))
    paths = ["a/lib/python3.11/site-packages/torch/a.py", "usr/lib/python3.11/abc.py", "x/abc.py"]
    paths += ["usr/local/lib/python3.11/dist-packages/torch/b.py", "usr/lib/python3/dist-packages/torch/a.py"]
    found = list(TracedWorkload.of([trace]).in_order(paths, lambda path: path.replace("bin/", "usr/bin/")))
    assert found == ["usr/bin/python3", paths[1], paths[3], paths[0], paths[4]]

"""Archives of docker and OCI: read where they lie, written in one pass, and hostile ones refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.oci.transports.samples import (
    SampleImage,
    copy_image,
    digest_of,
    files_below,
    layer_tar,
    read_blob,
    read_image,
    sample_image,
    write_layout,
)
from torchtailor.core.disk import cache_folder
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NoMatchError, TorchtailorError, UsageError
from torchtailor.oci.descriptor import MediaType
from torchtailor.oci.transports.choose import open_destination, open_source
from torchtailor.oci.transports.content import open_plain
from torchtailor.oci.transports.tarball import TarFiles

ONE, TWO = layer_tar({"a": b"one"}), layer_tar({"b": b"two" * 5000})

Member = tuple[str, bytes | str]  # a file's content, or where a symbolic link leads


def tar_of(members: Sequence[Member], kind: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def config_of(*tars: bytes) -> bytes:
    return json.dumps({"os": "linux", "rootfs": {"diff_ids": [digest_of(tar) for tar in tars]}}).encode()


def saved(layers: Sequence[str], config: str, *tags: str) -> dict[str, Any]:
    return {"Config": config, "RepoTags": list(tags) or None, "Layers": list(layers)}


def old_docker() -> list[Member]:
    """As docker saved before version 25: folders, and a link where a layer comes twice."""
    config = config_of(ONE, TWO, ONE)
    name = digest_of(config)[7:] + ".json"
    return [
        ("1/VERSION", b"1.0"),
        ("1/layer.tar", ONE),
        ("2/layer.tar", TWO),
        ("3/layer.tar", "../1/layer.tar"),
        (name, config),
        ("manifest.json", json.dumps([saved(["1/layer.tar", "2/layer.tar", "3/layer.tar"], name, "vllm:1")]).encode()),
        ("repositories", b"{}"),
    ]


def new_docker(*packed: bytes, tars: Sequence[bytes]) -> list[Member]:
    """As docker saves since version 25: blobs of an OCI layout, compressed or not."""
    config = config_of(*tars)
    blobs: list[Member] = [(f"blobs/sha256/{digest_of(data)[7:]}", data) for data in (*packed, config)]
    names = [name for name, _ in blobs]
    return [
        *blobs,
        ("index.json", b'{"schemaVersion":2,"manifests":[]}'),
        ("manifest.json", json.dumps([saved(names[:-1], names[-1], "vllm:1", "r.example/vllm:2")]).encode()),
        ("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'),
    ]


def written(path: Path, members: Sequence[Member]) -> Path:
    path.write_bytes(tar_of(members))
    return path


@pytest.fixture
def image() -> SampleImage:
    return sample_image([ONE, TWO])


@pytest.fixture
def stock(tmp_path: Path, image: SampleImage) -> str:
    return f"oci:{write_layout(tmp_path / 'stock', {'one': image})}:one"


# Reading


def layers_of(source: str) -> list[tuple[str, bytes]]:
    with open_source(source) as opened:
        content = json.loads(opened.root().data)
        assert opened.root().descriptor.media_type == content["mediaType"] == MediaType.DOCKER_MANIFEST.value
        root, blobs = read_image(opened)
    return [(layer["mediaType"], blobs[layer["digest"]]) for layer in json.loads(root.data)["layers"]]


@pytest.mark.parametrize("tag", ["", ":vllm:1", ":docker.io/library/vllm:1", ":@0"])
def test_docker_save_as_it_was(tmp_path: Path, tag: str) -> None:
    path = written(tmp_path / "x.tar", old_docker())
    plain = MediaType.DOCKER_LAYER.value
    assert layers_of(f"docker-archive:{path}{tag}") == [(plain, ONE), (plain, TWO), (plain, ONE)]


def test_docker_save_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path / "plain.tar", new_docker(ONE, TWO, tars=(ONE, TWO)))
    plain = MediaType.DOCKER_LAYER.value
    assert layers_of(f"docker-archive:{path}:r.example/vllm:2") == [(plain, ONE), (plain, TWO)]
    packed = gzip.compress(ONE), zstandard.compress(TWO)
    path = written(tmp_path / "packed.tar", new_docker(*packed, tars=(ONE, TWO)))
    kinds = MediaType.DOCKER_LAYER_GZIP.value, MediaType.DOCKER_LAYER_ZSTD.value
    assert layers_of(f"docker-archive:{path}") == list(zip(kinds, packed, strict=True))


def test_a_compressed_layer_whose_name_is_no_digest(tmp_path: Path) -> None:
    config, packed = config_of(ONE), gzip.compress(ONE)
    members: list[Member] = [
        ("manifest.json", json.dumps([saved(["layer.tgz"], "config")]).encode()),
        ("config", config),
        ("layer.tgz", packed),
    ]
    path = written(tmp_path / "x.tar", members)
    assert layers_of(f"docker-archive:{path}") == [(MediaType.DOCKER_LAYER_GZIP.value, packed)]


def test_the_same_manifest_each_time(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tar", old_docker())
    assert open_source(f"docker-archive:{path}").root() == open_source(f"docker-archive:{path}:@0").root()


def test_one_of_several_images(tmp_path: Path) -> None:
    config = config_of(ONE)
    both = [saved(["l"], "c", "a:1", "b:1"), saved(["l"], "c", "a:2")]
    path = written(tmp_path / "x.tar", [("l", ONE), ("c", config), ("manifest.json", json.dumps(both).encode())])
    assert open_source(f"docker-archive:{path}:a:2").root()
    with pytest.raises(NoMatchError, match="could be 2") as caught:
        open_source(f"docker-archive:{path}").root()
    assert caught.value.hint == "It holds: a:1, a:2, b:1."
    with pytest.raises(NoMatchError, match="no image"):
        open_source(f"docker-archive:{path}:a:3").root()
    with pytest.raises(NoMatchError, match="2 images"):
        open_source(f"docker-archive:{path}:@2").root()


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar(tmp_path: Path, kind: int) -> None:
    longer = "a/" * 45 + "b" * (60 if kind == tarfile.USTAR_FORMAT else 150)
    path = tmp_path / "x.tar"
    path.write_bytes(tar_of([("./index.json", b"12"), (longer, b"345"), ("é/link", "../index.json")], kind))
    files = TarFiles(open_plain(path), "x")
    assert [files.size(name) for name in ("index.json", longer, "é/link", "other")] == [2, 3, 2, None]
    with files.pieces(longer) as pieces:
        assert b"".join(pieces) == b"345"


PART = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=70).filter(
    lambda part: part not in {".", ".."} and not part.isspace()
)
NAMES = st.lists(PART, min_size=1, max_size=4).map("/".join)


@given(
    st.dictionaries(NAMES, st.binary(max_size=1500), min_size=1, max_size=6),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_any_names_that_tarfile_writes(contents: dict[str, bytes], kind: int) -> None:
    path = Path("any.tar")
    path.write_bytes(tar_of(list(contents.items()), kind))
    files = TarFiles(open_plain(path), "x")
    for name, data in contents.items():
        with files.pieces(name) as pieces:
            assert b"".join(pieces) == data
    files.close()


def test_sizes_beyond_8_gib(tmp_path: Path) -> None:
    """An archive with holes: a member of 9 GiB, and one after it."""
    path = tmp_path / "x.tar"
    entry = tarfile.TarInfo("big")
    entry.size = 9 << 30
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with path.open("wb") as file:
            file.write(entry.tobuf(kind))
            file.seek(entry.size, os.SEEK_CUR)
            file.write(tar_of([("after", b"12")]))
        files = TarFiles(open_plain(path), "x")
        assert (files.size("big"), files.size("after")) == (9 << 30, 2)
        files.close()


# Pipes


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A pipe as standard input; what is given to it is written by a thread."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)

        def give(data: bytes) -> None:
            def write() -> None:
                with os.fdopen(writer, "wb") as out:
                    out.write(data)

            threading.Thread(target=write, daemon=True).start()

        yield give


def test_docker_save_through_a_pipe(pipe: Any) -> None:
    pipe(tar_of(old_docker()))
    received: list[int] = []
    with open_source("docker-archive:-", received=received.append) as source:
        assert not received
        root, blobs = read_image(source)
        assert not list(cache_folder().iterdir())  # what is stored meanwhile has no name
    assert len(json.loads(root.data)["layers"]) == 3
    assert ONE in blobs.values()
    assert sum(received) + (1 << 20) >= len(tar_of(old_docker()))


def test_an_archive_on_standard_input_is_read_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with written(tmp_path / "x.tar", old_docker()).open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        root, _ = read_image(open_source("docker-archive:-"))
    assert len(json.loads(root.data)["layers"]) == 3
    assert not cache_folder().exists()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a tar archive"),
        (b"Error: no such image\n", "not a tar archive"),
        (gzip.compress(tar_of(old_docker())), "compressed with gzip"),
        (tar_of(old_docker())[:30_000], "ends in the middle"),
    ],
)
def test_pipes_that_bring_something_else(pipe: Any, data: bytes, says: str) -> None:
    pipe(data)
    with pytest.raises(BadInputError, match=says), open_source("docker-archive:-") as source:
        source.root()


def test_a_fifo_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    threading.Thread(target=(tmp_path / "fifo").write_bytes, args=(tar_of(old_docker()),), daemon=True).start()
    root, _ = read_image(open_source(f"docker-archive:{tmp_path}/fifo"))
    assert len(json.loads(root.data)["layers"]) == 3


def test_terminals_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        monkeypatch.setattr("sys.stdout", terminal)
        with pytest.raises(UsageError, match="keyboard"):
            open_source("docker-archive:-").root()
        with pytest.raises(UsageError, match="terminal"), open_destination("oci-archive:-"):
            raise AssertionError("accepted")
    os.close(ours)


# Writing


def test_oci_archives(stock: str, tmp_path: Path, image: SampleImage) -> None:
    place = tmp_path / "deep" / "x.tar"
    copy_image(open_source(stock), open_destination(f"oci-archive:{place}:one"))
    for name in ("", ":one", ":@0"):
        root, blobs = read_image(open_source(f"oci-archive:{place}{name}"))
        assert (root, blobs) == (image.root, image.blobs)
    with tarfile.open(place) as archive:
        assert archive.getnames()[-2:] == ["oci-layout", "index.json"]  # last: what breaks off is no image
        assert {(one.mtime, one.uid, one.gid, one.uname) for one in archive} == {(0, 0, 0, "")}
    assert list(place.parent.iterdir()) == [place]


def test_docker_archives(stock: str, tmp_path: Path, image: SampleImage) -> None:
    place = tmp_path / "x.tar"
    copy_image(open_source(stock), open_destination(f"docker-archive:{place}:vllm:1-sm90"))
    root, blobs = read_image(open_source(f"docker-archive:{place}:vllm:1-sm90"))
    assert (root, blobs) == (image.root, image.blobs)
    assert read_image(open_source(f"oci-archive:{place}:1-sm90")) == (image.root, image.blobs)
    with tarfile.open(place) as archive:
        listed = archive.extractfile("manifest.json")
        assert listed is not None
        assert json.load(listed)[0]["RepoTags"] == ["vllm:1-sm90"]


def layout_members(image: SampleImage, index: object) -> list[Member]:
    """An archive with docker's list and an OCI index: the manifest, its blobs, and whatever index it has."""
    documents = image.blobs | {image.digest: image.root.data}
    blobs: list[Member] = [(f"blobs/sha256/{digest[7:]}", data) for digest, data in documents.items()]
    assert image.config is not None
    names = [f"blobs/sha256/{one.digest[7:]}" for one in (image.config, *image.layers)]
    listed = json.dumps([saved(names[1:], names[0], "vllm:1")]).encode()
    return [*blobs, ("index.json", json.dumps(index).encode()), ("manifest.json", listed)]


def entry_of(image: SampleImage) -> dict[str, Any]:
    found = image.root.descriptor
    return {"mediaType": found.media_type, "digest": found.digest, "size": found.size}


def test_the_manifest_in_a_docker_archive_is_the_images_own(tmp_path: Path, image: SampleImage) -> None:
    """Docker saves an index of indexes, with attestations, where its images are containerd's."""
    inner = json.dumps({"schemaVersion": 2, "manifests": [entry_of(image)]}).encode()
    row = {"mediaType": MediaType.OCI_INDEX.value, "digest": digest_of(inner), "size": len(inner)}
    members = layout_members(image, {"schemaVersion": 2, "manifests": [row]})
    path = written(tmp_path / "x.tar", [(f"blobs/sha256/{digest_of(inner)[7:]}", inner), *members])
    assert read_image(open_source(f"docker-archive:{path}")) == (image.root, image.blobs)


@pytest.mark.parametrize("fault", ["other image", "wrong size", "missing", "damaged index", "no index"])
def test_an_index_that_does_not_fit_is_not_gone_by(tmp_path: Path, image: SampleImage, fault: str) -> None:
    other = sample_image([TWO])
    row = entry_of(image)
    index: object = {"schemaVersion": 2, "manifests": [row]}
    if fault == "other image":
        index = {"schemaVersion": 2, "manifests": [entry_of(other)]}
    elif fault == "wrong size":
        row["size"] += 1
    elif fault == "missing":
        row["digest"] = digest_of(b"nothing")
    elif fault == "damaged index":
        index = {"manifests": 1}
    elif fault == "no index":
        index = None
    members = layout_members(image, index)
    members.append((f"blobs/sha256/{other.digest[7:]}", other.root.data))
    path = written(tmp_path / "x.tar", members)
    root, blobs = read_image(open_source(f"docker-archive:{path}"))
    assert root.descriptor.media_type == MediaType.DOCKER_MANIFEST.value
    assert blobs == image.blobs


def test_the_same_image_gives_the_same_bytes(stock: str, tmp_path: Path) -> None:
    for kind in ("oci-archive", "docker-archive"):
        for name in ("1", "2"):
            copy_image(open_source(stock), open_destination(f"{kind}:{tmp_path}/{name}"))
        assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_archives_to_a_pipe(stock: str, tmp_path: Path, image: SampleImage, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "x.tar").open("w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        copy_image(open_source(stock), open_destination("oci-archive:-:v1"))
    assert read_image(open_source(f"oci-archive:{tmp_path}/x.tar:v1")) == (image.root, image.blobs)


def test_a_reader_that_goes_away(stock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with pytest.raises(EnvironmentProblem, match="closed it"):
            copy_image(open_source(stock), open_destination("oci-archive:-"))


def test_without_a_commit_there_is_no_file(tmp_path: Path, image: SampleImage) -> None:
    with open_destination(f"oci-archive:{tmp_path}/new/x.tar") as destination:
        destination.put(image.layers[0], iter((image.blobs[image.layers[0].digest],)))
        assert destination.has(image.layers[0])
        assert not destination.has(image.layers[1])
    assert not list(tmp_path.iterdir())


def test_an_older_archive_stays_until_the_new_one_is_whole(stock: str, tmp_path: Path, image: SampleImage) -> None:
    place = tmp_path / "out" / "x.tar"
    copy_image(open_source(stock), open_destination(f"oci-archive:{place}:old"))
    before = files_below(place.parent)
    with pytest.raises(BadInputError), open_destination(f"oci-archive:{place}:new") as destination:
        destination.put(image.layers[0], iter((b"wrong",)))
    assert files_below(place.parent) == before


def test_a_blob_that_fails_can_be_put_again(tmp_path: Path, image: SampleImage, stock: str) -> None:
    """A source that breaks off halfway leaves no half of a member behind."""
    layer = image.layers[1]
    with open_destination(f"oci-archive:{tmp_path}/x.tar") as destination:
        with pytest.raises(BadInputError):
            destination.put(layer, iter((image.blobs[layer.digest][:100],)))
        copy_image(open_source(stock), _Entered(destination))
    assert read_image(open_source(f"oci-archive:{tmp_path}/x.tar")) == (image.root, image.blobs)


class _Entered:
    """A destination whose block is somebody else's."""

    def __init__(self, destination: Any) -> None:
        self._destination = destination

    def __getattr__(self, name: str) -> Any:
        return getattr(self._destination, name)

    def __enter__(self) -> Any:
        return self._destination

    def __exit__(self, *_: object) -> None: ...


def test_several_platforms(tmp_path: Path, image: SampleImage) -> None:
    from torchtailor.oci.manifests import make_document

    other = sample_image([TWO])
    entries = [
        {"mediaType": one.root.descriptor.media_type, "digest": one.digest, "size": one.root.descriptor.size}
        for one in (image, other)
    ]
    index = make_document(json.dumps({"schemaVersion": 2, "manifests": entries}).encode(), "", "x")
    both = SampleImage(index, image.blobs | other.blobs | {one.digest: one.root.data for one in (image, other)})
    folder = write_layout(tmp_path / "x", {"both": both})
    copy_image(open_source(f"oci:{folder}:both"), open_destination(f"oci-archive:{tmp_path}/x.tar"))
    assert read_image(open_source(f"oci-archive:{tmp_path}/x.tar"))[0] == index
    with open_destination(f"docker-archive:{tmp_path}/y.tar") as destination:
        assert not destination.takes_index
        with pytest.raises(UsageError, match="one platform"):
            destination.commit(index)
    assert not (tmp_path / "y.tar").exists()


def test_places_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in (f"oci-archive:{tmp_path}/folder", "docker-archive:/dev/null"):
        with pytest.raises(UsageError), open_destination(name):
            raise AssertionError("accepted")
    with pytest.raises(BadInputError, match="is a folder"):
        open_source(f"oci-archive:{tmp_path}/folder").root()
    with pytest.raises(NoMatchError, match="does not exist"):
        open_source(f"oci-archive:{tmp_path}/none").root()


# Hostile archives

GOOD = new_docker(ONE, tars=(ONE,))
OUTSIDE = [
    [("../x", b"1"), *GOOD],
    [("/etc/passwd", b"1"), *GOOD],
    [("a/../../x", b"1"), *GOOD],
    [*GOOD, ("..", "x")],
]


@pytest.mark.parametrize("members", OUTSIDE, ids=range(len(OUTSIDE)))
def test_names_that_lead_out_of_the_archive(tmp_path: Path, members: list[Member]) -> None:
    path = written(tmp_path / "x.tar", members)
    for kind in ("docker-archive", "oci-archive"):
        with pytest.raises(BadInputError, match="leads out of it"):
            open_source(f"{kind}:{path}").root()


def replaced(members: Sequence[Member], name: str, content: bytes | str | None) -> list[Member]:
    new = [(one, content if one == name else old) for one, old in members]
    return [(one, old) for one, old in new if old is not None]


LAYER = f"blobs/sha256/{digest_of(ONE)[7:]}"
CONFIG = f"blobs/sha256/{digest_of(config_of(ONE))[7:]}"
HOSTILE: dict[str, list[Member]] = {
    "no manifest": replaced(GOOD, "manifest.json", None),
    "two manifests": [*GOOD, ("manifest.json", b"[]")],
    "no layer": replaced(GOOD, LAYER, None),
    "no configuration": replaced(GOOD, CONFIG, None),
    "other layer": replaced(GOOD, LAYER, ONE.replace(b"one", b"eno")),
    "other configuration": replaced(GOOD, CONFIG, config_of(ONE) + b" "),
    "layer is a link out": replaced(GOOD, LAYER, "../../../etc/passwd"),
    "layer is a link to itself": replaced(GOOD, LAYER, digest_of(ONE)[7:]),
    "layer is a link to a folder": [*replaced(GOOD, LAYER, "d")],
    "manifest is a list of nothing": replaced(GOOD, "manifest.json", b"[1]"),
    "manifest is huge": replaced(GOOD, "manifest.json", b"[]" + b" " * (5 << 20)),
    "manifest is deep": replaced(GOOD, "manifest.json", b"[" * 100_000),
    "manifest is no text": replaced(GOOD, "manifest.json", b"\xff\xfe"),
    "layer outside": replaced(GOOD, "manifest.json", json.dumps([saved(["../../etc/passwd"], CONFIG, "x:1")]).encode()),
    "more layers than diff_ids": replaced(
        GOOD, "manifest.json", json.dumps([saved([LAYER, LAYER], CONFIG, "x:1")]).encode()
    ),
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_hostile_docker_archives(tmp_path: Path, harm: str) -> None:
    path = written(tmp_path / "x.tar", HOSTILE[harm])
    with pytest.raises(BadInputError):
        copy_image(open_source(f"docker-archive:{path}"), open_destination(f"oci:{tmp_path}/out"))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("diff_id", ["sha256:zz", "", "../../x", 5])
def test_diff_ids_that_are_none(tmp_path: Path, diff_id: object) -> None:
    config = json.dumps({"rootfs": {"diff_ids": [diff_id]}}).encode()
    members: list[Member] = [
        ("l", ONE),
        ("c", config),
        ("manifest.json", json.dumps([saved(["l"], "c")]).encode()),
    ]
    with pytest.raises(BadInputError):
        open_source(f"docker-archive:{written(tmp_path / 'x.tar', members)}").root()


def test_an_oci_archive_given_as_docker_archive_is_explained(stock: str, tmp_path: Path) -> None:
    copy_image(open_source(stock), open_destination(f"oci-archive:{tmp_path}/x.tar"))
    with pytest.raises(BadInputError) as caught:
        open_source(f"docker-archive:{tmp_path}/x.tar").root()
    assert "oci-archive:" in caught.value.hint


def test_a_blob_twice_is_refused(stock: str, tmp_path: Path, image: SampleImage) -> None:
    place = tmp_path / "x.tar"
    copy_image(open_source(stock), open_destination(f"oci-archive:{place}"))
    again = tar_of([(f"blobs/sha256/{image.layers[0].hex}", b"other")])
    place.write_bytes(place.read_bytes()[:-1024] + again)
    with pytest.raises(BadInputError, match="twice"):
        read_blob(open_source(f"oci-archive:{place}"), image.layers[0])


def test_headers_that_claim_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.REGTYPE):
        entry = tarfile.TarInfo("x")
        entry.type, entry.size = kind, 1 << 40
        path.write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
        with pytest.raises(BadInputError):
            open_source(f"oci-archive:{path}").root()
    with path.open("wb") as file:  # a name that has a real gigabyte
        entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
        file.write(entry.tobuf(tarfile.GNU_FORMAT))
        file.truncate((1 << 30) + 4096)
    with pytest.raises(BadInputError, match="bytes of headers"):
        open_source(f"oci-archive:{path}").root()


@pytest.mark.parametrize("size", ["9" * 5000, "²", "-1", "", "1e3", "0x10"])
def test_sizes_that_are_no_numbers(tmp_path: Path, size: str) -> None:
    entry = tarfile.TarInfo("x")
    entry.pax_headers = {"size": size}
    path = tmp_path / "x.tar"
    path.write_bytes(entry.tobuf(tarfile.PAX_FORMAT) + tar_of(GOOD))
    with pytest.raises(BadInputError, match="the size"):
        open_source(f"docker-archive:{path}").root()


@given(st.data())
def test_damaged_archives_are_bad_input_or_the_same_image(data: st.DataObject) -> None:
    whole = bytearray(tar_of(GOOD))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(0, 600), st.integers(0, len(whole) - 1)))
        whole[at] = data.draw(st.integers(0, 255))
    whole = whole[: data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))]
    path = Path("damaged.tar")
    path.write_bytes(bytes(whole))
    try:
        layers = layers_of(f"docker-archive:{path}")
    except TorchtailorError as error:
        assert error.hint
    else:
        assert layers == [(MediaType.DOCKER_LAYER.value, ONE)]

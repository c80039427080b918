"""OCI layouts in folders: nothing is there before the end, and what others wrote stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from tests.killing import until_killed
from tests.unit.oci.transports.samples import (
    SampleImage,
    copy_image,
    files_below,
    layer_tar,
    parts_of,
    read_blob,
    read_image,
    sample_image,
    write_layout,
)
from torchtailor.core.errors import BadInputError, NoMatchError, TorchtailorError, UsageError
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.transports.choose import open_destination, open_source


@pytest.fixture
def image() -> SampleImage:
    return sample_image()


@pytest.fixture
def stock(tmp_path: Path, image: SampleImage) -> Path:
    return write_layout(tmp_path / "stock", {"one": image})


def test_an_image_arrives_as_it_was(stock: Path, tmp_path: Path, image: SampleImage) -> None:
    copy_image(open_source(f"oci:{stock}:one"), open_destination(f"oci:{tmp_path}/new/deep:two"))
    root, blobs = read_image(open_source(f"oci:{tmp_path}/new/deep:two"))
    assert root == image.root
    assert blobs == image.blobs
    left = {path.name for path in (tmp_path / "new" / "deep").iterdir()}
    assert left == {"blobs", "index.json", "oci-layout"}


def test_blobs_on_one_disk_are_linked(stock: Path, tmp_path: Path, image: SampleImage) -> None:
    copy_image(open_source(f"oci:{stock}"), open_destination(f"oci:{tmp_path}/new:x"))
    for layer in image.layers:
        name = f"blobs/sha256/{layer.hex}"
        assert (stock / name).samefile(tmp_path / "new" / name)


@pytest.mark.parametrize("harm", ["changed", "link"])
def test_a_blob_that_is_there_and_damaged_is_written_anew(
    stock: Path, tmp_path: Path, image: SampleImage, harm: str
) -> None:
    copy_image(open_source(f"oci:{stock}"), open_destination(f"oci:{tmp_path}/new:x"))
    blob = tmp_path / "new" / "blobs" / "sha256" / image.layers[0].hex
    data = blob.read_bytes()
    blob.unlink()
    if harm == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        blob.symlink_to(tmp_path / "elsewhere")
    else:
        blob.write_bytes(bytes(len(data)))
    copy_image(open_source(f"oci:{stock}"), open_destination(f"oci:{tmp_path}/new:y"))
    assert blob.read_bytes() == data and not blob.is_symlink()
    assert read_image(open_source(f"oci:{tmp_path}/new:y"))[1] == image.blobs


@pytest.mark.parametrize("name", ["blobs", "blobs/sha256"])
def test_nothing_is_written_through_a_link_of_another_user(
    stock: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_image(open_source(f"oci:{stock}"), open_destination(f"oci:{tmp_path}/new:x"))
    folder, elsewhere = tmp_path / "new" / name, tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    shutil.rmtree(elsewhere)
    elsewhere.mkdir()
    if os.geteuid():
        monkeypatch.setattr("os.geteuid", lambda: 65534)
    else:
        os.lchown(folder, 65534, 65534)
    with pytest.raises(BadInputError, match="link of another user"):
        copy_image(open_source(f"oci:{stock}"), open_destination(f"oci:{tmp_path}/new:y"))
    assert not [*elsewhere.iterdir()]


def test_what_others_wrote_in_the_index_stays_byte_for_byte(tmp_path: Path, image: SampleImage) -> None:
    other, third = sample_image([layer_tar({"c": b"3"})]), sample_image([layer_tar({"d": b"4"})])
    folder = write_layout(tmp_path / "x", {"one": other, "two": third, "": third})
    index = json.loads((folder / "index.json").read_text())
    index["annotations"] = {"who": "somebody"}
    index["manifests"][1]["from.the.future"] = {"big": 10**30, "deep": [1, {"a": None}]}
    (folder / "index.json").write_text(json.dumps(index))
    copy_image(open_source(f"oci:{write_layout(tmp_path / 's', {'': image})}"), open_destination(f"oci:{folder}:one"))
    now = json.loads((folder / "index.json").read_text())
    assert now["annotations"] == {"who": "somebody"}
    assert now["manifests"][:2] == index["manifests"][1:]
    assert "10" + "0" * 29 in (folder / "index.json").read_text()
    assert [entry["digest"] for entry in now["manifests"][2:]] == [image.digest]


def test_an_image_without_a_name_replaces_that_without_a_name(tmp_path: Path, image: SampleImage) -> None:
    folder = write_layout(tmp_path / "x", {"": sample_image([layer_tar({"c": b"3"})])})
    copy_image(open_source(f"oci:{write_layout(tmp_path / 's', {'': image})}"), open_destination(f"oci:{folder}"))
    assert read_image(open_source(f"oci:{folder}"))[0] == image.root


def test_what_is_linked_anyway_is_not_read(
    stock: Path, tmp_path: Path, image: SampleImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second image of the same layers read all of them."""
    with open_source(f"oci:{stock}") as source:
        for name in "xy":
            copy_image(source, open_destination(f"oci:{tmp_path}/new:{name}"))
            monkeypatch.setattr("torchtailor.oci.transports.layout.hash_file", pytest.fail)
    assert read_image(open_source(f"oci:{tmp_path}/new:y"))[1] == image.blobs


def test_nothing_is_there_before_the_commit(stock: Path, tmp_path: Path, image: SampleImage) -> None:
    place = tmp_path / "a" / "b"
    with open_source(f"oci:{stock}") as source, open_destination(f"oci:{place}:x") as destination:
        for part in parts_of(image.root):
            with source.blob(part) as pieces:
                destination.put(part, pieces)
            assert destination.has(part)
        destination.put_document(image.root)
        assert not (place / "index.json").exists()
        assert not (place / "blobs").exists()
    assert not (tmp_path / "a").exists()


def test_a_failure_leaves_an_older_layout_alone(stock: Path, tmp_path: Path, image: SampleImage) -> None:
    place = write_layout(tmp_path / "old", {"one": sample_image([layer_tar({"c": b"3"})])})
    before = files_below(place)
    with pytest.raises(BadInputError, match="damaged"):  # noqa: SIM117
        with open_destination(f"oci:{place}:one") as destination:
            destination.put(image.layers[0], iter((image.blobs[image.layers[0].digest][:-1] + b"?",)))
    assert files_below(place) == before


def copied_until(step: int, source: str, destination: str) -> tuple[int, int]:
    """Copy in a process that is killed at its n-th change."""
    return until_killed(step, lambda: copy_image(open_source(source), open_destination(destination)))


@pytest.mark.parametrize("kind", ["oci", "oci-archive"])
def test_killed_at_any_change_it_has_the_old_image_or_the_new_one(kind: str, tmp_path: Path) -> None:
    old, new = sample_image([layer_tar({"c": b"3"})]), sample_image([layer_tar({"d": b"4"})])
    stock = write_layout(tmp_path / "stock", {"old": old, "new": new})

    def place(name: str) -> tuple[str, Path]:
        """Where the old image is already."""
        folder = tmp_path / name
        made = f"oci:{folder}:one" if kind == "oci" else f"oci-archive:{folder}/x.tar:one"
        copy_image(open_source(f"oci:{stock}:old"), open_destination(made))
        return made, folder

    steps = copied_until(0, f"oci:{stock}:new", place("count")[0])[1]
    assert steps > 5
    for step in range(1, steps + 1):
        made, folder = place(f"at-{step}")
        assert copied_until(step, f"oci:{stock}:new", made)[0] == -signal.SIGKILL
        assert read_image(open_source(made))[0] in (old.root, new.root)
        copy_image(open_source(f"oci:{stock}:new"), open_destination(made))
        assert read_image(open_source(made))[0] == new.root
        left = {path.name for path in folder.iterdir()}
        assert left == ({"blobs", "index.json", "oci-layout"} if kind == "oci" else {"x.tar"})


def test_two_writers_of_one_layout_keep_each_others_images(tmp_path: Path) -> None:
    images = {f"n{number}": sample_image([layer_tar({str(number): b"x" * number})]) for number in range(6)}
    stock = write_layout(tmp_path / "stock", images)
    threads = [
        threading.Thread(
            target=copy_image, args=(open_source(f"oci:{stock}:{name}"), open_destination(f"oci:{tmp_path}/new:{name}"))
        )
        for name in images
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, image in images.items():
        assert read_image(open_source(f"oci:{tmp_path}/new:{name}"))[0] == image.root


def test_a_file_is_moved_in(tmp_path: Path, image: SampleImage) -> None:
    layer = image.layers[0]
    with open_destination(f"oci:{tmp_path}/new:x") as destination:
        assert destination.staging is not None
        made = destination.staging / "cut"
        made.write_bytes(image.blobs[layer.digest])
        made.chmod(0o600)
        inode = made.stat().st_ino
        destination.put_file(layer, made)
        for part in (*image.layers[1:], image.config):
            assert part is not None
            destination.put(part, iter((image.blobs[part.digest],)))
        destination.commit(image.root)
    place = tmp_path / "new" / "blobs" / "sha256" / layer.hex
    assert place.stat().st_ino == inode
    assert place.stat().st_mode & 0o777 == (tmp_path / "new").stat().st_mode & 0o666


# What can be wrong with a layout


def test_names_that_lead_nowhere(tmp_path: Path, image: SampleImage) -> None:
    both = write_layout(tmp_path / "both", {"one": image, "two": sample_image([layer_tar({"c": b"3"})])})
    with pytest.raises(NoMatchError, match="could be 2 images") as caught:
        open_source(f"oci:{both}").root()
    assert caught.value.hint == "Add one of these names: one, two."
    with pytest.raises(NoMatchError) as caught:
        open_source(f"oci:{both}:three").root()
    assert caught.value.hint == "It holds: one, two."
    assert open_source(f"oci:{both}:@0").root() == image.root
    with pytest.raises(NoMatchError):
        open_source(f"oci:{both}:@2").root()
    with pytest.raises(NoMatchError, match="does not exist"):
        open_source(f"oci:{tmp_path}/none:x").root()
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match="not an OCI layout"):
        open_source(f"oci:{tmp_path}/empty").root()


def test_two_names_of_one_image_are_no_question(tmp_path: Path, image: SampleImage) -> None:
    assert open_source(f"oci:{write_layout(tmp_path / 'x', {'a': image, 'b': image})}").root() == image.root


@pytest.mark.parametrize("harm", ["missing", "short", "long", "other", "pipe", "folder", "away"])
def test_damaged_blobs(stock: Path, image: SampleImage, harm: str, tmp_path: Path) -> None:
    layer = image.layers[1]
    place = stock / "blobs" / "sha256" / layer.hex
    data = place.read_bytes()
    place.unlink()
    if harm in {"short", "long", "other"}:
        place.write_bytes({"short": data[:-1], "long": data + b"x", "other": b"x" + data[1:]}[harm])
    elif harm == "pipe":
        os.mkfifo(place)
    elif harm == "folder":
        place.mkdir()
    elif harm == "away":
        place.symlink_to("/etc/passwd")
    with pytest.raises(BadInputError):
        read_blob(open_source(f"oci:{stock}"), layer)
    with pytest.raises(BadInputError):
        copy_image(open_source(f"oci:{stock}"), open_destination(f"oci:{tmp_path}/new:x"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"manifests": 5}',
        b'{"manifests": [{}]}',
        b'{"manifests": [{"mediaType": "x", "digest": "sha256:../../etc", "size": 1}]}',
        b'{"manifests": [{"mediaType": "x", "digest": "md5:1", "size": 1}]}',
        b'{"manifests": [{"mediaType": "x", "digest": "sha256:' + b"a" * 64 + b'", "size": -1}]}',
        b'{"manifests": [{"mediaType": "x", "digest": "sha256:' + b"a" * 64 + b'", "size": 99999999}]}',
        b'{"manifests": ' + b"[" * 100_000,
        b'{"manifests": []}' + b" " * (5 << 20),
    ],
    ids=range(12),
)
def test_damaged_indexes(stock: Path, index: bytes) -> None:
    (stock / "index.json").write_bytes(index)
    with pytest.raises(BadInputError):
        open_source(f"oci:{stock}").root()


def test_a_damaged_index_is_found_before_the_work(stock: Path) -> None:
    (stock / "index.json").write_bytes(b"{")
    with pytest.raises(BadInputError), open_destination(f"oci:{stock}:x"):
        raise AssertionError("too late")


def test_a_manifest_of_100_mb_is_not_read(stock: Path) -> None:
    huge = Descriptor("x", "sha256:" + "a" * 64, 100 << 20)
    with (stock / "blobs" / "sha256" / huge.hex).open("wb") as file:
        file.truncate(huge.size)
    with pytest.raises(BadInputError, match="larger than 4 MiB"):
        open_source(f"oci:{stock}").document(huge)


def test_places_that_cannot_be_a_layout(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").touch()
    for name in ("folder", "folder/mine"):
        with pytest.raises(UsageError), open_destination(f"oci:{tmp_path}/{name}:x"):
            raise AssertionError("accepted")
    with pytest.raises(UsageError, match="position"):
        open_destination(f"oci:{tmp_path}/x:@1")


@pytest.mark.parametrize("kind", ["oci", "oci-archive", "docker-archive"])
def test_names_that_no_disk_takes(kind: str, tmp_path: Path) -> None:
    for name in (f"{tmp_path}/{'x' * 300}", f"{tmp_path}/{'x' * 300}/y", "/proc/self/nothing/x"):
        with pytest.raises(TorchtailorError):
            open_source(f"{kind}:{name}").root()
        with pytest.raises(TorchtailorError), open_destination(f"{kind}:{name}"):
            raise AssertionError("accepted")


def test_docker_manifests_do_not_get_into_layouts(tmp_path: Path) -> None:
    image = sample_image(docker=True)
    with pytest.raises(BadInputError, match="OCI manifests only"), open_destination(f"oci:{tmp_path}/x") as place:
        place.put_document(image.root)
    with pytest.raises(TorchtailorError), open_destination(f"oci-archive:{tmp_path}/x.tar") as place:
        place.put_document(image.root)

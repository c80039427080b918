"""Wheelhouses of others, damaged wheels and wheels that change afterwards: what is published is what was listed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.building.conftest import Workshop, catalog, hurry, site, workshop  # noqa: F401
from tests.unit.publish.test_publish import check, memory_store
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.core.disk import DamagedFileError, place_verified
from torchtailor.core.errors import BadInputError, CheckFailedError
from torchtailor.core.store import FolderStore
from torchtailor.fetch.cache import Cache
from torchtailor.publish.publish import publish
from torchtailor.surgery.cut import Cut
from torchtailor.trees.index.pages import IndexedFile, index_pages, read_project_json, root_pages
from torchtailor.wheelhouse.wheelhouse import read_wheelhouse

EVIL = '"><script>x</script>'


def flip(path: Path) -> bytes:
    """Change one byte of a file, and of no other name of it; returns what it was."""
    before = path.read_bytes()
    mode = path.stat().st_mode
    path.unlink()
    middle = len(before) // 2
    path.write_bytes(before[:middle] + bytes([before[middle] ^ 1]) + before[middle + 1 :])
    path.chmod(mode)
    return before


def torch_of(folder: Path) -> Path:
    return next(folder.glob("*/wheels/torch-*.whl"))


def test_a_damaged_wheel_is_not_published(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    flip(torch_of(workshop.out))
    for store in (FolderStore(tmp_path / "public"), memory_store("damaged")):
        with pytest.raises(CheckFailedError, match=r"torch-.* is damaged"):
            publish(workshop.out, store, cache=Cache(workshop.root / "cache"))
    assert not list((tmp_path / "public").rglob("torch-*.whl"))


def test_nothing_of_a_wheel_of_another_size_is_copied(
    workshop: Workshop,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hole of a terabyte would fill the disk of the index, or keep an upload busy for hours."""
    workshop.build("sm90-avx512")
    wheel = torch_of(workshop.out)
    wheel.chmod(0o644)
    with wheel.open("r+b") as file:
        file.truncate(1 << 40)

    def place(source: Path, target: Path, sha256: str, **more: Any) -> None:
        assert source != wheel, "it is read"
        place_verified(source, target, sha256, **more)

    monkeypatch.setattr("torchtailor.core.store.place_verified", place)
    with pytest.raises(DamagedFileError, match=r"torch-.* is damaged"):
        publish(workshop.out, FolderStore(tmp_path / "public"))


def test_damaged_metadata_is_not_published(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    flip(next(workshop.out.glob("*/wheels/torch-*.metadata")))
    with pytest.raises(DamagedFileError, match=r"torch-.*metadata is damaged"):
        publish(workshop.out, FolderStore(tmp_path / "public"))


def test_a_damaged_published_file_is_replaced(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    root = tmp_path / "public"
    publish(workshop.out, FolderStore(root))
    good = flip(next(root.rglob("torch-*.whl")))
    assert publish(workshop.out, FolderStore(root)).uploaded == 1
    assert next(root.rglob("torch-*.whl")).read_bytes() == good
    check(root)


def test_published_files_are_nobody_elses(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    """Neither the user's wheels nor those of the wheelhouse change them."""
    workshop.build("sm90-avx512")
    root = tmp_path / "public"
    publish(workshop.out, FolderStore(root))
    for path in [*root.rglob("*.whl"), *workshop.out.rglob("*.whl"), *(workshop.root / "cache").rglob("*.whl")]:
        if path.is_relative_to(root):
            assert path.stat().st_nlink == 1
        else:
            path.chmod(0o644)
            path.write_bytes(b"changed")
    check(root)


def test_wheels_of_the_user_are_copied_into_a_wheelhouse(
    workshop: Workshop,  # noqa: F811
    tmp_path: Path,
) -> None:
    workshop.build("sm90-avx512")
    own = tmp_path / "own"
    own.mkdir()
    for blob in (workshop.root / "cache" / "blobs").rglob("*.whl"):
        (own / blob.name).write_bytes(blob.read_bytes())
    from torchtailor.fetch.locations import IndexLocation, LocationKind

    links = IndexLocation(own.as_uri(), LocationKind.LINKS, "--find-links")
    other = Workshop(workshop.site, workshop.catalog, tmp_path / "other")
    other.build("sm90-avx512", sources=(links,))
    assert all(path.stat().st_nlink == 1 for path in own.iterdir())
    for path in own.iterdir():
        path.write_bytes(b"changed")
    publish(other.out, FolderStore(tmp_path / "public"))
    check(tmp_path / "public")


@pytest.mark.parametrize("where", ["blobs", "made"])
def test_a_flipped_byte_in_the_cache_is_made_good_by_the_same_build(workshop: Workshop, where: str) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    before = {path.name: path.read_bytes() for path in workshop.out.rglob("*.whl")}
    pattern = "nvidia_cublas*.whl" if where == "blobs" else "torch-*.whl"
    flip(next((workshop.root / "cache" / where).rglob(pattern)))
    workshop.build("sm90-avx512")
    assert {path.name: path.read_bytes() for path in workshop.out.rglob("*.whl")} == before


def change(path: Path, how: Callable[[Any], None]) -> None:
    document = json.loads(path.read_text())
    how(document)
    path.write_text(json.dumps(document))


def put(*keys: str | int, value: object) -> Callable[[Any], None]:
    def apply(document: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = value

    return apply


MANIFESTS = [
    put("pytorch", "build", value="../../../x"),
    put("pytorch", "build", value=EVIL),
    put("pytorch", "build", value=5),
    put("target", "gpu", value="../9.0"),
    put("wheels", 0, "output", "filename", value="../../../secret"),
    put("wheels", 0, "output", "filename", value="/etc/passwd"),
    put("wheels", 0, "output", "filename", value="-rf.whl"),
    put("wheels", 0, "output", "sha256", value="../x"),
    put("wheels", 0, "output", "size", value=-1),
    put("wheels", 0, "input", "filename", value="../../../secret"),
    put("wheels", 0, "input", "sha256", value="/some/dir"),
    put("wheels", 0, "input", "url", value="javascript:alert(1)"),
    put("wheels", 0, "step", value="other"),
    put("wheels", value={}),
    put("requirements", value=["--index-url=http://evil"]),
    put("requirements", value=[]),
    put("variant", value=EVIL),
]


def test_hostile_manifests(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    (tmp_path / "secret").write_text("secret")
    manifest = next(workshop.out.glob("*/manifest.json"))
    good = manifest.read_bytes()
    before = sorted(tmp_path.rglob("*"))
    for how in MANIFESTS:
        manifest.write_bytes(good)
        change(manifest, how)
        with pytest.raises(BadInputError, match="manifest"):
            publish(workshop.out, FolderStore(tmp_path / "deep" / "in" / "public"))
        with pytest.raises(BadInputError, match="manifest"):
            read_wheelhouse(manifest.parent)
    written = set(tmp_path.rglob("*")) - set(before)
    assert all(path.is_relative_to(tmp_path / "deep") for path in written)
    assert not list((tmp_path / "deep").rglob("*.whl"))


PAGES = [
    put("files", 0, "filename", value="../../../secret"),
    put("files", 0, "filename", value=EVIL),
    put("files", 0, "hashes", "sha256", value=EVIL),
    put("files", 0, "hashes", "sha256", value="/some/dir"),
    put("files", 0, "core-metadata", value={"sha256": EVIL}),
    put("files", 0, "size", value="many"),
    put("files", value=None),
]


def test_hostile_pages(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512", options=WheelOptions(variants=True))
    (page,) = workshop.out.glob("pytorch*/simple/torch/index.json")
    good = page.read_bytes()
    for how in PAGES:
        page.write_bytes(good)
        change(page, how)
        with pytest.raises(BadInputError, match="damaged"):
            publish(workshop.out, FolderStore(tmp_path / "public"))


def test_hostile_pages_of_a_store(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    """The index that is added to may be somebody else's too."""
    workshop.build("sm90-avx512")
    root = tmp_path / "public"
    for name in ("targets.json", "cu128-sm90/index.json", "cu128-sm90/torch/index.json"):
        publish(workshop.out, FolderStore(root))
        good = (root / name).read_bytes()
        for content in (
            b"[" * 100_000,
            b'{"files": [{}]}',
            b'["<b>"]',
            b"\xff\xfe",
            b'{"projects": [{"name": "<b>"}]}',
        ):
            (root / name).write_bytes(content)
            with pytest.raises(BadInputError, match="is damaged"):
                publish(workshop.out, FolderStore(root))
        (root / name).write_bytes(good)
    publish(workshop.out, FolderStore(root))


def test_everything_on_a_page_is_escaped() -> None:
    file = IndexedFile(f"a-1-{EVIL}.whl", EVIL, EVIL, 5, EVIL, EVIL)
    for name, content in {**index_pages([file]), **{f"root {n}": c for n, c in root_pages([EVIL]).items()}}.items():
        if name.endswith(".html"):
            assert b"<script" not in content


def test_a_login_is_not_published(workshop: Workshop) -> None:  # noqa: F811
    workshop.build("sm90-avx512", options=WheelOptions(cut=Cut(nvidia=True)))
    manifest = next(workshop.out.glob("*/manifest.json"))

    def add_login(document: Any) -> None:
        for item in document["wheels"]:
            item["input"]["url"] = item["input"]["url"].replace("://", "://user:secret@")

    change(manifest, add_login)
    store = memory_store("login")
    publish(workshop.out, store, cache=Cache(workshop.root / "cache"))
    content = store.read("cu128-sm90/nvidia-cublas-cu12/index.json")
    assert content is not None
    (stock,) = read_project_json(content)
    assert stock.url.startswith("http://127.0.0.1") or stock.url.startswith("http://localhost")
    assert "@" not in stock.url


def test_another_file_of_the_same_size_on_a_store(workshop: Workshop) -> None:  # noqa: F811
    """Not listed yet, so nobody vouches for it: its bytes are read back, and replaced."""
    workshop.build("sm90-avx512")
    cache = Cache(workshop.root / "cache")
    publish(workshop.out, memory_store("first"), cache=cache)
    content = memory_store("first").read("cu128-sm90/torch/index.json")
    assert content is not None
    (torch,) = read_project_json(content)
    place = f"files/{torch.sha256[:2]}/{torch.sha256}/{torch.filename}"
    other = memory_store("second")
    other.put_bytes(bytes(torch.size), place)
    publish(workshop.out, other, cache=cache)
    assert hashlib.sha256(other.read(place) or b"").hexdigest() == torch.sha256

"""What a RECORD lists is there, byte for byte, in every kind of output; read without any code of torchtailor."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import tarfile
import zipfile
from itertools import chain, combinations
from pathlib import Path

import pytest

from tests.unit.oci.builder import read_image, stock, tar_of
from tests.unit.tailoring.helpers import install, options
from tests.unit.wheels.builder import METADATA, build_wheel, record_of
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.folder import tailor_folder
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.tailoring.wheel import tailor_wheel
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.hook import HOOK_NAME
from torchtailor.workload.trace import Trace

SITE = "usr/lib/python3/site-packages"
HEADER, LIBRARY, SECOND = "demo/include/a.h", "demo/lib/libdemo.so", "demo/lib/libdemo.so.1"
UNOPENED = "demo/lib/libunopened.so"
DIST_INFO = "demo-1.0.dist-info"


def check(files: dict[str, bytes], site: str = "", *, own_manifest: bool = True) -> None:
    """Each row with a hash is of a file that has it, and what was cut or added has a row; of a folder the manifest is
    at its top."""
    records = [path for path in files if path.endswith(".dist-info/RECORD")]
    assert records
    in_any = set()
    for record in records:
        listed = set()
        place = "".join(f"{folder}/" for folder in record.split("/")[:-2])
        for path, recorded, size in csv.reader(io.StringIO(files[record].decode())):
            listed.add(path)
            if recorded:
                data = files[f"{place}{path}"]
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (recorded, int(size)) == (f"sha256={digest}", len(data)), path
        in_any |= listed
        if own_manifest:
            manifest = f"{record.removesuffix('RECORD')}torchtailor.json"
            assert manifest.removeprefix(site) in listed
            cut = [row["path"] for row in json.loads(files[manifest])["libraries"] if row["status"] == "cut"]
            assert cut and set(cut) <= listed
    packs = {path.removeprefix(site) for path in files if path.startswith(f"{site}torchtailor-packs/")}
    packs -= {f"torchtailor-packs/demo/files/{path}" for path in in_any}  # listed where the link to their folder is
    assert packs | {path for path in ADDED if f"{site}{path}" in files} <= in_any


def below(folder: Path) -> dict[str, bytes]:
    """The files as programs see them, also through links."""
    paths = (Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


# Files go by a rule; or what a program does not use goes to packs, and what it never opened leaves a stand-in.
BY_RULE = options(drop=("headers",))
FOR_PROGRAM = options(workload=TracedWorkload(Trace(opened=(LIBRARY,))), drop_unopened=True)
CUTS = pytest.mark.parametrize("cut", [BY_RULE, FOR_PROGRAM], ids=["rule", "workload"])
ADDED = {f"torchtailor-packs/demo/{HOOK_NAME}", "demo/_fast.py", UNOPENED}


@pytest.fixture
def wheel(tmp_path: Path, fat: bytes) -> Path:
    files = {"demo/__init__.py": b"1", HEADER: b"//", LIBRARY: fat, "demo/lib/libother.so": fat}
    files |= {UNOPENED: fat + bytes(1 << 17), "demo/_fast.abi3.so": fat + bytes(1 << 17) + b"\0PyInit__fast\0"}
    return build_wheel(tmp_path, files, name="demo", version="1.0")


@CUTS
def test_a_wheel(tmp_path: Path, wheel: Path, cut: Cut) -> None:
    result = tailor_wheel(wheel, tmp_path / "out", cut)
    assert result.output
    with zipfile.ZipFile(result.output) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    check(files)
    assert cut is BY_RULE or set(files) >= ADDED


@CUTS
@pytest.mark.parametrize("kind", ["folder", "environment"])
def test_installed(tmp_path: Path, wheel: Path, kind: str, cut: Cut) -> None:
    """Also of a library that two packages list, one of them by a second name."""
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(wheel, site)
    (site / SECOND).hardlink_to(site / LIBRARY)
    other = {"demo/lib/libdemo.so.1": (site / LIBRARY).read_bytes(), "other.py": b"2"}
    install(build_wheel(tmp_path, other, name="other", version="2.0"), tmp_path / "second")
    for path in (tmp_path / "second").rglob("*"):
        if path.is_file() and path.name != "libdemo.so.1":
            target = site / path.relative_to(tmp_path / "second")
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    if kind == "folder":
        tailor_folder(tmp_path / "env", tmp_path / "out", cut)
        files = below(tmp_path / "out" / site.relative_to(tmp_path / "env"))
    else:
        tailor_environment(site, cut)
        files = {path: data for path, data in below(site).items() if not path.startswith(".torchtailor/")}
    check(files, own_manifest=kind == "environment")
    assert (HEADER in files) is (cut is FOR_PROGRAM)
    assert cut is BY_RULE or set(files) >= ADDED


def some(numbers: range) -> list[tuple[int, ...]]:
    return list(chain.from_iterable(combinations(numbers, size) for size in range(1, len(numbers) + 1)))


def merged(layers: list[bytes]) -> dict[str, bytes]:
    """The files that a container sees."""
    files: dict[str, bytes] = {}
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            for member in archive:
                path = member.name.removeprefix("./")
                folder, _, name = path.rpartition("/")
                if name.startswith(".wh."):
                    files.pop(f"{folder}/{name.removeprefix('.wh.')}", None)
                elif member.isfile():
                    content = archive.extractfile(member)
                    assert content
                    files[path] = content.read()
    return files


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("records", [(0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("libraries", some(range(3)))
def test_an_image(
    tmp_path: Path, fat: bytes, libraries: tuple[int, ...], records: tuple[int, ...], squash: bool
) -> None:
    """Whichever layers have a library and RECORD: `chown` writes into another layer what it is called for."""
    of_package = {LIBRARY: fat, "demo/__init__.py": b"1"}
    texts = {f"{DIST_INFO}/METADATA": METADATA.format(name="demo", version="1.0", licence="MIT", extra="").encode()}
    record = {f"{DIST_INFO}/RECORD": record_of(of_package | texts, DIST_INFO).encode()}
    contents = []
    for number in range(3):
        files = {"demo/__init__.py": b"1", **texts} if number == 0 else {f"etc/{number}": b"x"}
        files |= {LIBRARY: fat} if number in libraries else {}
        files |= record if number in records else {}
        contents.append(tar_of({f"{SITE}/{path}": data for path, data in files.items()}))
    source = stock(tmp_path / "stock", contents)
    chosen = ImageOptions(options(processes=1), squash_shadowed=squash)
    (image,) = cut_image(source, f"oci:{tmp_path}/cut:x", chosen).images
    assert LibraryStatus.CUT in {one.result.status for one in image.libraries}
    files = merged(read_image(tmp_path / "cut").tars)
    assert files[f"{SITE}/{LIBRARY}"] != fat
    check(files, f"{SITE}/")


@pytest.mark.parametrize("kind", ["folder", "image"])
def test_a_package_inside_of_another(tmp_path: Path, fat: bytes, kind: str) -> None:
    """As setuptools has some: its RECORD lists theirs."""
    inside = {"inner/lib/libinner.so": fat}
    inside["inner-1.0.dist-info/METADATA"] = METADATA.format(
        name="inner", version="1.0", licence="MIT", extra=""
    ).encode()
    inside["inner-1.0.dist-info/RECORD"] = record_of(inside, "inner-1.0.dist-info").encode()
    vendored = {f"demo/_vendor/{path}": data for path, data in inside.items()}
    install(build_wheel(tmp_path, {LIBRARY: fat, **vendored}, name="demo", version="1.0"), tmp_path / "site")
    if kind == "folder":
        tailor_folder(tmp_path / "site", tmp_path / "out", options())
        files, site = below(tmp_path / "out"), ""
    else:
        own, site = below(tmp_path / "site"), f"{SITE}/"
        source = stock(tmp_path / "stock", [tar_of({f"{site}{path}": data for path, data in own.items()})])
        cut_image(source, f"oci:{tmp_path}/cut:x", ImageOptions(options(processes=1)))
        files = merged(read_image(tmp_path / "cut").tars)
    assert files[f"{site}demo/_vendor/inner-1.0.dist-info/RECORD"] != inside["inner-1.0.dist-info/RECORD"]
    check(files, site, own_manifest=False)

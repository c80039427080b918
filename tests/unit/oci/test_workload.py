"""--workload for images: the hook in the layer of its library, packs in the last or apart, files never opened."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from msgspec.structs import replace as replace_struct
from zstandard import ZstdCompressor

from tests.killing import until_killed
from tests.unit.oci.builder import TarFile, read_image, stock, tar_of
from tests.unit.oci.transports.standin import StandIn, serve
from tests.unit.surgery.paged import paged_library, touched
from tests.unit.tailoring.helpers import options
from tests.unit.tailoring.test_left_out import module
from tests.unit.tailoring.test_records import check, merged
from tests.unit.wheels.builder import METADATA, record_of
from torchtailor.cli import main
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import BufferSource
from torchtailor.core.errors import BadInputError, ExitCode, UsageError
from torchtailor.core.progress import Progress
from torchtailor.oci.descriptor import Descriptor, MediaType
from torchtailor.oci.imagespec import ImageConfig, read_manifest
from torchtailor.oci.referrers import Attachment, Proofs, referrer_of
from torchtailor.oci.transports.base import Document
from torchtailor.oci.transports.choose import open_source
from torchtailor.surgery.cut import Cut
from torchtailor.tailoring.image.attached import attached_packs, fetch_pack, pull_packs
from torchtailor.tailoring.image.cold import (
    LABEL,
    PACK,
    PACKS,
    PATH,
    SHA256,
    SIZE,
    TITLE,
    ColdPack,
    attachment_of,
    by_name,
    packs_label,
)
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.opened import opened_image
from torchtailor.tailoring.image.options import Cold, ImageOptions
from torchtailor.tailoring.image.result import ImageReport
from torchtailor.verification.static.packed import packs_of
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.hook import HOOK_NAME, HookKind, hook_library
from torchtailor.workload.trace import Trace, write_trace

FAT = (Path(__file__).parents[1] / "gpucode" / "fixtures" / "raw.so").read_bytes()
SITE = "usr/lib/python3/site-packages"
USED, UNUSED, MODULE = "torch/lib/libused.so", "torch/lib/libunused.so", "torch/_fast.cpython-313-x86_64-linux-gnu.so"
LARGE = FAT + bytes(1 << 17)
TRACE = Trace(opened=(USED,))
LOOSE = "usr/local/cuda/lib64/libown.so"
FILES = {
    "torch/__init__.py": b"1",
    "torch/include/a.h": b"//",
    USED: FAT,
    UNUSED: LARGE,
    MODULE: module("_fast"),
}


def chosen(**more: object) -> Cut:
    return replace(options(), workload=TracedWorkload(TRACE), processes=1, **more)  # type: ignore[arg-type]


def package(files: dict[str, bytes], name: str = "torch", licence: str = "MIT") -> dict[str, bytes]:
    info = f"{name}-1.0.dist-info"
    text = METADATA.format(name=name, version="1.0", licence=licence, extra="").encode()
    whole = files | {f"{info}/METADATA": text}
    return {
        f"{SITE}/{path}": data for path, data in (whole | {f"{info}/RECORD": record_of(whole, info).encode()}).items()
    }


@pytest.fixture
def image(tmp_path: Path) -> str:
    later = {f"./{SITE}/{USED}": FAT, f"./{LOOSE}": FAT}  # as `chown` makes a layer
    return stock(tmp_path / "stock", [tar_of(package(FILES)), tar_of(later)])


def cut(image: str, tmp_path: Path, options: Cut, squash_shadowed: bool = False) -> ImageReport:
    return cut_image(image, f"oci:{tmp_path}/cut:x", ImageOptions(options, squash_shadowed))


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("unopened", [False, True])
def test_records_say_what_is_there(tmp_path: Path, image: str, unopened: bool, squash: bool) -> None:
    report = cut(image, tmp_path, chosen(drop_unopened=unopened), squash_shadowed=squash)
    libraries = {one.result.path: one.result for one in report.images[0].changed}
    pack = libraries[f"{SITE}/{USED}"].pack
    files = merged(read_image(tmp_path / "cut").tars)
    folder = f"{SITE}/torchtailor-packs/torch"
    assert {f"{folder}/{pack}", f"{folder}/{HOOK_NAME}"} <= set(files)
    beside = f"{LOOSE.rpartition('/')[0]}/torchtailor-packs"
    assert {f"{beside}/{libraries[LOOSE].pack}", f"{beside}/{HOOK_NAME}"} <= set(files)
    check(files, f"{SITE}/")
    record = files[f"{SITE}/torch-1.0.dist-info/RECORD"].decode()
    assert f"torchtailor-packs/torch/{pack}," in record and f"torchtailor-packs/torch/{HOOK_NAME}," in record
    assert {f"{SITE}/torch/include/a.h", f"{SITE}/{MODULE}", f"{SITE}/{UNUSED}"} <= set(files)


def test_what_was_never_opened_goes_to_the_last_layer_as_it_is(tmp_path: Path) -> None:
    """With it the image is whole: only GPU code that no target runs is gone. What has two names stays where it is."""
    files = FILES | {
        "torch/cold.py": b"answer = 42\n",
        "torch/large.bin": bytes(1 << 17),
        "torch/plain.so": module("x"),
    }
    layer = [TarFile(f"./{name}", data) for name, data in package(files).items()]
    two = [
        TarFile(f"./{SITE}/torch/two.bin", bytes(1 << 17)),
        TarFile(f"./{SITE}/torch/three.bin", kind=tarfile.LNKTYPE, link=f"./{SITE}/torch/two.bin"),
    ]
    image = stock(tmp_path / "stock", [tar_of([*layer, *two]), tar_of({f"./{SITE}/torch/large.bin": bytes(1 << 17)})])
    trace = Trace(opened=(USED, "torch/__init__.py"))
    report = cut(image, tmp_path, replace(options(), workload=TracedWorkload(trace), processes=1, drop_unopened=True))
    made = read_image(tmp_path / "cut")
    before, after = merged(read_image(tmp_path / "stock").tars), merged(made.tars)
    assert before.keys() <= after.keys()
    changed = {name for name, data in before.items() if after[name] != data}
    assert changed == {f"{SITE}/{name}" for name in (USED, UNUSED, "torch-1.0.dist-info/RECORD")}
    check(after, f"{SITE}/")
    cold = {member.name.removeprefix("./") for member in members_of(made.tars[-1])}
    unopened = {"torch/include/a.h", "torch/cold.py", "torch/large.bin", MODULE, UNUSED, "torch/plain.so"}
    assert {f"{SITE}/{name}" for name in unopened} < cold and f"{SITE}/torch/two.bin" not in cold
    hot = {member.name.removeprefix("./") for tar in made.tars[:-1] for member in members_of(tar)}
    assert not {f"{SITE}/{name}" for name in unopened - {"torch/large.bin"}} & hot
    assert not report.images[0].dropped_files
    assert main(["verify", f"oci:{tmp_path}/cut:x", "--against", image]) == 0


def test_modules_and_libraries_that_were_never_opened_in_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come back from pulled packs, when these come, and are missing in a sentence without them."""
    stock_library = paged_library(tmp_path / "libfar.so")
    (far,) = touched(stock_library).libraries
    other = replace_struct(far, identity="0" * 32, name="libother.so")
    files = FILES | {
        "torch/cold.py": b"answer = 42\n",
        "torch/libfar.so": stock_library.read_bytes(),
        "torch/_cold.abi3.so": module("_cold"),
    }
    image = stock(tmp_path / "stock", [tar_of(package(files))])
    trace = Trace((other,), opened=(USED, "torch/__init__.py"))
    write_trace(tmp_path / "app.trace", trace)
    monkeypatch.chdir(tmp_path)
    line = ["image", image, "oci:cut:x", "--gpu", "9.0", "--workload", "app.trace", "--drop-unopened"]
    assert main([*line, "--cold", "artifact"]) == 0
    assert main(["verify", "oci:cut:x", "--against", image]) == 0
    row = json.loads((tmp_path / "cut/index.json").read_text())["manifests"][0]
    hot = merged(read_image(tmp_path / "cut", row["digest"]).tars)
    check(hot, f"{SITE}/")
    assert f"{SITE}/torch/cold.py" not in hot and len(hot[f"{SITE}/torch/libfar.so"]) < 64 << 10
    site = tmp_path / "root" / SITE
    for name, data in hot.items():
        place = tmp_path / "root" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    program = f"""
import site, sys; site.addsitedir({str(site)!r})
import torch.cold, ctypes
print(torch.cold.answer, ctypes.CDLL({str(site)!r} + "/torch/libfar.so").cold1(5))
"""

    def start(**variables: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-I", "-c", program]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)

    with start() as without:
        _, said = without.communicate(timeout=60)
    assert without.returncode == 1 and "No module named 'torch.cold': it was not imported" in said
    with start(TORCHTAILOR_PACK=str(tmp_path / "packs"), TORCHTAILOR_PACK_WAIT="60") as late:
        assert late.stderr
        first = late.stderr.readline()
        assert "torch.cold is in " in first and "waiting for it up to 60 seconds" in first
        assert main(["packs", "pull", "oci:cut:x", "-o", "packs"]) == 0
        printed, said = late.communicate(timeout=60)
    assert printed == "42 159\n", said
    # The library's own pack may come after that of the module: then it is waited for too.
    assert not [line for line in said.splitlines() if not line.endswith(": waiting for it.")]


def test_data_that_no_pack_has_is_named_and_stays_where_it_is_read_in_a_recorded_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"torch/__init__.py": b"1", "torch/first.bin": bytes(1 << 17), "torch/second.bin": bytes(1 << 16)}
    image = stock(tmp_path / "stock", [tar_of(package(files))])
    monkeypatch.chdir(tmp_path)
    line = ["image", image, "oci:cut:x", "--gpu", "9.0", "--workload", "app.trace", "--drop-unopened"]

    def left_out(*more: str) -> set[str]:
        assert main([*line, "--cold", "artifact", *more, "--json"]) == 0
        (cut,) = json.loads(capsys.readouterr().out)["images"]
        return {file["path"] for file in cut["dropped_files"] if file["path"].endswith(".bin")}

    write_trace(tmp_path / "app.trace", Trace(opened=("torch/__init__.py",)))
    assert main([*line, "--cold", "artifact", "--dry-run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "No pack has these" in shown and "record -o TRACE --append -- cat FILE" in shown
    both = {f"{SITE}/torch/first.bin", f"{SITE}/torch/second.bin"}
    assert left_out("--dry-run") == both
    there = tmp_path / "other/site-packages/torch/first.bin"
    there.parent.mkdir(parents=True)
    there.write_bytes(b"1")
    assert main(["record", "-o", "app.trace", "--append", "--", "cat", str(there)]) == 0
    capsys.readouterr()
    assert left_out() == {f"{SITE}/torch/second.bin"}
    row = json.loads((tmp_path / "cut/index.json").read_text())["manifests"][0]
    made = merged(read_image(tmp_path / "cut", row["digest"]).tars)
    assert made.keys() & both == {f"{SITE}/torch/first.bin"}
    said = json.loads(made[f"{SITE}/torch-1.0.dist-info/torchtailor.json"])["dropped_files"]
    assert said == [{"path": "torch/second.bin", "rule": "unopened", "size": 1 << 16}]


def test_the_hook_is_in_the_layer_of_its_library_and_packs_in_the_last(tmp_path: Path, image: str) -> None:
    report = cut(image, tmp_path, chosen())
    made = read_image(tmp_path / "cut")
    assert [row.get("empty_layer") for row in made.config["history"]][-1] is None
    assert len(made.config["rootfs"]["diff_ids"]) == len(report.images[0].layers) == 3
    *tars, last = made.tars
    folders = [f"{SITE}/torchtailor-packs", f"{SITE}/torchtailor-packs/torch"]
    for number, tar in enumerate(tars):
        members = members_of(tar)
        names = [member.name.removeprefix("./") for member in members]
        assert not [name for name in names if name.endswith(".ttpack")]
        library = names.index(f"{SITE}/{USED}")
        assert names[library + 1 : library + 4] == [*folders, f"{folders[1]}/{HOOK_NAME}"]
        spelled = [member.name for member in members if "torchtailor-packs" in member.name]
        assert all(name.startswith("./") is (number == 1) for name in spelled)
    cold = members_of(last)
    names = [member.name.removeprefix("./") for member in cold]
    assert len(set(names)) == len(names) and set(folders) < set(names)
    assert all(member.isdir() and member.mode == 0o755 for member in cold if not member.isfile())
    packs = {name for name in names if name.endswith(".ttpack")}
    assert {one.result.pack for one in report.images[0].changed} == {Path(name).name for name in packs}


def test_packs_as_an_artifact(tmp_path: Path, image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "app.trace", TRACE)

    def made(place: str) -> dict[str, bytes]:
        words = ["image", image, f"oci:{place}:x", "--gpu", "9.0", "--workload", "app.trace", "--cold", place]
        assert main(words) == 0
        row = json.loads((tmp_path / place / "index.json").read_text())["manifests"][0]
        return merged(read_image(tmp_path / place, row["digest"]).tars)

    whole, hot = made("layer"), made("artifact")
    away = {name: data for name, data in whole.items() if name.endswith(".ttpack")}
    assert away and hot.keys() == made("none").keys() == whole.keys() - away.keys()
    check(hot, f"{SITE}/")
    assert ".ttpack" not in hot[f"{SITE}/torch-1.0.dist-info/RECORD"].decode()
    assert main(["packs", "pull", "oci:artifact:x", "-o", "packs", "--dry-run"]) == 0
    assert not (tmp_path / "packs").exists()
    for _ in range(2):
        assert main(["packs", "pull", "oci:artifact:x", "-o", "packs"]) == 0
        pulled = {str(path.relative_to(tmp_path / "packs")): path.read_bytes() for path in files_of(tmp_path / "packs")}
        assert pulled == {name.partition("torchtailor-packs/")[2]: data for name, data in away.items()}
        next(iter(files_of(tmp_path / "packs"))).write_bytes(b"damaged")
    assert main(["verify", "oci:artifact:x", "--against", image]) == 0  # with the packs that refer to it
    assert main(["packs", "pull", "oci:none:x", "-o", "packs"]) == ExitCode.NO_MATCH


def test_packs_in_a_registry(tmp_path: Path, image: str) -> None:
    options = ImageOptions(chosen(), cold=Cold.ARTIFACT)
    with serve(StandIn()) as registry:
        name = f"docker://{registry.host}/app:1"
        cut_image(image, name, options, insecure=True)
        assert pull_packs(name, tmp_path / "packs", insecure=True).fetched
    assert all(pack.read_bytes().startswith(b"TTPACK") for pack in files_of(tmp_path / "packs"))
    with pytest.raises(UsageError, match="cannot hold what --cold artifact attaches"):
        cut_image(image, f"docker-archive:{tmp_path}/x.tar", options)


@pytest.mark.parametrize(
    "about",
    [
        {PATH: "../torchtailor-packs/x.ttpack"},
        {PATH: "/a/torchtailor-packs/x.ttpack"},
        {PATH: "a/torchtailor-packs/../../x.ttpack"},
        {PATH: "a/torchtailor-packs/a/b/x.ttpack"},
        {PATH: "a/torchtailor-packs/x.so"},
        {PATH: "a/my-torchtailor-packs/x.ttpack"},
        {PATH: "a/torchtailor-packs/.x.ttpack"},
        {SHA256: "0" * 63},
        {SHA256: "0" * 64},
        {SIZE: "1"},
        {SIZE: "-1"},
        {SIZE: "9" * 15},
        {SIZE: ""},
    ],
)
def test_what_a_registry_may_say_of_packs(tmp_path: Path, about: dict[str, str]) -> None:
    """Nothing is written outside of the folder, or that is not the pack which was listed."""
    data = ZstdCompressor().compress(b"TTPACK" * 100)
    true = {PATH: "usr/torchtailor-packs/x.ttpack", SHA256: hashlib.sha256(b"TTPACK" * 100).hexdigest(), SIZE: "600"}
    image = Descriptor(MediaType.OCI_MANIFEST.value, f"sha256:{'1' * 64}", 1)
    for said in (true, true | about):
        blob = Descriptor(PACK, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), annotations=said)
        attached = referrer_of(image, Attachment(PACKS, (blob,)))
        source = OnePack(attached.row, attached.document, data)
        place = tmp_path / "pack"
        place.unlink(missing_ok=True)
        if said is true:
            (pack,) = attached_packs(source, image, label(said))
            assert attached_packs(source, image, label({**said, SHA256: "1" * 64})) == []  # somebody else's
            fetch_pack(pack, source, place, Progress())
            assert place.read_bytes() == b"TTPACK" * 100 and [*by_name([pack])] == ["x.ttpack"]
            continue
        for pack in attached_packs(source, image, label(said)):
            with pytest.raises(BadInputError):
                fetch_pack(pack, source, place, Progress())
    assert {path.name for path in tmp_path.iterdir()} <= {"pack"}


def label(said: Mapping[str, str]) -> str:
    return packs_label([ColdPack(said[PATH], said[SHA256], 0, Descriptor(PACK, f"sha256:{'1' * 64}", 1))])


def test_what_others_attached_is_passed_over(tmp_path: Path, image: str) -> None:
    """A list of packs that is damaged, or is missing, was an error."""
    cut_image(image, f"oci:{tmp_path}/cut:x", ImageOptions(chosen(), cold=Cold.ARTIFACT))
    index = tmp_path / "cut" / "index.json"
    found = json.loads(index.read_text())
    (row,) = [row for row in found["manifests"] if row.get("artifactType") == PACKS]
    true = (tmp_path / "cut" / "blobs" / "sha256" / row["digest"][7:]).read_bytes()
    for said in (b"{}", b"x", true.replace(b'"layers":[{', b'"layers":[{"size":-1},{'), None):
        digest = hashlib.sha256(said or b"gone").hexdigest()
        if said:
            (tmp_path / "cut" / "blobs" / "sha256" / digest).write_bytes(said)
        other = {**row, "digest": f"sha256:{digest}", "size": len(said or b"gone")}
        with open_source(f"oci:{tmp_path}/cut:x") as source:
            root = source.root()
            label = ImageConfig.read(source, read_manifest(root, "")).label(LABEL)
            both: Any = Others(source, (other, *source.referrers(root.descriptor)))
            assert attached_packs(both, root.descriptor, label)


class Others:
    """An image, and what else refers to it."""

    def __init__(self, source: Any, rows: tuple[Mapping[str, Any], ...]) -> None:
        self._source, self._rows = source, rows

    def referrers(self, _: Descriptor) -> tuple[Mapping[str, Any], ...]:
        return self._rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def cold(path: str, content: str) -> ColdPack:
    blob = Descriptor(PACK, f"sha256:{content * 64}", 1, annotations={PATH: path})
    return ColdPack(path, content * 64, 1, blob)


def test_packs_of_two_environments_with_one_name() -> None:
    """The same one is there once; of others each has its folder, no deeper than programs look."""
    places = ["a/site-packages/torchtailor-packs/torch", "b/torchtailor-packs/torch", "c/torchtailor-packs"]
    packs = [cold(f"{place}/x.ttpack", "1") for place in places]
    assert [*by_name(packs)] == ["torch/x.ttpack", "x.ttpack"]
    titles = [(blob.annotations or {}).get(TITLE) for blob in attachment_of(packs).layers]
    assert titles == ["torch/x.ttpack.zst", None, "x.ttpack.zst"]
    others = [*packs, cold(f"{places[1]}/x.ttpack", "2"), cold(f"{places[2]}/x.ttpack", "3")]
    names = ["torch-11111111/x.ttpack", "torch-22222222/x.ttpack", "packs-11111111/x.ttpack", "packs-33333333/x.ttpack"]
    assert [*by_name(others)] == names
    assert [pack.sha256[0] for pack in by_name(others).values()] == ["1", "2", "1", "3"]


def test_inspecting_needs_no_bytes_of_packs(tmp_path: Path, image: str) -> None:
    cut_image(image, f"oci:{tmp_path}/cut:x", ImageOptions(chosen(), cold=Cold.ARTIFACT))
    (row,) = [
        row for row in json.loads((tmp_path / "cut/index.json").read_text())["manifests"] if row.get("artifactType")
    ]
    blobs = tmp_path / "cut/blobs/sha256"
    for layer in json.loads((blobs / row["digest"][7:]).read_text())["layers"]:
        (blobs / layer["digest"][7:]).unlink(missing_ok=True)
    assert main(["inspect", f"oci:{tmp_path}/cut:x"]) == 0
    assert main(["verify", f"oci:{tmp_path}/cut:x", "--against", image]) == ExitCode.BAD_INPUT


def test_packs_are_pulled_side_by_side(tmp_path: Path, image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_image(image, f"oci:{tmp_path}/cut:x", ImageOptions(chosen(), cold=Cold.ARTIFACT))
    together = threading.Barrier(3, timeout=20)

    def fetch(*arguments: Any) -> None:
        together.wait()
        fetch_pack(*arguments)

    monkeypatch.setattr("torchtailor.tailoring.image.attached.fetch_pack", fetch)
    assert len(pull_packs(f"oci:{tmp_path}/cut:x", tmp_path / "packs").fetched) == 3


def test_killed_at_any_change_packs_are_whole(tmp_path: Path, image: str) -> None:
    cut_image(image, f"oci:{tmp_path}/cut:x", ImageOptions(chosen(), cold=Cold.ARTIFACT))

    def pulled(folder: Path) -> dict[str, bytes]:
        packs = (path for path in files_of(folder) if ".torchtailor-" not in str(path))
        return {str(path.relative_to(folder)): path.read_bytes() for path in packs}

    def pull(folder: str) -> None:
        pull_packs(f"oci:{tmp_path}/cut:x", tmp_path / folder)

    steps = until_killed(0, lambda: pull("whole"))[1]
    whole = pulled(tmp_path / "whole")
    assert steps > 5 and len(whole) == 3
    for step in range(1, steps + 1):
        assert until_killed(step, lambda: pull("packs"))[0] == -signal.SIGKILL
        assert pulled(tmp_path / "packs").items() <= whole.items()
        pull("packs")
        assert pulled(tmp_path / "packs") == whole
        assert {path.name for path in (tmp_path / "packs").iterdir()} == {Path(name).parts[0] for name in whole}
        shutil.rmtree(tmp_path / "packs")


class OnePack:
    """A place for images with one list of packs."""

    name, is_remote = "registry.example/app:1", True

    def __init__(self, row: Mapping[str, object], document: Document, data: bytes) -> None:
        self._row, self._document, self._data = row, document, data

    def referrers(self, _: Descriptor) -> tuple[Mapping[str, object], ...]:
        return (self._row,)

    def document(self, _: Descriptor) -> Document:
        return self._document

    @contextmanager
    def blob(self, _: Descriptor) -> Iterator[Iterator[bytes]]:
        yield iter((self._data,))

    def root(self) -> Document:
        raise NotImplementedError

    def proofs(self, _: Descriptor) -> Proofs:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def members_of(tar: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return archive.getmembers()


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_hook_is_for_the_processor_of_the_image(tmp_path: Path, image: str) -> None:
    cut(image, tmp_path, chosen())
    hook = merged(read_image(tmp_path / "cut").tars)[f"{SITE}/torchtailor-packs/torch/{HOOK_NAME}"]
    assert hook == hook_library(ElfFile(BufferSource(FAT)).machine, HookKind.NEEDED).read_bytes()


def test_verify_and_inspect_find_the_packs(tmp_path: Path, image: str) -> None:
    cut(image, tmp_path, chosen())
    with opened_image(f"oci:{tmp_path}/cut:x") as artifact, packs_of(artifact) as packs:
        assert {pack.parent.parent.name for pack in packs} >= {"torchtailor-packs"}
        assert all(pack.read_bytes().startswith(b"TTPACK") for pack in packs)
    assert main(["verify", f"oci:{tmp_path}/cut:x", "--against", image]) == 0


def test_packs_elsewhere_and_nowhere(tmp_path: Path, image: str) -> None:
    away = tmp_path / "volume"
    for more in ({"packs": away}, {"no_pack": True}):
        cut(image, tmp_path, chosen(**more))
        files = merged(read_image(tmp_path / "cut").tars)
        assert not [name for name in files if name.endswith(".ttpack")]
        assert f"{SITE}/torchtailor-packs/torch/{HOOK_NAME}" in files
        check(files, f"{SITE}/")
    assert list(away.glob("*.ttpack"))


def test_what_history_says(tmp_path: Path, image: str) -> None:
    cut(image, tmp_path, chosen(no_pack=True, drop_unopened=True))
    said = read_image(tmp_path / "cut").config["history"][-1]
    text = json.dumps(said)
    assert f"--workload {TracedWorkload(TRACE).label} --margin exact --no-pack --drop-unopened" in text


def test_the_command(
    tmp_path: Path, image: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "app.trace", TRACE)
    line = ["image", image, "oci:cut:x", "--gpu", "9.0", "--workload", "app.trace"]
    for more, said in (["--dry-run"], "would go to packs"), ([], "is in packs of"), (["--no-pack"], "was left out"):
        assert main([*line, *more]) == 0
        assert f"What the workload does not use of 4 libraries {said}" in " ".join(capsys.readouterr().out.split())


def test_a_split_is_refused(tmp_path: Path, image: str) -> None:
    with pytest.raises(UsageError, match="same image"):
        cut(image, tmp_path, options(split=True))


def test_headers_of_nvidias_packages_stay_without_the_option(tmp_path: Path) -> None:
    """As in wheels and folders; images left them out."""
    closed = package(
        {"nvidia/include/b.h": b"//", "nvidia/lib/libx.so": FAT}, "nvidia-x", "NVIDIA Proprietary Software"
    )
    image = stock(tmp_path / "stock", [tar_of(package(FILES) | closed)])
    for nvidia in (False, True):
        report = cut(image, tmp_path / str(nvidia), options(drop=("headers",), nvidia=nvidia, processes=1))
        gone = {Path(file.path).name for file in report.images[0].dropped_files}
        assert gone == ({"a.h", "b.h"} if nvidia else {"a.h"})

"""Pages go to packs in every kind of tree, and verify finds each library whole with its pack."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tars import unpack_tar
from tests.unit.oci.builder import read_image, tar_of
from tests.unit.oci.builder import stock as stock_image
from tests.unit.oci.test_workload import SITE, package
from tests.unit.surgery.paged import paged_library, touched
from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.surgery.cut import HostPages, PackCompression
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.restore import restore_environment
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import write_trace

pytestmark = pytest.mark.xdist_group("host pages")
NAME = "torch/lib/libfar.so"
CALLS = "import ctypes, sys; far = ctypes.CDLL(sys.argv[1]); print(far.cold1(5), far.cold3(13), far.cold4(1))"
OPTIONS = ["--gpu", "9.0", "--host-pages", "all", "--gap", "4096"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paged_library(tmp_path_factory.mktemp("stock") / "libfar.so")


@pytest.fixture
def trace(library: Path, tmp_path: Path) -> list[str]:
    write_trace(tmp_path / "app.trace", touched(library))
    return [*OPTIONS, "--workload", str(tmp_path / "app.trace")]


def calls(folder: Path) -> str:
    command = [sys.executable, "-c", CALLS, str(folder / NAME)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def said_of_pages(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, object]:
    capsys.readouterr()
    assert main(["verify", *words, "--level", "static", "--json"]) == code
    checks = json.loads(capsys.readouterr().out)["checks"]
    found: dict[str, object] = next(check for check in checks if check["name"] == "pages")
    return found


def test_a_folder(library: Path, trace: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    for name, data in package({NAME: library.read_bytes()}).items():
        (source / name.removeprefix(f"{SITE}/")).parent.mkdir(parents=True, exist_ok=True)
        (source / name.removeprefix(f"{SITE}/")).write_bytes(data)
    assert main(["tailor", str(source), "-o", str(out), *trace, "--json"]) == 0
    row = json.loads((out / "torchtailor.json").read_text())["libraries"][0]
    assert row["pages"]["cold"] > 4 << 20 and row["pages"]["data"] is True
    assert calls(out) == calls(source) == "159 -8 0"
    page = tmp_path / "page.html"
    assert said_of_pages(capsys, str(out), "--report", str(page))["outcome"] == "pass"
    assert re.search(
        r"[\d.]+ kB that were touched are in the libraries \(hot\), [\d.]+ MB in their packs", page.read_text()
    )
    pack = next(out.glob("torchtailor-packs/torch/*.ttpack"))
    assert f"torchtailor-packs/torch/{pack.name}," in (out / "torch-1.0.dist-info/RECORD").read_text()
    damaged = bytearray(pack.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    pack.write_bytes(damaged)
    assert said_of_pages(capsys, str(out), code=6)["outcome"] == "fail"
    pack.unlink()
    assert "no pack has the pages" in str(said_of_pages(capsys, str(out), "--report", str(page), code=6)["reason"])
    assert "missing" in page.read_text()
    assert main(["inspect", str(out), "--json"]) == 0
    (found,) = (
        row
        for row in json.loads(capsys.readouterr().out)["inputs"][0]["libraries"]
        if row["name"].endswith("libfar.so")
    )
    assert found["cold"] > 4 << 20 and row["pages"]["hot"] < found["hot"] < 1 << 20


def test_a_wheel(library: Path, trace: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "torch-1.0-py3-none-linux_x86_64.whl"
    text = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n"
    files = package({NAME: library.read_bytes(), "torch-1.0.dist-info/WHEEL": text})
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.removeprefix(f"{SITE}/"), data)
    assert main(["tailor", str(wheel), "-o", str(tmp_path / "out"), *trace]) == 0
    (made,) = (tmp_path / "out").glob("*.whl")
    assert said_of_pages(capsys, str(made))["outcome"] == "pass"
    with zipfile.ZipFile(made) as archive:
        archive.extractall(tmp_path / "installed")
    assert calls(tmp_path / "installed") == "159 -8 0"


def test_an_image(library: Path, trace: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = stock_image(tmp_path / "stock", [tar_of(package({NAME: library.read_bytes()}))])
    assert main(["image", image, f"oci:{tmp_path}/cut:x", *trace]) == 0
    assert said_of_pages(capsys, f"oci:{tmp_path}/cut:x", "--against", image)["outcome"] == "pass"
    for layer in read_image(tmp_path / "cut").tars:
        unpack_tar(layer, tmp_path / "root")
    assert calls(tmp_path / "root" / SITE) == "159 -8 0"


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_environment_is_restored_to_the_last_byte(library: Path, tmp_path: Path, compression: str) -> None:
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    (tmp_path / "wheels").mkdir()
    files = {"torch/__init__.py": b"", NAME: library.read_bytes(), "torch/lib/libsecond.so": library.read_bytes()}
    install(build_wheel(tmp_path / "wheels", files, name="torch", version="2.13.0"), site)
    before = tree(site)
    workload = TracedWorkload(touched(library))
    chosen = replace(options(), workload=workload, host_pages=HostPages.ALL, gap=4096, keep_removed=True)
    outcome = tailor_environment(site, replace(chosen, pack_compress=PackCompression(compression)))
    assert [one.status for one in outcome.libraries] == [LibraryStatus.CUT] * 2
    check_records(site)
    assert calls(site) == "159 -8 0"
    assert len(list(site.glob("torchtailor-packs/torch/*.ttpack"))) == 2
    again = tailor_environment(site, chosen)
    assert not again.changed
    restore_environment(site)
    assert {path: data for path, data in tree(site).items() if ".torchtailor" not in str(path)} == before


def test_without_packs_a_sentence_says_what_may_happen(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    (source / "torch/lib").mkdir(parents=True)
    (source / NAME).write_bytes(library.read_bytes())
    write_trace(tmp_path / "app.trace", touched(library))
    words = ["--gpu", "9.0", "--workload", str(tmp_path / "app.trace"), "--no-pack"]
    assert main(["tailor", str(source), "-o", str(out), *words, "--host-pages", "code", "--gap", "4096"]) == 0
    assert "A recording does not cover a program" in " ".join(capsys.readouterr().out.split())
    assert not list(out.rglob("*.ttpack"))
    done = subprocess.run([sys.executable, "-c", CALLS, str(out / NAME)], capture_output=True, text=True, check=False)
    assert done.returncode == -11 and done.stderr.count("torchtailor: ") == 1

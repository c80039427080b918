"""The command: its words, tables, JSON and HTML; and images as inputs of inspect and verify."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.oci.builder import INDEX, Layout, read_image, stock, tar_of
from tests.unit.oci.test_cut import BASE, SITE, package
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def source(tmp_path: Path, fat: bytes) -> str:
    first = {**package(fat), "usr/local/cuda/include/cuda.h": b"//" * 3000, "gone": b"g" * 5000}
    return stock(tmp_path / "stock", [BASE, tar_of(first), tar_of({"libcublas.so.12": fat, ".wh.gone": b""})])


def test_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str) -> None:
    code, out, _ = run(capsys, "image", source, f"oci:{tmp_path}/cut:x", "--gpu", "H100")
    assert code == ExitCode.OK
    assert "demo/lib/libdemo.so" in out and "45 %" in out and "sm_90a" in out
    assert "--nvidia would save another 27.8 kB" in out
    assert "headers 6 kB" in out
    assert "--squash-shadowed leaves them out" in out
    assert "The same bytes are in several layers: 50.7 kB" in out
    assert "ignature" not in out  # it has none
    assert read_image(tmp_path / "cut").digest in out


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str) -> None:
    words = ["--nvidia", "--drop", "headers", "--squash-shadowed", "--compress", "zstd", "--json"]
    code, out, _ = run(capsys, "image", source, f"oci:{tmp_path}/cut:x", "--gpu", "9.0", *words)
    document = json.loads(out)
    assert code == ExitCode.OK
    (image,) = document["images"]
    assert document["digest"] == image["digest_after"] == read_image(tmp_path / "cut").digest
    assert [layer["compression"] for layer in image["layers"]] == ["gzip", "zstd", "zstd"]
    assert {row["path"]: row["layer"] for row in image["libraries"]} == {
        f"{SITE}/demo/lib/libdemo.so": 2,
        "libcublas.so.12": 3,
    }
    assert image["dropped_files"] == [{"path": "usr/local/cuda/include/cuda.h", "rule": "headers", "size": 6000}]
    assert image["layers"][1]["squashed"] == 5000


def test_dry_run(capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str) -> None:
    code, out, _ = run(capsys, "image", source, f"oci:{tmp_path}/cut:x", "--gpu", "9.0", "-n")
    assert code == ExitCode.OK
    assert "Nothing was written (dry run" in out and "Unpacked it would be" in out
    assert not (tmp_path / "cut").exists()


def test_an_archive_in_a_pipe_is_nothing_else(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, source: str
) -> None:
    words = ["image", source, "oci-archive:-", "--gpu", "9.0"]
    assert main(words) == ExitCode.OK
    said = capfdbinary.readouterr()
    assert main(["image", source, f"oci-archive:{tmp_path}/cut.tar", "--gpu", "9.0"]) == ExitCode.OK
    capfdbinary.readouterr()
    assert said.out == (tmp_path / "cut.tar").read_bytes()
    assert b"libdemo.so" in said.err
    assert main([*words, "--json"]) == ExitCode.USAGE
    assert b"blobs/" not in capfdbinary.readouterr().out
    assert main([*words, "--json", "-n"]) == ExitCode.OK
    assert json.loads(capfdbinary.readouterr().out)["dry_run"]


def test_a_page_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str) -> None:
    for page, expected in ((tmp_path, ExitCode.USAGE), (Path("/proc/page.html"), ExitCode.ENVIRONMENT)):
        code, _, _ = run(capsys, "image", source, f"oci:{tmp_path}/cut:x", "--gpu", "9.0", "--report", page)
        assert code == expected
        assert not (tmp_path / "cut").exists()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.elsewhere: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "rect", "br"):
            self.open.append(tag)
        self.elsewhere += [value or "" for key, value in attrs if key in ("src", "href") and value != "data:,"]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def test_html(capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes) -> None:
    name = "</script><b>&lib.so"
    source = stock(tmp_path / "stock", [tar_of({**package(fat), name: fat})])
    page = tmp_path / "page.html"
    code, _, _ = run(capsys, "image", source, f"oci:{tmp_path}/cut:x", "--gpu", "9.0", "--report", page)
    assert code == ExitCode.OK
    parsed = _Page()
    parsed.feed(page.read_text())
    assert not parsed.elsewhere
    data = json.loads(parsed.scripts[0])
    assert name in {row["path"] for row in data["images"][0]["libraries"]}
    assert "<b>&lib.so" not in page.read_text()
    assert "libdemo.so" in page.read_text()


def test_words_that_are_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str) -> None:
    for words, expected in (
        (["image", source, "nowhere", "--gpu", "9.0"], ExitCode.USAGE),
        (["image", source, f"oci:{tmp_path}/cut:x", "--gpu", "9.0", "--drop", "nothing"], ExitCode.NO_MATCH),
        (["image", f"oci:{tmp_path}/none:x", f"oci:{tmp_path}/cut:x", "--gpu", "9.0"], ExitCode.NO_MATCH),
        (["image", source, source, "--gpu", "9.0"], ExitCode.USAGE),
        (["image", source, f"oci:{tmp_path}/cut:x"], ExitCode.USAGE),
        (["image", source, f"oci:{tmp_path}/cut:x", "--gpu", "9.0", "--compress", "xz"], ExitCode.USAGE),
    ):
        code, _, err = run(capsys, *words)
        assert code == expected, words
        assert err and "Traceback" not in err
        assert not (tmp_path / "cut").exists()


def test_tailor_names_the_command_for_images(capsys: pytest.CaptureFixture[str], source: str) -> None:
    for name in (source, "docker://registry.local/app:1"):
        code, _, err = run(capsys, "tailor", name, "--gpu", "9.0")
        assert code == ExitCode.USAGE
        assert "`torchtailor image` cuts images" in err


def test_inspect(capsys: pytest.CaptureFixture[str], source: str) -> None:
    code, out, _ = run(capsys, "inspect", source, "--gpu", "9.0", "--json")
    document = json.loads(out)
    assert code == ExitCode.OK
    (found,) = document["inputs"]
    assert found["path"] == source and found["kind"] == "image"
    assert {row["name"] for row in found["libraries"]} == {"demo/lib/libdemo.so", "libcublas.so.12"}
    assert "headers" in {row["rule"] for row in document["droppable"]}


def test_inspect_names_the_command_for_images(capsys: pytest.CaptureFixture[str], source: str) -> None:
    code, out, _ = run(capsys, "inspect", source, "--gpu", "9.0")
    assert code == ExitCode.OK
    assert "`image --drop` could leave out" in out and "`torchtailor image --dry-run` tells exactly" in out


def test_verify(capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str) -> None:
    target = f"oci:{tmp_path}/cut:x"
    assert run(capsys, "image", source, target, "--gpu", "9.0", "--nvidia")[0] == ExitCode.OK
    code, out, _ = run(capsys, "verify", target, "--against", source, "--level", "static")
    assert code == ExitCode.OK
    assert "as GPU 9.0 (from the image's label)" in out
    assert "1 library with their hashes" in out
    assert "1 library is the file that torchtailor wrote" in out
    assert "cut for 9.0" in out
    assert "byte for byte" in out
    code, out, _ = run(capsys, "verify", target, "--against", source, "--level", "static", "--gpu", "8.0")
    assert code == ExitCode.CHECK_FAILED


def test_verify_sees_a_wrong_record(capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes) -> None:
    files = package(fat)
    library = next(name for name in files if name.endswith(".so"))
    source = stock(tmp_path / "stock", [tar_of({**files, library: fat + bytes(512)})])
    code, out, _ = run(capsys, "verify", source, "--level", "static")
    assert code == ExitCode.CHECK_FAILED
    assert "differ from RECORD" in out


def test_platforms(capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes) -> None:
    layout = Layout(tmp_path / "stock")
    rows = [
        {
            **layout.image([tar_of({f"{arch}.so": fat})], architecture=arch),
            "platform": {"os": "linux", "architecture": arch},
        }
        for arch in ("riscv64", "s390x")
    ]
    data = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}).encode()
    source = layout.name(layout.blob(data, INDEX))
    code, _, err = run(capsys, "inspect", source)
    assert code == ExitCode.BAD_INPUT and "--platform" in err
    code, out, _ = run(capsys, "inspect", source, "--platform", "linux/s390x", "--json")
    assert code == ExitCode.OK
    assert json.loads(out)["inputs"][0]["libraries"][0]["name"] == "s390x.so"


def test_a_path_that_looks_like_a_name(capsys: pytest.CaptureFixture[str], tmp_path: Path, fat: bytes) -> None:
    (tmp_path / "oci:x.so").write_bytes(fat)
    code, out, _ = run(capsys, "inspect", tmp_path / "oci:x.so")
    assert code == ExitCode.OK and "oci:x.so" in out

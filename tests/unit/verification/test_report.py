"""The page and the bars show the figures of the JSON, whatever is in it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from torchtailor.core.documents import plain
from torchtailor.verification.output import as_document, write_junit
from torchtailor.verification.report import render, write_report
from torchtailor.verification.report.chart import chart
from torchtailor.verification.report.terminal import bars
from torchtailor.verification.result import HOST, Check, Level, VerifyReport

EVIL = "</script><img src=x onerror=alert(1)>&\"'"


def library(name: str, now: dict[str, int], before: dict[str, int] | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "owner": "", "size": sum(now.values()), "bytes": now, "before": None}
    if before:
        row["before"] = {"name": name, "owner": "", "size": sum(before.values()), "bytes": before}
    return row


def report(**facts: Any) -> VerifyReport:
    libraries = [
        library(
            "torch/lib/libtorch_cuda.so",
            {HOST: 85_000_000, "sm_90": 143_000_000},
            {HOST: 112_000_000, "sm_80": 180_000_000, "sm_90": 143_000_000, "sm_100": 160_000_000},
        ),
        library("torch/lib/libtorch_cpu.so", {HOST: 356_000_000}, {HOST: 448_000_000}),
        *(library(f"torch/lib/small{i}.so", {HOST: 1000 + i}) for i in range(30)),
    ]
    checks = (
        Check.of(Level.STATIC, "GPU code for sm90: libtorch_cuda.so", True, "native (sm_90)", library="x"),
        Check.of(Level.STATIC, EVIL, False, f"because {EVIL}", detail=EVIL),
        Check.not_applicable(Level.GPU, "op suite", "there is no NVIDIA GPU in this machine"),
    )
    known = {
        "libraries": libraries,
        "size": 649_000_000,
        "stock": {"path": "stock", "size": 1_720_000_000, "from": "--against"},
        "wheels": [{"name": "torch.whl", "size": 649_000_000}],
        "install": ["pip install torch.whl"],
        "total_seconds": 12.5,
    }
    return VerifyReport("dist/sm90-avx2", checks, {**known, **facts})


class Page(HTMLParser):
    """What a page holds: embedded data, drawn bytes, lines."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.data, self._in_data = "", False
        self.rects: list[dict[str, str | None]] = []
        self.lines: list[str | None] = []
        self.outside: list[str] = []
        self.images = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._in_data = tag == "script" and found.get("id") == "data"
        self.images += tag == "img"
        for name in ("src", "href"):
            if (found.get(name) or "").startswith(("http", "//")):
                self.outside.append(str(found[name]))
        if tag == "rect":
            self.rects.append(found)
        if tag == "li" and "data-outcome" in found:
            self.lines.append(found["data-outcome"])

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in_data = False


def test_the_json_is_inside() -> None:
    page = Page(render(report()))
    assert json.loads(page.data) == json.loads(json.dumps(plain(as_document(report()))))


def test_every_check_is_a_line() -> None:
    assert Page(render(report())).lines == ["pass", "fail", "not-applicable"]


def test_drawn_bytes_add_up_to_the_figures() -> None:
    page = Page(render(report()))
    libraries = as_document(report()).facts["libraries"]
    now = [int(rect["data-bytes"] or 0) for rect in page.rects if rect["data-when"] in ("now", "after")]
    # the sum is drawn once as a whole and once by library
    assert sum(now) == 2 * sum(row["size"] for row in libraries)
    before = [int(rect["data-bytes"] or 0) for rect in page.rects if rect["data-when"] == "before"]
    assert sum(before) == 2 * sum((row["before"] or row)["size"] for row in libraries)


def test_nothing_comes_from_elsewhere() -> None:
    text = render(report())
    assert Page(text).outside == []
    assert "@import" not in text
    assert not re.search(r"url\((?!data:)", text)


def test_names_cannot_break_out() -> None:
    text = render(report(kind=EVIL))
    assert Page(text).images == 0
    assert text.count("</script>") == 2


def test_no_past_no_libraries_no_facts() -> None:
    for libraries in ([], [library("a.so", {HOST: 5})]):
        assert Page(render(report(libraries=libraries, stock=None))).lines
    assert Page(render(VerifyReport("x", ()))).lines == []


def cards(text: str) -> list[str]:
    return re.findall(r'data-figure="(\w+)"', text)


def test_no_card_repeats_another() -> None:
    """A folder has no download, and what is on disk is its libraries."""
    assert cards(render(report())) == ["download", "installed", "gpu", "checks", "time"]
    assert cards(render(report(wheels=[]))) == ["installed", "gpu", "checks", "time"]
    assert cards(render(report(wheels=[], stock=None))) == ["installed", "gpu", "checks", "time"]
    assert "download" in cards(render(report(stock=None)))
    assert "download" in cards(render(report(wheels=[], libraries=[library("a.so", {HOST: 5})])))


def test_a_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    name = "caf\udce9.so"
    check = Check.of(Level.STATIC, name, False, f"{name} is wrong", library=Path(name))
    found = VerifyReport(f"dist/{name}", (check,), {"libraries": [library(name, {HOST: 5})]})
    write_report(found, tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text("utf-8"))
    assert json.loads(page.data)["target"] == f"dist/{name}"
    write_junit(found, tmp_path / "junit.xml")
    case = ElementTree.parse(tmp_path / "junit.xml").getroot().find(".//testcase")
    assert case is not None and case.attrib["name"] == r"caf\udce9.so"


def test_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    write_report(report(), path)
    assert path.read_text().startswith("<!doctype html>")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_chart_folds_the_many() -> None:
    drawn = chart(report().facts)
    assert drawn.rows[-1].name == "30 smaller libraries"
    assert drawn.before is not None
    assert drawn.now.total == sum(row.now.total for row in drawn.rows)
    assert drawn.labels == (HOST, "sm_80", "sm_90", "sm_100")


def test_many_architectures_share_one_label() -> None:
    many = {f"sm_{number}": number * 1000 for number in range(50, 70)}
    drawn = chart({"libraries": [library("a.so", {HOST: 10, **many})]})
    assert drawn.labels[-1] == "other architectures"
    assert drawn.now.total == 10 + sum(many.values())


def test_bars_are_as_long_as_their_bytes() -> None:
    lines = [line.plain for line in bars(report().facts, 120)]
    cuda = next(line for line in lines if line.startswith("libtorch_cuda.so"))
    assert cuda.rstrip().endswith("595 MB")
    drawn = cuda[37:].split(" ")[0]
    assert {letter: drawn.count(letter) for letter in "·ABC"} == {"·": 14, "A": 21, "B": 18, "C": 19}
    assert any("saved 459 MB of 1.04 GB (44%)" in line for line in lines)


def test_bars_of_nothing() -> None:
    assert list(bars({"libraries": []}, 80)) == []


def test_the_answer_comes_first_and_says_how_far_it_was_verified() -> None:
    covered = Check.of(Level.STATIC, "coverage against stock", True, "all", images=12185)
    imported = Check.of(Level.IMPORT, "import torch", True, "torch 2.10.0")
    not_here = Check.not_applicable(Level.GPU, "op suite", "there is no GPU")
    facts = {**report().facts, "torch": "2.10.0", "expected": {"gpus": ["9.0"]}}
    page = render(VerifyReport("x", (covered, imported, not_here), facts))
    assert "Verified to level 2 of 3 (import)" in page
    assert "All 12185 images that GPU 9.0 would load are there, byte for byte." in page
    assert "PyTorch 2.10.0 for GPU 9.0" in page
    assert page.index("% smaller") < page.index("At a glance")
    manifest = render(VerifyReport("x", (imported,), {**facts, "kept_images": 77}))
    assert "All 77 images kept for GPU 9.0 are stock's, byte for byte" in manifest
    assert "Do not use it: 1 check failed." in render(report())

"""The page of traces shows the figures of the JSON, whatever is in it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from torchtailor.cli import main
from torchtailor.verification.report.traces import render_traces, write_trace_report
from torchtailor.workload.trace import Trace, TracedLibrary, write_trace

EVIL = "</script><img src=x onerror=alert(1)>&\"'"
TORCH, CUDNN = "a" * 32, "b" * 32
CNN = Trace(
    libraries=(
        TracedLibrary(TORCH, "libtorch_cuda.so", 444, (1, 2, 7), 298_000_000, 17_800_000),
        TracedLibrary(CUDNN, "libcudnn_ops.so.9", 22, (3,), 34_400_000, 8_970_000),
    ),
    opened=("torch/lib/libtorch_cuda.so", "torch/__init__.py", "numpy/__init__.py"),
    programs=("python cnn.py",),
    processes=1,
)
DECODER = Trace(
    libraries=(TracedLibrary(TORCH, "libtorch_cuda.so", 444, (1, 9), 298_000_000, 20_800_000),),
    opened=("torch/__init__.py",),
    processes=2,
)


class Page(HTMLParser):
    """What a page holds: embedded data, bars, the cells of its tables, and elements that it should not have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.data, self._inside = "", ""
        self.bars: dict[tuple[str, str], int] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: set[str] = set()
        self._table, self._library = "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.add(tag)
        self._inside = "data" if known.get("id") == "data" else tag
        if tag == "g":
            self._library = known["data-library"] or ""
        elif tag == "rect":
            self.bars[self._library, known["data-trace"] or ""] = int(known["data-bytes"] or 0)
        elif tag == "table":
            self._table = known["id"] or ""
        elif tag == "tr":
            self.tables.setdefault(self._table, []).append([])
        elif tag in ("td", "th"):
            self.tables[self._table][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        elif self._inside in ("td", "th"):
            self.tables[self._table][-1][-1] += data


def test_several_traces_side_by_side() -> None:
    page = Page(render_traces({"runs/cnn.trace": CNN, "runs/decoder.trace": DECODER}))
    assert page.bars == {
        ("libtorch_cuda.so", "0"): 17_800_000,
        ("libtorch_cuda.so", "1"): 20_800_000,
        ("libcudnn_ops.so.9", "0"): 8_970_000,
    }
    assert page.tables["used"][0] == ["", "The library has", "cnn.trace", "decoder.trace"]
    assert page.tables["used"][2:] == [
        ["libtorch_cuda.so", "444", "298 MB", "3", "17.8 MB", "2", "20.8 MB"],
        ["libcudnn_ops.so.9", "22", "34.4 MB", "1", "8.97 MB", "", ""],
        ["All", "466", "332 MB", "4", "26.8 MB", "2", "20.8 MB"],
    ]
    assert page.tables["opened"][1:] == [["torch", "2", "1"], ["numpy", "1", ""], ["All", "3", "1"]]
    names = [one["trace"] for one in json.loads(page.data)["traces"]]
    assert names == ["runs/cnn.trace", "runs/decoder.trace"]


def test_names_that_are_the_same_are_told_apart() -> None:
    page = Page(render_traces({"a/app.trace": CNN, "b/app.trace": DECODER}))
    assert page.tables["used"][0][2:] == ["a/app.trace", "b/app.trace"]


def test_many_packages_are_folded_and_none_is_lost() -> None:
    opened = tuple(sorted(f"package{index}/__init__.py" for index in range(40)))
    page = Page(render_traces({"app.trace": Trace(opened=opened)}))
    rows = page.tables["opened"][1:]
    assert rows[-2:] == [["28 others", "28"], ["All", "40"]]
    assert len(rows) == 14


def test_nothing_was_used() -> None:
    text = render_traces({"app.trace": Trace()})
    assert "No GPU code was loaded." in text
    assert "The traces name no files" in text


def test_hostile_names() -> None:
    library = TracedLibrary("c" * 32, EVIL.replace("/", ""), 1, (0,), 5, 5)
    trace = Trace(libraries=(library,), opened=(EVIL,), programs=(EVIL,), lost=(EVIL,))
    text = render_traces({EVIL: trace, f"b{EVIL}": CNN})
    page = Page(text)
    assert "img" not in page.tags
    assert text.count("</script>") == 2
    assert json.loads(page.data)["traces"][0]["programs"] == [EVIL]


def test_a_file_name_that_is_not_utf8(tmp_path: Path) -> None:
    write_trace_report({"caf\udce9.trace": Trace()}, tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text("utf-8"))
    assert json.loads(page.data)["traces"][0]["trace"] == "caf\udce9.trace"


def test_it_asks_nobody_else() -> None:
    text = render_traces({"cnn.trace": CNN})
    assert not re.search(r"(?:src|href)=\"(?!data:)|url\(|@import|https?://", text)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, trace in (("cnn", CNN), ("decoder", DECODER)):
        write_trace(tmp_path / f"{name}.trace", trace)
    page = tmp_path / "new" / "used.html"
    traces = [str(tmp_path / "cnn.trace"), str(tmp_path / "decoder.trace")]
    assert main(["trace", "show", *traces, "--json", "--report", str(page)]) == 0
    merged = json.loads(capsys.readouterr().out)
    one, two = json.loads(Page(page.read_text()).data)["traces"]
    used = [{library["name"]: library["used"] for library in trace["libraries"]} for trace in (one, two, merged)]
    assert used[0] == {"libtorch_cuda.so": 3, "libcudnn_ops.so.9": 1}
    assert used[1] == {"libtorch_cuda.so": 2}
    assert used[2] == {"libtorch_cuda.so": 4, "libcudnn_ops.so.9": 1}

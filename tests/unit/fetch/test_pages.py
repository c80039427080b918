"""Index pages in both formats, with all that may be on them and much that should not be."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fetch.packages import Package, json_page
from torchtailor.core.errors import NetworkError
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.pages import JSON_TYPE, list_folder, parse_page, read_anchors

SOURCE = IndexLocation("https://index/simple", LocationKind.INDEX, "test")
URL = "https://index/simple/torch/"

HTML = f"""<!DOCTYPE html><html><head><base href="https://files/"></head><body>
<a href="a/torch-2.8.0%2Bcu128-cp313-cp313-linux_x86_64.whl#sha256={"ABCDEF01" * 8}" data-requires-python="&gt;=3.9"
   data-dist-info-metadata="sha256={"00ff" * 16}" data-core-metadata="sha256={"11ee" * 16}">torch</a><br>
<a href="../torch-2.8.0-cp313-cp313-linux_x86_64.whl#egg=torch&amp;sha512={"12ab" * 32}" data-yanked="broken">x</a>
<a href="torch-2.8.0.tar.gz">source</a>
<a href="torch-2.8.0-cp313-cp313-linux_x86_64-cu128_sm90.whl">a wheel variant</a>
<a href="torch-2.9.0-cp313-cp313-linux_x86_64.whl" data-core-metadata="true">unclosed
<a>no address</a>
<a href="torch-2.9.1-cp313-cp313-linux_x86_64.whl" data-core-metadata="false">last</a></body></html>""".encode()


def test_html() -> None:
    labelled, yanked, newer, last = parse_page(HTML, "text/html; charset=utf-8", URL, SOURCE)
    assert labelled.filename == "torch-2.8.0+cu128-cp313-cp313-linux_x86_64.whl"
    assert str(labelled.version) == "2.8.0+cu128"
    assert labelled.url == "https://files/a/torch-2.8.0%2Bcu128-cp313-cp313-linux_x86_64.whl"
    assert labelled.hashes == {"sha256": "abcdef01" * 8}
    assert labelled.requires_python == ">=3.9"
    assert labelled.metadata == {"sha256": "11ee" * 16}
    assert yanked.yanked and yanked.best_hash == ("sha512", "12ab" * 32) and yanked.metadata is None
    assert yanked.url == "https://files/torch-2.8.0-cp313-cp313-linux_x86_64.whl"
    assert newer.metadata == {} and newer.best_hash is None
    assert last.metadata is None


def test_json() -> None:
    package = Package("torch", "2.8.0", requires_python=">=3.9")
    (file,) = parse_page(json_page([package]), JSON_TYPE, URL, SOURCE)
    assert file.url == f"https://index/files/{package.filename}"
    assert file.size == len(package.wheel())
    assert file.requires_python == ">=3.9"
    assert file.metadata and not file.yanked


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"files": [{"filename": 3}]}', b'{"files": {}}', b"\xff\xfe"])
def test_bad_json_is_a_clear_error(body: bytes) -> None:
    with pytest.raises(NetworkError, match="not valid JSON of a package index"):
        parse_page(body, JSON_TYPE, URL, SOURCE)


@given(st.binary(max_size=400))
def test_any_bytes_as_html_are_some_list_of_wheels(body: bytes) -> None:
    for file in parse_page(body, "text/html", URL, SOURCE):
        assert file.filename.endswith(".whl")


@given(st.text(alphabet='<a href="torch-1.0py3nonecp.whl#sha256=>/&;', max_size=200))
def test_html_like_text_never_fails(text: str) -> None:
    parse_page(text.encode(), "text/html", URL, SOURCE)


def test_folder(tmp_path: Path) -> None:
    package = Package("torch", "2.8.0+cpu")
    (tmp_path / package.filename).write_bytes(package.wheel())
    (tmp_path / "README.md").write_text("no wheel")
    (tmp_path / "odd.whl").write_text("no wheel's name")
    (file,) = list_folder(tmp_path, SOURCE)
    assert (file.local_path, file.size) == (tmp_path / package.filename, len(package.wheel()))
    with pytest.raises(NetworkError, match="cannot be read"):
        list_folder(tmp_path / "none", SOURCE)


WHEEL = "torch-2.8.0-py3-none-any.whl"


def page(**changes: object) -> bytes:
    file: dict[str, object] = {"filename": WHEEL, "url": f"../{WHEEL}", "hashes": {"sha256": "0" * 64}}
    return json.dumps({"files": [file | changes]}).encode()


@pytest.mark.parametrize(
    "body",
    [
        page(hashes={"sha256": "/some/dir"}),
        page(hashes={"sha256": "../" * 21 + "x"}),
        page(hashes={"sha256": "0" * 63}),
        page(hashes={"sha512": "0" * 64}),
        page(filename=f"torch-{'1' * 5000}-py3-none-any.whl"),
        page(filename="torch-2.8.0-py3-none-any/../../../x.whl"),
        page(filename="torch-2.8.0-py3-none-any\x1b[2J.whl"),
        page(url="http://[x"),
        page(url="http://host:port/x"),
    ],
)
def test_what_is_not_offered(body: bytes) -> None:
    """A hash that is none, a name that is a path, an address that is none."""
    assert parse_page(page(), JSON_TYPE, URL, SOURCE) != ()
    assert parse_page(body, JSON_TYPE, URL, SOURCE) == ()


@pytest.mark.parametrize("size", [10**30, -1, 2**63, 1e400, "5", [], {}])
def test_sizes_that_nothing_has(size: object) -> None:
    with pytest.raises(NetworkError, match="is not valid JSON of a package index"):
        parse_page(page(size=size), JSON_TYPE, URL, SOURCE)


@pytest.mark.parametrize("href", ["http://[x", "http://h:x/" + WHEEL, f"{WHEEL}#sha256=00", "x%2f..%2f" + WHEEL])
def test_links_that_are_not_offered(href: str) -> None:
    assert parse_page(f'<a href="{href}">x</a>'.encode(), "text/html", URL, SOURCE) == ()


@pytest.mark.parametrize(
    "text",
    [
        f'<a href="file:///home/somebody/{WHEEL}">x</a>',
        f'<a href="FILE:/{WHEEL}">x</a>',
        f'<a href="file://localhost/{WHEEL}">x</a>',
        f'<base href="file:///home/"><a href="{WHEEL}">x</a>',
        f'<a href="javascript:alert(1)//{WHEEL}">x</a>',
        f'<a href="data:application/zip;base64,AAAA/{WHEEL}">x</a>',
        f'<a href="ftp://files/{WHEEL}">x</a>',
    ],
)
def test_a_server_offers_only_what_servers_have(text: str, tmp_path: Path) -> None:
    """No file of this machine; a page of this machine may name one."""
    link = text.partition('href="')[2].partition('"')[0]
    assert parse_page(text.encode(), "text/html", URL, SOURCE) == ()
    assert parse_page(page(url=link), JSON_TYPE, URL, SOURCE) == ()
    here = parse_page(text.encode(), "text/html", (tmp_path / "links.html").as_uri(), SOURCE)
    assert len(here) == ("file:" in text.lower())


def test_deep_json() -> None:
    deep = b'{"meta": ' + b"[" * 100_000 + b"]" * 100_000 + b', "files": []}'
    try:
        assert parse_page(deep, JSON_TYPE, URL, SOURCE) == ()  # Python 3.14 reads it
    except NetworkError as error:
        assert "not valid JSON" in error.message


@pytest.mark.parametrize("piece", ["<a ", "<", "<a href='", '<a "', "<!--", "<a\t=", "<!-- <a >", "a<b", "</a"])
def test_broken_html_is_read_in_one_pass(piece: str) -> None:
    began = time.process_time()
    parse_page((piece * 200_000).encode(), "text/html", URL, SOURCE)
    assert time.process_time() - began < 5


def test_comments_quotes_and_text() -> None:
    body = f'<!-- <a href="{WHEEL}">no</a> --><a title="a > b" href=\'x/{WHEEL}\'>a &lt; b</a><A HREF={WHEEL}>y</A>'
    first, second = parse_page(body.encode(), "text/html", URL, SOURCE)
    assert (first.url, second.url) == (f"{URL}x/{WHEEL}", f"{URL}{WHEEL}")
    (link, _), _ = read_anchors(body)
    assert link.text == "a < b"

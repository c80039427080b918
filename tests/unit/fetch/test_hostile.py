"""Servers that drip, lie or hold us, certificates and settings that are none: one sentence, in time."""

from __future__ import annotations

import configparser
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.unit.fetch.packages import Package, json_page
from tests.unit.fetch.serving import Fault, Site
from tests.waiting import LONG, not_hanging
from torchtailor.core.errors import BadInputError, NetworkError, UsageError
from torchtailor.core.urls import redact, without_login
from torchtailor.fetch import client, pipconfig
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.client import Client, ContentRange, worker_threads
from torchtailor.fetch.download import Downloader
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.metadata import Facts
from torchtailor.fetch.pages import JSON_TYPE
from torchtailor.fetch.resolve import needs
from torchtailor.fetch.settings import IndexSettings, read_settings
from torchtailor.fetch.target import Target

Make = Callable[..., IndexSettings]
TARGET = Target("3.13", "x86_64")
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\n\r\n"


@contextmanager
def dripping(seconds: float, head: bytes = _HEAD) -> Iterator[str]:
    """A server that sends one byte at a time after a head, for ever."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(head)
                while not stop.wait(seconds):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        return

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            stop.set()
            thread.join(5)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: "])
def test_a_head_that_drips_times_out(settings: Make, monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    """Also where what came of it would pass for a whole one."""
    monkeypatch.setattr(client, "_SMALL_RESPONSE", 0.3)
    with not_hanging("a head"), dripping(0.02, head) as url, pytest.raises(NetworkError, match="timed out"):
        Client(settings(timeout=0.1, retries=0)).get(url)


def test_a_page_that_drips_times_out(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_SMALL_RESPONSE", 0.3)
    with dripping(0.02) as url, pytest.raises(NetworkError, match="sends too slowly"):
        Client(settings(timeout=1.0, retries=0)).get(url)


def test_breaking_off_frees_a_thread_that_a_server_holds(settings: Make) -> None:
    requests = Client(settings(timeout=2 * LONG, retries=0))
    with dripping(0.02) as url:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt), worker_threads(1) as pool:
            waiting = pool.submit(requests.get, url)
            while not requests._open:
                time.sleep(0.01)
            requests.abort()
            raise KeyboardInterrupt
        assert waiting.exception(LONG) is not None
        assert time.monotonic() - began < LONG


def serve_metadata(site: Site, package: Package, text: bytes) -> None:
    site.content[f"/simple/{package.name}/"] = json_page([package])
    site.types[f"/simple/{package.name}/"] = JSON_TYPE
    site.content[f"/files/{package.filename}"] = package.wheel()
    site.content[f"/files/{package.filename}.metadata"] = text


@pytest.mark.parametrize("said", [("evil==1.0",), ()])
def test_metadata_beside_a_wheel_that_says_something_else(
    site: Site, settings: Make, cache: Cache, said: tuple[str, ...]
) -> None:
    package = Package("thing", "1.0", requires=("good>=1",))
    other = Package("thing", "1.0", requires=said)
    site.content["/simple/thing/"] = json_page([package]).replace(
        _sha256(package.metadata).encode(), _sha256(other.metadata).encode()
    )
    site.types["/simple/thing/"] = JSON_TYPE
    site.content[f"/files/{package.filename}"] = package.wheel()
    site.content[f"/files/{package.filename}.metadata"] = other.metadata
    finder = Finder(settings(), cache)
    (file,) = finder.all_files("thing")
    assert {str(item) for item in finder.facts(file).requires} == set(said)
    with pytest.raises(NetworkError, match="other dependencies than the metadata"):
        Downloader(finder.client, cache).fetch([file])
    assert not list((cache.root / "blobs").rglob("*.whl"))


def test_metadata_that_agrees(site: Site, settings: Make, cache: Cache) -> None:
    package = Package("thing", "1.0", requires=("good >= 1 ; python_version >= '3'",))
    serve_metadata(site, package, package.metadata)
    finder = Finder(settings(), cache)
    (file,) = finder.all_files("thing")
    finder.facts(file)
    assert Downloader(finder.client, cache).fetch([file])[file.url].path.is_file()


def _sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def test_kept_pages_are_readable_by_nobody_else(cache: Cache) -> None:
    cache.write_note("pages", "https://user:secret@host/", b"page")
    (note,) = (cache.root / "pages").iterdir()
    assert note.stat().st_mode & 0o777 == 0o600


def test_a_hash_is_never_a_path(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "x.whl").write_bytes(b"x")
    assert cache.find(str(tmp_path / "dir"), "x.whl") is None
    assert cache.find("0" * 64, "../../x.whl") is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:secret@host/x", "https://****@host/x"),
        ("https://a:b@c:d@host/x", "https://****@host/x"),
        ("https://host/x@y", "https://host/x@y"),
        ("http://[x", "http://[x"),
        ("http://user:secret@[x", "http://****@[x"),
        ("user:secret@host", "****@host"),
        ("/a/path", "/a/path"),
    ],
)
def test_passwords_are_not_shown(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert without_login(text) == shown.replace("****@", "")


@pytest.mark.parametrize(
    "text",
    [
        "index-url = https://user:secret@host/simple\n",
        "[global]\nsecret without a sign\n",
        "[global]\na=1\na=secret\n",
    ],
)
def test_a_damaged_pip_configuration_shows_no_password(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pip.conf"
    path.write_text(text)
    with pytest.raises(UsageError, match="cannot be read") as caught:
        pipconfig.read({"PIP_CONFIG_FILE": str(path), "HOME": str(tmp_path)})
    assert "secret" not in caught.value.message + caught.value.hint
    assert not isinstance(caught.value.__cause__, configparser.Error)


@pytest.mark.parametrize(
    "environment",
    [
        {"PIP_TIMEOUT": "nan"},
        {"PIP_TIMEOUT": "-1"},
        {"PIP_TIMEOUT": "0"},
        {"PIP_TIMEOUT": "inf"},
        {"PIP_RETRIES": "nan"},
        {"PIP_RETRIES": "-5"},
        {"PIP_RETRIES": "1e400"},
        {"PIP_RETRIES": "many"},
        {"PIP_INDEX_URL": "http://[x"},
        {"PIP_INDEX_URL": "http://host:port"},
        {"PIP_CERT": "/nowhere/at/all"},
    ],
)
def test_settings_that_are_none(tmp_path: Path, environment: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        read_settings(
            environment=environment | {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}, directory=tmp_path
        )


def test_certificates_that_are_none(settings: Make, tmp_path: Path) -> None:
    bad = tmp_path / "ca.pem"
    bad.write_text("no certificate")
    for choice in ({"ca_bundle": bad}, {"client_cert": bad}, {"proxy": "nosuch://x"}):
        with pytest.raises(UsageError, match="cannot be used"):
            Client(settings(**choice)).get("https://127.0.0.1:1/")


@pytest.mark.parametrize(
    "url", ["http://a..b/", "http://127.0.0.1:1/a b", "http://" + "x" * 300 + "/", "http://127.0.0.1:1/\x00"]
)
def test_addresses_that_are_none(settings: Make, url: str) -> None:
    with pytest.raises(NetworkError):
        Client(settings(retries=0)).get(url)


@pytest.mark.parametrize(
    "line",
    ["x; os_name ~= 'posix'", f"x=={'1' * 5000}", "x; python_version >= 'a.b'", "x @ http://[x", "x;" + "(" * 2000],
)
def test_odd_requirements(line: str) -> None:
    facts = Facts(f"Metadata-Version: 2.1\nName: odd\nVersion: 1\nRequires-Dist: {line}\n".encode(), 1)
    try:
        assert all(isinstance(item, Requirement) for item in needs(facts, TARGET))
    except BadInputError as error:
        assert error.message.endswith(".")


def test_a_full_disk_loses_a_note_and_nothing_else(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtailor.fetch import cache as module

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_atomically", full)
    cache.write_note("pages", "https://host/", b"page")
    assert cache.read_note("pages", "https://host/") is None


@pytest.mark.parametrize("kind", [JSON_TYPE, "text/html"])
def test_a_page_that_arrived_damaged_is_asked_for_again(site: Site, settings: Make, cache: Cache, kind: str) -> None:
    """The server's ETag is that of the good page, so it would say for ever that nothing has changed."""
    package = Package("thing", "1.0")
    serve_metadata(site, package, package.metadata)
    if kind == "text/html":
        site.content["/simple/thing/"] = f'<a href="/files/{package.filename}">x</a>'.encode()
        site.types["/simple/thing/"] = kind
    site.faults["/simple/thing/"] = [Fault(wrong_bytes=True)]
    with suppress(NetworkError):
        assert Finder(settings(), cache).all_files("thing") == ()
    assert len(Finder(settings(), cache).all_files("thing")) == 1
    assert len(Finder(settings(offline=True), cache).all_files("thing")) == 1


@contextmanager
def saying(headers: str) -> Iterator[str]:
    """A server that answers every request with these headers and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(f"HTTP/1.1 206 OK\r\n{headers}\r\n\r\n".encode("latin-1"))

        threading.Thread(target=answer, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/x"


@pytest.mark.parametrize("number", ["9" * 5000, "\xb2", "-1", "x"])
def test_numbers_in_headers_that_are_none(settings: Make, number: str) -> None:
    """More digits than Python converts, and signs that only look like digits, were tracebacks."""
    with saying(f"Content-Length: {number}\r\nContent-Range: bytes {number}-1/2") as url:
        with Client(settings()).open(url, method="HEAD", accept=(206,)) as response:
            assert ContentRange.of(response.headers).first is None
        assert Client(settings()).get_range(url, "bytes=0-1", 100).body == b""
    with (
        saying(f"Content-Range: bytes */{number}") as url,
        Client(settings()).open(url, method="HEAD", accept=(206,)) as response,
    ):
        assert ContentRange.of(response.headers).size is None

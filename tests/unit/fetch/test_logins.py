"""Who is told which login: indexes, the files they link to, other hosts, and proxies."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.fetch.packages import Package, html_index, json_page
from tests.unit.fetch.serving import Fault, Site, serve
from tests.waiting import not_hanging
from torchtailor.core.errors import NetworkError, UsageError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.client import Client
from torchtailor.fetch.download import Downloader
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.pages import JSON_TYPE, WheelAddress, parse_page
from torchtailor.fetch.settings import IndexSettings

Make = Callable[..., IndexSettings]

THING = Package("thing", "1.0")
WHEEL = "thing-1.0-py3-none-any.whl"


def basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


@pytest.mark.parametrize("password", ["a%40b", "plain", "100%"])
def test_a_password_of_netrc_is_sent_as_it_stands(site: Site, settings: Make, home: Path, password: str) -> None:
    netrc = home / ".netrc"
    netrc.write_text(f"machine 127.0.0.1 login m%65 password {password}\n")
    netrc.chmod(0o600)
    site.content["/page"] = b"here"
    site.login = basic(f"m%65:{password}")
    assert Client(settings()).get(f"{site.url}/page").body == b"here"


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("%E2%82%AC", "€".encode()),
        ("€", "€".encode()),
        ("%C3%A9", "é".encode()),
        ("%E9", b"\xe9"),  # Latin-1, which the server may know it as
        ("\udce9", b"\xe9"),  # a byte of the environment that is no UTF-8
    ],
)
def test_a_password_with_any_letters_is_sent(site: Site, settings: Make, written: str, sent: bytes) -> None:
    site.content["/page"] = b"here"
    site.login = "Basic " + base64.b64encode(b"me:" + sent).decode()
    address = site.url.replace("://", f"://me:{written}@")
    assert Client(settings()).get(f"{address}/page").body == b"here"


@pytest.mark.parametrize("login", ["me:\ud800@", "[x"])
def test_an_address_that_cannot_be_sent_is_a_clear_error(settings: Make, login: str) -> None:
    with pytest.raises(NetworkError, match="is not a valid address") as caught:
        Client(settings()).get(f"http://{login}127.0.0.1:1/")
    assert "\ud800" not in caught.value.message


def test_a_password_of_netrc_may_have_any_letters(site: Site, settings: Make, home: Path) -> None:
    (home / ".netrc").write_text("machine 127.0.0.1 login me password €\n", "utf-8")
    (home / ".netrc").chmod(0o600)
    site.content["/page"] = b"here"
    site.login = basic("me:€")
    assert Client(settings()).get(f"{site.url}/page").body == b"here"


def test_the_netrc_that_is_named(site: Site, settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "named"))
    site.content["/page"] = b"here"
    site.login = basic("me:secret")
    assert Client(settings()).get(f"{site.url}/page").body == b"here"


@pytest.mark.parametrize("content", [b"machine x login me password caf\xe9\n", b"machine\n", b"\0"])
def test_a_netrc_that_cannot_be_read_is_left_aside(site: Site, settings: Make, home: Path, content: bytes) -> None:
    (home / ".netrc").write_bytes(content)
    (home / ".netrc").chmod(0o600)
    site.content["/page"] = b"here"
    assert Client(settings()).get(f"{site.url}/page").body == b"here"


@pytest.mark.parametrize("harm", ["pipe", "zero", "hole"])
def test_a_netrc_that_is_no_small_plain_file_is_left_aside(site: Site, settings: Make, home: Path, harm: str) -> None:
    """A pipe would be waited for, and the others read until the memory is full."""
    match harm:
        case "pipe":
            os.mkfifo(home / ".netrc")
        case "zero":
            (home / ".netrc").symlink_to("/dev/zero")
        case "hole":
            with (home / ".netrc").open("wb") as file:
                file.truncate(2 << 30)
    site.content["/page"] = b"here"
    with not_hanging("a netrc"):
        assert Client(settings()).get(f"{site.url}/page").body == b"here"


def private(site: Site, settings: Make, login: str = "me:s%40cret") -> IndexSettings:
    """A site that wants a login, as an index whose URL has one."""
    site.login = basic("me:s@cret")
    address = f"{site.url.replace('://', f'://{login}@')}/simple"
    return settings(sources=(IndexLocation(address, LocationKind.INDEX, "test"),), retries=0)


def fetch_thing(settings: IndexSettings, cache: Cache) -> bytes:
    finder = Finder(settings, cache)
    (file,) = finder.all_files("thing")
    assert finder.facts(file).text == THING.metadata
    return Downloader(finder.client, cache).fetch([file])[file.url].path.read_bytes()


@pytest.mark.parametrize("kind", ["text/html", JSON_TYPE])
def test_absolute_links_to_the_same_server_get_the_login_of_the_index(
    site: Site, settings: Make, cache: Cache, kind: str
) -> None:
    site.content |= html_index([THING], prefix="/files/")
    absolute = html_index([THING], prefix=f"{site.url}/files/")["/simple/thing/"]
    site.content["/simple/thing/"] = json_page([THING], prefix=f"{site.url}/files/") if kind == JSON_TYPE else absolute
    site.types["/simple/thing/"] = kind
    site.content[f"/files/{WHEEL}.metadata"] = THING.metadata
    assert fetch_thing(private(site, settings), cache) == THING.wheel()


@pytest.mark.parametrize("absolute", [True, False])
def test_an_index_that_redirects_to_the_same_server_gets_its_login_for_links(
    site: Site, settings: Make, cache: Cache, absolute: bool
) -> None:
    site.content |= html_index([THING], prefix="/files/")
    site.content["/moved/thing/"] = site.content["/simple/thing/"].replace(b"/files/", b"../../files/")
    location = "/moved/thing/"
    site.always["/simple/thing/"] = Fault(status=301, location=site.url + location if absolute else location)
    assert fetch_thing(private(site, settings), cache) == THING.wheel()


def test_another_server_is_not_told_the_login(site: Site, settings: Make, cache: Cache) -> None:
    with serve(Site()) as other:
        other.content |= html_index([THING], prefix="/files/")
        other.always["/first/"] = Fault(status=302, location="/simple/thing/")
        site.always["/simple/thing/"] = Fault(status=302, location=f"{other.url}/first/")
        assert fetch_thing(private(site, settings), cache) == THING.wheel()
        assert other.requests
        assert not [request for request in other.requests if "Authorization" in request.headers]


@pytest.mark.parametrize(
    ("source", "link", "url"),
    [
        ("https://u:p@host/simple", "https://host/f/", "https://u:p@host/f/"),
        ("https://u:p@host/simple", "https://HOST:443/f/", "https://u:p@HOST:443/f/"),
        ("https://u:p@host:443/simple", "//host/f/", "https://u:p@host/f/"),
        ("https://u:p@host/simple", "../f/", "https://u:p@host/f/"),
        ("https://token@host/simple", "/f/", "https://token@host/f/"),
        ("https://u:p@[::1]:8080/simple", "https://[::1]:8080/f/", "https://u:p@[::1]:8080/f/"),
        ("https://u:p@host/simple", "https://host:8443/f/", "https://host:8443/f/"),
        ("https://u:p@host/simple", "http://host/f/", "http://host/f/"),
        ("https://u:p@host/simple", "http://host:443/f/", "http://host:443/f/"),
        ("https://u:p@host/simple", "https://files.host/f/", "https://files.host/f/"),
        ("https://u:p@host/simple", "https://host.evil/f/", "https://host.evil/f/"),
        ("https://u:p@host/simple", "https://host@evil/f/", "https://host@evil/f/"),
        ("https://u:p@host/simple", "https://x:y@host/f/", "https://x:y@host/f/"),
        ("https://host/simple", "https://host/f/", "https://host/f/"),
    ],
)
def test_which_links_get_the_login_of_their_index(source: str, link: str, url: str) -> None:
    page = f'<a href="{link}{WHEEL}">thing</a>'.encode()
    (file,) = parse_page(page, "text/html", "https://host/simple/", IndexLocation(source, LocationKind.INDEX, "test"))
    assert file.url == url + WHEEL
    assert ":p@" not in file.shown


def test_no_login_is_shown_or_kept(site: Site, settings: Make, cache: Cache) -> None:
    site.content |= html_index([THING], prefix="/files/")
    site.content["/simple/thing/"] = f'<a href="{site.url}/files/{WHEEL}">{WHEEL}</a>'.encode()
    fetch_thing(private(site, settings), cache)
    for path in cache.root.rglob("*"):
        assert "cret" not in path.name
        assert path.is_dir() or b"cret" not in path.read_bytes()
    site.always[f"/files/{WHEEL}"] = Fault(status=401)
    (file,) = Finder(private(site, settings), cache).all_files("thing")
    with pytest.raises(NetworkError, match="401") as caught:
        Downloader(Client(settings()), Cache(cache.root / "other")).fetch([file])
    assert "cret" not in caught.value.message + caught.value.hint


def test_the_key_of_a_wheel_does_not_depend_on_who_fetches_it() -> None:
    keys = {WheelAddress(WHEEL, f"https://{login}host/{WHEEL}", {}).key for login in ("", "me:secret@", "you@")}
    assert len(keys) == 1


PAGE = "http://index.invalid/page"


@pytest.fixture
def proxy(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A proxy that wants a login; no variable names it yet."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    site.content[PAGE] = b"here"
    site.proxy_login = basic("me:p@ss/€")
    return site


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_gets_its_login(proxy: Site, settings: Make, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    host = proxy.url.removeprefix("http://")
    monkeypatch.setenv("http_proxy", f"{scheme}me:p%40ss%2F%E2%82%AC@{host}")
    assert Client(settings()).get(PAGE).body == b"here"
    monkeypatch.delenv("http_proxy")
    assert Client(settings(proxy=f"{scheme}me:p%40ss%2F%E2%82%AC@{host}/")).get(PAGE).body == b"here"


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_gets_its_login_before_a_tunnel(
    proxy: Site, settings: Make, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    host = proxy.url.removeprefix("http://")
    monkeypatch.setenv("https_proxy", f"{scheme}me:p%40ss%2F%E2%82%AC@{host}")
    with pytest.raises(NetworkError, match="404"):  # a proxy that knows the login and not the host
        Client(settings(retries=0)).get("https://you:index@index.invalid/page")
    (request,) = proxy.requests
    assert request.headers["Proxy-Authorization"] == proxy.proxy_login
    assert "Authorization" not in request.headers


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_without_login(proxy: Site, settings: Make, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    proxy.proxy_login = ""
    monkeypatch.setenv("http_proxy", scheme + proxy.url.removeprefix("http://"))
    assert Client(settings()).get(PAGE).body == b"here"
    assert "Proxy-Authorization" not in proxy.requests[0].headers


def test_a_proxy_that_refuses_the_login(proxy: Site, settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    address = proxy.url.replace("://", "://me:secret@")
    monkeypatch.setenv("http_proxy", address)
    monkeypatch.setenv("https_proxy", address)
    for url in (PAGE, PAGE.replace("http:", "https:")):
        with pytest.raises(NetworkError, match="407") as caught:
            Client(settings(retries=0)).get(url)
        assert "secret" not in caught.value.message + caught.value.hint
        assert "proxy" in caught.value.hint


@pytest.mark.parametrize(
    "address",
    [
        "http://me:secret@proxy:port",
        "http://me:secret/x@proxy:3128",
        "http://me:secret@[proxy",
        "http://me:secret@:3128",
        "socks5://me:secret@proxy:3128",
        "me:secret@",
        "http://me:secret@a..b:3128",
        "http://me:secret@proxy:99999",
        "http://me:secret\ud800@proxy:3128",
    ],
)
def test_a_proxy_that_is_none_is_named_without_its_login(settings: Make, address: str) -> None:
    with pytest.raises((UsageError, NetworkError)) as caught:
        Client(settings(proxy=address, retries=0)).get(PAGE)
    assert "secret" not in caught.value.message + caught.value.hint
    assert "PIP_PROXY" in caught.value.hint or isinstance(caught.value, NetworkError)

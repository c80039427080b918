"""Who is told which login: indexes, the files they link to, other hosts, and proxies."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.fetch.serving import Site
from torchtailor.errors import NetworkError
from torchtailor.fetch.client import Client
from torchtailor.fetch.settings import IndexSettings

Make = Callable[..., IndexSettings]


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


@pytest.mark.parametrize("content", [b"machine x login me password caf\xe9\n", b"machine\n", b"\0"])
def test_a_netrc_that_cannot_be_read_is_left_aside(site: Site, settings: Make, home: Path, content: bytes) -> None:
    (home / ".netrc").write_bytes(content)
    (home / ".netrc").chmod(0o600)
    site.content["/page"] = b"here"
    assert Client(settings()).get(f"{site.url}/page").body == b"here"

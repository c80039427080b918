"""Who is told which login: indexes, the files they link to, other hosts, and proxies."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.fetch.serving import Site
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

"""Servers that send a few bytes now and then: a download from them ends, and its part stays for the next run."""

from __future__ import annotations

import socket
import time

import pytest
import urllib3

from tests.unit.fetch.test_hostile import Make, dripping
from tests.waiting import LONG
from torchtailor.core.errors import NetworkError
from torchtailor.fetch import client
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.client import Client
from torchtailor.fetch.download import Downloader
from torchtailor.fetch.pages import WheelAddress
from torchtailor.oci.transports.choose import open_source


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_WINDOW", 0.3)
    monkeypatch.setattr(client, "_FIRST_WAIT", 0.01)


def test_a_download_that_drips_ends(settings: Make, cache: Cache) -> None:
    """Each attempt brings some bytes: that alone is no reason to try for ever."""
    began = time.monotonic()
    with dripping(0.01) as url:
        file = WheelAddress("thing-1.0-py3-none-any.whl", f"{url}/thing-1.0-py3-none-any.whl", {}, 100_000)
        with pytest.raises(NetworkError, match=r"comes too slowly: [0-9]+ bytes in [0-9]+ seconds"):
            Downloader(Client(settings(timeout=LONG, retries=0)), cache).fetch([file])
    assert time.monotonic() - began < LONG


def test_a_layer_that_drips_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.oci.transports.samples import sample_image
    from tests.unit.oci.transports.standin import StandIn, serve

    monkeypatch.setattr("torchtailor.oci.transports.registry.RETRIES", 0)
    image = sample_image()
    with serve(StandIn()) as registry, dripping(0.01) as slow:
        registry.add("app", "1", image)
        registry.blobs_at = slow
        with (
            open_source(f"docker://{registry.host}/app:1") as source,
            source.blob(image.layers[0]) as pieces,
            pytest.raises(NetworkError, match="comes too slowly"),
        ):
            list(pieces)


def test_a_name_that_nobody_knows_is_asked_for_twice(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of forty releases asked again."""
    asked = []

    def unknown(self: urllib3.PoolManager, method: str, url: str, **_: object) -> None:
        asked.append(url)
        raise urllib3.exceptions.NameResolutionError("nowhere.invalid", None, socket.gaierror())  # type: ignore[arg-type]

    monkeypatch.setattr(urllib3.PoolManager, "request", unknown)
    asking = Client(settings(retries=2))
    for number in range(4):
        with pytest.raises(NetworkError, match=f"nowhere.invalid/{number} cannot be reached: DNS lookup failed"):
            asking.get(f"https://nowhere.invalid/{number}")
    assert len(asked) == 2

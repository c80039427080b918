"""The stock image keeps its name, however the registry is written."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.oci.transports.samples import SampleImage, layer_tar, sample_image
from tests.unit.oci.transports.standin import StandIn, serve
from tests.unit.tailoring.helpers import options
from torchtailor.core.errors import UsageError
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions


@pytest.fixture
def server() -> Iterator[StandIn]:
    with serve(StandIn()) as started:
        yield started


@pytest.fixture
def image(server: StandIn) -> SampleImage:
    found = sample_image([layer_tar({"a": b"1"})])
    server.add("app", "1", found)
    return found


@pytest.fixture(autouse=True)
def _alias(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name for this machine, as a line in /etc/hosts gives one."""
    real = socket.getaddrinfo

    def known(host: Any, *rest: Any, **more: Any) -> Any:
        return real("127.0.0.1" if host == "registry.test" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", known)


def cut(source: str, target: str) -> str | None:
    return cut_image(source, target, ImageOptions(options()), insecure=True).digest


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]", "x.localhost", "registry.test"])
def test_another_name_of_the_registry(server: StandIn, image: SampleImage, host: str) -> None:
    port = server.host.rpartition(":")[2]
    before = server.manifests["app"]["1"]
    with pytest.raises(UsageError, match="is the image itself"):
        cut(f"docker://{server.host}/app:1", f"docker://{host}:{port}/app:1")
    assert server.manifests["app"]["1"] == before
    assert not server.count("PUT", "") and not server.count("POST", "")


def test_a_tag_that_leads_to_the_digest_that_is_read(server: StandIn, image: SampleImage) -> None:
    source = f"docker://{server.host}/app@{image.digest}"
    with pytest.raises(UsageError, match="is the image itself"):
        cut(source, f"docker://{server.host}/app:1")
    server.add("app", "2", sample_image([layer_tar({"b": b"2"})]))
    for tag in ("2", "new"):  # one that leads elsewhere may move, as always
        assert cut(source, f"docker://{server.host}/app:{tag}") == image.digest


def test_other_tags_and_repositories(server: StandIn, image: SampleImage) -> None:
    source = f"docker://{server.host}/app:1"
    for target in ("app:2", "other:1"):
        assert cut(source, f"docker://{server.host}/{target}") == image.digest


def test_the_same_name_in_another_registry(server: StandIn, image: SampleImage) -> None:
    with serve(StandIn()) as other:
        other.add("app", "1", image)
        assert cut(f"docker://{server.host}/app:1", f"docker://{other.host}/app:1") == image.digest

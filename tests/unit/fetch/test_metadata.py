"""A wheel's metadata is read without the wheel."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.fetch.packages import Package
from tests.unit.fetch.serving import Fault, Site
from tests.unit.wheels.builder import build_wheel
from torchtailor.core.errors import BadInputError, NetworkError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.client import Client
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.metadata import FactsReader
from torchtailor.fetch.pages import WheelFile
from torchtailor.fetch.settings import IndexSettings

PACKAGE = Package("big", "1.0", ("numpy>=1",), files={"big/data.bin": os.urandom(3_000_000)})
DATA = PACKAGE.wheel()
PATH = f"/files/{PACKAGE.filename}"


@pytest.fixture
def file(site: Site) -> WheelFile:
    site.content[PATH] = DATA
    source = IndexLocation(site.url, LocationKind.INDEX, "test")
    return WheelFile(PACKAGE.filename, site.url + PATH, {"sha256": hashlib.sha256(DATA).hexdigest()}, source=source)


@pytest.fixture
def reader(settings: Callable[..., IndexSettings], cache: Cache) -> FactsReader:
    return FactsReader(Client(settings()), cache)


def test_ranges_read_a_little_of_a_large_wheel(file: WheelFile, reader: FactsReader, site: Site) -> None:
    facts = reader.read(file)
    assert facts.text == PACKAGE.metadata
    assert facts.size == len(DATA)
    assert [str(requirement) for requirement in facts.requires] == ["numpy>=1"]
    assert site.sent < len(DATA) / 20


def test_the_second_time_nothing_is_asked(file: WheelFile, reader: FactsReader, site: Site, cache: Cache) -> None:
    reader.read(file)
    before = len(site.requests)
    assert reader.read(file).text == PACKAGE.metadata
    assert len(site.requests) == before
    for note in (cache.root / "facts").iterdir():
        note.write_bytes(b"\xc1damaged")
    assert reader.read(file).text == PACKAGE.metadata


def test_a_metadata_file_is_preferred_and_checked(
    file: WheelFile, reader: FactsReader, site: Site, cache: Cache
) -> None:
    site.content[PATH + ".metadata"] = PACKAGE.metadata
    named = replace(file, metadata={"sha256": hashlib.sha256(PACKAGE.metadata).hexdigest()})
    assert reader.read(named).text == PACKAGE.metadata
    assert site.asked(PATH) == 0 and site.asked(PATH, "HEAD") == 1
    site.content[PATH + ".metadata"] = b"Name: evil\nRequires-Dist: evil\n"
    again = replace(named, hashes={"sha256": "00" * 32})
    assert reader.read(again).text == PACKAGE.metadata  # from the wheel itself


def test_a_server_without_ranges_is_an_error_not_a_download(file: WheelFile, reader: FactsReader, site: Site) -> None:
    site.ranges = False
    site.gate.clear()  # more than the first 64 KiB never comes
    try:
        with pytest.raises(NetworkError, match="does not support range requests") as caught:
            reader.read(file)
    finally:
        site.gate.set()
    assert "--find-links" in caught.value.hint


@pytest.mark.parametrize("fault", [Fault(lie_about_range=True), Fault(other_place=True), Fault(wrong_bytes=True)])
def test_lies_about_ranges_are_errors(fault: Fault, file: WheelFile, reader: FactsReader, site: Site) -> None:
    site.always[PATH] = fault
    with pytest.raises((NetworkError, BadInputError)):
        reader.read(file)


def test_passing_faults(file: WheelFile, reader: FactsReader, site: Site) -> None:
    site.faults[PATH] = [Fault(status=503, retry_after="0"), Fault(drop_after=10)]
    assert reader.read(file).text == PACKAGE.metadata


def test_offline_without_a_note(file: WheelFile, settings: Callable[..., IndexSettings], cache: Cache) -> None:
    with pytest.raises(NetworkError, match="offline"):
        FactsReader(Client(settings()), cache, offline=True).read(file)


@pytest.mark.parametrize("data", [b"", b"PK", DATA[:1000], Package("other", "1.0").wheel()])
def test_what_is_no_wheel_of_that_name(data: bytes, file: WheelFile, reader: FactsReader, site: Site) -> None:
    site.content[PATH] = data
    with pytest.raises((BadInputError, NetworkError)):
        reader.read(file)


@pytest.mark.parametrize("local", [False, True])
def test_a_wheel_that_no_command_would_take(
    tmp_path: Path, local: bool, file: WheelFile, reader: FactsReader, site: Site
) -> None:
    link = build_wheel(tmp_path, {"big/a": b"/etc/passwd"}, name="big", modes={"big/a": stat.S_IFLNK | 0o777})
    site.content[PATH] = link.read_bytes()
    with pytest.raises(BadInputError, match="symbolic link"):
        reader.read(replace(file, url=link.as_uri()) if local else file)


def test_a_requirement_that_cannot_be_read(site: Site, reader: FactsReader, file: WheelFile) -> None:
    site.content[PATH] = Package("big", "1.0", ("numpy >>= 1",)).wheel()
    with pytest.raises(BadInputError, match="numpy >>= 1"):
        _ = reader.read(file).requires

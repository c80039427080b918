"""A private package and a public one of the same name (dependency confusion): the first index that has it wins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.unit.fetch.packages import Package
from tests.unit.fetch.serving import Fault, Site, serve
from torchtailor.core.errors import NetworkError, NoMatchError, UsageError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.options import IndexOptions
from torchtailor.fetch.resolve import resolve
from torchtailor.fetch.settings import IndexStrategy, read_settings
from torchtailor.fetch.target import Target

TARGET = Target("3.13", "x86_64")


@pytest.fixture
def indexes(tmp_path: Path) -> tuple[str, str]:
    """A private index with our-library 1.0, and a public one where somebody has published our-library 99.0."""
    for index, packages in {
        "private": [Package("our-library", "1.0")],
        "public": [Package("our-library", "99.0"), Package("filelock", "4.2")],
    }.items():
        for package in packages:
            folder = tmp_path / index / package.name
            folder.mkdir(parents=True)
            (folder / package.filename).write_bytes(package.wheel())
    return str(tmp_path / "private"), str(tmp_path / "public")


def finder(tmp_path: Path, indexes: tuple[str, str], strategy: str | None = None, **environment: str) -> Finder:
    private, public = indexes
    options = IndexOptions(index_url=public, extra_index_urls=(private,), index_strategy=strategy)
    settings = read_settings(options, environment=environment, directory=tmp_path)
    return Finder(settings, Cache(tmp_path / "cache"))


def newest(found: Finder, name: str = "our-library") -> str:
    return str(found.fitting(name, TARGET)[0].version)


def test_the_first_index_that_has_a_package_wins(tmp_path: Path, indexes: tuple[str, str]) -> None:
    found = finder(tmp_path, indexes)
    assert newest(found) == "1.0"
    assert len(found.fitting("our-library", TARGET)) == 1
    assert newest(found, "filelock") == "4.2"  # what the first one lacks comes from the next


def test_a_package_on_two_indexes_is_said(tmp_path: Path, indexes: tuple[str, str]) -> None:
    (note,) = finder(tmp_path, indexes).notes(["our-library", "filelock", "nowhere"])
    assert note.startswith("our-library is taken from ") and "/private, the first to have it" in note
    (note,) = finder(tmp_path, indexes, "unsafe-best-match").notes(["our-library"])
    assert "the newest is taken, whoever made it" in note


def test_what_only_a_later_index_has_is_refused_with_the_way_to_it(tmp_path: Path, indexes: tuple[str, str]) -> None:
    with pytest.raises(NoMatchError) as error:
        resolve([Requirement("our-library==99.0")], finder(tmp_path, indexes), TARGET)
    assert "--index-strategy unsafe-best-match" in (error.value.hint or "")


@pytest.fixture
def private() -> Iterator[Site]:
    with serve(Site()) as running:
        yield running


@pytest.mark.parametrize(
    "page",
    [
        b'<a href="our_library-1.0.tar.gz">our_library-1.0.tar.gz</a>',
        b"",
        b"<title>Log in</title>",
        b'<a data-yanked="" href="our_library-1.0-py3-none-any.whl">our_library-1.0-py3-none-any.whl</a>',
        b'<a href="our_library-1.0-cp27-none-win32.whl">our_library-1.0-cp27-none-win32.whl</a>',
    ],
)
def test_an_index_that_answers_has_the_package_whatever_it_has_of_it(
    page: bytes, tmp_path: Path, indexes: tuple[str, str], private: Site
) -> None:
    """As with uv: a public wheel does not replace what a private index has as a source archive only."""
    private.content["/simple/our-library/"] = page
    found = finder(tmp_path, (f"{private.url}/simple", indexes[1]))
    with pytest.raises(NoMatchError) as error:
        resolve([Requirement("our-library")], found, TARGET)
    assert "--index-strategy unsafe-best-match" in (error.value.hint or "")
    assert "not from" in found.notes(["our-library"])[0]
    assert newest(finder(tmp_path, (f"{private.url}/simple", indexes[1]), "unsafe-best-match")) == "99.0"


def test_an_empty_folder_of_a_local_index_has_the_package(tmp_path: Path, indexes: tuple[str, str]) -> None:
    next((tmp_path / "private" / "our-library").iterdir()).unlink()
    assert not finder(tmp_path, indexes).fitting("our-library", TARGET)


@pytest.mark.parametrize("status", [401, 403, 500, 502])
def test_an_index_that_refuses_everything_may_have_the_package(
    status: int, tmp_path: Path, indexes: tuple[str, str], private: Site
) -> None:
    """A login that is missing is no reason to take what somebody else has published."""
    private.always |= dict.fromkeys(("/simple/our-library/", "/simple"), Fault(status=status))
    with pytest.raises(NetworkError, match=str(status)):
        newest(finder(tmp_path, (f"{private.url}/simple", indexes[1]), PIP_RETRIES="0"))


def test_a_server_that_refuses_what_it_lacks_is_said(tmp_path: Path, indexes: tuple[str, str], private: Site) -> None:
    """As a bucket does that nobody may list."""
    private.content["/simple"] = b""
    private.always["/simple/filelock/"] = Fault(status=403)
    found = finder(tmp_path, (f"{private.url}/simple", indexes[1]))
    assert newest(found, "filelock") == "4.2"
    assert f"{private.url}/simple answered 403" in found.notes(["filelock"])[0]


def test_pips_rule_on_request(tmp_path: Path, indexes: tuple[str, str]) -> None:
    assert newest(finder(tmp_path, indexes, "unsafe-best-match")) == "99.0"
    assert newest(finder(tmp_path, indexes, UV_INDEX_STRATEGY="unsafe-best-match")) == "99.0"
    (tmp_path / "uv.toml").write_text('index-strategy = "unsafe-best-match"\n')
    assert newest(finder(tmp_path, indexes)) == "99.0"
    assert newest(finder(tmp_path, indexes, "first-index")) == "1.0"  # the command line wins


def test_the_order_is_uvs(tmp_path: Path) -> None:
    """Additional indexes come before the default one, wherever they are configured."""
    environment = {"PIP_INDEX_URL": "https://default/simple", "PIP_EXTRA_INDEX_URL": "https://private/simple"}
    options = IndexOptions(extra_index_urls=("https://given/simple",))
    found = read_settings(options, environment=environment, directory=tmp_path)
    assert [one.url for one in found.indexes] == [
        "https://given/simple",
        "https://private/simple",
        "https://default/simple",
    ]


def test_wheels_of_a_folder_are_always_offered(tmp_path: Path, indexes: tuple[str, str]) -> None:
    folder = tmp_path / "links"
    folder.mkdir()
    package = Package("our-library", "2.0")
    (folder / package.filename).write_bytes(package.wheel())
    options = IndexOptions(index_url=indexes[1], extra_index_urls=(indexes[0],), find_links=(str(folder),))
    settings = read_settings(options, environment={}, directory=tmp_path)
    assert newest(Finder(settings, Cache(tmp_path / "cache"))) == "2.0"


def test_a_word_that_is_no_rule() -> None:
    with pytest.raises(UsageError, match="first-index or unsafe-best-match"):
        IndexStrategy.read("best")

"""Downloads survive a bad server, and nothing wrong ever gets into the cache."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.fetch.packages import Package
from tests.unit.fetch.serving import Fault, Site
from tests.waiting import wait_until
from torchtailor.core.errors import BadInputError, NetworkError
from torchtailor.fetch.cache import Cache, EntryKind
from torchtailor.fetch.client import Client, ContentRange
from torchtailor.fetch.download import Downloader, Fetched, WrongBytesError
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.pages import WheelFile
from torchtailor.fetch.settings import IndexSettings

DATA = Package(
    "big", "1.0", files={"big/data.bin": bytes((i * i * 7 + i // 251) % 251 for i in range(400_000))}
).wheel()
PATH = "/files/big-1.0-py3-none-any.whl"


@pytest.fixture
def file(site: Site) -> WheelFile:
    site.content[PATH] = DATA
    source = IndexLocation(site.url, LocationKind.INDEX, "test")
    name = PATH.rsplit("/", 1)[1]
    return WheelFile(name, site.url + PATH, {"sha256": hashlib.sha256(DATA).hexdigest()}, len(DATA), source=source)


@pytest.fixture
def fetch(settings: Callable[..., IndexSettings], cache: Cache) -> Callable[..., Fetched]:
    def one(file: WheelFile, **changes: object) -> Fetched:
        return Downloader(Client(settings(**changes)), cache).fetch([file])[file.url]

    return one


def wheels_in(cache: Cache) -> list[Path]:
    return [entry.path for entry in cache.entries() if entry.kind is EntryKind.WHEEL]


def assert_nothing_wrong(cache: Cache) -> None:
    for path in wheels_in(cache):
        assert path.parent.name == hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_was_just_downloaded_and_checked_is_not_read_again(
    file: WheelFile, fetch: Callable[..., Fetched], cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch(file)
    with monkeypatch.context() as patch:
        patch.setattr("torchtailor.core.disk.hash_file", pytest.fail)
        assert cache.find(first.sha256, file.filename) == first.path
    first.path.chmod(0o644)
    first.path.write_bytes(DATA[:-1] + b"x")
    assert cache.find(first.sha256, file.filename) is None and not first.path.exists()


def test_plain_download_is_whole_read_only_and_happens_once(
    file: WheelFile, fetch: Callable[..., Fetched], site: Site
) -> None:
    first = fetch(file)
    assert first.path.read_bytes() == DATA
    assert first.downloaded == len(DATA)
    assert first.path.stat().st_mode & 0o777 == 0o444
    second = fetch(file)
    assert second.downloaded == 0
    assert site.asked(PATH) == 1


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(drop_after=100_000), Fault(drop_after=1), Fault(drop_after=0), Fault(drop_after=50_000)],
        [Fault(status=500), Fault(status=503, retry_after="0"), Fault(status=429, retry_after="0.01")],
        [Fault(status=429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT")],
        [Fault(stall=True)],
        [Fault(wrong_bytes=True)],
        [Fault(short=1000)],
        [Fault(extra=10)],
        [Fault(drop_after=100_000), Fault(ignore_range=True)],
        [Fault(drop_after=100_000), Fault(lie_about_range=True)],
        [Fault(drop_after=100_000), Fault(other_place=True)],
        [Fault(drop_after=100_000, wrong_bytes=True)],
        [Fault(drop_after=100_000), Fault(status=416)],
    ],
    ids=[
        "drops",
        "5xx-429",
        "429-date",
        "stall",
        "wrong",
        "short",
        "extra",
        "no-range",
        "lie",
        "other",
        "wrong-drop",
        "416",
    ],
)
@pytest.mark.parametrize("etags", [True, False])
def test_passing_faults_are_overcome(
    faults: list[Fault], etags: bool, file: WheelFile, fetch: Callable[..., Fetched], site: Site, cache: Cache
) -> None:
    site.faults[PATH] = list(faults)
    site.etags = etags
    assert fetch(file).path.read_bytes() == DATA
    assert site.faults[PATH] == []
    assert_nothing_wrong(cache)
    assert not [entry for entry in cache.entries() if entry.kind is EntryKind.PARTIAL]


def test_many_drops_are_fine_as_long_as_each_brings_something(
    file: WheelFile, fetch: Callable[..., Fetched], site: Site
) -> None:
    site.faults[PATH] = [Fault(drop_after=20_000)] * 12
    assert fetch(file).path.read_bytes() == DATA
    assert site.sent < len(DATA) * 1.5  # resumed, not begun again


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(status=404), "answered 404"),
        (Fault(status=403), "answered 403"),
        (Fault(status=500), "answered 500"),
        (Fault(status=429, retry_after="0"), "answered 429"),
        (Fault(drop_after=0), " broke|cannot be reached"),
        (Fault(wrong_bytes=True), "is not the file that its index lists"),
        (Fault(extra=5000), "sends more than"),
        (Fault(short=5000), "416|ended after|no such range|differs| broke: "),
    ],
    ids=lambda value: str(value)[:30],
)
def test_lasting_faults_are_clear_errors_and_leave_no_wheel(
    fault: Fault, said: str, file: WheelFile, fetch: Callable[..., Fetched], site: Site, cache: Cache
) -> None:
    site.always[PATH] = fault
    with pytest.raises(NetworkError, match=said) as caught:
        fetch(file)
    assert caught.value.hint
    assert wheels_in(cache) == []
    if fault.status in (404, 403):
        assert site.asked(PATH) == 1  # trying again would not help
    else:
        assert site.asked(PATH) > 1


def test_a_server_that_is_away(file: WheelFile, fetch: Callable[..., Fetched]) -> None:
    gone = replace(file, url="http://127.0.0.1:9/x/big-1.0-py3-none-any.whl")
    with pytest.raises(NetworkError, match="cannot be reached"):
        fetch(gone, retries=1)


def test_stopped_download_goes_on_in_the_next_run(
    file: WheelFile, fetch: Callable[..., Fetched], site: Site, cache: Cache
) -> None:
    site.faults[PATH] = [Fault(drop_after=150_000), *[Fault(status=500)] * 9]
    with pytest.raises(NetworkError, match="500"):
        fetch(file)
    (part,) = [entry for entry in cache.entries() if entry.kind is EntryKind.PARTIAL]
    assert part.size == 150_000
    site.faults[PATH] = []
    again = fetch(file)
    assert again.path.read_bytes() == DATA
    assert again.downloaded == len(DATA) - 150_000


def test_half_a_download_of_an_older_file_is_not_joined_to_the_new_one(
    file: WheelFile, fetch: Callable[..., Fetched], site: Site
) -> None:
    site.etags = False
    site.content[PATH] = bytes(len(DATA))
    site.faults[PATH] = [Fault(drop_after=150_000), *[Fault(status=500)] * 9]
    with pytest.raises(NetworkError):
        fetch(file)
    site.content[PATH], site.faults[PATH] = DATA, []
    assert fetch(file).path.read_bytes() == DATA


def test_one_failure_stops_the_others_and_is_the_one_reported(
    file: WheelFile, settings: Callable[..., IndexSettings], site: Site, cache: Cache
) -> None:
    site.always[PATH] = Fault(stall=True)
    files = [replace(file, filename=f"big-1.{n}-py3-none-any.whl", hashes={"sha256": str(n) * 64}) for n in range(1, 5)]
    missing = replace(file, filename="gone-1.0-py3-none-any.whl", url=site.url + "/files/gone.whl", hashes={})
    with pytest.raises(NetworkError, match=r"gone\.whl answered 404"):
        Downloader(Client(settings()), cache).fetch([*files, missing])
    assert wheels_in(cache) == []


def test_two_at_once_download_one_file(
    file: WheelFile, settings: Callable[..., IndexSettings], site: Site, cache: Cache
) -> None:
    site.gate.clear()
    results: list[Fetched] = []

    def run() -> None:
        results.append(Downloader(Client(settings()), cache).fetch([file])[file.url])

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: site.waiting, "a download has begun")
    site.gate.set()
    for thread in threads:
        thread.join()
    assert [result.path.read_bytes() == DATA for result in results] == [True] * 3
    assert site.asked(PATH) == 1


def test_without_a_hash_a_page_of_html_is_not_taken_for_a_wheel(
    file: WheelFile, fetch: Callable[..., Fetched], site: Site, cache: Cache
) -> None:
    site.content[PATH] = b"<html>Please log in</html>"
    with pytest.raises(WrongBytesError, match="is not a wheel"):
        fetch(replace(file, hashes={}, size=None))
    assert wheels_in(cache) == []
    site.content[PATH] = DATA
    assert fetch(replace(file, hashes={}, size=None)).sha256 == hashlib.sha256(DATA).hexdigest()
    site.content.clear()
    assert fetch(replace(file, hashes={}, size=None)).downloaded == 0


def test_other_hashes_are_checked_too(file: WheelFile, fetch: Callable[..., Fetched]) -> None:
    good = replace(file, hashes={"sha512": hashlib.sha512(DATA).hexdigest()})
    bad = replace(file, hashes={"sha512": "0" * 128})
    assert fetch(good).path.read_bytes() == DATA
    with pytest.raises(WrongBytesError, match="sha512"):
        fetch(bad)


def test_offline(file: WheelFile, fetch: Callable[..., Fetched]) -> None:
    with pytest.raises(NetworkError, match="offline"):
        fetch(file, offline=True)
    fetch(file)
    assert fetch(file, offline=True).downloaded == 0


def test_local_files_are_used_where_they_are_and_checked(
    tmp_path: Path, file: WheelFile, fetch: Callable[..., Fetched], cache: Cache
) -> None:
    path = tmp_path / file.filename
    path.write_bytes(DATA)
    local = replace(file, url=path.as_uri())
    assert fetch(local).path == path
    path.write_bytes(DATA[:-1] + b"x")
    with pytest.raises(BadInputError, match="sha256 differs"):
        fetch(local)
    assert wheels_in(cache) == []


def test_login_of_the_address_is_sent_and_never_shown(
    file: WheelFile, fetch: Callable[..., Fetched], site: Site
) -> None:
    site.login = "Basic " + base64.b64encode(b"me:se:cret").decode()
    with pytest.raises(NetworkError, match="401") as caught:
        fetch(file)
    assert "netrc" in caught.value.hint
    address = file.url.replace("http://", "http://me:wrong@")
    with pytest.raises(NetworkError) as caught:
        fetch(replace(file, url=address))
    assert "wrong" not in caught.value.message
    assert fetch(replace(file, url=file.url.replace("http://", "http://me:se%3Acret@"))).path.read_bytes() == DATA


def test_waiting_for_the_server_is_bounded(file: WheelFile, fetch: Callable[..., Fetched], site: Site) -> None:
    site.always[PATH] = Fault(stall=True)
    with pytest.raises(NetworkError, match=r"no answer in time| broke: "):
        fetch(file, timeout=0.2, retries=1)
    wait_until(lambda: site.hung_up, "the client was the one that gave up")


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        ("bytes 5-9/20", ContentRange(5, 9, 20)),
        ("bytes 5-9/*", ContentRange(5, 9)),
        ("bytes 5-9", ContentRange(5, 9)),  # without the size, as some servers write it
        ("bytes */20", ContentRange(size=20)),
        ("", ContentRange()),
        ("bytes 5-", ContentRange()),
        ("bytes 5-9/20, 3", ContentRange()),
        (f"bytes {'9' * 19}-9/20", ContentRange()),
        ("items 5-9/20", ContentRange()),
    ],
)
def test_what_a_response_has_of_a_file(header: str, sent: ContentRange) -> None:
    assert ContentRange.of({"content-range": header}) == sent

"""A release that the catalog does not know is one command away: found, read, written, recommended and built."""

from __future__ import annotations

import errno
import json
import tomllib
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Never

import pytest

from tests.unit.fetch.packages import Package
from tests.unit.fetch.serving import Fault, Site, serve
from tests.unit.upkeep.conftest import ARCHITECTURES, COMMIT, LEFT_OUT, World, put, torch
from torchtailor.catalog import age, load_catalog
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.settings import IndexSettings
from torchtailor.fetch.upkeep import write
from torchtailor.fetch.upkeep.news import NewsKind
from torchtailor.fetch.upkeep.update import CatalogUpdate, find_updates
from torchtailor.fetch.upkeep.write import write_data

USER_FILE = Path("torchtailor.toml")


def update(site: Site, *arguments: str) -> int:
    return main(["catalog", "update", "-i", f"{site.url}/simple", *arguments])


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == ExitCode.OK
    return json.loads(capsys.readouterr().out)


def find(site: Site, world: World, **changes: Any) -> CatalogUpdate:
    source = IndexLocation(f"{site.url}/simple", LocationKind.INDEX, "test")
    settings = IndexSettings(sources=(source,), explicit_index=True, timeout=5.0, retries=1)
    return find_updates(world.catalog, Finder(settings, Cache(Path("cache"))), **changes)


def kinds(found: CatalogUpdate) -> set[NewsKind]:
    return {news.kind for news in found.news}


# What is new


def test_a_minor_release_is_found_and_read_by_ranges(site: Site, world: World) -> None:
    found = find(site, world)
    assert {NewsKind.RELEASE, NewsKind.PATCH, NewsKind.BUILD, NewsKind.PACKAGE} <= kinds(found)
    texts = [news.text for news in found.news]
    assert f"PyTorch {world.minor}" in texts
    assert f"PyTorch {world.patch}, after {world.newest.version}" in texts
    assert any("cuDNN 9.99.0.1" in text for text in texts)
    assert found.wheels_read == 4  # one for each platform of two versions; the known release is not read
    wheels = [request for request in site.requests if request.path.endswith(".whl")]
    assert wheels
    assert all("Range" in request.headers for request in wheels)
    assert found.bytes_read == site.sent > 0


def test_an_index_without_news(world: World) -> None:
    known = torch(str(world.newest.version), world.cuda, "x86_64")
    with serve(Site()) as site:
        found = find(put(site, known), world)
        assert not found.behind
        assert not found.rows
        assert update(site, "--check") == ExitCode.OK


def test_a_new_python_and_a_new_build_of_a_known_release(world: World) -> None:
    known, cuda = str(world.newest.version), next(iter(world.catalog.toolkits))
    packages = [
        torch(known, world.cuda, "x86_64", "cp399-cp399"),
        torch(known, str(cuda), "x86_64", local=f"+cu{str(cuda).replace('.', '')}"),
    ]
    with serve(Site()) as site:
        found = find(put(site, *packages), world)
    assert kinds(found) == {NewsKind.PYTHON, NewsKind.BUILD}
    (row,) = found.rows.releases
    assert row["pythons"] == ["3.99"]
    assert [build["cuda"] for build in row["build"]] == [str(cuda)]
    assert "version" not in row


@pytest.mark.parametrize(
    "version", ["0.4.1", "{newest}rc1", "{newest}+cu999.sm90", "{newest}.dev20270101", "1!{newest}"]
)
def test_what_is_no_news(version: str, world: World) -> None:
    """Old lines, candidates, what torchtailor cut, nightlies."""
    known = torch(str(world.newest.version), world.cuda, "x86_64")
    other = Package("torch", version.format(newest=world.minor), (), "cp313-cp313-manylinux_2_28_x86_64")
    with serve(Site()) as site:
        assert not find(put(site, known, other), world).behind


def test_lines_that_the_catalog_leaves_out_are_no_news(world: World) -> None:
    """A catalog may have an old release, and not all between it and the newer ones."""
    assert {(2, 0), (2, 7)} <= {release.version.parts[:2] for release in world.catalog.releases.values()}
    with serve(Site()) as site:
        packages = (torch(f"{major}.{minor}.1", world.cuda, "x86_64") for major, minor in LEFT_OUT)
        assert not find(put(site, *packages), world).behind


def test_a_cpu_wheel_of_a_release_that_is_listed_for_one_gpu_alone_is_no_news(world: World) -> None:
    (old,) = [release for release in world.catalog.releases.values() if release.cpu_build is None]
    text = f"__version__ = '{old.version}'\ncuda = None\ngit_version = '{COMMIT}'\nhip = None\n"
    files = {"torch/__init__.py": b"", "torch/version.py": text.encode()}
    wheel = Package("torch", str(old.version), (), "cp311-cp311-manylinux_2_28_aarch64", files=files)
    with serve(Site()) as site:
        assert not find(put(site, wheel), world).behind


def test_other_systems_are_no_news(world: World) -> None:
    known = torch(str(world.newest.version), world.cuda, "x86_64")
    mac = Package("torch", world.minor, (), "cp313-cp313-macosx_14_0_arm64")
    windows = Package("torch", world.minor, (), "cp313-cp313-win_amd64")
    with serve(Site()) as site:
        assert not find(put(site, known, mac, windows), world).behind


def test_a_new_cuda_line_inherits_the_row_before_it(world: World) -> None:
    newest = max(world.catalog.toolkits)
    cuda = f"{newest.major}.{newest.parts[1] + 1}"
    with serve(Site()) as site:
        put(site, torch(world.minor, cuda, "x86_64"))
        assert update(site, "--measure", "--quiet") == ExitCode.OK
    catalog = load_catalog()
    toolkit = catalog.toolkit(cuda)
    assert toolkit.driver_minor == world.catalog.toolkits[newest].driver_minor
    assert "driver_full" in toolkit.believed
    assert catalog.release(world.line).cuda_builds[0].label == f"cu{cuda.replace('.', '')}"


def test_a_cuda_of_an_unknown_major_is_reported_and_not_written(world: World) -> None:
    with serve(Site()) as site:
        found = find(put(site, torch(world.minor, "99.0", "x86_64")), world)
    assert found.behind
    assert not found.rows
    assert any("add a [[cuda]] row" in problem for problem in found.problems)


def test_a_damaged_wheel_does_not_hide_the_others(site: Site, world: World) -> None:
    broken = torch(world.minor, world.cuda, "x86_64", "cp314-cp314")
    page = site.content["/simple/torch/"]
    link = f'<a href="/files/{broken.filename}">{broken.filename}</a></body>'.encode()
    site.content["/simple/torch/"] = page.replace(b"</body>", link)
    site.content[f"/files/{broken.filename}"] = b"not a zip at all"
    found = find(site, world)
    assert any(broken.filename in problem for problem in found.problems)
    assert found.wheels_read == 3


def test_a_patch_release_is_not_known_before_all_its_wheels_were_read(site: Site, world: World) -> None:
    wheels = [path for path in site.content if f"torch-{world.patch}" in path and "x86_64" in path]
    whole = {path: site.content[path] for path in wheels}
    site.content |= dict.fromkeys(wheels, b"not a zip at all")
    assert update(site) == ExitCode.NETWORK
    catalog = load_catalog()
    assert catalog.releases[world.newest.name].version == world.newest.version
    assert str(catalog.release(world.line).version) == world.minor
    assert "checked" not in tomllib.loads(USER_FILE.read_text())
    site.content |= whole
    assert update(site) == ExitCode.OK
    assert str(load_catalog().releases[world.newest.name].version) == world.patch


def test_a_server_without_ranges_is_reported(site: Site, world: World) -> None:
    site.ranges = False
    found = find(site, world)
    assert any("range requests" in problem for problem in found.problems)
    assert found.wheels_read == 0
    assert found.behind  # the page alone says that there is something new


def test_an_index_that_is_down_is_a_network_error(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.always["/simple/torch/"] = Fault(status=403)
    assert update(site) == ExitCode.NETWORK
    assert "No index lists" in capsys.readouterr().err


def test_one_index_of_two_that_is_down(
    site: Site, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the other lists is written; where nothing is new, nobody can say that nothing is."""
    site.always["/down/torch/"] = Fault(status=403)
    down = ("--extra-index-url", f"{site.url}/down")
    assert update(site, *down, "--check") == ExitCode.CHECK_FAILED
    assert update(site, *down, "--measure") == ExitCode.NETWORK
    assert load_catalog().release(world.line)
    monkeypatch.setattr(age, "today", lambda: date.today() + timedelta(400))
    before = USER_FILE.read_text()
    capsys.readouterr()
    for arguments in ((), ("--check",)):
        assert update(site, *down, *arguments) == ExitCode.NETWORK
        assert "not every configured index" in capsys.readouterr().out
    assert USER_FILE.read_text() == before


def test_pytorchs_own_index_may_be_unreachable(site: Site, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    source = IndexLocation(f"{site.url}/simple", LocationKind.INDEX, "test")
    settings = IndexSettings(sources=(source,), timeout=5.0, retries=0)
    from dataclasses import replace

    closed = replace(world.catalog, wheel_index="http://127.0.0.1:9/whl/{label}")
    found = find_updates(closed, Finder(settings, Cache(Path("cache"))))
    assert found.behind
    assert len(found.problems) == 1  # said once, not once for each build
    assert "cannot be reached" in found.problems[0]


def test_pytorchs_own_indexes_are_read(site: Site, world: World) -> None:
    from dataclasses import replace

    label = f"cu{world.cuda.replace('.', '')}"
    package = torch(world.minor, world.cuda, "x86_64", local=f"+{label}")
    site.content[f"/whl/{label}/torch/"] = f'<a href="/files/{package.filename}">{package.filename}</a>'.encode()
    site.content[f"/files/{package.filename}"] = package.wheel()
    source = IndexLocation(f"{site.url}/empty", LocationKind.INDEX, "test")
    settings = IndexSettings(sources=(source,), timeout=5.0, retries=0)
    own = replace(world.catalog, wheel_index=f"{site.url}/whl/{{label}}")
    found = find_updates(own, Finder(settings, Cache(Path("cache"))))
    assert [news.kind for news in found.news][:2] == [NewsKind.RELEASE, NewsKind.BUILD]
    assert "default_index" not in found.rows.releases[0]


# What is measured


def test_architectures_are_read_out_of_the_wheel(site: Site, world: World) -> None:
    found = find(site, world, measured=True, scratch=Path("scratch"))
    by_wheel = {item.wheel: item.architectures for item in found.measured}
    assert len(by_wheel) == 4
    for wheel, held in by_wheel.items():
        assert held == ARCHITECTURES["aarch64" if "aarch64" in wheel else "x86_64"]
    assert not list(Path("scratch").iterdir())  # no library is left behind
    row = next(row for row in found.rows.releases if row["name"] == world.line)
    assert row["build"][-1]["architectures"] == ARCHITECTURES


def test_a_stream_that_breaks_off_goes_on_where_it_was(site: Site, world: World) -> None:
    torn = next(path for path in site.content if world.minor in path and "x86_64" in path and "cp313" in path)
    # the first answer holds the table and the small files; the library breaks off
    site.faults[torn] = [Fault(), Fault(drop_after=9000)]
    found = find(site, world, measured=True, scratch=Path("scratch"))
    assert not found.problems
    assert {item.architectures for item in found.measured} == set(ARCHITECTURES.values())
    assert site.asked(torn) == 3


def test_the_host_baseline_is_written(site: Site, world: World) -> None:
    found = find(site, world, measured=True, scratch=Path("scratch"))
    row = next(row for row in found.rows.releases if row["name"] == world.line)
    assert row["baseline"] == {"x86_64": "x86-64", "aarch64": "armv8-a"}
    assert "exceptions" not in row  # these small libraries have none
    assert "baseline" in row["verified"]
    unread = next(row for row in find(site, world).rows.releases if row["name"] == world.line)
    assert unread["baseline"] == {arch: level.value for arch, level in world.newest.baseline.items()}
    assert {"baseline", "exceptions"} <= set(unread["believed"])


def test_without_measure_no_architecture_is_made_up(site: Site, world: World) -> None:
    found = find(site, world)
    row = next(row for row in found.rows.releases if row["name"] == world.line)
    assert all("architectures" not in build for build in row["build"])
    patch = next(row for row in found.rows.releases if row["name"] == world.newest.name)
    assert any("architectures" in fact for fact in patch["believed"])


# What is written


def test_one_command_and_the_minor_release_is_offered(
    site: Site, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update(site, "--measure") == ExitCode.OK
    said = capsys.readouterr().out
    assert f"New release ({world.line}): PyTorch {world.minor}" in said
    assert "read in" in said
    release = load_catalog().release(world.line)
    assert str(release.version) == world.minor
    assert release.git_commit == COMMIT
    assert release.pythons == ("3.13", "3.14t")
    assert (release.cudnn, release.nccl, release.triton) == ("9.99.0.1", "2.99.1", "3.99")
    build = release.cuda_builds[-1]
    assert {arch: ";".join(map(str, held)) for arch, held in build.architectures.items()} == ARCHITECTURES
    assert str(build.toolkit) == f"{world.cuda}.1"

    listed = answer(capsys, "matrix", "--release", world.line, "--gpu", "sm120", "--cpu", "avx2")
    assert listed["count"] == 1
    advice = answer(capsys, "recommend", "--gpu", "RTX 5090", "--cpu", "zen4", "--driver", "999.10")
    assert advice["best"]["variant"].startswith(f"{release.tag}-")
    assert advice["best"]["method"] == "wheel"
    # sm_90a runs on 9.0 alone, and 8.9 has sm_80 to fall back to
    why = answer(capsys, "matrix", "--release", world.line, "--why", "sm89-avx2")
    assert "sm_80" in json.dumps(why)

    arguments = ("build", "sm120-avx2", "--release", world.line, "-i", f"{site.url}/simple", "--dry-run")
    plan = answer(capsys, *arguments)
    assert world.minor in json.dumps(plan)


def test_a_patch_release_takes_the_place_of_the_one_before(
    site: Site, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert update(site) == ExitCode.OK
    capsys.readouterr()
    catalog = load_catalog()
    release = catalog.releases[world.newest.name]
    assert str(release.version) == world.patch
    assert set(world.newest.pythons) <= set(release.pythons)
    before = world.newest.build(world.newest.default_index["x86_64"])
    after = release.build(world.newest.default_index["x86_64"])
    assert before
    assert after
    assert after.architectures == before.architectures
    assert after.rows == before.rows
    assert release.git_commit == COMMIT
    assert not release.date  # that of the one before is not its own
    assert set(release.sources) - set(catalog.sources) == set()
    older = catalog.release(str(world.newest.version))  # can still be asked for
    assert (older.version, older.date, older.git_commit) == (
        world.newest.version,
        world.newest.date,
        world.newest.git_commit,
    )
    assert (older.pythons, older.triton) == (world.newest.pythons, world.newest.triton)


def test_the_second_run_has_nothing_left_to_say(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert update(site, "--check") == ExitCode.CHECK_FAILED
    assert not USER_FILE.exists()
    assert update(site, "--measure", "--quiet") == ExitCode.OK
    first = USER_FILE.read_text()
    capsys.readouterr()
    assert update(site, "--check") == ExitCode.OK
    assert update(site, "--measure") == ExitCode.OK
    assert "Nothing is new" in capsys.readouterr().out
    assert USER_FILE.read_text() == first


def test_measuring_later_completes_what_was_written_without(site: Site, world: World) -> None:
    assert update(site) == ExitCode.OK
    assert update(site, "--check") == ExitCode.CHECK_FAILED  # the contents of the new wheels are not known yet
    assert update(site, "--measure") == ExitCode.OK
    build = load_catalog().release(world.line).cuda_builds[-1]
    assert {arch: ";".join(map(str, held)) for arch, held in build.architectures.items()} == ARCHITECTURES
    assert update(site, "--check") == ExitCode.OK


def test_dry_run_prints_rows_and_writes_nothing(site: Site, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert update(site, "--dry-run") == ExitCode.OK
    shown = capsys.readouterr().out
    rows = tomllib.loads(shown[shown.index("\n[[") :])
    assert {row["name"] for row in rows["release"]} == {world.newest.name, world.line}
    assert not USER_FILE.exists()


def test_json(site: Site, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert update(site, "--json", "--measure") == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["behind"] is True
    assert document["bytes_read"] > 0
    assert {"kind": "release", "release": world.line, "text": f"PyTorch {world.minor}"}.items() <= (
        next(news for news in document["news"] if news["kind"] == "release").items()
    )
    assert document["written"] == [str(USER_FILE.absolute())]
    assert {item["architectures"] for item in document["measured"]} == set(ARCHITECTURES.values())


HAND_WRITTEN = """\
# My own file.

[tailor]
nvidia = true   # cut NVIDIA's too

# My products
[[gpu]]
capability = "8.6"
datacenter = ["A10G"]

[sources]
mine = "what I know"
"""


def test_what_was_written_by_hand_stays(site: Site, world: World) -> None:
    USER_FILE.write_text(HAND_WRITTEN)
    assert update(site, "--measure") == ExitCode.OK
    text = USER_FILE.read_text()
    kept = [line for line in text.splitlines() if line in HAND_WRITTEN.splitlines()]
    assert [line for line in kept if line] == [line for line in HAND_WRITTEN.splitlines() if line]
    catalog = load_catalog()
    assert catalog.tailor.nvidia
    assert catalog.sources["mine"] == "what I know"
    assert catalog.release(world.line)
    assert catalog.checked == date.today().isoformat()


def test_a_file_that_cannot_take_the_rows_is_left_alone(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    before = 'sources = { mine = "inline" }\n'
    USER_FILE.write_text(before)
    assert update(site) == ExitCode.USAGE
    assert "--dry-run" in capsys.readouterr().err
    assert USER_FILE.read_text() == before


def test_what_is_new_is_shown_where_it_cannot_be_written(
    site: Site, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(parent: Path) -> Never:
        raise PermissionError(errno.EACCES, "Permission denied", str(parent))

    monkeypatch.setattr(write, "staging_folder", refuse)
    assert update(site) == ExitCode.ENVIRONMENT
    said = capsys.readouterr()
    assert f"PyTorch {world.minor}" in said.out and "Written" not in said.out
    assert "permission denied" in said.err and "bug" not in said.err


def test_write_data_adds_to_the_catalogs_own_files(site: Site, world: World, tmp_path: Path) -> None:
    import torchtailor.catalog

    data = Path(torchtailor.catalog.__file__).parent / "data"
    for name in ("cuda.toml", "pytorch.toml"):
        (tmp_path / name).write_text((data / name).read_text())
    found = find(site, world, measured=True, scratch=Path("scratch"), today=date(2030, 1, 2))
    assert write_data(tmp_path, found.rows) == (tmp_path / "pytorch.toml",)
    written = tomllib.loads((tmp_path / "pytorch.toml").read_text())
    assert written["checked"] == "2030-01-02"
    assert written["release"][-1]["name"] == world.line
    assert f"index-{world.minor}" in written["sources"]
    # the user's file of another project takes the same rows, with the same result
    Path("torchtailor.toml").write_text((tmp_path / "pytorch.toml").read_text())
    assert str(load_catalog().release(world.line).version) == world.minor


# How old the catalog is


@pytest.mark.parametrize(("days", "old"), [(0, False), (90, False), (91, True), (400, True)])
@pytest.mark.parametrize(
    "command", ["matrix --release main sm90-avx2", "recommend --gpu H100 --cpu zen4 --driver 580.65.06"]
)
def test_an_old_catalog_is_said_to_be_old(
    command: str,
    days: int,
    *,
    old: bool,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = date.fromisoformat(world.catalog.checked) + timedelta(days)
    monkeypatch.setattr(age, "today", lambda: now)
    assert main(command.split()) == ExitCode.OK
    said = capsys.readouterr()
    line = f"The catalog was last checked on {world.catalog.checked}, {days} days ago"
    assert (line in said.err) is old
    assert "last checked" not in said.out
    assert len(said.err.splitlines()) == int(old)


def test_an_update_without_news_makes_an_old_catalog_young(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = date.fromisoformat(world.catalog.checked) + timedelta(200)
    monkeypatch.setattr(age, "today", lambda: now)
    with serve(Site()) as site:
        assert update(put(site, torch(str(world.newest.version), world.cuda, "x86_64"))) == ExitCode.OK
    assert load_catalog().checked == now.isoformat()
    capsys.readouterr()
    assert main(["matrix", "sm90-avx2"]) == ExitCode.OK
    assert not capsys.readouterr().err


def test_an_old_file_of_the_user_does_not_make_the_catalog_old(world: World) -> None:
    USER_FILE.write_text('checked = "2001-01-01"\n')
    assert load_catalog().checked == world.catalog.checked


# Older releases, on request


def test_older_releases_are_added_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines between those of the catalog come with their patch releases, facts of the next known line, and glibc."""
    line, before = "2.4", "2.3.0"
    older = [torch(f"{line}.{patch}", "11.8", "x86_64", "cp311-cp311") for patch in (0, 1)]
    old_tag = [replace(package, tag="cp311-cp311-manylinux1_x86_64") for package in older]
    with serve(Site()) as site:
        put(site, *old_tag, torch(before, "11.8", "x86_64"))
        assert update(site, "--measure", "--quiet", "--since", line) == ExitCode.OK
    text = capsys.readouterr().out
    assert f"PyTorch {line}.1" in text
    assert f"PyTorch {before}" not in text
    release = load_catalog().release(line)
    assert (str(release.version), [str(patch.version) for patch in release.patches]) == (f"{line}.1", [f"{line}.0"])
    assert release.pythons == ("3.11",)
    assert str(release.wheel_glibc("x86_64")) == "2.17"
    assert str(release.wheel_glibc("aarch64")) == "2.28"
    assert ";".join(map(str, release.builds[-1].architectures["x86_64"])) == ARCHITECTURES["x86_64"]


@pytest.mark.parametrize("value", ["foo", "2.x", "", "2..1"])
def test_since_takes_a_release(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog", "update", "--since", value]) == ExitCode.USAGE
    assert "--since" in capsys.readouterr().err

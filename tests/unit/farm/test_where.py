"""`--on`: what it takes, what it says, and that `--help` needs none of it."""

from __future__ import annotations

import json
import logging
import socket
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from tests.catalogs import load_pinned
from tests.unit.building.test_build import NAME
from tests.unit.fetch.serving import Site
from torchtailor.building.choose import choose
from torchtailor.building.farm import address, perform, where
from torchtailor.building.farm.build import FarmPlan
from torchtailor.building.farm.fingerprint import Fingerprint, describe_worker
from torchtailor.building.farm.where import PlaceKind, Where, parse_where
from torchtailor.building.graph.events import JobOutcome
from torchtailor.building.ledger.rates import Rates
from torchtailor.building.planned_jobs import JobPlace
from torchtailor.building.source.backend import SourceBackend
from torchtailor.building.source.options import SourceOptions
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.catalog import load_catalog
from torchtailor.catalog.tables import FarmSettings
from torchtailor.cli import main
from torchtailor.cli._dispatch import load_command
from torchtailor.cli.build import option_of
from torchtailor.core.cgroups import available_cores
from torchtailor.core.errors import ExitCode, NetworkError

BUILD = ("build", "sm90-avx512", "--release", "main")


@pytest.fixture
def index(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(address, "_PROBE", 0.3)
    return site


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((*BUILD, "--on", "nowhere"), ExitCode.NO_MATCH, "There is no farm 'nowhere'"),
        ((*BUILD, "--on", "local:0"), ExitCode.USAGE, "has no workers"),
        ((*BUILD, "--on", "local:two"), ExitCode.USAGE, "'two' is not a number of workers"),
        ((*BUILD, "--on", "local:²"), ExitCode.USAGE, "is not a number of workers"),
        ((*BUILD, "--on", "local:"), ExitCode.USAGE, "'' is not a number of workers"),
        ((*BUILD, "--on", "local:99999"), ExitCode.USAGE, "would start 99999 processes; this machine has"),
        ((*BUILD, "--on", "local:99999", "--dry-run"), ExitCode.USAGE, "of free memory"),
        ((*BUILD, "--on", "LOCAL:2"), ExitCode.USAGE, "Write --on local:2."),
        ((*BUILD, "--on", "here:2"), ExitCode.USAGE, "takes no number. Write --on here or local:2."),
        ((*BUILD, "--on", "Here:"), ExitCode.USAGE, "takes no number. Write --on here or local:2."),
        ((*BUILD, "--on", "here,local:2"), ExitCode.USAGE, "names more than one place. Write --on local:2, --on tcp"),
        ((*BUILD, "--on", "Here"), ExitCode.USAGE, "Write --on here."),
        ((*BUILD, "--on", ""), ExitCode.USAGE, "--on is empty."),
        ((*BUILD, "--on", "tcp://127.0.0.1:9"), ExitCode.NETWORK, "does not answer: Connection refused"),
        ((*BUILD, "--on", "tcp://nobody.invalid:9"), ExitCode.NETWORK, "the host 'nobody.invalid' is not known"),
        ((*BUILD, "--on", "tcp://host"), ExitCode.USAGE, "has no port. Write tcp://host:8786"),
        ((*BUILD, "--on", "tcp://:8786"), ExitCode.USAGE, "names no host"),
        ((*BUILD, "--on", "tcp://host:x"), ExitCode.USAGE, "is no address"),
        ((*BUILD, "--on", "tcp://host:99999"), ExitCode.USAGE, "is no address"),
        ((*BUILD, "--on", "http://x:1"), ExitCode.USAGE, "http:// is no protocol of a scheduler. Write tcp://x:1"),
        (("farm", "check", "tcp://127.0.0.1:9"), ExitCode.NETWORK, "does not answer: Connection refused"),
        (("farm", "check", "local:99999"), ExitCode.USAGE, "would start 99999 processes"),
        ((*BUILD, "--on", "here", "--shards", "2"), ExitCode.USAGE, "--shards is for --via source only"),
        (
            (*BUILD, "--profile", "minimal", "--set", "A=1", "--no-bundle"),
            ExitCode.USAGE,
            "--profile, --set, --no-bundle are for --via source only. Use --via source, or omit them.",
        ),
        ((*BUILD, "--via", "source", "--with", "torchvision"), ExitCode.USAGE, "--with is for --via wheel only"),
        ((*BUILD, "--on", ":8786"), ExitCode.USAGE, "Write --on tcp://HOST:8786"),
        ((*BUILD, "--on", "head:8786"), ExitCode.USAGE, "Write --on tcp://head:8786"),
        (
            (*BUILD, "--on", "here", "--store", "/proc/x"),
            ExitCode.ENVIRONMENT,
            "The store /proc/x cannot be written: No",
        ),
        ((*BUILD, "--store", "x"), ExitCode.USAGE, "--on local:2"),
        (
            (*BUILD, "--on", "here", "--store", "wrong://x"),
            ExitCode.USAGE,
            "files cannot be written to wrong://",
        ),
        *(
            ((*BUILD, "--on", "here", *more, "--store", f"s3:{rest}"), ExitCode.USAGE, "Write s3://BUCKET/PATH.")
            for rest in ("bucket/x", "/bucket/x", "//", "///x")
            for more in ((), ("--dry-run",))
        ),
        (
            (*BUILD, "--on", "here", "--store", "http://localhost/x"),
            ExitCode.USAGE,
            "files cannot be written to http://",
        ),
        ((*BUILD, "--on", "here", "--store", "memory://x"), ExitCode.USAGE, "is lost when its process ends"),
        ((*BUILD, "--on", "here", "--store", "s3://[x"), ExitCode.USAGE, "is not a URL"),
        (("farm", "check", "here", "--store", "memory://x"), ExitCode.USAGE, "is lost when its process ends"),
        *(
            ((*words, option, text), ExitCode.USAGE, f"{option} is empty.")
            for words in ((*BUILD, "--on", "here"), BUILD, ("farm", "check", "here"))
            for option in ("--store", "--objects")
            for text in ("", " ")
        ),
        (
            ("farm", "check", "here", "--objects", "redis://"),
            ExitCode.USAGE,
            "redis:// names no host. Write redis://HOST.",
        ),
        (
            ("farm", "check", "here", "--objects", __file__),
            ExitCode.ENVIRONMENT,
            "cannot be reached: it is a file, not a folder. Start it, or give another place with --objects.",
        ),
        (("build", "sm90-avx512", "--via", "nix", "--on", "local:1", "--prove"), ExitCode.USAGE, "for wheels"),
        (("farm", "check", "nowhere"), ExitCode.NO_MATCH, "There is no farm"),
    ],
)
def test_clear_errors(
    index: Site, words: tuple[str, ...], code: ExitCode, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    text = " ".join(capsys.readouterr().err.split())
    assert said in text and "Waiting" not in text


@pytest.mark.parametrize(
    ("section", "code", "said"),
    [
        ('scheduler = "tcp://h:1"\ncluster = "slurm"', ExitCode.USAGE, "either `scheduler` or `cluster`"),
        ("workers = 2", ExitCode.USAGE, "either `scheduler` or `cluster`"),
        *(
            (f'cluster = "{word}"', ExitCode.USAGE, f"{word!r} is not a known kind of cluster. Known: slurm")
            for word in ("teapot", ":", "a:", ":b", "..:x", "a b:c")
        ),
        ('scheduler = "rack"', ExitCode.USAGE, "has no protocol. Write tcp://rack:8786."),
        (
            'scheduler = "tcp://h:1"\n[farm.mine.options]\nqueue = "q"',
            ExitCode.USAGE,
            "[farm.mine.options] is for a `cluster` that Dask starts",
        ),
        (
            'cluster = "ssh"',
            ExitCode.ENVIRONMENT,
            "needs asyncssh, which is not installed. Install it: pip install async",
        ),
        ('cluster = "no_such_module:Cluster"', ExitCode.ENVIRONMENT, "needs no-such-module"),
        ('cluster = "distributed:NoCluster"', ExitCode.USAGE, "has no class NoCluster"),
        (
            'cluster = "distributed:LocalCluster"\noptions = { nonsense = 1, n_workers = 1 }',
            ExitCode.ENVIRONMENT,
            "unexpected keyword argument 'nonsense'. [farm.mine.options] is handed to Dask's class",
        ),
        (
            'cluster = "tests.unit.farm.test_where:Fails"\noptions = { reason = "no such queue" }',
            ExitCode.ENVIRONMENT,
            "[farm.mine] cannot be started: Nanny failed to start: no such queue. [farm.mine.options] is handed to",
        ),
        ('schedular = "tcp://h:1"', ExitCode.USAGE, "unknown key `schedular`. `torchtailor help farm`"),
        ('scheduler = "h:1"', ExitCode.USAGE, "[farm.mine]: the scheduler 'h:1' has no protocol. Write tcp://h:1."),
        ('scheduler = "tcp://h"', ExitCode.USAGE, "[farm.mine]: the scheduler 'tcp://h' has no port"),
        *(
            (f'scheduler = "tcp://h:1"\n{name} = ""', ExitCode.USAGE, f"{name}: expected `str` of length >= 1")
            for name in ("store", "objects", "cache")
        ),
        ('cluster = "slurm"\nstore = "s3:b"', ExitCode.USAGE, "[farm.mine]: the store s3:b names no bucket"),
        ("workers = 0", ExitCode.USAGE, "workers: expected `int` >= 1"),
        ("options = 7", ExitCode.USAGE, "options: expected"),
    ],
)
def test_sections(
    section: str, code: ExitCode, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what processes print that Dask starts; what is known at once is said before anything is waited for."""
    monkeypatch.setitem(sys.modules, "asyncssh", None)  # as if it was not installed
    Path("torchtailor.toml").write_text(f"[farm.mine]\n{section}\n")
    assert main(["farm", "check", "mine"]) == code
    text = " ".join(capfd.readouterr().err.split())
    assert said in text and "Traceback" not in text
    assert ("Waiting" in text) == ("cannot be started" in text)


class Fails:
    """A class of Dask's whose cluster does not start."""

    def __init__(self, reason: str) -> None:
        raise RuntimeError("Nanny failed to start.") from ValueError(f"{reason}.")


@pytest.mark.parametrize("name", ["here", "local", '"local:2"', '"tcp://h:1"', '""'])
def test_a_section_that_could_never_be_used_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("torchtailor.toml").write_text(f'[farm.{name}]\nscheduler = "tcp://h:1"\n')
    assert main(["matrix", "sm90-avx2"]) == ExitCode.USAGE
    said = " ".join(capsys.readouterr().err.split())
    inner = name.strip('"')
    assert f"[farm.{inner}]: --on takes" in said and "`torchtailor help farm`" in said


def test_every_option_of_a_method_is_named_as_it_is_written() -> None:
    known = {word for one in load_command("build").params for word in (*one.opts, *one.secondary_opts)}
    of_builds = {"cut", "with_dependencies"}  # options of their own (_cut.py), and none
    for kind in (WheelOptions, SourceOptions):
        for field in fields(kind):
            if field.name not in of_builds:
                assert option_of(field.name) in known


def test_a_section_is_handed_on(tmp_path: Path) -> None:
    (tmp_path / "torchtailor.toml").write_text(
        '[farm.big]\ncluster = "slurm"\nworkers = 32\nstore = "s3://b/farm"\n'
        '[farm.big.options]\nqueue = "q"\ncores = 8\n'
    )
    found = parse_where("big", load_pinned(tmp_path))
    assert (found.kind, found.workers, found.store) == (PlaceKind.CLUSTER, 32, "s3://b/farm")
    assert found.settings.options == {"queue": "q", "cores": 8}


def test_a_worker_that_differs_is_refused_with_the_difference() -> None:
    described = describe_worker()
    own = Fingerprint.of(described, compiles=True)
    assert own.refusal(Fingerprint.of(described, compiles=True), "node1") == ""
    changes: dict[str, tuple[dict[str, object], str]] = {
        "no torchtailor": ({"torchtailor": ""}, "has no torchtailor"),
        "python": ({"python": "3.9"}, "Python 3.9"),
        "version": ({"torchtailor": "ab", "version": "0.0.1"}, "version 0.0.1"),
        "code": ({"torchtailor": "ab"}, "other code of the same version"),
        "library": ({"libraries": {**described["libraries"], "isal": "0.1"}}, "isal 0.1"),
        "glibc": ({"glibc": "2.17"}, "glibc 2.17"),
        "compiler": ({"compiler": "c++ 4.8"}, "c++ 4.8"),
    }
    for change, said in changes.values():
        why = own.refusal(Fingerprint.of({**described, **change}, compiles=True), "node1")
        assert why.startswith("node1 has") and said in why
    arm = Fingerprint.of({**described, "machine": "riscv64"}, compiles=False)
    assert "has a processor of riscv64" in Fingerprint.of(described, compiles=False).refusal(arm, "node1")
    for name in ("glibc", "compiler"):  # which wheels do not depend on
        other = Fingerprint.of({**described, **changes[name][0]}, compiles=False)
        assert Fingerprint.of(described, compiles=False).refusal(other, "node1") == ""


def test_the_whole_command_in_one_process(index: Site, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*BUILD, "--on", "here", "--store", "store", "-o", "dist", "--plain"]
    assert main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "core-hours" in shown and "longest chain" in shown and not Path("store").exists()
    assert main(words) == 0
    seen = capsys.readouterr()
    assert "pip install --index-url" in seen.out and "2 of them cut" in seen.out
    assert "] cut torch for 9.0 (" in seen.err and "9 jobs ran on 1 worker" in seen.err
    assert main([*words, "--dry-run"]) == 0
    assert "nothing has to run" in capsys.readouterr().out
    assert main([*words[:-1], "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*words, "--json"]) == 0
    capsys.readouterr()
    for more in ([], [NAME], ["sm90-avx512"], ["sm{80,90}-*"], [NAME, "--markdown"]):
        assert main(["history", "--farm", *more]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "cut torch for 9.0" in shown and "found in the store" in shown
    assert "| pack " in shown
    for more in ([], ["--farm"], ["--json"], ["--farm", "--markdown"]):
        assert main(["history", "avx512", *more]) == ExitCode.NO_MATCH
        assert "of 'avx512'" in (said := capsys.readouterr().err) or "at 'avx512'" in said
    for name in ("sm90-avx512", NAME.replace("pytorch28", "pytorch"), NAME):
        assert main(["history", name]) == 0
        assert "found in the store" in " ".join(capsys.readouterr().out.split())
    assert main(["history", "--farm", NAME, "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [job["result"] for job in jobs] == ["done"] * 9 + ["found"] * 2
    assert all(job["variants"] == [NAME] for job in jobs)
    assert main(["history", "--json"]) == 0
    assert [one["result"] for one in json.loads(capsys.readouterr().out)["attempts"]] == ["done", "found", "found"]
    assert main(["history"]) == 0
    assert "found in the store" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("on", ["here", "tcp://127.0.0.1:9"])
def test_an_error_is_the_last_of_the_events_for_scripts(
    index: Site, on: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise NetworkError("The index went away.", "Try again.")

    monkeypatch.setattr(perform, "fetch_all", fails)
    code = main([*BUILD, "--on", on, "--store", "store", "--json"])
    seen = capsys.readouterr()
    *events, last = [json.loads(line) for line in seen.err.splitlines()]
    assert code != 0 and last["kind"] == "error" and last["exit_code"] == code and last["text"] and last["hint"]
    assert json.loads(seen.out)["schema"].startswith("torchtailor-")
    assert bool(events) == (on == "here")
    assert main([*BUILD, "--on", on]) == code  # and words again without it
    assert "error: " in capsys.readouterr().err


def test_no_logger_of_dask_prints_its_own_tracebacks() -> None:
    import distributed  # noqa: F401

    from torchtailor.building.farm.daskengine import quiet_dask

    logging.getLogger("distributed.client").setLevel(logging.WARNING)  # as its own configuration does
    quiet_dask()
    for name in ("distributed", "distributed.client", "distributed.comm", "distributed.shuffle.new", "asyncio"):
        assert not logging.getLogger(name).isEnabledFor(logging.ERROR), name
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        quiet_dask()
        warnings.warn_explicit("Port 8787 is already in use.", UserWarning, "node.py", 1, module="distributed.node")
        warnings.warn_explicit("another", UserWarning, "other.py", 1, module="other")
    assert [str(one.message) for one in seen] == ["another"]


def test_farm_check_looks_at_the_store_and_the_objects(capsys: pytest.CaptureFixture[str]) -> None:
    check = ["farm", "check", "here", "--store"]
    assert main([*check, "store"]) == 0
    assert f"store {Path('store').absolute()}\n" in capsys.readouterr().out
    assert main([*check, "store", "--objects", "made", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["store"] == str(Path("store").absolute()) and document["objects"] == "made"
    assert not list(Path("store").rglob("*/*"))  # nothing is left in it
    assert main([*check, "/proc/x"]) == ExitCode.ENVIRONMENT
    assert "The store /proc/x cannot be written" in capsys.readouterr().err
    assert main([*check, "wrong://x"]) == ExitCode.USAGE
    assert main([*check, "store", "--objects", "redis://127.0.0.1:9"]) == ExitCode.ENVIRONMENT
    captured = capsys.readouterr()
    assert "The objects redis://127.0.0.1:9 cannot be reached" in " ".join(captured.err.split())
    assert "objects redis://127.0.0.1:9" in captured.out


@pytest.mark.parametrize(
    ("scheme", "said"), [("tcp", "what listens there is not a Dask scheduler"), ("tls", "no answer.")]
)
def test_another_server_is_no_scheduler(
    scheme: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_SPEAK", 0.3)
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    keys = distributed.Security.temporary()
    settings = {"ca-file": keys.tls_ca_file, "client.cert": keys.tls_client_cert, "client.key": keys.tls_client_key}
    configured = dask.config.set({f"distributed.comm.tls.{name}": pem for name, pem in settings.items()})
    with configured, socket.create_server(("127.0.0.1", 0)) as server:
        where = f"{scheme}://127.0.0.1:{server.getsockname()[1]}"
        assert main(["farm", "check", where]) == ExitCode.NETWORK
    text = " ".join(capsys.readouterr().err.split())
    assert f"The scheduler {where} does not answer: " in text and said in text


def test_what_dask_needs_is_named_before_anything_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("cryptography", "distributed"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, package, None)  # as if it was not installed
            patched.delitem(sys.modules, "torchtailor.building.farm.daskengine", raising=False)
            assert main(["farm", "check", "local:1", "--store", "store"]) == ExitCode.ENVIRONMENT
        said = " ".join(capsys.readouterr().err.split())
        assert (
            f"{package} is not installed, which Dask needs. Install torchtailor with its extra: `pip install '" in said
        )
        assert "[farm]'" in said
    assert not Path("store").exists()


def test_how_long_a_place_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "torchtailor.toml").write_text(
        '[farm.queue]\ncluster = "slurm"\n[farm.rack]\nscheduler = "tcp://h:1"\n'
        '[farm.patient]\ncluster = "slurm"\nwait_minutes = 600\n'
    )
    catalog = load_catalog(tmp_path)
    waits = {"queue": 60, "rack": 10, "tcp://h:1": 10, "patient": 600}
    assert {name: parse_where(name, catalog).patience / 60 for name in waits} == waits


@pytest.mark.parametrize("on", [(), ("--on", "here", "--store", "store")])
def test_what_no_build_made_is_not_replaced(
    index: Site, on: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is anything fetched, and a dry run says so too."""
    place = Path("dist", NAME)
    place.mkdir(parents=True)
    notes = place / "notes.txt"
    notes.write_text("mine")
    for more in ([], ["--dry-run"]):
        assert main([*BUILD, *on, *more]) == ExitCode.USAGE
        said = " ".join(capsys.readouterr().err.split())
        assert f"{place} already exists, and nothing says that torchtailor made it: it is not replaced." in said
    assert notes.read_text() == "mine" and not Path("store").exists()
    assert not [
        one for one in index.requests if one.path.endswith(".whl") and one.status == 200 and one.method == "GET"
    ]
    notes.unlink()
    place.rmdir()
    place.write_text("mine")
    assert main([*BUILD, *on]) == ExitCode.USAGE and place.read_text() == "mine"
    place.unlink()
    place.mkdir()  # an empty folder is as good as none
    for _ in range(2):
        assert main([*BUILD, *on, "--quiet"]) == 0
    index_folder = Path("dist", "variants")
    index_folder.mkdir()
    (index_folder / "notes.txt").write_text("mine")
    assert main([*BUILD, *on, "--variants"]) == ExitCode.USAGE


@pytest.mark.parametrize("on", [(), ("--on", "here", "--store", "store")])
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_place_that_cannot_be_written_is_refused_first(
    on: tuple[str, ...], more: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing is asked of an index
    Path("file").write_text("mine")
    for out in ("file", "file/dist"):
        assert main([*BUILD, *on, *more, "-o", out]) == ExitCode.USAGE
        assert "file is not a folder. Give a folder with -o." in " ".join(capsys.readouterr().err.split())
    assert main([*BUILD, *on, *more, "-o", "/proc/dist"]) == ExitCode.ENVIRONMENT
    assert "/proc cannot be written" in " ".join(capsys.readouterr().err.split())
    assert not Path("store").exists()


@pytest.mark.parametrize("on", [(), ("--on", "here", "--store", "store")])
def test_what_of_a_glob_is_not_available_is_said_everywhere(
    index: Site, on: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Variants that the index has no wheel of, and an alternative that is no variant at all."""
    line = ["build", "sm{90,99}-avx512", "--release", "2.8.0", "-i", f"{index.url}/simple", *on]
    missing = ["pytorch28-python313-cuda12_6-sm90-avx512", "sm99-avx512"]
    for more in (["--dry-run"], ["--plain"]):
        assert main([*line, *more]) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert all(name in said for name in missing)
        assert "It matches no variant that can be built with --via wheel." in said
        assert main([*line, *more, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["unavailable"]
        assert {row["variant"] for row in rows} >= set(missing) and all(row["reason"] for row in rows)


def test_a_cache_that_is_a_file_is_named_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").write_text("")
    for place in ("file", "file/cache"):
        monkeypatch.setenv("TORCHTAILOR_CACHE", place)
        assert main(["farm", "check", "here"]) == ExitCode.ENVIRONMENT
        said = " ".join(capsys.readouterr().err.split())
        assert "it is not a folder. Set TORCHTAILOR_CACHE" in said and "--store" not in said


def test_a_plan_says_what_a_short_name_stands_for_and_what_is_downloaded(
    index: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*BUILD, "--on", "here", "--store", "store", "-o", "dist", "--prove"]
    assert main([*words, "--dry-run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "-python313-cuda12_8-sm90-avx512: PyTorch 2.8.0 (cu128), Python 3.13, x86_64" in shown
    assert "to download at most" in shown and "at the level static" in shown
    assert main([*words, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["prove"] == "static" and plan["download"] > 0
    assert main([*words, "--plain"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "1 wheelhouse proven at the level static; on a machine that runs it, `torchtailor verify dist/" in said
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proven"] == "static"
    assert main([*words, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["download"] == 0


@pytest.mark.parametrize(
    ("same_machine", "asked", "refused", "seconds"),
    [(True, 2, 1, 3600.0), (True, 2, 2, 0.0), (False, 32, 31, 3600.0), (False, 32, 32, 60.0), (False, 1, 0, 3600.0)],
)
def test_where_all_workers_are_refused_no_others_are_waited_for_long(
    same_machine: bool, asked: int, refused: int, seconds: float
) -> None:
    from torchtailor.building.farm.daskengine import DaskEngine

    engine = DaskEngine.__new__(DaskEngine)  # without a cluster
    engine._same_machine, engine._asked, engine._patience = same_machine, asked, 3600.0
    engine._refused = {str(number): "It differs." for number in range(refused)}
    assert engine.patience == seconds


def test_kubernetes_gets_its_section_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dask-kubernetes needs a cluster of its own: a class of its name stands in."""
    package, operator = ModuleType("dask_kubernetes"), ModuleType("dask_kubernetes.operator")
    vars(operator)["KubeCluster"] = dict
    monkeypatch.setitem(sys.modules, "dask_kubernetes", package)
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", operator)
    (tmp_path / "torchtailor.toml").write_text(
        '[farm.pods]\ncluster = "kubernetes"\n'
        '[farm.pods.options]\nname = "torchtailor"\nimage = "team/worker:1"\n'
        'resources = { requests = { memory = "8Gi" }, limits = { cpu = 4 } }\n'
    )
    started = where._cluster(parse_where("pods", load_catalog(tmp_path)))
    resources = {"requests": {"memory": "8Gi"}, "limits": {"cpu": 4}}
    assert started == {"name": "torchtailor", "image": "team/worker:1", "resources": resources}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--work", "big"], "--work is for builds without --on"),
        (["--no-ccache", "--no-resume", "--auto-fix", "3"], "--no-resume, --auto-fix, --no-ccache are for builds"),
    ],
)
def test_options_that_no_job_would_see_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "cpu-avx2", "--via", "source", "--on", "here", "--dry-run", *words]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert said in " ".join(error.split()) and "TORCHTAILOR_WORK" in error


def test_jobs_are_the_processes_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHTAILOR_CACHE", str(tmp_path / "cache"))

    def processes(on: Where, jobs: int | None) -> int:
        catalog, source = load_catalog(), f"https://example.org/pytorch.git@{'0' * 40}"
        plan = SourceBackend(catalog, SourceOptions(source, jobs=jobs)).plan(choose(catalog, ["cpu-avx2"]), tmp_path)
        farmed = plan.jobs_on(JobPlace(catalog, str(tmp_path), 1, here=True, rates=Rates()))
        return FarmPlan(plan, farmed, on, "store", "store", frozenset()).processes

    here = parse_where("here", load_catalog())
    cluster = Where("rack", PlaceKind.CLUSTER, settings=FarmSettings(cluster="slurm", processes=4))
    assert [processes(place, jobs) for place in (here, cluster) for jobs in (None, 8)] == [0, 8, 4, 8]
    bench = perform.workbench(perform.WorkerSetup(str(tmp_path / "store"), processes=0))
    assert bench.compiling.jobs is None and bench.context(tmp_path).processes == available_cores()
    assert perform.workbench(perform.WorkerSetup(str(tmp_path / "store"), processes=8)).compiling.jobs == 8


def test_a_job_that_dask_leaves_to_this_process_uses_its_own_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daskengine = pytest.importorskip("torchtailor.building.farm.daskengine")
    used: list[str] = []

    def noted(_: bytes, setup: bytes) -> bytes:
        used.append(msgspec.json.decode(setup)["cache"])
        return msgspec.json.encode(JobOutcome(done=True))

    monkeypatch.setattr(daskengine, "perform_sent", noted)
    client = SimpleNamespace(scheduler=None, subscribe_topic=lambda *_: None)
    engine = daskengine.DaskEngine(client, perform.WorkerSetup(str(tmp_path), cache="/scratch"))
    engine._run_here("x", b"")
    assert used == [""]

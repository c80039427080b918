"""Descriptions and recordings as files: what goes in comes out, and what is damaged is said in a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import machines
from tests.waiting import not_hanging
from torchtailor.advise.host import store
from torchtailor.advise.host.detect import detect
from torchtailor.advise.host.probe import RecordingProbe, ReplayProbe
from torchtailor.advise.host.store import loads
from torchtailor.advise.recommendation import recommend
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NoMatchError


@pytest.mark.parametrize("name", machines.NAMES)
def test_every_description_survives_a_file(name: str, tmp_path: Path) -> None:
    host = machines.host(name)
    store.write(msgspec.json.encode(host), tmp_path / "host.json")
    assert store.load(tmp_path / "host.json") == host
    assert [path.name for path in tmp_path.iterdir()] == ["host.json"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[]", "not the description of a machine"),
        (b"{}", "not the description of a machine"),
        (b'{"schema": 1}', "not the description of a machine"),
        (b'{"schema": "torchtailor-recording/1"}', "not the description of a machine"),
        (b'{"schema": "torchtailor-host/2"}', "of version '2'; this torchtailor reads version 1"),
        (b'{"schema": "torchtailor-host/1"}', "missing required field `cpu`"),
        (b"[" * 100_000, "is not JSON"),
        (b" " * (5 << 20), "too large"),
    ],
)
def test_what_is_no_description_is_refused_in_a_sentence(data: bytes, says: str) -> None:
    with pytest.raises(BadInputError) as caught:
        store.loads(data, "host.json")
    assert says in caught.value.message
    assert caught.value.message.startswith("host.json ") and caught.value.hint


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("cpu", "threads"), 0, "$.cpu.threads"),
        (("cpu", "flags"), "avx", "$.cpu.flags"),
        (("cpu", "colour"), "blue", "unknown field `colour`"),
        (("gpus", 0, "capability"), "ninety", "$.gpus[0].capability"),
        (("gpus", 0, "memory"), -1, "$.gpus[0].memory"),
        (("driver", "version"), "new", "$.driver.version"),
        (("extra",), 1, "unknown field `extra`"),
    ],
)
def test_a_damaged_field_is_named(path: tuple[str | int, ...], value: object, says: str) -> None:
    document = json.loads(msgspec.json.encode(machines.host("h100-driver-580")))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(BadInputError) as caught:
        store.loads(json.dumps(document).encode(), "host.json")
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("os_id", "os", "known", "says"),
    [
        ("darwin", "macOS 15.1", "macos", "there is no CUDA for macOS"),
        ("", "Darwin", "macos", "there is no CUDA for macOS"),
        ("win32", "Windows 11 Pro", "windows", "Under WSL 2"),
        ("windows", "Microsoft Windows Server 2022", "windows", "Under WSL 2"),
        ("freebsd", "FreeBSD 14.1", "freebsd", "this is FreeBSD 14.1"),
    ],
)
def test_another_system_is_known_by_any_of_its_names(os_id: str, os: str, known: str, says: str) -> None:
    """Descriptions come from other tools and hands, too; no wheel of Linux is recommended for them."""
    host = machines.host("zen4")
    system = msgspec.structs.replace(host.system, os_id=os_id, os=os, kernel="24.1.0", libc=None, libc_version=None)
    read = loads(msgspec.json.encode(msgspec.structs.replace(host, system=system)), "host.json")
    assert (read.system.os_id, read.system.linux) == (known, False)
    assert says in read.notes[0].text
    assert loads(msgspec.json.encode(read), "host.json") == read
    answer = recommend(read, catalog=machines.catalog())
    assert answer.best is None
    assert answer.machine.endswith(f", {os}")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(NoMatchError, match="does not exist"):
        store.load(Path("/nonexistent/host.json"))
    with pytest.raises(BadInputError, match="cannot be read"):
        store.load(Path("/"))


def test_a_pipe_is_read_and_one_without_a_writer_not_waited_for(tmp_path: Path) -> None:
    """As `detect --from <(ssh other torchtailor detect --json)`."""
    host = machines.host("zen4")
    reader, writer = os.pipe()
    os.write(writer, msgspec.json.encode(host))  # less than a pipe holds
    os.close(writer)
    assert store.load(Path(f"/dev/fd/{reader}")).cpu == host.cpu
    os.close(reader)
    os.mkfifo(tmp_path / "pipe")
    with not_hanging("a description"), pytest.raises(BadInputError, match="is not JSON"):
        store.load(tmp_path / "pipe")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        store.write(b"x", tmp_path / "missing" / "host.json")


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with pytest.raises(BadInputError):
        store.loads(data, "host.json")


@pytest.mark.parametrize("name", ["rtx-4090-wsl", "orin-jetpack-6", "nvml-hangs", "h100-mig", "kubernetes-pod"])
def test_a_recording_of_a_replay_replays_the_same(name: str) -> None:
    probe = RecordingProbe(ReplayProbe.load(machines.FOLDER / f"{name}.json"))
    first = detect(probe, machines.catalog())
    again = detect(ReplayProbe(probe.recording("again")), machines.catalog())
    assert msgspec.structs.replace(again, taken=first.taken) == first


def test_a_file_that_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema": "torchtailor-recording/1", "wrong": 1}')
    with pytest.raises(BadInputError, match="not a recording"):
        ReplayProbe.load(tmp_path / "x.json")

"""`-v`: the log on stderr, before and after the command, without credentials."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.unit.fetch.packages import Package, html_index
from tests.unit.fetch.serving import Site, serve
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.cli._verbose import log_on_stderr
from torchtailor.core.errors import ExitCode
from torchtailor.fetch.client import Client
from torchtailor.fetch.options import IndexOptions
from torchtailor.fetch.settings import read_settings

FAT = Path(__file__).parents[1] / "gpucode" / "fixtures" / "raw.so"


def lines(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, list[str]]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, [line for line in err.splitlines() if " INFO " in line or " DEBUG " in line]


@pytest.mark.parametrize("words", [("-v", "inspect", FAT), ("inspect", FAT, "-v"), ("inspect", "--verbose", FAT)])
def test_before_and_after_the_command(capsys: pytest.CaptureFixture[str], words: tuple[object, ...]) -> None:
    code, _, said = lines(capsys, *words)
    assert code == ExitCode.OK
    assert "torchtailor" in said[0] and "Python" in said[0]
    assert any("Reading libraries" in line for line in said)  # a phase and its time
    assert "torchtailor inspect took" in said[-1]
    assert not any(" DEBUG " in line for line in said)


def test_nothing_is_said_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "inspect", FAT)[2] == []
    lines(capsys, "-vv", "inspect", FAT)
    assert lines(capsys, "inspect", FAT)[2] == []
    assert not logging.getLogger("torchtailor").handlers


def test_what_was_done_and_what_decided(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, {"demo/libx.so": FAT.read_bytes()})
    _, _, said = lines(capsys, "tailor", wheel, "--gpu", "9.0", "-o", tmp_path / "out", "-vv")
    text = "\n".join(said)
    assert "libx.so: cut, 50.7 kB -> " in text and "its name says nothing against a cut" in text
    _, out, said = lines(capsys, "recommend", "--gpu", "4090", "--cpu", "zen4", "-vv", "--json")
    assert json.loads(out)["schema"] == "torchtailor-recommend/1"  # stdout is for scripts, whatever is said
    assert any("because: PyTorch" in line for line in said) and any("DEBUG" in line and "not " in line for line in said)


def test_commands_of_a_group_say_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = lines(capsys, "-v", "cache", "dir", "-v")
    assert code == ExitCode.OK
    assert sum("torchtailor cache dir took" in line for line in said) == 1


def test_what_is_fetched_without_its_credentials(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(Site()) as site, log_on_stderr(2):
        site.content |= html_index([Package("demo", "1.0")])
        url = site.url.replace("://", "://user:hunter2@") + "/simple/demo/?token=s3cret"
        settings = read_settings(IndexOptions(index_url=url))
        Client(settings).get(url)
        logging.getLogger("torchtailor.x").info("running pip --index-url %s, as user@host", url)
    said = capsys.readouterr().err
    assert "GET http://****@" in said and "packages come from http://****@" in said and "--index-url" in said
    assert "hunter2" not in said and "s3cret" not in said and "as user@host" in said

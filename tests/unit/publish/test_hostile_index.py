"""An index that others made, or that was damaged, is read by promote, rollback, prune, yank and --list."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.building.conftest import catalog, hurry, site, workshop  # noqa: F401
from tests.unit.publish.test_lifecycle import index, made  # noqa: F401
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode

ACTIONS = {
    "promote": ["--promote", "{hostile}", "--to", "{live}"],
    "list": ["--list", "--to", "{hostile}"],
    "rollback": ["--rollback", "previous", "--to", "{hostile}"],
    "prune": ["--prune", "--grace", "0s", "--to", "{hostile}"],
    "yank": ["--yank", "torch==2.8.0", "--to", "{hostile}"],
}


@pytest.fixture
def hostile(index: Path, tmp_path: Path) -> Path:  # noqa: F811
    return index.rename(tmp_path / "hostile")


def run(action: str, hostile: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    words = [word.format(hostile=hostile, live=hostile.parent / "live") for word in ACTIONS[action]]
    code = main(["publish", *words])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out + captured.err


def change_page(page: Path, change: Callable[[dict[str, object]], object]) -> None:
    document = json.loads(page.read_text())
    change(document["files"][0])
    page.write_text(json.dumps(document))


def torch_page(hostile: Path) -> Path:
    return hostile / "cu128-sm90" / "torch" / "index.json"


@pytest.mark.parametrize("action", ["promote", "rollback", "prune"])
@pytest.mark.parametrize(
    "lead", ["../../../victim/", "../../%2e%2e/victim/", "../../files/../../victim/", "../../{root}/"]
)
def test_a_path_that_leads_out_of_the_index(
    hostile: Path, capsys: pytest.CaptureFixture[str], action: str, lead: str
) -> None:
    victim = hostile.parent / "victim"
    victim.mkdir()
    content = b"not of this index"
    (victim / "x.whl").write_bytes(content)
    entry = {
        "filename": "x-1-py3-none-any.whl",
        "url": lead.replace("{root}", str(victim).replace("/", "%2F")) + "x.whl",
        "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
        "size": len(content),
    }
    change_page(torch_page(hostile), lambda file: file.update(entry))
    for generation in hostile.glob("**/0*.json"):
        document = json.loads(generation.read_text())
        document["pages"]["cu128-sm90"]["torch"] = [entry]
        generation.write_text(json.dumps(document))
    before = sorted(path for path in hostile.parent.rglob("*") if not path.is_relative_to(hostile))
    code, text = run(action, hostile, capsys)
    assert code == ExitCode.BAD_INPUT, text
    assert "leads out of the index" in text
    after = sorted(path for path in hostile.parent.rglob("*") if not path.is_relative_to(hostile))
    assert [path for path in after if path not in before] == []


def test_a_link_is_not_copied_into_an_index(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Metadata without a hash on its page may be anything, and nobody asks for it."""
    secret = hostile.parent / "secret"
    secret.write_text("key")
    (metadata, *_) = hostile.glob("files/**/torch-*.whl.metadata")
    metadata.unlink()
    metadata.symlink_to(secret)
    for page in hostile.glob("*/torch/index.json"):
        change_page(page, lambda file: [file.pop(key, None) for key in ("core-metadata", "dist-info-metadata")])
    assert run("promote", hostile, capsys)[0] == ExitCode.OK
    assert not any(path.is_file() and path.read_bytes() == b"key" for path in (hostile.parent / "live").rglob("*"))


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("targets.json", b'["../../etc"]'),
        ("targets.json", b'{"a": 1}'),
        ("targets.json", b"\xff"),
        ("targets.json", b"[" * 100_000),
        ("cu128-sm90/index.json", b'{"projects": [{"name": "../../x"}]}'),
        ("cu128-sm90/index.json", b"[]"),
        ("cu128-sm90/torch/index.json", b"{}"),
    ],
)
def test_damaged_pages_are_refused_in_a_sentence(
    hostile: Path, capsys: pytest.CaptureFixture[str], action: str, name: str, content: bytes
) -> None:
    (hostile / name).write_bytes(content)
    code, text = run(action, hostile, capsys)
    assert code == ExitCode.BAD_INPUT, text


@pytest.mark.parametrize("action", ["list", "rollback", "prune", "yank"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("last", b"many"),
        ("last", b"-3"),
        ("last", b"9" * 5000),
        ("last", "٣".encode()),
        ("000002.json", b"[]"),
        ("000002.json", b'{"number": 2, "time": "x", "action": "", "pages": {}}'),
        (
            "000002.json",
            b'{"number": 2, "time": "2026-01-01T00:00:00+00:00", "action": "", "pages": {"../x": {"y": []}}}',
        ),
        ("000002.json", b"[" * 100_000),
    ],
)
def test_a_damaged_history_is_refused_in_a_sentence(
    hostile: Path, capsys: pytest.CaptureFixture[str], action: str, name: str, content: bytes
) -> None:
    (history,) = {path.parent for path in hostile.glob("**/000002.json")}
    (history / name).write_bytes(content)
    code, text = run(action, hostile, capsys)
    assert code == ExitCode.BAD_INPUT, text


@pytest.mark.parametrize("action", [*ACTIONS, "publish"])
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_an_index_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str, dry: tuple[str, ...]
) -> None:
    if action == "publish":
        code = main(["publish", str(tmp_path / "dist"), "--to", str(tmp_path / "live"), *dry])
    else:
        words = [word.format(hostile=tmp_path / "hostile", live=tmp_path / "live") for word in ACTIONS[action]]
        code = main(["publish", *words, *dry])
    assert code == ExitCode.NO_MATCH
    assert list(tmp_path.iterdir()) == []
    assert "There is no" in (said := capsys.readouterr().err) or "is empty" in said


def test_what_the_tests_change_is_sound(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ACTIONS:
        assert run(action, hostile, capsys)[0] == ExitCode.OK
    shutil.rmtree(hostile)

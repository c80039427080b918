"""What `--json` prints: one schema name and version everywhere, ISO times, errors too; docs/json.md is all of it."""

from __future__ import annotations

import ast
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import torchtailor
from tests.documents import document_validator
from torchtailor.catalog import load_catalog
from torchtailor.cli import COMMANDS, main, ui
from torchtailor.cli.ui.documents import DOCUMENTS, schema_of
from torchtailor.core.errors import ExitCode
from torchtailor.fetch.cache import CachePruned

ROOT = Path(torchtailor.__file__).parent
FIXTURES = Path(__file__).parents[1] / "gpucode" / "fixtures"


class _MoreKeys(CachePruned):
    more: int


def printed() -> set[str]:
    """The names of all documents that the commands print, from their code."""
    names = set()
    for path in (ROOT / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("print_json"):
                name = ast.unparse(node.args[0]).strip("'\"")
                ways = load_catalog().methods
                names |= {re.sub(r"\{.*\}", way, name[2:]) for way in ways} if name.startswith("f'") else {name}
    return names


def test_every_document_is_described_and_every_description_is_printed() -> None:
    assert printed() == set(DOCUMENTS)
    page = (ROOT.parents[1] / "docs" / "json.md").read_text()
    assert [name for name in DOCUMENTS if f"## `{schema_of(name)}`" not in page] == []


def test_every_schema_is_one() -> None:
    for name in DOCUMENTS:
        assert document_validator(name).schema["properties"]["schema"] == {"const": f"torchtailor-{name}/1"}


@pytest.mark.parametrize("result", [CachePruned(["x"], "many", False), _MoreKeys(["x"], 5, False, 1)])  # type: ignore[arg-type]
def test_what_is_not_as_documented_is_noticed(result: CachePruned) -> None:
    """By the fixture that checks the documents of all tests: a wrong type, and a key that nobody has described."""
    import jsonschema

    with pytest.raises(jsonschema.ValidationError):
        ui.print_json("cache-prune", result)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the one document; that it is as documented, a fixture of all tests checks."""
    code = main([*arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert next(iter(found)) == "schema"
    return code, found


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("host", ["detect"]),
        ("recommend", ["recommend", "--gpu", "H200", "--cpu", "zen4", "--driver", "580.95.05"]),
        ("recommend", ["recommend", "--gpu", "none", "--cpu", "zen4"]),
        ("matrix", ["matrix", "sm90-*"]),
        ("matrix-why", ["matrix", "--why", "sm90-avx512"]),
        ("inspect", ["inspect", str(FIXTURES / "places-relr.so"), "--gpu", "9.0"]),
        ("tailor", ["tailor", str(FIXTURES / "places-relr.so"), "--gpu", "9.0", "-o", "out.so"]),
        ("tailor", ["tailor", str(FIXTURES / "places-relr.so"), "--gpu", "9.0", "-o", "out.so", "--dry-run"]),
        ("restore", ["restore", "--env", "env"]),
        ("history", ["history"]),
        ("cache", ["cache", "list"]),
        ("cache-prune", ["cache", "prune", "--all"]),
        ("recipes-rules", ["recipes", "rules"]),
        ("recipes-write", ["recipes", "write", "tree", "sm90-avx512", "--release", "cuda-13_0", "--dry-run"]),
        ("doctor", ["doctor", "log"]),
    ],
)
def test_real_output_is_as_documented(name: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("env/lib/python3.13/site-packages/x.dist-info").mkdir(parents=True)
    Path("log").write_text("all is well\n")
    code, found = document(capsys, *arguments)
    assert (code, found["schema"]) == (ExitCode.OK, schema_of(name))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["matrix", "--release", "9.9"], ExitCode.NO_MATCH, "No release"),
        (["matrix", "--nope"], ExitCode.USAGE, "--nope"),
        (["matrix", "--csv"], ExitCode.USAGE, "mutually exclusive"),
        (["nocommand"], ExitCode.USAGE, "no command"),
        (["inspect", "missing.so"], ExitCode.NO_MATCH, "missing.so"),
        (["verify", "missing.whl"], ExitCode.NO_MATCH, "missing.whl"),
        (["tailor", "missing.whl", "--gpu", "9.0"], ExitCode.NO_MATCH, "missing.whl"),
        (["publish", "--to", "nowhere", "--list"], ExitCode.NO_MATCH, "no index"),
        (["recommend", "--from", "missing.json"], ExitCode.NO_MATCH, "missing.json"),
        (["cache", "prune", "--older-than", "x"], ExitCode.USAGE, "not a time"),
    ],
)
def test_an_error_is_a_document_too(
    arguments: list[str], code: ExitCode, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--json"]) == code
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["schema"] == "torchtailor-error/1"
    assert words in found["error"]
    assert found["exit_code"] == code
    assert found["hint"]
    assert err.startswith(f"error: {found['error'][:20]}")


def test_a_result_with_a_failure_in_it_is_one_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad-1.0-py3-none-any.whl"
    bad.write_bytes(b"not a wheel")
    code, found = document(capsys, "tailor", str(bad), "--gpu", "9.0")
    assert code == ExitCode.BAD_INPUT
    assert found["schema"] in ("torchtailor-tailor/1", "torchtailor-error/1")


def test_times_have_their_zone(capsys: pytest.CaptureFixture[str]) -> None:
    from torchtailor.fetch.cache import Cache

    place = Cache().root / "blobs" / "ab" / ("ab" * 32)
    place.mkdir(parents=True)
    (place / "x-1.0-py3-none-any.whl").write_bytes(b"x")
    _, found = document(capsys, "cache", "list")
    times = [datetime.fromisoformat(entry["used"]) for entry in found["entries"]]
    assert times
    assert all(moment.tzinfo for moment in times)


def test_every_command_with_a_result_has_json(capsys: pytest.CaptureFixture[str]) -> None:
    without = []
    for name in COMMANDS:
        assert main([name, "--help"]) == ExitCode.OK
        text = capsys.readouterr().out
        if "--json" not in text and "Commands:" not in text:
            without.append(name)
    assert without == ["run", "help"]  # one becomes another program, one prints a page

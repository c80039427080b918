"""A build method that is a folder of its own, a row and a class, is everywhere where methods are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import torchtailor
from torchtailor.catalog import load_catalog
from torchtailor.catalog.variants import Matrix
from torchtailor.cli import main
from torchtailor.core import version
from torchtailor.core.errors import ExitCode, UsageError
from torchtailor.site.answers import page_answer
from torchtailor.site.choices import form_choices
from torchtailor.site.pages import compile_engine

TOY = Path(__file__).parent / "toy"
NAME = "pytorch215-python313-cuda13_2-sm90-avx512"
MACHINE = ("--gpu", "H100", "--cpu", "zen4", "--driver", "590.48")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(TOY))
    monkeypatch.chdir(TOY)


def test_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", NAME, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["variants"]
    assert {*row["methods"]} == load_catalog().methods.keys() - {"nix"}
    assert main(["matrix", "--why", "sm90-avx512"]) == 0
    assert ", toy" in capsys.readouterr().out


def test_the_recommendation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", *MACHINE, "--via", "toy"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "made by a toy" in said and f"torchtailor build {NAME} --via toy" in said
    others = torchtailor.recommend(gpus="H100", cpu="zen4", driver="590.48").other_variants
    (toy,) = [other for other in others if other.method == "toy"]
    assert toy.reasons == ("Made by a toy: made for this hardware alone, takes seconds.",)


def test_a_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["build", NAME, "--via", "toy", "-o", str(tmp_path / "dist")]
    assert main([*line, "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{NAME}\nIt costs nothing.\n" and not (tmp_path / "dist").exists()
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "torchtailor-build-toy/1",
        "written": [NAME],
        "unavailable": [],
    }
    assert (tmp_path / "dist" / f"{NAME}.toy").read_text() == "sm90-avx512"
    torchtailor.build(NAME, method="toy", loud=True, out=tmp_path / "dist")
    assert (tmp_path / "dist" / f"{NAME}.toy").read_text() == "SM90-AVX512"
    assert main(["history", "--json"]) == 0
    assert {row["method"] for row in json.loads(capsys.readouterr().out)["attempts"]} == {"toy"}
    assert main([*line, "--nvidia"]) == ExitCode.USAGE
    assert "--nvidia is for --via wheel only" in capsys.readouterr().err
    assert main([*line, "--on", "here"]) == ExitCode.USAGE
    assert "Omit --on" in capsys.readouterr().err


def test_a_workflow(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "PUBLISHED", True)
    for system in ("github", "gitlab"):
        assert main(["ci", system, NAME, "--via", "toy", "-o", "-"]) == 0
        text = capsys.readouterr().out
        assert "--via toy -o dist --plain" in text and "toy-method" in text and "toybox" in text


def test_the_site() -> None:
    catalog = load_catalog()
    assert {"key": "toy", "label": "made by a toy"} in form_choices(catalog)["methods"]
    answer = page_answer(Matrix(catalog), {"gpus": ["H100"], "cpu": "zen4", "driver": "590.48", "method": "toy"})
    assert "--via toy" in str(answer)
    assert '"made by a toy"' in compile_engine(catalog).data


def test_torchtailors_own_methods_are_not_changed_by_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (TOY / "torchtailor.toml").read_text()
    (tmp_path / "torchtailor.toml").write_text(text.replace('"toy"', '"wheel"'))
    with pytest.raises(UsageError, match="'wheel' is one of torchtailor's own"):
        load_catalog(tmp_path)


def test_a_method_whose_code_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (TOY / "torchtailor.toml").read_text()
    (tmp_path / "torchtailor.toml").write_text(text.replace("toy_method:", "no_such_module:"))
    monkeypatch.chdir(tmp_path)
    assert main(["build", NAME, "--via", "toy"]) == ExitCode.ENVIRONMENT
    assert "no_such_module:ToyBackend is not there" in " ".join(capsys.readouterr().err.split())
    assert main(["build", NAME, "--via", "other"]) == ExitCode.USAGE
    assert f"Choose one of {', '.join(load_catalog().methods)} with" in " ".join(capsys.readouterr().err.split())

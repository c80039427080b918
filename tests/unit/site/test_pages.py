"""The site's pages as text: what is in them, that names stay text, and the command that writes them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import machines
from tests.catalogs import pin
from torchtailor.cli import main
from torchtailor.core.errors import TorchtailorError
from torchtailor.site.answers import page_answer
from torchtailor.site.choices import form_choices
from torchtailor.site.compiler import NotCompilable, compile_program
from torchtailor.site.hosts import SYSTEMS, read_host
from torchtailor.site.pages import compile_engine
from torchtailor.site.published import PublishedVariant, front_page
from torchtailor.site.tables import matrix_entries

EVIL = '"><img src=x onerror=alert(1)>'


def test_everything_the_form_offers_is_known() -> None:
    catalog = machines.catalog()
    form = form_choices(catalog)
    for name, capability in form["products"]:
        assert str(catalog.find_gpu(name).gpu.capability) == capability
    for name, core in form["cpus"]:
        assert catalog.microarchitecture(name)[0].name == core
    assert len(form["cpus"]) > 100
    assert {row["key"] for row in form["systems"]} == {one.key for one in SYSTEMS}


def test_descriptions_are_read_as_the_command_reads_them() -> None:
    import msgspec
    from msgspec.structs import replace

    for name in machines.NAMES:
        host = machines.host(name)
        found = read_host(json.loads(msgspec.json.encode(host)))
        assert found == replace(host, tools=(), torches=()), name


def test_only_methods_that_share_a_name_are_left_out_of_the_program() -> None:
    assert set(compile_engine(machines.catalog()).left_out) <= {"torchtailor.catalog.cpus.CpuName.check"}


def test_what_cannot_be_translated_is_named() -> None:
    from torchtailor.site.pages import site_sizes  # calls gzip, which no page has

    with pytest.raises(NotCompilable, match=r"torchtailor\.site\.pages\.site_sizes, line \d+: no translation for gzip"):
        compile_program({"f": site_sizes}, {})


def test_commands_of_a_wheel_of_the_default_index_and_of_another() -> None:
    newest = page_answer(machines.matrix(), {"gpus": ["H100"], "cpu": "zen4"})
    commands = {one.key: one.text for one in newest.commands}
    assert commands["uv"] == "uv pip install torch==2.15.0"
    assert "tool.uv.index" not in commands["pyproject"]
    older = page_answer(machines.matrix(), {"gpus": ["H100"], "cpu": "zen4", "driver": "550.54.15"})
    commands = {one.key: one.text for one in older.commands}
    assert commands["uv"].startswith("uv pip install torch==2.14.1+cu126 --extra-index-url https://")
    assert "explicit = true" in commands["pyproject"]
    assert "nixpkgsSource = nixpkgs; }).pytorch-python313-cuda12_9-sm90-avx512;" in commands["nix"]


@pytest.mark.skipif(shutil.which("nix-instantiate") is None, reason="nix-instantiate is not installed")
def test_the_flake_is_nix(tmp_path: Path) -> None:
    found = page_answer(machines.matrix(), {"gpus": ["H100"], "cpu": "zen4"})
    (flake,) = [one.text for one in found.commands if one.key == "nix"]
    (tmp_path / "flake.nix").write_text(flake)
    subprocess.run(["nix-instantiate", "--parse", str(tmp_path / "flake.nix")], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("query", "line"),
    [
        (
            {"gpus": ["RTX 4090", "L40S"], "cpu": "Ryzen 9 7950X", "driver": "570.26", "python": "3.12"},
            "torchtailor recommend --gpu 'RTX 4090' --gpu L40S --cpu 'Ryzen 9 7950X' --driver 570.26 --python 3.12",
        ),
        ({"gpus": ["RTX 5090"]}, "torchtailor recommend --gpu 'RTX 5090' --cpu x86_64_v3"),
        ({}, "torchtailor recommend --gpu none --cpu x86_64_v3"),
        ({"gpus": ["GH200"]}, "torchtailor recommend --gpu GH200"),
        (
            {"gpus": ["Jetson AGX Orin"], "jetpack": "6.2"},
            "torchtailor recommend --gpu 'Jetson AGX Orin' --jetpack 6.2",
        ),
    ],
)
def test_the_line_for_a_terminal_gives_the_same_answer(
    query: dict[str, object], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import shlex
    from dataclasses import asdict

    pin(monkeypatch)
    found = page_answer(machines.matrix(), query)
    assert found.line == line
    main([*shlex.split(line)[1:], "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert found.recommendation is not None
    assert {key: value for key, value in printed.items() if key != "schema"} == json.loads(
        json.dumps(asdict(found.recommendation))
    )


def test_a_wrong_question_is_answered_with_the_commands_words() -> None:
    found = page_answer(machines.matrix(), {"gpus": ["Radeon RX 7900"]})
    with pytest.raises(TorchtailorError) as error:
        machines.catalog().gpu("Radeon RX 7900")
    assert (found.problem, found.hint) == (error.value.message, error.value.hint)


@pytest.mark.parametrize(("field", "what"), [("method", "build method"), ("workload", "workload of the form")])
def test_a_choice_that_the_form_does_not_have_is_named(field: str, what: str) -> None:
    found = page_answer(machines.matrix(), {"gpus": ["H100"], field: "conda"})
    assert found.problem == f"'conda' is not a {what}."
    assert found.hint


def test_the_matrix_has_every_variant_once() -> None:
    entries = matrix_entries(machines.matrix())
    names = [entry.cells[0].text for entry in entries]
    assert sorted(names) == sorted(variant.unique_name for variant in machines.matrix().variants())
    assert len(set(names)) == len(names)


def test_hostile_names_of_an_index_stay_text() -> None:
    row = PublishedVariant(EVIL, EVIL, (EVIL,), EVIL, EVIL, 1, 2, EVIL, EVIL, EVIL)
    page = front_page([row], [EVIL, "variants"]).decode()
    assert EVIL not in page
    assert "<img" not in page
    assert "&quot;&gt;&lt;img src=x" in page


def test_the_command_writes_pages_and_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", str(tmp_path / "out"), "--json", "--dry-run"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [page["name"] for page in document["pages"]] == ["index.html", "matrix.html", "gpus.html", "cpus.html"]
    assert document["pages"][0]["gzip"] < 300_000
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    assert main(["site", str(tmp_path / "file")]) == 2

"""Every choice of a cut in every command that cuts: it reaches what is done, or is refused with its reason."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.building.stack import FAT, fill
from tests.unit.fetch.serving import Site, serve
from tests.unit.oci.builder import stock, tar_of
from tests.unit.oci.test_cut import BASE, package
from tests.unit.tailoring.test_caches import made
from torchtailor.catalog import TorchArch
from torchtailor.cli import main
from torchtailor.cli._cut import OPTIONS, REFUSED, takes_cut
from torchtailor.cli._dispatch import load_command
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.errors import ExitCode
from torchtailor.surgery.cut import Cut, HostPages, PackCompression
from torchtailor.surgery.cut_document import JobCut
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import Trace, TracedLibrary, write_trace

COMMANDS = ("tailor", "image", "build", "install", "ci")
TRACE = Trace((TracedLibrary("ab" * 16, "libx.so", 3, (1,)),), ("torch/share/noise.bin",), ("app",), 1)
USED = {"trace": TRACE.digest, "margin": "exact", "pack": True}
# The words of each option, with those that it needs, and what the document of the command then says.
WORDS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "gpu": (["--gpu", "8.0"], {"gpus": ["8.0"]}),
    "keep_ptx": (["--keep-ptx"], {"keep_ptx": True}),
    "no_lto": (["--no-lto"], {"lto": False}),
    "driver": (["--driver", "550.54"], {"driver": "550.54"}),
    "drop": (["--drop", "headers,docs"], {"drop": ["docs", "headers"]}),
    "nvidia": (["--nvidia"], {"nvidia": True}),
    "strip": (["--no-strip"], {"strip": False}),
    "relr": (["--relr"], {"relr": True}),
    "recompress": (["--recompress"], {"recompress": {"level": 19, "driver": None}}),
    "zstd_level": (["--recompress", "--zstd-level", "3"], {"recompress": {"level": 3, "driver": None}}),
    "split": (["--split"], {"split": True}),
    "workload": (["--workload", "app.trace"], {"workload": USED}),
    "margin": (["--workload", "app.trace", "--margin", "library"], {"workload": {**USED, "margin": "library"}}),
    "pack": (["--workload", "app.trace", "--pack", "packs"], {"workload": USED}),
    "no_pack": (["--workload", "app.trace", "--no-pack"], {"workload": {**USED, "pack": False}}),
    "host_pages": (
        ["--workload", "app.trace", "--host-pages", "all"],
        {"host_pages": {"left": "all", "gap": 4096, "debuggable": False, "packs": "none"}},
    ),
    "gap": (
        ["--workload", "app.trace", "--gap", "16384"],
        {"host_pages": {"left": "code", "gap": 16384, "debuggable": False, "packs": "none"}},
    ),
    "debuggable": (
        ["--workload", "app.trace", "--debuggable"],
        {"host_pages": {"left": "code", "gap": 4096, "debuggable": True, "packs": "none"}},
    ),
    "pack_compress": (
        ["--workload", "app.trace", "--pack-compress", "zstd"],
        {"host_pages": {"left": "code", "gap": 8192, "debuggable": False, "packs": "zstd"}},
    ),
    "drop_unopened": (["--workload", "app.trace", "--drop-unopened"], {"drop_unopened": True}),
    "bake_caches": (["--bake-caches", "caches"], {}),
    "index_modules": (["--workload", "app.trace", "--index-modules"], {"index_modules": True}),
}


@pytest.fixture(scope="module")
def index() -> Iterator[Site]:
    with serve(Site()) as running:
        yield fill(running)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    files = {**package(FAT), "lib/libc.so.6": FAT + b"GLIBC_ABI_DT_RELR\0"}
    return stock(tmp_path_factory.mktemp("image") / "stock", [BASE, tar_of(files)])


def line(command: str, option: str, index: Site, image: str) -> list[str]:
    """A command line with an option; --json says what would be done with it, and nothing is done."""
    gpu = [] if option == "gpu" else ["--gpu", "9.0"]
    from_index = ["--release", "main", "--index-url", f"{index.url}/simple"]
    first = {
        "tailor": ["libx.so", *gpu],
        "image": [image, "oci:cut:x", *gpu],
        "build": ["sm90-avx512", *from_index],
        "install": ["sm90-avx512", *from_index, "--python", "3.13", "--into", "env"],
        "ci": ["github", "sm90-avx512", "--store", "s3://bucket/store"],
    }
    return [command, *first[command], *WORDS[option][0], "--dry-run", "--json"]


def chosen(document: dict[str, Any]) -> dict[str, Any]:
    """What a document says of the cut, whichever command printed it."""
    target = document.get("target", {})
    given = document.get("policy") or document.get("options", {})
    return {**given, **{name: target[name] for name in ("gpus", "keep_ptx") if name in target}}


@pytest.mark.parametrize("option", [option.name for option in OPTIONS])
@pytest.mark.parametrize("command", COMMANDS)
def test_it_has_its_effect_or_is_refused_with_its_reason(
    command: str,
    option: str,
    index: Site,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "libx.so").write_bytes(FAT)
    write_trace(tmp_path / "app.trace", TRACE)
    if option == "bake_caches":
        made(tmp_path / "caches")
    code = main(line(command, option, index, image))
    said = capsys.readouterr()
    document = json.loads(said.out)
    if command == "ci" and option == "level":  # it has one of its own
        assert code == ExitCode.USAGE and "--level '3' is not static" in document["error"]
        words = line(command, "recompress", index, image)
        assert main([*words, "--build-options", "--zstd-level 3"]) == ExitCode.OK
        assert "--recompress --zstd-level 3" in json.loads(capsys.readouterr().out)["text"]
        return
    if reason := REFUSED.get((command, option)):
        assert code == ExitCode.USAGE
        name = next(row.written for row in OPTIONS if row.name == option)
        first = next(row for row in OPTIONS if row.written in WORDS[option][0] and (command, row.name) in REFUSED)
        assert REFUSED[(command, first.name)] == reason
        assert document["error"] == f"{first.written} is not for `{command}`: {reason[0]}."
        assert document["hint"] == reason[1]
        assert name in WORDS[option][0]
        return
    if option == "bake_caches":  # what it does where there is torch: tests/unit/tailoring/test_caches.py
        assert code in (ExitCode.USAGE, ExitCode.NO_MATCH) and "torch" in said.out + said.err
        return
    assert code == ExitCode.OK, said.err
    if command == "ci":
        assert " ".join(WORDS[option][0]) in " ".join(document["text"].split())
        return
    expected = WORDS[option][1]
    assert {name: value for name, value in chosen(document).items() if name in expected} == expected


@pytest.mark.parametrize("command", ["tailor", "image", "build", "install"])
@pytest.mark.parametrize("written", ["", "--nvidia", "--no-nvidia"])
def test_what_a_file_chooses_is_said(
    command: str,
    written: str,
    index: Site,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "libx.so").write_bytes(FAT)
    (tmp_path / "torchtailor.toml").write_text("[tailor]\nnvidia = true\n")
    words = [word for word in line(command, "strip", index, image) if word != "--json"]
    assert main([*words, *filter(None, [written])]) == ExitCode.OK
    assert ("--nvidia, from torchtailor.toml." in capsys.readouterr().err) is (not written)


def test_what_is_refused_is_read_but_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        shown = {one.opts[0] for one in load_command(command).params if not getattr(one, "hidden", False)}
        for option in OPTIONS:
            own = (command, option.name) in (("ci", "level"), ("build", "gpu"), ("install", "gpu"))
            assert (option.written in shown) is (own or (command, option.name) not in REFUSED), (command, option.name)


def test_refusals_are_of_commands_and_options_that_there_are() -> None:
    names = {option.name for option in OPTIONS}
    assert {command for command, _ in REFUSED} <= set(COMMANDS)
    assert {name for _, name in REFUSED} <= names == set(WORDS)


def test_every_field_of_a_cut_is_an_option_or_no_choice_of_a_user() -> None:
    written = {option.choice or option.name for option in OPTIONS} - {"gpu", "keep_ptx", "no_lto", "margin"}
    own = {field.name for field in dataclasses.fields(Cut)} - {"targets", "lto"}
    assert own - written == {"also", "keep_removed", "dry_run", "processes", "image_cache", "rules", "keep_all_minors"}
    assert written <= own


CHOICES: list[dict[str, Any]] = [
    {},
    {"targets": Targets(TorchArch.parse_list("8.0,9.0a,12.0+PTX"), keep_ptx=True)},
    {"lto": False, "drop": ("docs", "headers"), "nvidia": True, "strip": False, "relr": True, "driver": "560.1"},
    {"recompress": True, "level": 3, "driver": "570.26"},
    {"split": True, "also": ("nvidia-cublas-cu12",)},
    {"workload": TracedWorkload(TRACE, "library"), "no_pack": True, "drop_unopened": True, "strip": True},
    {"workload": TracedWorkload(TRACE), "host_pages": HostPages.ALL, "gap": 16384, "debuggable": True},
    {"workload": TracedWorkload(TRACE), "host_pages": HostPages.KEEP},
    {"workload": TracedWorkload(TRACE), "pack_compress": PackCompression.ZSTD},
]


@pytest.mark.parametrize("choices", CHOICES)
def test_a_job_carries_the_whole_cut(choices: dict[str, Any]) -> None:
    cut = Cut(**{"nvidia": False, **choices})
    data = msgspec.json.encode(cut.for_job)
    assert Cut.of(msgspec.json.decode(data, type=JobCut)) == cut


@pytest.mark.parametrize("choices", [choices for choices in CHOICES if "split" not in choices])
def test_the_history_of_an_image_names_every_choice(choices: dict[str, Any]) -> None:
    words = ImageOptions(Cut(**choices), squash_shadowed=True).line().split()
    options = {name for one in load_command("image").params for name in (*one.opts, *one.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options  # --level has been --zstd-level for long
    negated = {"level": "--zstd-level", "lto": "--no-lto", "strip": "--strip" if choices.get("strip") else "--no-strip"}
    for name in choices.keys() - {"targets"}:
        assert negated.get(name, f"--{name.replace('_', '-')}") in words
    assert ("--keep-ptx" in words) is ("targets" in choices)


def test_the_documents_of_different_cuts_differ() -> None:
    """What decides the bytes decides the key."""
    each = [{name: value} for choices in CHOICES for name, value in choices.items()]
    belongs = {"level", "no_pack", "drop_unopened", "also", "host_pages", "gap", "debuggable", "pack_compress"}
    alone = [Cut(**one) for one in each if not belongs & set(one)]
    documents = {msgspec.json.encode(cut.for_job, order="deterministic") for cut in alone}
    same = [cut for cut in alone if cut == Cut() or (cut.nvidia is False)]
    assert len(documents) == len({repr(cut) for cut in alone}) - len(same)


def test_the_place_of_the_options_is_that_of_the_parameter() -> None:
    @takes_cut("tailor")
    def command(first: int, cut: object, last: int) -> None: ...

    names = list(inspect.signature(command).parameters)
    assert names == ["first", *(option.name for option in OPTIONS), "last"]

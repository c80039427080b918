"""Trees of recipes with files that are not plain, not text, far too large, or have names of any bytes."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchtailor.cli import main
from torchtailor.core.errors import ExitCode

SECONDS = 60


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2 << 30)


def _text(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": _pipe,
    "zero": _link("/dev/zero"),
    "random": _link("/dev/urandom"),
    "terminal": _link("/dev/tty"),
    "memory": _link("/proc/self/mem"),
    "sparse": _sparse,
    "folder": Path.mkdir,
    "loop": _link("loop"),
    "dangling": _link("nowhere"),
    "bytes": _text(bytes(range(256)) * 10),
    "zeros": _text(bytes(1000)),
    "deep": _text(b"(" * 50_000),
    "deeper": _text(b"{ a = [ " * 30_000),
    "strings": _text(b'"${' * 20_000),
    "toml": _text(b"a = " + b"[" * 50_000),
    "keys": _text(b"[" + b"a." * 50_000 + b"a]\n"),
    "operators": _text(b"a+" * 30_000),
    "patterns": _text(b"for f in /**/*.nix ../../../**/*.nix **.nix [.nix //.nix *?**[!.nix; do echo broken; done\n"),
}
PLACES = (
    ".flox/pkgs/pytorch-python313-cuda12_9-sm90-avx2.nix",
    ".flox/pkgs/other.nix",
    ".flox/pkgs/folder/default.nix",
    ".flox/pkgs/pytorch-python313-cuda99999999999999999999_9-sm90-avx2.nix",
    ".flox/pkgs/pytorch-python99999999999999999999-cuda12_9-sm99999999999999999999-avx2.nix",
    ".flox/pkgs/a\udcffb.nix",
    ".flox/pkgs/\udcff/default.nix",
    ".flox/pkgs/new\nline.nix",
    ".flox/README.md",
    ".flox/default.nix",
    ".flox/env/manifest.toml",
    ".flox/torchtailor-hashes.toml",
    ".flox/torchtailor-kept.toml",
    "README.md",
    "docs/a\udcff.md",
    "scripts/check.sh",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes") / "tree"
    assert main(["recipes", "write", str(folder), "sm90-avx2", "--release", "main"]) == 0
    return folder


@pytest.fixture(autouse=True)
def no_nix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nix's own parser is a process for each file, with a limit of its own."""
    monkeypatch.setattr("torchtailor.nix.rules.nix.has_nix", lambda: False)
    monkeypatch.setattr("torchtailor.nix.migrate.has_nix", lambda: False)
    monkeypatch.setattr("torchtailor.nix.audit.has_nix", lambda: False)


@pytest.fixture
def patience() -> Iterator[None]:
    """What waits for a pipe would wait for ever."""

    def ring(*_: object) -> None:
        raise AssertionError(f"it still ran after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def survives(words: list[str], capsys: pytest.CaptureFixture[str], what: object) -> None:
    code = main(["recipes", *words])
    said = capsys.readouterr()
    assert code in (0, ExitCode.BAD_INPUT, ExitCode.CHECK_FAILED, ExitCode.NO_MATCH), (what, said.err)
    assert "Traceback" not in said.err and "bug" not in said.err


def put(kind: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    KINDS[kind](path)


@pytest.mark.usefixtures("patience")
def test_every_kind_of_file_in_one_tree(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "tree"
    shutil.copytree(tree, copy)
    for kind in KINDS:
        for place in (".flox/pkgs/{}.nix", ".flox/pkgs/in-{}/default.nix", "docs/{}.md", "scripts/{}.sh"):
            put(kind, copy / place.format(kind))
    for place in PLACES[:8]:
        put("deep", copy / place)
    survives(["check", str(copy), "--no-nix"], capsys, "check")
    survives(["check", str(copy), "--no-nix", "--json"], capsys, "check --json")
    survives(["migrate", str(copy)], capsys, "migrate")


@pytest.mark.parametrize("place", PLACES[8:])
@pytest.mark.usefixtures("patience")
def test_files_that_every_tree_has(place: str, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for at, kind in enumerate(("pipe", "sparse", "toml")):
        copy = tmp_path / kind
        shutil.copytree(tree, copy)
        put(kind, copy / place)
        survives([("check", "migrate")[at % 2], str(copy)], capsys, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_at_every_place(kind: str, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for at, place in enumerate(PLACES):
        copy = tmp_path / f"tree{at}"
        shutil.copytree(tree, copy)
        put(kind, copy / place)
        survives(["check", str(copy), "--no-nix"], capsys, place)
        survives(["migrate", str(copy), "--dry-run"], capsys, place)
        shutil.rmtree(copy)

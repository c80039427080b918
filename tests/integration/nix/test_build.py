"""Real builds with a real Nix in a private store: hashes found, recipes built, failures explained."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path

import pytest

from tests.integration.nix.conftest import NIX, needs_nix
from torchtailor.building.ledger.ledger import Ledger, Result
from torchtailor.building.nix import builder as nix_runs
from torchtailor.building.nix.builder import check_disk, run_nix_job
from torchtailor.building.nix.job import nix_job, plan_nix
from torchtailor.catalog import Catalog
from torchtailor.cli import main
from torchtailor.core.errors import (
    BuildFailedError,
    EnvironmentProblem,
    ExitCode,
    ImpossibleError,
    NoMatchError,
    TorchtailorError,
)
from torchtailor.core.progress import NixProgress, Progress
from torchtailor.nix.hashes import fetch_source, find_hashes, prefetch_tarball, to_sri
from torchtailor.nix.nix import find_tool, run_nix
from torchtailor.nix.pins import read_lock
from torchtailor.nix.tree import FileOrigin, origin
from torchtailor.nix.write import plan_trees, recipe_variants

pytestmark = [needs_nix, pytest.mark.nix]


class Watch(Progress):
    def __init__(self) -> None:
        self.seen: list[NixProgress] = []

    def nix_progress(self, progress: NixProgress) -> None:
        self.seen.append(progress)


def test_a_recipe_is_built_end_to_end(private_store: Path, tmp_path: Path) -> None:
    watch, ledger = Watch(), Ledger()
    job = nix_job("tiny", NIX / "build.nix", tmp_path / "out", cores=2)
    result = run_nix_job(job, progress=watch, ledger=ledger, release="cuda-13_0", needed=1)
    assert result.link == tmp_path / "out" / "result-tiny"
    assert result.store_path.is_relative_to(private_store / "store")
    assert (result.link / "lib" / "pytorch210-tiny-2.10.0.so").read_text() == "pytorch210-tiny-2.10.0\n"
    assert set(result.logs) == {"magma-2.9.0", "pytorch210-tiny-2.10.0"}
    lines = result.logs["pytorch210-tiny-2.10.0"].read_text().splitlines()
    assert lines[0] == "cores: 2"
    assert lines[1].startswith("[1/2] Building")
    assert any(seen.steps == 2 for seen in watch.seen)
    assert max(seen.builds_expected for seen in watch.seen) == 2
    (attempt,) = ledger.attempts()
    assert (attempt.variant, attempt.method, attempt.result) == ("tiny", "nix", Result.DONE)
    assert attempt.output_bytes == result.output_bytes > 0
    # again: nothing to do, the same link
    again = run_nix_job(job, ledger=ledger, needed=1)
    assert again.store_path == result.store_path
    assert again.logs == {}


def recipe(tmp_path: Path, script: str, **more: str) -> Path:
    attributes = "".join(f"  {name} = {value};\n" for name, value in more.items())
    path = tmp_path / "recipe.nix"
    path.write_text(
        "derivation {\n"
        '  name = "failing";\n  builder = "/bin/sh";\n'
        f'  args = [ "-c" {json.dumps(script)} ];\n'
        + ("" if "system" in more else "  system = builtins.currentSystem;\n")
        + attributes
        + "}\n"
    )
    return path


def nixpkgs_refusal(words: str) -> str:
    """What nixpkgs' own check throws, word for word but for the package."""
    return f'throw "Package ‘cuda-1’ in /nix/store/x-source/a.nix:1 {words}, refusing to evaluate."'


FAILURES: list[tuple[str, type[TorchtailorError], str, dict[str, str]]] = [
    ("echo write: No space left on device >&2; exit 1", EnvironmentProblem, "disk is full", {}),
    ("kill -9 $$", EnvironmentProblem, "out of memory", {}),
    ("echo hello > $out", ImpossibleError, "build is for riscv64-linux", {"system": '"riscv64-linux"'}),
    ("echo the last word; exit 7", BuildFailedError, "its last line is: the last word", {}),
    ("", NoMatchError, "no nope", {"needs": "{ }.nope"}),
    ("", BuildFailedError, "cuda-1 is unfree", {"needs": nixpkgs_refusal("has an unfree license (‘CUDA EULA’)")}),
    ("", BuildFailedError, "cuda-1 is marked as broken", {"needs": nixpkgs_refusal("is marked as broken")}),
    (
        "",
        ImpossibleError,
        "cuda-1 is not available for this platform",
        {"needs": nixpkgs_refusal("is not available on the requested hostPlatform")},
    ),
    ("", BuildFailedError, "argument b", {"needs": "({ a }: a) { a = 1; b = 2; }"}),
    ("", BuildFailedError, "not valid Nix", {"needs": "= ="}),
]


@pytest.mark.parametrize(("script", "kind", "words", "more"), FAILURES, ids=[words for _, _, words, _ in FAILURES])
def test_real_failures_are_explained(
    private_store: Path, tmp_path: Path, script: str, kind: type[TorchtailorError], words: str, more: dict[str, str]
) -> None:
    ledger = Ledger()
    job = nix_job("failing", recipe(tmp_path, script, **more), tmp_path / "out")
    with pytest.raises(kind) as caught:
        run_nix_job(job, ledger=ledger, needed=1)
    assert words in caught.value.message
    assert str(job.logs) in caught.value.hint
    assert not job.link.exists()
    (attempt,) = ledger.attempts()
    assert attempt.result is Result.FAILED
    assert words in attempt.error


def test_a_wrong_hash_is_explained_with_the_way_to_mend_it(private_store: Path, tmp_path: Path) -> None:
    job = nix_job("tiny", NIX / "source.nix", tmp_path / "out")
    with pytest.raises(BuildFailedError, match=r"The hash of source is sha256-") as caught:
        run_nix_job(job, needed=1)
    assert "torchtailor recipes hash tiny" in caught.value.hint


def test_disk_is_looked_at_first(private_store: Path, tmp_path: Path) -> None:
    job = nix_job("tiny", NIX / "build.nix", tmp_path / "out")
    with pytest.raises(EnvironmentProblem, match=r"This build needs about .* of disk, and .* are free for"):
        run_nix_job(job, needed=10**18)
    assert not job.link.exists()
    check_disk(1)


def test_a_variant_of_another_platform_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    machine = platform.machine()
    other = next(v for v in recipe_variants(catalog, "cuda-13_0") if v.arch != machine)
    with pytest.raises(ImpossibleError, match="this machine is"):
        plan_nix(catalog, other, tmp_path)


def test_the_recipe_of_a_tree_is_taken_else_one_is_written(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = platform.machine()
    own = next(v for v in recipe_variants(catalog, "cuda-13_0") if v.arch == machine)
    job = plan_nix(catalog, own, tmp_path / "out")
    assert job.recipe.is_file()
    assert job.recipe.is_relative_to(tmp_path / "out")
    for plan in plan_trees(catalog, tmp_path / "tree", releases=["cuda-13_0"]):
        plan.apply()
    job = plan_nix(catalog, own, tmp_path / "out", tree=tmp_path / "tree")
    assert job.recipe == tmp_path / "tree" / ".flox" / "pkgs" / f"{own.name}.nix"


def test_a_tree_of_another_release_is_not_taken(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU recipes of several releases share their names."""
    for plan in plan_trees(catalog, tmp_path, releases=["cuda-13_0"], globs=["cpu-*"]):
        plan.apply()
    monkeypatch.chdir(tmp_path)
    own = next(v for v in recipe_variants(catalog, "main", ["cpu-*"]) if v.arch == platform.machine())
    job = plan_nix(catalog, own, tmp_path / "out")
    assert job.recipe.is_relative_to(tmp_path / "out" / "recipes" / "main")
    assert "2.10.0" not in job.recipe.read_text()


def test_the_command_builds_a_recipe_of_this_folder(
    private_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"x86_64": "cpu-avx2", "aarch64": "cpu-armv8_2"}[platform.machine()]
    recipe = tmp_path / ".flox" / "pkgs" / f"pytorch-python313-{short}.nix"
    recipe.parent.mkdir(parents=True)
    shutil.copy(NIX / "build.nix", recipe)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nix_runs, "NEEDED_BYTES", 1)
    arguments = ["build", "--via", "nix", short, "--release", "cuda-13_0", "-o", "dist"]
    assert main([*arguments, "--dry-run"]) == ExitCode.OK
    assert str(recipe) in capsys.readouterr().out
    assert not (tmp_path / "dist").exists()
    assert main([*arguments, "--json"]) == ExitCode.OK
    printed = capsys.readouterr()
    (built,) = json.loads(printed.out)["outputs"]
    link = tmp_path / "dist" / f"result-pytorch-python313-{short}"
    assert Path(built["link"]) == link
    assert (link / "lib" / "pytorch210-tiny-2.10.0.so").is_file()
    assert "pytorch210-tiny-2.10.0 buildPhase" in printed.err
    (attempt,) = Ledger().attempts()
    assert attempt.result is Result.DONE
    recipe.write_text("{ pkgs ? { } }: { }.nope")
    assert main(arguments) == ExitCode.NO_MATCH
    assert "no nope" in capsys.readouterr().err


def test_flox_is_used_where_there_is_flox(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for flox that does what `flox build` does: it leaves result-NAME in the tree."""
    script = tmp_path / "bin" / "flox"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/sh\n[ "$1" = build ] && mkdir -p store && ln -sfn store result-$2 && echo cores $NIX_BUILD_CORES\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    find_tool.cache_clear()
    try:
        for plan in plan_trees(catalog, tmp_path / "tree", releases=["cuda-13_0"], globs=["cpu-*"]):
            plan.apply()
        machine = platform.machine()
        own = next(v for v in recipe_variants(catalog, "cuda-13_0", ["cpu-*"]) if v.arch == machine)
        job = plan_nix(catalog, own, tmp_path / "out", tree=tmp_path / "tree", cores=3)
        assert job.command[1:] == ("build", own.name)
        result = run_nix_job(job, needed=1)
        assert result.link == tmp_path / "tree" / f"result-{own.name}"
        assert "cores 3" in (job.logs / "nix.log").read_text()
    finally:
        find_tool.cache_clear()


def test_hashes_are_spelled_as_nix_spells_them(private_store: Path) -> None:
    digest = "8d2b62ce845b2c633753 0dbb869d292d24ad1c6d3e5eadfd6491cd235daaaa91".replace(" ", "")
    base32 = run_nix("nix-hash", ["--type", "sha256", "--to-base32", digest]).out.strip()
    assert to_sri(base32) == to_sri(digest)


@pytest.mark.parametrize("folder", ["tree", "my tree ${x}"])
def test_a_source_hash_is_found_by_the_fetch_that_fails(private_store: Path, tmp_path: Path, folder: str) -> None:
    root = tmp_path / folder
    path = root / ".flox" / "pkgs" / "pytorch-python313-cpu-avx2.nix"
    path.parent.mkdir(parents=True)
    shutil.copy(NIX / "source.nix", path)
    answer = fetch_source(path, path.read_text())
    assert answer is not None
    before, after = answer
    assert before == "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    flat = run_nix("nix-hash", ["--type", "sha256", "--flat", "--base32", str(_write(tmp_path, "the source\n"))])
    assert after == to_sri(flat.out.strip())
    assert main(["recipes", "hash", "pytorch-python313-cpu-avx2", "--tree", str(root)]) == ExitCode.OK
    assert f'outputHash = "{after}";' in path.read_text()
    assert read_lock(root / ".flox") == {"pytorch/v9.9.9": after}
    assert fetch_source(path, path.read_text()) is None  # now the fetch works
    assert main(["recipes", "hash", "--tree", str(root)]) == ExitCode.OK


def _write(folder: Path, text: str) -> Path:
    path = folder / "text"
    path.write_text(text)
    return path


def test_pins_get_their_hash_in_the_lock_and_in_every_recipe(
    private_store: Path, tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tarball of our own in the place of GitHub's."""
    import tarfile

    content = tmp_path / "nixpkgs-x"
    content.mkdir()
    (content / "default.nix").write_text("{ ... }: { }\n")
    tarball = tmp_path / "6a030d535719c5190187c4cec156f335e95e3211.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(content, "nixpkgs-x")
    found = prefetch_tarball(f"file://{tarball}")
    prefetched = run_nix("nix-prefetch-url", ["--unpack", f"file://{tarball}"])
    assert found == to_sri(prefetched.out.split()[0])

    root = tmp_path / "tree"
    for plan in plan_trees(catalog, root, releases=["cuda-13_0"], globs=["cpu-*"]):
        plan.apply()
    monkeypatch.setattr("torchtailor.nix.hashes.prefetch_tarball", lambda url: prefetch_tarball(f"file://{tarball}"))
    (result,) = find_hashes(catalog, root, dry_run=True)
    assert {item.after for item in result.found} == {found}
    assert result.written == ()
    (result,) = find_hashes(catalog, root)
    assert len(result.written) == 1 + 7
    for path in (root / ".flox" / "pkgs").glob("*.nix"):
        assert f'sha256 = "{found}";' in path.read_text()
        assert origin(path.read_text()) is FileOrigin.GENERATED
    assert list(read_lock(root / ".flox").values()) == [found]
    assert [result.found for result in find_hashes(catalog, root)] == [()]


def test_an_unknown_recipe_is_reported(private_store: Path, tmp_path: Path, catalog: Catalog) -> None:
    for plan in plan_trees(catalog, tmp_path, releases=["main"], globs=["cpu-avx2"]):
        plan.apply()
    with pytest.raises(NoMatchError, match="no recipe nope"):
        find_hashes(catalog, tmp_path, ["nope"])

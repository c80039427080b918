"""Trees that are not as `recipes write` leaves them: other packages, links, folders, nixpkgs by Git."""

from __future__ import annotations

import platform
import shlex
from pathlib import Path

import pytest

from tests.unit.nix.conftest import write_tree
from torchtailor.building.nix.many import plan_recipes
from torchtailor.catalog import Catalog
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode, NoMatchError, UsageError
from torchtailor.nix.audit import audit
from torchtailor.nix.migrate import migrate_recipes
from torchtailor.nix.nix import has_nix
from torchtailor.nix.report import audit_lines
from torchtailor.nix.tree import find_trees
from torchtailor.nix.write import plan_trees

needs_nix = pytest.mark.skipif(not has_nix(), reason="Nix is not installed")
# Recipes are built on machines of their own platform.
VARIANT = "sm90-armv9" if platform.machine() == "aarch64" else "sm90-avx512"
NAME = f"pytorch-python313-cuda13_0-{VARIANT}"


@pytest.fixture
def tree(catalog: Catalog, tmp_path: Path) -> Path:
    write_tree(catalog, tmp_path, "cuda-13_0", VARIANT)
    return tmp_path


def rules(catalog: Catalog, root: Path, name: str) -> set[str]:
    (report,) = audit(catalog, root)
    return {finding.rule for finding in report.findings if finding.file.endswith(f"/{name}.nix")}


@needs_nix
def test_other_packages_are_not_judged_by_the_stand_in(catalog: Catalog, tree: Path) -> None:
    pkgs = tree / ".flox" / "pkgs"
    (pkgs / "hello.nix").write_text("{ pkgs }: pkgs.hello\n")
    (pkgs / "data.nix").write_text("{ a = 1; }\n")
    (pkgs / "empty.nix").write_text("# nothing\n")
    assert rules(catalog, tree, "hello") == rules(catalog, tree, "data") == set()
    assert rules(catalog, tree, "empty") == {"syntax"}
    assert [job.name for job in plan_recipes(catalog, tree, (), tree / "out").jobs] == [NAME]
    assert [job.name for job in plan_recipes(catalog, tree, ["hello"], tree / "out").jobs] == ["hello"]


def test_nixpkgs_by_a_git_revision_is_pinned(catalog: Catalog, tree: Path) -> None:
    path = tree / ".flox" / "pkgs" / f"{NAME}.nix"
    lines = [line for line in path.read_text().splitlines(keepends=True) if not line.startswith("# ")]
    text = "".join(lines).replace("builtins.fetchTarball {", "builtins.fetchGit {", 1)
    start = text.index('    url = "')
    end = text.index("  },", start)
    for rev, found in (
        ("6a030d535719c5190187c4cec156f335e95e3211", set()),
        ("fe5e41d7ffc0421f0913e8472ce6238ed0daf8e3", {"pin-wrong", "evaluation"} if has_nix() else {"pin-wrong"}),
    ):
        fetched = f'    url = "https://github.com/NixOS/nixpkgs.git";\n    rev = "{rev}";\n'
        path.write_text(text[:start] + fetched + text[end:])
        assert rules(catalog, tree, NAME) == found


def test_folders_and_links_that_end_in_nix(catalog: Catalog, tree: Path) -> None:
    (tree / ".flox" / "pkgs" / "folder.nix").mkdir()
    assert rules(catalog, tree, NAME) == set()
    (tree / ".flox" / "pkgs" / "gone.nix").symlink_to("nowhere.nix")
    assert rules(catalog, tree, "gone") == {"unreadable"}
    assert rules(catalog, tree, NAME) == set()


def test_a_tree_without_recipes_does_not_pass(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / ".flox" / "pkgs").mkdir(parents=True)
    assert main(["recipes", "check", str(tmp_path)]) == ExitCode.NO_MATCH
    with pytest.raises(NoMatchError, match="There are no recipes in"):
        find_trees(tmp_path)


def test_releases_are_not_written_below_a_tree_of_others(catalog: Catalog, tree: Path) -> None:
    (tree / ".flox" / "env" / "manifest.toml").unlink()
    with pytest.raises(UsageError, match="their release is not known") as caught:
        plan_trees(catalog, tree)
    assert "--release" in str(caught.value.hint)
    (plan,) = plan_trees(catalog, tree, releases=["cuda-13_0"], globs=[VARIANT])
    assert plan.tree.root == tree


@needs_nix
def test_commands_of_a_dry_run_can_be_pasted(
    catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_tree(catalog, tmp_path / "my tree", "cuda-13_0", VARIANT)
    assert main(["recipes", "build", "--dry-run", "--tree", str(root)]) == ExitCode.OK
    words = shlex.split(capsys.readouterr().out)
    assert str(root / ".flox" / "pkgs" / f"{NAME}.nix") in words


@needs_nix
def test_recipes_of_one_name_in_several_trees_have_results_and_logs_of_their_own(
    catalog: Catalog, tmp_path: Path
) -> None:
    for release in ("cuda-12_9", "cuda-13_0"):
        write_tree(catalog, tmp_path / release, release, "cpu-*")
    jobs = plan_recipes(catalog, tmp_path, (), tmp_path / "out").jobs
    assert len({job.name for job in jobs}) < len(jobs)
    assert len({job.link for job in jobs}) == len({job.logs for job in jobs}) == len(jobs)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"flake.nix": "{ outputs = _: { }; }\n", "overlay.nix": "final: prev: { }\n"},
            "holds Nix files, but no recipes",
        ),
        ({"default.nix": "{ }\n", "pkgs/development/python-modules/torch/x.nix": "{ }\n"}, "is nixpkgs itself"),
        ({"modules/default.nix": "{ }\n"}, "holds Nix files, but no recipes"),
        ({".flox/pkgs/hello.nix": "{ hello }: hello\n"}, "holds Nix files, but no recipes"),
    ],
)
def test_what_is_no_tree_of_recipes_is_said_to_be_none(
    catalog: Catalog, tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for act in (audit, migrate_recipes):
        with pytest.raises(NoMatchError, match=said):
            act(catalog, tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.nix")} == files.keys()


PACKAGE = """{ buildPythonPackage, fetchurl, fetchpatch, fetchFromGitHub, stdenv, hash, config }:
let
  srcs = import ./hashes.nix;
  supportedTorchCudaCapabilities =
    let
      real = [ "8.0" "9.0" "9.0a" "10.0" "10.0" "sm_120" ];
      ptx = map (x: "${x}+PTX") real;
    in
    real ++ ptx;
in
buildPythonPackage.override { inherit stdenv; } (finalAttrs: {
  pname = "torch";
  version = "2.9.1";
  src = fetchurl srcs.x86_64;
  patches = [ (fetchFromGitHub { inherit hash; owner = "a"; repo = "b"; rev = "c"; }) (fetchpatch { url = "d"; }) ];
})
"""


def test_the_package_of_nixpkgs_is_checked_as_what_it_is(catalog: Catalog, tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "default.nix").write_text(PACKAGE)
    for root in (folder, folder / "source"):
        (report,) = audit(catalog, root)
        assert report.package == "torch 2.9.1"
        found = {(finding.rule, finding.line): finding for finding in report.findings}
        assert found.keys() == {("capability-list", 6), ("capability-missing", 6), ("hash-placeholder", 15)}
        assert "11.0" in found["capability-missing", 6].message
        assert (report.errors, report.warnings, report.notes) == (0, 3, 1)
        assert "no recipes, but the package torch 2.9.1 itself" in list(audit_lines([report]))[-1][1]


SELFCONTAINED = Path(__file__).parent / "selfcontained" / "cuda-13_0" / "pytorch-python313-cuda13_0-sm90-avx512.nix"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / ".flox" / "pkgs" / SELFCONTAINED.name
    path.parent.mkdir(parents=True)
    return path


def test_floating_names_at_a_fixed_pin_are_notes(catalog: Catalog, tmp_path: Path, own: Path) -> None:
    """They stay what they are there; without a pin they do not."""
    text = SELFCONTAINED.read_text()
    floating = text.replace("cudaPackages_13_0", "cudaPackages_13").replace("python313Packages", "python3Packages")
    for written, severity in ((floating, "note"), (floating.replace("builtins.fetchTarball", "fetchIt"), "error")):
        own.write_text(written)
        (report,) = audit(catalog, tmp_path, use_nix=False, release="cuda-13_0")
        found = {item.rule: item.severity.value for item in report.findings if item.rule.startswith("alias-")}
        assert found == {"alias-cuda": severity, "alias-python": severity}


def test_dropped_patches_at_an_unknown_pin_are_a_note(catalog: Catalog, tmp_path: Path, own: Path) -> None:
    text = SELFCONTAINED.read_text().replace("FindCUDAToolkit.cmake", "Other.cmake")
    dropped = text.replace("pname =", "patches = [ ];\n    pname =", 1)
    for rev, severity in (("6a030d535719c5190187c4cec156f335e95e3211", "error"), ("0" * 40, "note")):
        own.write_text(dropped.replace("6a030d535719c5190187c4cec156f335e95e3211", rev))
        (report,) = audit(catalog, tmp_path, use_nix=False, release="cuda-13_0")
        assert [item.severity.value for item in report.findings if item.rule == "toolkit-stub"] == [severity]


OVERLAY = """final: prev: {
  pythonPackagesExtensions = prev.pythonPackagesExtensions ++ [
    (pfinal: pprev: { torch = pprev.torch.override { gpuTargets = [ "TARGET" ]; ROCM }; })
  ];
}
"""


@pytest.mark.parametrize(
    ("target", "rocm", "expected"),
    [
        ("sm_90", "", {"arch-spelling"}),
        ("9.0", "", set()),
        ("gfx1151", "rocmSupport = true;", set()),
        ("gfx1151", "rocmSupport = false;", {"arch-spelling"}),
    ],
)
def test_architectures_are_read_in_every_file(
    catalog: Catalog, tree: Path, target: str, rocm: str, expected: set[str]
) -> None:
    text = OVERLAY.replace("TARGET", target).replace("ROCM", rocm)
    (tree / ".flox" / "pkgs" / "overlay.nix").write_text(text)
    assert rules(catalog, tree, "overlay") == expected


def test_what_is_built_on_torch_needs_no_name_of_a_variant(catalog: Catalog, tree: Path) -> None:
    """88 recipes of a public tree of vLLM were to be renamed."""
    torch = "pkgs.python313Packages.torch.override { cudaSupport = true; }"
    pkgs = tree / ".flox" / "pkgs"
    (pkgs / "vllm.nix").write_text(f"{{ pkgs }}: pkgs.python313Packages.vllm.override {{ torch = {torch}; }}\n")
    (pkgs / "fast.nix").write_text(f"{{ pkgs }}: {torch}\n")
    (pkgs / "pytorch-python313-darwin-mps.nix").write_text("{ pkgs }: pkgs.python313Packages.torch\n")
    assert rules(catalog, tree, "vllm") == rules(catalog, tree, "pytorch-python313-darwin-mps") == set()
    assert rules(catalog, tree, "fast") == {"file-unknown"}


def test_names_as_others_write_them(catalog: Catalog, tree: Path) -> None:
    """The version of torchvision in the name, and an instruction set with a dot, which a document repeats."""
    pkgs = tree / ".flox" / "pkgs"
    (pkgs / "torchvision025-python313-cuda13_0-sm70-avx2.nix").write_text("{ pkgs }: pkgs.hello\n")
    (pkgs / "torchaudio-python313-cuda13_0-sm90-armv8.2.nix").write_text("{ pkgs }: pkgs.hello\n")
    (tree / "README.md").write_text("`torchaudio-python313-cuda13_0-sm90-armv8.2` is ready. Not so armv9.\n")
    assert "variant-impossible" in rules(catalog, tree, "torchvision025-python313-cuda13_0-sm70-avx2")
    (report,) = audit(catalog, tree, use_nix=False)
    assert not [finding for finding in report.findings if finding.file == "README.md"]


def test_migration_creates_no_recipes_of_torch_where_there_were_none(catalog: Catalog, tmp_path: Path) -> None:
    """A tree of vLLM, and one of torchvision, got 50 recipes each that nobody had asked for."""
    pkgs = tmp_path / "pkgs"
    pkgs.mkdir()
    (pkgs / "vllm.nix").write_text("{ pkgs }: pkgs.python313Packages.torch.override { }\n")
    with pytest.raises(NoMatchError, match="nothing to migrate"):
        migrate_recipes(catalog, pkgs, release="2.9", dry_run=True)
    (pkgs / "torchvision-python313-cuda12_9-sm90-avx2.nix").write_text("{ pkgs }: pkgs.hello\n")
    (migration,) = migrate_recipes(catalog, pkgs, release="2.9", dry_run=True)
    assert migration.total == 2

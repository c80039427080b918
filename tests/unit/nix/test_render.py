"""What recipes say: the matrix, and every correction over the hand-made ones."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from torchtailor.catalog import Catalog
from torchtailor.catalog.variants.variant import Variant
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode, ImpossibleError
from torchtailor.nix.blueprint import BlasChoice, Blueprint
from torchtailor.nix.nixlibrary import library_files
from torchtailor.nix.pins import Pins
from torchtailor.nix.recipe import Recipe
from torchtailor.nix.render import render, render_all, spark_recipes
from torchtailor.nix.syntax import NixSource
from torchtailor.nix.write import recipe_variants

LIBRARY = Path(__file__).parents[3] / "src" / "torchtailor" / "nix" / "library"
COUNTS = {"main": 44, "cuda-12_9": 50, "cuda-13_0": 59}
PINS = {
    "main": "fe5e41d7ffc0421f0913e8472ce6238ed0daf8e3",
    "cuda-12_9": "6a030d535719c5190187c4cec156f335e95e3211",
    "cuda-13_0": "6a030d535719c5190187c4cec156f335e95e3211",
}


Everything = Mapping[str, list[tuple[Variant, str]]]


@pytest.fixture(scope="module")
def everything(catalog: Catalog, pins: Pins) -> Everything:
    return {
        release: [(variant, render(Blueprint(catalog, pins, variant))) for variant in recipe_variants(catalog, release)]
        for release in COUNTS
    }


def one(everything: Everything, release: str, short: str) -> str:
    return next(text for variant, text in everything[release] if variant.short_name == short)


@pytest.mark.parametrize(("release", "count"), COUNTS.items())
def test_every_variant_of_a_release_has_a_recipe_that_parses(everything: Everything, release: str, count: int) -> None:
    assert len({variant.name for variant, _ in everything[release]}) == count
    for variant, text in everything[release]:
        assert NixSource(text).error_line is None, variant.name


@pytest.mark.parametrize("release", COUNTS)
def test_one_pin_per_release(everything: Everything, release: str) -> None:
    for _, text in everything[release]:
        assert re.findall(r"archive/([0-9a-f]{40})", text) == [PINS[release]]


def test_a_package_is_named_as_its_file(everything: Everything) -> None:
    for texts in everything.values():
        for variant, text in texts:
            pname = Recipe(variant.name, Path(), text).pname
            assert pname is not None
            assert pname.text == variant.name


@pytest.mark.parametrize(
    ("release", "short", "driver"),
    [
        ("cuda-13_0", "sm90-avx512", "580.95.05"),
        ("cuda-12_9", "sm103-avx512", "575.57.08"),
        ("main", "sm90-avx512", "570.124.06"),
    ],
)
def test_driver_floors_are_the_toolkits(everything: Everything, release: str, short: str, driver: str) -> None:
    assert f"Driver: NVIDIA {driver} or newer" in one(everything, release, short)


def test_products_are_of_the_architecture(everything: Everything) -> None:
    assert "L40S" not in one(everything, "cuda-13_0", "sm90-avx512")
    assert "B200" not in one(everything, "cuda-13_0", "sm103-avx512")
    assert "B300" in one(everything, "cuda-13_0", "sm103-avx512")


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_other_pythons_on_request(catalog: Catalog, pins: Pins, python: str) -> None:
    variants = recipe_variants(catalog, "cuda-13_0", pythons=[python])
    assert len(variants) == 59
    text = render(Blueprint(catalog, pins, variants[-1]))
    tag = python.replace(".", "")
    assert f'python = "{python}";' in text
    assert "python313" not in text
    assert variants[-1].name.startswith(f"pytorch-python{tag}-")


def test_a_known_hash_is_on_the_pin_and_an_unknown_one_is_not_made_up(catalog: Catalog, pins: Pins) -> None:
    variant = recipe_variants(catalog, "cuda-13_0")[0]
    assert "sha256 =" not in render(Blueprint(catalog, pins, variant))
    known = replace(pins, lock={f"nixpkgs/{PINS['cuda-13_0']}": "sha256-" + "C" * 42 + "A="})
    assert f'sha256 = "sha256-{"C" * 42}A=";' in render(Blueprint(catalog, known, variant))


def test_mkl_is_an_alternative_for_x86_cpus(catalog: Catalog, pins: Pins) -> None:
    texts = render_all(catalog, pins, recipe_variants(catalog, "main"), blas=BlasChoice.MKL)
    using = [name for name, text in texts.items() if 'blas = "mkl";' in text]
    assert len(using) == 4
    assert all("-cpu-avx" in name for name in using)
    arm = next(v for v in recipe_variants(catalog, "main") if v.short_name == "cpu-armv9")
    with pytest.raises(ImpossibleError, match="MKL"):
        Blueprint(catalog, pins, arm, BlasChoice.MKL)


def test_spark_has_components_nightly_and_wrapper(catalog: Catalog, pins: Pins) -> None:
    texts = spark_recipes(catalog, pins)
    nightly = "pytorch-python313-cuda13_0-sm121-armv9-nightly"
    components = {"cudatoolkit-13_0", "cudnn-13_0", "nccl-13_0", "libcusparse_lt-13_0"}
    assert set(texts) == {nightly, f"{nightly}-wrapper", *components}
    versions = {"cudatoolkit": "13.0.88", "cudnn": "9.13.0.50", "nccl": "2.28.7-1", "libcusparse_lt": "0.8.1.1"}
    for name, version in versions.items():
        assert f'version = "{version}";' in texts[f"{name}-13_0"]
    assert pins.unknown_source({"version": pins.file.spark.nightly.version})
    assert "../../../build-cudatoolkit" in texts[f"{nightly}-wrapper"]
    for text in texts.values():
        assert NixSource(text).error_line is None
        assert not any("result" in path.text for path in NixSource(text).paths)


def test_the_same_catalog_gives_the_same_bytes(catalog: Catalog, pins: Pins) -> None:
    variants = recipe_variants(catalog, "cuda-13_0")
    assert render_all(catalog, pins, variants, spark=True) == render_all(catalog, pins, variants, spark=True)


def test_a_recipe_is_its_story_its_pin_and_its_row(everything: Everything) -> None:
    for texts in everything.values():
        for variant, text in texts:
            assert len(text.splitlines()) <= 36
            header = text[: text.index("\n{")]
            assert all(line.startswith("#") for line in header.splitlines())
            for word in ("CPU: ", "BLAS: ", "Python: ", *(("GPU: ", "CUDA: ", "Driver: ") if variant.gpu else ())):
                assert f"# {word}" in header
            assert text[text.index("}:\n") :].startswith("}:\n\nlibrary.torch {\n")


def test_layout_is_tidy(everything: Everything) -> None:
    for texts in everything.values():
        for _, text in texts:
            assert "\t" not in text
            assert not re.search(r"[ \t]$", text, re.MULTILINE)
            assert "\n\n\n" not in text
            assert text.endswith("\n")
            assert not text.endswith("\n\n")


@pytest.fixture(scope="module")
def formatted(catalog: Catalog, pins: Pins, everything: Everything) -> Mapping[str, str]:
    """What nixfmt would be run on: a recipe of each kind, the library, the stand-in, the flake."""
    repository = LIBRARY.parents[3]
    kept = (*LIBRARY.glob("*.nix"), *(LIBRARY.parent / "standin").glob("*.nix"), repository / "flake.nix")
    return {
        "gpu.nix": one(everything, "cuda-13_0", "sm90-avx512"),
        "cpu.nix": one(everything, "main", "cpu-avx2"),
        **{f"{name}.nix": text for name, text in spark_recipes(catalog, pins).items()},
        "catalog.nix": library_files(catalog, pins)["torchtailor/catalog.nix"],
        "tree.nix": (repository / ".flox" / "default.nix").read_text(),
        **{f"{path.parent.name}-{path.name}": path.read_text() for path in kept},
    }


def test_layout_is_as_nixfmt_makes_it_as_far_as_plain_rules_tell(formatted: Mapping[str, str]) -> None:
    """nixfmt itself is in no registry: code in 100 columns, and no set in one line as the default of an argument."""
    assert len(formatted) > 15
    for name, text in formatted.items():
        lines = map(str.strip, text.splitlines())  # nixfmt does not count the indentation
        wide = [line for line in lines if len(line) > 100 and not re.search(r"[\"#$]|''", line)]
        assert not wide, (name, wide)
        assert not re.search(r"^ *\w+ \? \{ (?!inherit)[^}]", text, re.MULTILINE), name


@pytest.mark.skipif(shutil.which("nixfmt") is None, reason="needs nixfmt")
def test_nixfmt_changes_nothing(formatted: Mapping[str, str], tmp_path: Path) -> None:
    paths = [tmp_path / name for name in formatted]
    for path, text in zip(paths, formatted.values(), strict=True):
        path.write_text(text)
    subprocess.run(["nixfmt", "--check", *paths], check=True)


@pytest.mark.parametrize("name", ["bin.nix", "wheels.nix"])
def test_options_that_the_library_gives_to_tailor_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe's build finds out only after its downloads, and only some of them are built in tests."""
    text = (LIBRARY / name).read_text()
    calls = [line for line in text.splitlines() if "torchtailor tailor" in line or "${cut}" in line]
    given = {option for line in calls for option in re.findall(r"(?<!\S)\"?(--[a-z-]+)", line)}
    assert main(["tailor", "--help"]) == ExitCode.OK
    assert {"--gpu", "--out", "--nvidia"} <= given <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))

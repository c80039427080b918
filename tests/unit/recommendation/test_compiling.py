"""What compiling brings, in a sentence: from a measured row, or an honest word where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.catalogs import load_pinned
from torchtailor.advise.recommendation import recommend
from torchtailor.catalog import SOURCE, Catalog
from torchtailor.core.errors import UsageError


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_pinned(Path("/"))


def said(catalog: Catalog, cpu: str, **more: object) -> str | None:
    return recommend(cpu=cpu, gpus="none", catalog=catalog, **more).compiling  # type: ignore[arg-type]


def test_a_measured_instruction_set(catalog: Catalog) -> None:
    """The numbers are those of the table, whatever they are."""
    row = catalog.compiled["armv8_2"]
    text = said(catalog, "Graviton2")
    assert text is not None
    for part in (f"{row.geometric_mean} %", f"{row.worst.what} {row.worst.percent} %", row.cpu, row.pytorch):
        assert part in text
    assert text.endswith(".")
    assert text.count(". ") == 0  # one sentence
    assert "not on this CPU" not in text


def test_measured_on_another_cpu_and_without_a_library(catalog: Catalog) -> None:
    row = msgspec.structs.replace(catalog.compiled["armv8_2"], lacks="oneDNN")
    own = replace(catalog, compiled={"armv8_2": row})
    assert "without oneDNN, on Neoverse N1, not on this CPU): " in (said(own, "Graviton3") or "")
    anywhere = replace(own, compiled={"armv8_2": msgspec.structs.replace(row, microarchitecture="")})
    assert "not on this CPU" not in (said(anywhere, "Graviton3") or "")


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [
        (80, "compile it where the CPU does the work."),
        (95, "compile it where the CPU does the work."),
        (96, "the official wheel is as good, and needs no compiling."),
        (104, "the official wheel is as good, and needs no compiling."),
        (105, "the official wheel is the better choice."),
    ],
)
def test_the_verdict_is_that_of_the_mean(catalog: Catalog, mean: int, verdict: str) -> None:
    row = msgspec.structs.replace(catalog.compiled["armv8_2"], isa="avx2", geometric_mean=mean)
    text = said(replace(catalog, compiled={"avx2": row}), "haswell")
    assert text is not None
    assert text.endswith(verdict)


def test_nothing_was_measured(catalog: Catalog) -> None:
    text = said(replace(catalog, compiled={}), "haswell")
    assert text is not None
    assert text.startswith("What compiling for AVX2 brings was not measured: prefer the official wheel")


def test_only_a_lesser_instruction_set_was_measured(catalog: Catalog) -> None:
    row = catalog.compiled["armv8_2"]
    text = said(replace(catalog, compiled={"armv8_2": row}), "Graviton4")
    assert text is not None
    assert text.startswith("For ARMv9 nothing was measured. Compiled for ARMv8.2, ")


def test_there_is_nothing_to_compare_with(catalog: Catalog) -> None:
    """Where no official wheel runs, compiling is no choice; who asks for it is told what it brings."""
    jetson = recommend(gpus="Jetson AGX Orin", jetpack="6.2", catalog=catalog)
    assert jetson.best is None or jetson.best.method == "wheel" or jetson.compiling is None
    asked = recommend(cpu="Graviton2", gpus="none", method=SOURCE, catalog=catalog)
    assert asked.best is not None and asked.best.method == "source"
    assert asked.compiling is not None


def test_a_users_own_measurement(tmp_path: Path) -> None:
    """A row of torchtailor.toml takes the place of the catalog's, or is merged with it; one for no ISA is refused."""
    own = '[[compiled]]\nisa = "armv8_2"\ngeometric_mean = 90\ncpu = "Ampere Altra"\n'
    (tmp_path / "torchtailor.toml").write_text(own)
    text = said(load_pinned(tmp_path), "Graviton2")
    assert text is not None
    assert "takes 90 % of" in text and "Ampere Altra" in text
    for wrong in (own.replace("armv8_2", "armv99"), f'{own}microarchitecture = "neoverse_x"\n'):
        (tmp_path / "torchtailor.toml").write_text(wrong)
        with pytest.raises(UsageError):
            load_pinned(tmp_path)

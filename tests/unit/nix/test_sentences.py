"""Claims of recipes: what they say of themselves, and what they advise about others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.nix.test_rules import ARM, SM90, Case, context_of, good, hits_of
from torchtailor.catalog import Catalog
from torchtailor.nix.sentences import sentences
from torchtailor.nix.syntax import TextLine


def with_comment(catalog: Catalog, tmp_path: Path, comment: str, rule: str, name: str = SM90) -> list[str]:
    text = "".join(f"# {line}\n" for line in comment.splitlines()) + good("cuda-13_0", name)
    return [message for _, message in hits_of(rule, context_of(catalog, tmp_path, Case("", (), name=name), text))]


@pytest.mark.parametrize(
    "advice",
    [
        "Kernels for Hopper. For those, use sm100 or sm120 builds instead.",
        "and need optimized kernels for Hopper architecture. For RTX 5090, use\nsm120 builds instead.",
        "For B300 (SM103), see the sm103 variants.",
        "Unlike SM100, this has no tcgen05.",
    ],
)
def test_advice_about_another_recipe_is_no_claim(catalog: Catalog, tmp_path: Path, advice: str) -> None:
    assert with_comment(catalog, tmp_path, advice, "claim-gpu") == []
    assert with_comment(catalog, tmp_path, advice, "claim-product") == []


@pytest.mark.parametrize(
    ("claim", "rule"),
    [
        ("Optimized for SM120.\nFor Ada, use sm89 builds instead.", "claim-gpu"),
        ("- GPU: RTX 5090\n- For Ada, use sm89 builds instead.", "claim-product"),
        ("Choose this if: You have H100/L40S datacenter GPUs\nwith AVX-512 CPUs.", "claim-product"),
    ],
)
def test_a_wrong_claim_beside_advice_is_still_found(catalog: Catalog, tmp_path: Path, claim: str, rule: str) -> None:
    assert len(with_comment(catalog, tmp_path, claim, rule)) == 1


def test_wrong_advice_is_found(catalog: Catalog, tmp_path: Path) -> None:
    """Graviton3 has no SVE2: an armv9 build ends with an illegal instruction there."""
    name = ARM.replace("armv9", "armv8_2")
    advice = "For newer ARM servers\nwith SVE2 (Graviton3+, Grace), use armv9 variant instead."
    assert with_comment(catalog, tmp_path, advice, "claim-cpu", name)
    right = advice.replace("Graviton3+", "Graviton4")
    assert with_comment(catalog, tmp_path, right, "claim-cpu", name) == []


def test_a_sentence_keeps_its_lines() -> None:
    lines = [
        TextLine(4, "First one. The second"),
        TextLine(5, "goes on."),
        TextLine(9, "- a bullet"),
        TextLine(10, "- b"),
    ]
    found = [(item.text, [line.number for line in item.lines]) for item in sentences(lines)]
    assert found == [("First one.", [4]), ("The second goes on.", [4, 5]), ("- a bullet", [9]), ("- b", [10])]

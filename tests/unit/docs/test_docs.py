"""The documents are true: generated parts agree with the catalog, links and named commands exist."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchtailor.catalog import load_catalog
from torchtailor.cli import COMMANDS
from torchtailor.core import version
from torchtailor.core.format import human_bytes

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def gendocs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gendocs", ROOT / "tools" / "gendocs.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["gendocs"] = module
    spec.loader.exec_module(module)
    return module


def test_the_commands_of_the_readme_fit_into_80_columns() -> None:
    blocks = re.findall(r"^```\w+[^\n]*\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 80


def test_the_picture_and_the_text_of_the_readme_agree() -> None:
    """The picture is drawn from this report (tools/screenshot.py), the table was measured elsewhere."""
    report = json.loads((ROOT / "docs/results/h200/verify-tailored.json").read_text())
    before, after = report["facts"]["stock"]["size"], report["facts"]["size"]
    said = f"{human_bytes(before)} of libraries became {human_bytes(after)}."
    assert f"The picture is of torch 2.11.0 as it was installed on an H200: {said}" in README.replace("\n", " ")
    measured = (ROOT / "docs/docker.md").read_text()
    for stock in re.findall(r"^\| stock \|(.*)$", README, re.MULTILINE):
        numbers = re.findall(r"([\d.]+) GB", stock)
        assert f"| stock | {' | '.join(numbers)} |" in measured


def test_generated_parts_agree_with_the_catalog(gendocs: ModuleType) -> None:
    catalog = load_catalog(ROOT / "src")
    documents = gendocs.documents()
    assert ROOT / "docs" / "variants.md" in documents
    stale = [str(path.relative_to(ROOT)) for path in documents if gendocs.render(path, catalog) != path.read_text()]
    assert stale == [], "run `make docs`"


def test_drift_would_be_noticed(gendocs: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "variants.md").read_text().replace("| wheel |", "| whale |", 1))
    assert gendocs.render(page, load_catalog(ROOT / "src")) != page.read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_named_in_documents_exist(path: Path) -> None:
    named = set(re.findall(r"`torchtailor ([a-z]+)\b", path.read_text()))
    assert named <= set(COMMANDS)


def test_this_version_is_in_the_changelog() -> None:
    from torchtailor import __version__

    assert f"\n## {__version__}" in (ROOT / "docs" / "changelog.md").read_text()


def test_the_sources_of_the_errata_exist() -> None:
    sources = load_catalog(ROOT / "src").sources
    rows = [line for line in (ROOT / "docs" / "seed-errata.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 40
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row.rstrip("| ").rpartition(" | ")[2])]
    assert len(named) > 40
    assert [name for name in named if name not in sources] == []


def test_pages_follow_the_switch(gendocs: ModuleType) -> None:
    """All pages, turned to a published torchtailor and back."""
    named = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text("utf-8")
        published = gendocs.as_installed(text, published=True)
        assert gendocs.as_installed(published, published=False) == gendocs.as_installed(text, published=False)
        assert "git+URL@COMMIT" not in published.replace("`'torchtailor @ git+URL@COMMIT'`", ""), page
        if not version.PUBLISHED:
            assert not re.search(r"(pip|tool) install [^`\n&|;']*\btorchtailor(?![-\w/])", text), page
        named += published != text
    assert version.PUBLISHED or named >= 8

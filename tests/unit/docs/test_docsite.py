"""The documentation as a site: links are moved to where files are there, and one that leads nowhere is found."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def docsite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("docsite", ROOT / "tools" / "docsite.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "docsite", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAGES", tmp_path / "pages")
    return module


def test_every_link_of_every_page_leads_to_a_file(docsite: ModuleType) -> None:
    assert docsite.stage() == []
    links = [
        (page, target)
        for page in docsite.PAGES.rglob("*.md")
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith("selector/")
    ]
    assert len(links) > 100
    assert [str(page.name) + " " + target for page, target in links if not (page.parent / target).exists()] == []


def test_the_readme_is_the_first_page(docsite: ModuleType) -> None:
    docsite.stage()
    text = (docsite.PAGES / "index.md").read_text()
    assert "](choosing.md)" in text
    assert "](docs/" not in text
    assert "](selector/index.html)" in text
    assert "```sh torch" in (ROOT / "README.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("```") and " " in line] == []


def test_a_broken_link_is_found(docsite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docsite, "ROOT", tmp_path)
    for name in docsite.TOP:
        (tmp_path / name).write_text("# Title\n\ntext\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("[b](b.md#part), [readme](../README.md), [web](https://example.org)\n")
    assert docsite.stage() == ["docs/a.md links to b.md, which does not exist"]
    (tmp_path / "docs" / "b.md").write_text("b\n")
    assert docsite.stage() == []
    assert (tmp_path / "pages" / "a.md").read_text().startswith("[b](b.md#part), [readme](index.md), [web](https://")


def test_every_page_has_a_place_in_the_navigation() -> None:
    named = set(re.findall(r"- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert named == pages | {"index.md", "CONTRIBUTING.md", "SECURITY.md"}


@pytest.mark.slow
def test_the_whole_site_is_built_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (the extra `docs`)")
    done = subprocess.run(
        [sys.executable, "tools/docsite.py", str(tmp_path)], cwd=ROOT, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    for name in ("index.html", "commands.html", "selector/index.html", "search/search_index.json"):
        assert (tmp_path / name).is_file()
    assert [page.name for page in tmp_path.glob("*.html") if "```" in page.read_text()] == []


def slugs(title: str) -> tuple[str, str]:
    """The anchor of a heading as a forge writes it, and as Python-Markdown does, which joins what signs leave apart."""
    text = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")).strip().lower()
    return re.sub(r"\s", "-", text), re.sub(r"[-\s]+", "-", text)


def test_links_to_headings_are_the_same_on_a_forge_and_in_the_site() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    anchors = {
        page.resolve(): [slugs(title) for title in re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)]
        for page in pages
    }
    wrong = []
    for page in pages:
        for path, anchor in re.findall(r"\]\(([^)#:\s]*\.md)?#([^)\s]+)\)", page.read_text("utf-8")):
            target = (page.parent / path).resolve() if path else page.resolve()
            if target in anchors and (anchor, anchor) not in anchors[target]:
                wrong.append(f"{page.relative_to(ROOT)}: {path}#{anchor}")
    assert not wrong

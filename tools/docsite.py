"""Builds the documentation and the selector as one static site; broken links, missing pages and stale parts are errors.

The pages are a copy of docs in build/pages: README.md is the first, CONTRIBUTING.md and SECURITY.md are with them, and
files of the repository that pages link to lie under `repository/`. So the same links work on a forge and in the site.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "SECURITY.md": "SECURITY.md"}
# A block whose language is followed by what it needs, for the test that walks through it: here that is no block.
_FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)
_LINK = re.compile(r"(?P<open>\]\()(?P<path>[^)#:\s]+)(?P<rest>(?:#[^)\s]*)?\))")


def stage() -> list[str]:
    """Copy the pages and rewrite their links; returns what links to nothing."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    broken: list[str] = []
    for source in sorted((ROOT / "docs").rglob("*.md")):
        _write(source, PAGES / source.relative_to(ROOT / "docs"), broken)
    for name, page in TOP.items():
        _write(ROOT / name, PAGES / page, broken)
    first = PAGES / "index.md"
    link = "**[Pick your hardware, get the command](selector/index.html)**"
    first.write_text(first.read_text("utf-8").replace("\n\n", f"\n\n{link}\n\n", 1), "utf-8")
    return broken


def _write(source: Path, page: Path, broken: list[str]) -> None:
    """One page, with links to where the files are in the site."""

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link["path"]).resolve()
        if not target.exists():
            broken.append(f"{source.relative_to(ROOT)} links to {link['path']}, which does not exist")
            return link[0]
        return f"{link['open']}{os.path.relpath(_place(target), page.parent)}{link['rest']}"

    text = _FENCE.sub(r"\1", source.read_text("utf-8"))
    page.write_text(_LINK.sub(moved, text), "utf-8")


def _place(target: Path) -> Path:
    """Where a file of the repository is in the site; one that is no page is copied."""
    relative = target.relative_to(ROOT)
    if str(relative) in TOP:
        return PAGES / TOP[str(relative)]
    if relative.parts[0] == "docs":
        return PAGES.joinpath(*relative.parts[1:])
    copy = PAGES / "repository" / relative
    if target.is_dir():
        copy.mkdir(parents=True, exist_ok=True)
        listing = "\n".join(sorted(one.name for one in target.iterdir()))
        copy = copy / "files.txt"
        copy.write_text(f"{listing}\n", "utf-8")
    else:
        copy = copy.with_name(f"{copy.name}.txt") if copy.suffix in (".md", "") else copy
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, copy)
    return copy


def main() -> int:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve()
    run = [sys.executable, str(ROOT / "tools" / "gendocs.py"), "--check"]
    if subprocess.run(run, cwd=ROOT, check=False).returncode:
        return 1
    if broken := stage():
        print("\n".join(broken), file=sys.stderr)
        return 1
    selector = [sys.executable, "-m", "torchtailor", "site", str(PAGES / "selector"), "--quiet"]
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(out)]
    for line in (selector, mkdocs):
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        if code := subprocess.run(line, cwd=ROOT, check=False, env=environment).returncode:
            return code
    pages = sum(1 for _ in out.rglob("*.html"))
    print(f"wrote {pages} pages to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

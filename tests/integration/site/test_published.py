"""The front page of an index in a real browser: commands with its own address, and hostile names as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.site.conftest import open_page
from torchtailor.site.published import PublishedVariant, front_page

EVIL = "</code></pre><img src=x onerror=window.evil=1><script>window.evil=2</script>"


def test_commands_name_the_address_of_the_page(browser: Any, tmp_path: Path) -> None:
    row = PublishedVariant("cu128-sm90", "sm90-avx512", ("torch==2.8.0+cu128.sm90",), "3.13", "x86_64", 4, 9)
    (tmp_path / "index.html").write_bytes(front_page([row], ["cu128-sm90"]))
    open_page(browser, tmp_path / "index.html")
    browser.execute_script("navigator.clipboard.writeText = t => { window.copied = t; return Promise.resolve(); }")
    browser.find_element("css selector", ".copy").click()
    copied = browser.execute_script("return window.copied")
    assert copied == f"pip install --index-url {tmp_path.as_uri()}/cu128-sm90/ torch==2.8.0+cu128.sm90"


def test_hostile_names_are_text(browser: Any, tmp_path: Path) -> None:
    row = PublishedVariant(EVIL, EVIL, (EVIL,), EVIL, EVIL, 4, 9, EVIL, EVIL, EVIL)
    (tmp_path / "index.html").write_bytes(front_page([row], [EVIL, "other"]))
    open_page(browser, tmp_path / "index.html")
    assert browser.execute_script("return [document.images.length, window.evil ?? 0]") == [0, 0]
    assert EVIL in browser.execute_script("return document.querySelector('h2').textContent")
    assert EVIL in browser.execute_script("return document.querySelector('.command code').textContent")

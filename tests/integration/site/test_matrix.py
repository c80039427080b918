"""The matrix and the guides in a real browser: filters, sorting, and why a variant is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import machines
from tests.integration.site.conftest import open_page
from torchtailor.catalog.variants import find_variants
from torchtailor.catalog.variants.why import explain
from torchtailor.core.errors import TorchtailorError

NAMES = "return [...document.querySelectorAll('tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent)"


@pytest.fixture(scope="module")
def matrix(browser: Any, site: Path) -> Any:
    """Loaded once: thousands of rows take seconds."""
    open_page(browser, site / "matrix.html")
    return browser


def choose(browser: Any, **filters: str) -> list[str]:
    script = (
        "const f = document.getElementById(arguments[0]); f.value = arguments[1]; f.dispatchEvent(new Event('input'));"
    )
    for name, value in filters.items():
        browser.execute_script(script, name, value)
    return list(browser.execute_script(NAMES))


def test_filters_show_what_the_command_lists(matrix: Any) -> None:
    wanted = find_variants(machines.matrix(), release="2.15.0", gpus=["sm90"], cpus=["avx512"], python="3.14")
    found = choose(matrix, release="2.15.0", gpu="sm90", isa="avx512", python="3.14")
    assert sorted(found) == sorted(variant.unique_name for variant in wanted)
    assert found
    assert f"{len(found)} of " in matrix.execute_script("return document.getElementById('count').textContent")
    matrix.get(matrix.current_url)  # the address carries the filters
    assert sorted(matrix.execute_script(NAMES)) == sorted(found)


def test_columns_sort_both_ways(matrix: Any) -> None:
    script = "return [...document.querySelectorAll('tbody tr')].map(r => r.cells[1].textContent)"
    button = matrix.find_elements("css selector", "thead button")[1]
    button.click()
    up = matrix.execute_script(script)
    button.click()
    down = matrix.execute_script(script)
    assert (up[0], down[0]) == ("2.0.1", "2.15.0")
    assert [tuple(map(int, one.split("."))) for one in up] == sorted(tuple(map(int, one.split("."))) for one in up)


def test_why_is_the_commands_answer(matrix: Any) -> None:
    for name in ("sm61-avx512bf16", "sm90-avx512", "sm121-avx2", "cpu-armv9", "sm70-armv9", "sm999-avx", "?"):
        try:
            wanted = explain(machines.matrix(), name).text
        except TorchtailorError as error:
            wanted = f"{error.message} {error.hint}".strip()
        assert matrix.execute_script("return torchtailor.why(arguments[0])", name) == wanted, name


def test_the_guides_sort(browser: Any, site: Path) -> None:
    open_page(browser, site / "gpus.html")
    browser.find_element("css selector", "thead button").click()
    first = browser.execute_script("return document.querySelector('tbody td').textContent")
    assert first == str(min(machines.catalog().gpus))

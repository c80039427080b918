"""axe-core finds nothing to complain about, in light and dark, on every page."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.integration.site.conftest import open_page
from tests.unit.gpucode.builders import FIXTURES, Entry, Place, container, cubin, elf
from tests.unit.sizes.test_sizes import wheel_of, wheel_with
from torchtailor.site.published import PublishedVariant, front_page
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.verification.inspection.measure import measure
from torchtailor.verification.sizes.compare import SizeComparison
from torchtailor.verification.sizes.page import write_page

COLOURS = ["color-contrast", "link-in-text-block"]  # axe-core's rules about them
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def newest(folder: Path) -> str | None:
    """The axe-core that npm has, from wherever its configuration takes packages."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    packed = subprocess.run(
        [npm, "pack", "axe-core@4", "--silent"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    if packed.returncode:
        return None
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
        script = archive.extractfile("package/axe.min.js")
        return script.read().decode() if script else None


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The newest axe-core, or the older one of a Python package where npm has none."""
    if script := newest(tmp_path_factory.mktemp("axe")):
        return script
    found = find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("neither npm nor axe-core-python has axe-core")
    return (Path(found.origin).parent / "axe.min.js").read_text("utf-8")


def complaints(browser: Any, axe: str, *, colours_only: bool = False) -> list[str]:
    """What axe-core says, with all rules of WCAG 2.2 and its own advice, or those that a theme can change."""
    browser.execute_script(axe)
    script = """const [only, done] = arguments;
      axe.run(document, { runOnly: only })
        .then(r => done(r.violations), e => done([{ id: String(e), nodes: [] }]));"""
    only = {"type": "rule", "values": COLOURS} if colours_only else {"type": "tag", "values": TAGS}
    rows = browser.execute_async_script(script, only)
    return [f"{row['id']}: {[node['html'][:160] for node in row['nodes'][:3]]}" for row in rows]


def check_both_themes(browser: Any, axe: str) -> None:
    """Themes differ in colours alone: all rules in light, those about colours in dark too."""
    for theme in ("light", "dark"):
        browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        assert complaints(browser, axe, colours_only=theme == "dark") == [], theme


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("index.html", "gpu=RTX+4090&driver=570.26&cpu=zen4"),
        ("index.html", "gpu=H100&gpu=GTX+1080+Ti&driver=550.54.15&release=2.14"),
        ("index.html", "gpu=Jetson+AGX+Orin&jetpack=6.2"),
        ("index.html", "gpu=Radeon"),
        ("index.html", ""),
        ("matrix.html", "release=2.15.0&gpu=sm90"),
        ("gpus.html", ""),
        ("cpus.html", ""),
    ],
)
def test_axe_finds_nothing(browser: Any, site: Path, axe: str, name: str, state: str) -> None:
    open_page(browser, site / name, state)
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    # What filters hide is seen by nobody, and thousands of such rows take axe-core long.
    browser.execute_script("document.querySelectorAll('tbody tr[hidden]').forEach(r => r.remove())")
    assert browser.execute_script("return document.querySelectorAll('tbody tr').length") > 3 or name == "index.html"
    check_both_themes(browser, axe)


FAULTS = {
    "image-alt": "<img src='data:,'>",
    "color-contrast": "<p style='color: #888; background: #777'>hardly seen</p>",
    "target-size": "<button style='width:9px; height:9px; padding:0'>a</button><button style='width: 9px'>b</button>",
}


def test_axe_finds_what_is_wrong(browser: Any, site: Path, axe: str) -> None:
    open_page(browser, site / "gpus.html")
    script = "document.querySelector('main').insertAdjacentHTML('beforeend', arguments[0])"
    browser.execute_script(script, "".join(FAULTS.values()))
    assert {complaint.split(":")[0] for complaint in complaints(browser, axe)} == set(FAULTS)
    browser.execute_script("document.documentElement.dataset.theme = 'dark'")
    (dark,) = complaints(browser, axe, colours_only=True)
    assert dark.startswith("color-contrast") and "hardly seen" in dark


def test_axe_finds_nothing_in_a_published_index(browser: Any, tmp_path: Path, axe: str) -> None:
    rows = [
        PublishedVariant(
            "cu128-sm90", "v1", ("torch==2.8.0+cu128.sm90",), "3.13", "x86_64", 5, 9, "gpu", "reports/v1.html"
        ),
        PublishedVariant("cpu", "v2", ("torch==2.8.0",), "3.13", "aarch64", 5, 5, yanked="wrong"),
    ]
    (tmp_path / "index.html").write_bytes(front_page(rows, ["cpu", "cu128-sm90", "variants"]))
    open_page(browser, tmp_path / "index.html")
    check_both_themes(browser, axe)


def test_axe_finds_nothing_in_a_page_of_sizes(browser: Any, tmp_path: Path, axe: str) -> None:
    """Parts that are too small to be hit were buttons."""
    old = wheel_with(tmp_path, "demo-1.0", "size.so")
    new = wheel_of(
        tmp_path, "demo-1.1", {"demo/libx.so": (FIXTURES / "raw.so").read_bytes() * 9, "demo/a.h": b"//c\n" * 900}
    )
    compared = SizeComparison(*(measure(open_artifact(wheel), kernels=True, processes=1) for wheel in (old, new)))
    write_page(compared, tmp_path / "sizes.html")
    open_page(browser, tmp_path / "sizes.html")
    assert browser.execute_script("return document.querySelectorAll('#treemap .tile').length") > 1
    check_both_themes(browser, axe)


def test_names_in_a_page_of_sizes_are_whole_on_a_telephone(browser: Any, tmp_path: Path) -> None:
    """Names in the map ended where their tile did, which made `compute_8` of `compute_80`."""
    kernels = ("vectorized_elementwise_kernel", "DeviceSegmentedSortFallbackKernel")
    codes = [
        Entry(cubin(f"{sm}", 3000, kernel=f"_ZN4demo{len(name)}{name}ILi{sm}EEEvv"), sm=sm)
        for sm in range(70, 88)
        for name in kernels
    ]
    old, new = (
        wheel_of(
            tmp_path,
            f"demo-1.{n}",
            {
                f"demo/libdemo_{count}_kernels.so": elf(Place(".nv_fatbin", container(*codes[: 4 * count + 2 * n])))
                for count in range(1, 9)
            },
        )
        for n in range(2)
    )
    compared = SizeComparison(*(measure(open_artifact(wheel), kernels=True, processes=1) for wheel in (old, new)))
    write_page(compared, tmp_path / "sizes.html")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    try:
        open_page(browser, tmp_path / "sizes.html")
        cut = """return [...document.querySelectorAll('#treemap .tile, #treemap .patch, table.numbers th')]
            .filter(one => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight)
            .map(one => one.textContent)"""
        assert browser.execute_script(cut) == []
        shown = "return [...document.querySelectorAll('#treemap .patch')].map(one => one.textContent).filter(Boolean)"
        assert "sm_70" in browser.execute_script(shown)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 400
        wide = "return [...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)"
        assert browser.execute_script(wide) == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

"""The selector in a real browser: type-ahead, paste, permalink, copying, keyboard, screens, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import machines
from tests.integration.site.conftest import open_page
from torchtailor.advise.host.model import SCHEMA
from torchtailor.site.pages import LIMIT, site_sizes

SMI = """
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   33C    P0             69W /  700W |       1MiB /  81559MiB |      0%      Default |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:3B:00.0 Off |                    0 |
"""


def ask(browser: Any, script: str, *arguments: Any) -> Any:
    return browser.execute_script(script, *arguments)


def settle(browser: Any) -> None:
    """Wait until what was typed has been answered."""
    browser.execute_async_script("setTimeout(arguments[arguments.length - 1], 450)")


def text_of(browser: Any, selector: str) -> str:
    return str(ask(browser, "return document.querySelector(arguments[0])?.textContent ?? ''", selector))


def variant(browser: Any) -> str:
    return text_of(browser, "#variant")


def paste(browser: Any, text: str) -> str:
    ask(browser, "document.getElementById('paste-box').open = true")
    ask(
        browser,
        "const p = document.getElementById('paste'); p.value = arguments[0]; p.dispatchEvent(new Event('input'))",
        text,
    )
    settle(browser)
    return text_of(browser, "#understood")


def test_nothing_is_logged_and_nothing_is_fetched(selector: Any) -> None:
    logged = [row for row in selector.get_log("browser") if row["source"] != "rendering"]  # no WebGPU in a test machine
    assert logged == []
    sent = [json.loads(row["message"])["message"] for row in selector.get_log("performance")]
    requests = [row["params"] for row in sent if row["method"] == "Network.requestWillBeSent"]
    urls = {request["request"]["url"] for request in requests if not request["documentURL"].startswith("chrome")}
    assert {url.split(":", 1)[0] for url in urls} <= {"file", "data", "about"}


def test_it_answers_without_a_network(browser: Any, site: Path) -> None:
    browser.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    try:
        open_page(browser, site / "index.html", "gpu=RTX+4090&cpu=zen4&driver=570.26")
        assert variant(browser) == "pytorch214-python313-cuda12_6-sm89-avx512"
    finally:
        online = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", online)


def test_the_page_is_small(site: Path) -> None:
    (page,) = site_sizes({"index.html": (site / "index.html").read_bytes()})
    assert page.gzip < LIMIT


def test_type_ahead_by_keyboard_alone(selector: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    field = selector.find_element("id", "gpu-0")
    field.clear()
    field.send_keys("5090")
    shown = ask(selector, "return [...document.querySelectorAll('#gpus .options li')].map(l => l.innerText)")
    assert "RTX 5090" in shown[0]
    assert "12.0" in shown[0]
    field.send_keys(Keys.ARROW_DOWN)
    active = field.get_attribute("aria-activedescendant")
    assert ask(selector, "return document.getElementById(arguments[0]).getAttribute('aria-selected')", active) == "true"
    field.send_keys(Keys.ENTER)
    settle(selector)
    assert field.get_attribute("aria-expanded") == "false"
    assert "sm120" in variant(selector)
    assert "gpu=" in selector.current_url


def test_every_product_is_offered(selector: Any) -> None:
    offered = {name for name, _ in ask(selector, "return torchtailor.start().lists.products")}
    wanted = {name for gpu in machines.catalog().gpus.values() if gpu.offered for name in gpu.all_products}
    assert wanted <= offered
    assert len(offered) > 600


def test_paste_of_nvidia_smi_fills_the_form(selector: Any) -> None:
    said = paste(selector, SMI)
    assert "2x NVIDIA H100 80GB HBM3" in said and "550.54.15" in said
    assert ask(selector, "return document.getElementById('gpu-0').value") == "NVIDIA H100 80GB HBM3"
    assert variant(selector).startswith("pytorch214-python313-cuda12_6-sm90")
    assert "580.65.06" in text_of(selector, "#upgrades")
    driver = selector.find_element("id", "driver")  # and can be corrected
    driver.clear()
    driver.send_keys("595.71.05")
    settle(selector)
    assert variant(selector).startswith("pytorch215-")


def test_paste_of_a_description_is_that_machine(selector: Any) -> None:
    import msgspec

    said = paste(selector, msgspec.json.encode(machines.host("h100-gtx-1080-ti")).decode())
    assert "GTX 1080 Ti" in said
    assert "sm61_90-avx512" in variant(selector)
    again = selector.current_url
    selector.get("about:blank")
    selector.get(again)  # the link carries all of it
    settle(selector)
    assert "sm61_90-avx512" in variant(selector)


def test_a_pasted_machine_stays_while_choices_are_made(selector: Any) -> None:
    """Also when the answer is skipped to, which changes the address; a correction keeps what else is known of it."""
    import msgspec

    def choose(field: str, value: str) -> None:
        script = "const f = document.getElementById(arguments[0]); f.value = arguments[1]; "
        ask(selector, f"{script}f.dispatchEvent(new Event('input'))", field, value)
        settle(selector)

    def shown(field: str) -> Any:
        return ask(selector, "return document.getElementById(arguments[0]).value", field)

    paste(selector, msgspec.json.encode(machines.host("rtx-4090-wsl")).decode())
    machine = text_of(selector, "#answer")
    gpu, driver, before = shown("gpu-0"), shown("driver"), variant(selector)
    assert "4090" in gpu and driver and shown("system") == "wsl"
    ask(selector, "document.querySelector('.skip').click()")
    settle(selector)
    assert selector.current_url.endswith("#answer")
    assert (shown("gpu-0"), variant(selector), text_of(selector, "#answer")) == (gpu, before, machine)

    release = ask(selector, "return [...document.getElementById('release').options].at(-1).value")
    for field, value in (("release", release), ("method", "source"), ("workload", "int8-inference")):
        choose(field, value)
        assert "host=" in selector.current_url, field
    choose("driver", "560.94")
    assert "host=" not in selector.current_url and "system=wsl" in selector.current_url
    assert "release=" in selector.current_url

    open_page(selector, Path(ask(selector, "return decodeURIComponent(location.pathname)")), "answer")
    assert variant(selector)  # as without any state


def test_paste_of_a_traceback_names_the_gpu(selector: Any) -> None:
    text = (
        "/usr/lib/python3.12/site-packages/torch/cuda/__init__.py:235: UserWarning:\n"
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.\n"
        "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    )
    said = paste(selector, text)
    assert "RTX 5090" in said and "3.12" in said
    assert "python312-cuda13_2-sm120" in variant(selector)


def test_what_is_not_nvidia_gets_the_true_sentence(selector: Any) -> None:
    field = selector.find_element("id", "gpu-0")
    field.clear()
    field.send_keys("Radeon RX 7900 XTX")
    settle(selector)
    assert "ROCm" in text_of(selector, "#result")
    ask(selector, "location.hash = 'gpu=RTX+4090&system=macos'")
    settle(selector)
    assert "MPS" in text_of(selector, "#alternatives")


def test_a_link_with_an_unknown_method_is_answered(browser: Any, site: Path) -> None:
    open_page(browser, site / "index.html", "gpu=H100&method=conda")
    settle(browser)
    assert "sm90" in variant(browser)
    problem = ask(browser, "return torchtailor.answer({gpus: ['H100'], method: 'conda'}).problem")
    assert problem == "'conda' is not a build method."


def test_the_link_carries_the_whole_state(browser: Any, site: Path) -> None:
    words = (
        "gpu=2x+H100&gpu=RTX+4090&driver=580.65.06&cpu=Graviton4&python=3.12&manager=uv&workload=general&system=linux"
    )
    open_page(browser, site / "index.html", words)
    before = ask(browser, "return document.getElementById('result').innerText")
    assert ask(browser, "return document.querySelector('[role=tab][aria-selected=true]').dataset.key") == "uv"
    browser.find_element("id", "link").click()
    settle(browser)
    address = browser.current_url
    browser.get("about:blank")
    browser.get(address)
    settle(browser)
    settle(browser)
    assert ask(browser, "return document.getElementById('result').innerText") == before
    assert ask(browser, "return [...document.querySelectorAll('.gpu-row input[type=number]')].map(i => i.value)") == [
        "2",
        "1",
    ]


def test_commands_are_copied(browser: Any, site: Path) -> None:
    open_page(browser, site / "index.html", "gpu=RTX+4090&cpu=zen4&driver=570.26")
    ask(browser, "navigator.clipboard.writeText = t => { window.copied = t; return Promise.resolve(); }")
    tabs = ask(browser, "return [...document.querySelectorAll('[role=tab]')].map(t => t.dataset.key)")
    assert tabs == ["torchtailor", "pip", "uv", "pyproject", "docker", "source", "nix", "flox"]
    copied = {}
    for key in tabs:
        browser.find_element("id", f"tab-{key}").click()
        browser.find_element("css selector", f"#panel-{key} .copy").click()
        copied[key] = ask(browser, "return window.copied")
        assert copied[key] == text_of(browser, f"#panel-{key} pre")
    assert copied["torchtailor"] == "torchtailor install pytorch214-python313-cuda12_6-sm89-avx512 --into .venv"
    assert copied["pip"].startswith("python -m pip install torch==2.14.1+cu126 --extra-index-url https://")
    assert '[[tool.uv.index]]\nname = "pytorch-cu126"' in copied["pyproject"]
    assert "tailor --env /usr/local --gpu 8.9" in copied["docker"]


def test_tabs_follow_the_arrow_keys(selector: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    first = selector.find_element("css selector", "[role=tab]")
    first.send_keys(Keys.ARROW_RIGHT)
    now = ask(
        selector, "return [document.activeElement.dataset.key, document.activeElement.getAttribute('aria-selected')]"
    )
    assert now == ["pip", "true"]


@pytest.mark.parametrize("name", ["index.html", "matrix.html", "gpus.html", "cpus.html"])
def test_no_screen_scrolls_sideways(browser: Any, site: Path, name: str) -> None:
    """Loaded on the narrowest screen, which is then made wider."""
    state = "gpu=H100&gpu=GTX+1080&driver=550.54.15" if name == "index.html" else ""
    try:
        for width in (320, 400, 768, 1400, 3840):
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            if width == 320:
                open_page(browser, site / name, state)
            assert ask(browser, "return window.innerWidth") == width
            assert ask(browser, "return document.documentElement.scrollWidth <= window.innerWidth"), width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_layout_does_not_shift(browser: Any, site: Path) -> None:
    """Neither while the page loads nor when the first answer arrives."""
    browser.get("about:blank")
    browser.get((site / "index.html").as_uri())
    script = """const done = arguments[0]; let total = 0;
      const add = list => { for (const one of list.getEntries()) if (!one.hadRecentInput) total += one.value; };
      new PerformanceObserver(add).observe({ type: 'layout-shift', buffered: true });
      setTimeout(() => done(total), 2500);"""
    assert browser.execute_async_script(script) < 0.02


def test_hostile_text_stays_text(browser: Any, site: Path) -> None:
    evil = "<img src=x onerror=window.evil=1>"
    open_page(browser, site / "index.html", f"gpu={evil}&driver={evil}&cpu={evil}&system={evil}&host=%00&flags=e30")
    settle(browser)
    said = paste(browser, f"GPU 0: {evil} (UUID: GPU-1)\n{evil}")
    assert ask(browser, "return [document.images.length, window.evil ?? 0]") == [0, 0]
    assert evil in text_of(browser, "#result") + said


def test_the_first_answer_is_drawn_before_the_engine_runs(browser: Any, site: Path, tmp_path: Path) -> None:
    """It was written with the page; the engine's own answer to the same question replaces it without a difference."""
    without = (site / "index.html").read_bytes().replace(b"idle(awake, { timeout: 3000 })", b"0")
    assert without != (site / "index.html").read_bytes()
    (tmp_path / "index.html").write_bytes(without)
    browser.get((tmp_path / "index.html").as_uri())
    settle(browser)
    assert ask(browser, "return torchtailor.start()") is None
    before = ask(browser, "return document.getElementById('result').innerText")
    assert "PyTorch" in before and "torchtailor install" in before
    open_page(browser, site / "index.html", "gpu=RTX+4090")
    assert ask(browser, "return document.getElementById('result').innerText") == before


def test_a_link_says_that_its_answer_is_on_the_way(browser: Any, site: Path, tmp_path: Path) -> None:
    stalled = (site / "index.html").read_bytes().replace(b"nextFrame(awake)", b"0")
    assert stalled != (site / "index.html").read_bytes()
    (tmp_path / "index.html").write_bytes(stalled)
    browser.get("about:blank")
    browser.get((tmp_path / "index.html").as_uri() + "#gpu=H100")
    assert browser.find_element("id", "waiting").is_displayed()


@pytest.mark.parametrize(
    ("gpu", "said"),
    [("none", "for the CPU"), ("no GPU", "for the CPU"), ("", "for the CPU"), ("2x RTX 4090", "2x"), ("2×H100", "2x")],
)
def test_names_as_people_write_them(browser: Any, site: Path, gpu: str, said: str) -> None:
    from urllib.parse import quote

    open_page(browser, site / "index.html", f"gpu={quote(gpu)}&cpu=zen4")
    shown = text_of(browser, "#headline") + text_of(browser, ".machine")
    assert said in shown.replace("2 x", "2x"), shown


def test_another_vendors_gpu_can_be_left_out(browser: Any, site: Path) -> None:
    open_page(browser, site / "index.html", "gpu=Radeon+RX+7900+XTX")
    assert "ROCm" in text_of(browser, "#result")
    assert "`" not in text_of(browser, "#result")
    browser.find_element("css selector", ".verdict button").click()
    settle(browser)
    assert "for the CPU" in text_of(browser, "#headline")


def test_a_broken_description_is_said(selector: Any) -> None:
    import base64

    documents: list[Any] = [{}, [], 3, {"cpu": 1}, {"schema": SCHEMA, "cpu": {}, "system": {}}, {"cpu": {"flags": 5}}]
    for document in documents:
        ask(selector, "document.getElementById('understood').textContent = ''")
        said = paste(selector, json.dumps(document))
        assert said.startswith("Not understood:"), said
        packed = base64.urlsafe_b64encode(json.dumps(document or {"cpu": 0}).encode()).decode().rstrip("=")
        ask(selector, f"document.getElementById('result').textContent = ''; location.hash = 'host={packed}'")
        settle(selector)
        assert text_of(selector, ".eyebrow") == "No answer for this", document
    assert [row for row in selector.get_log("browser") if "Uncaught" in row["message"]] == []


def test_a_megabyte_of_text_is_read_in_a_moment(selector: Any) -> None:
    took = ask(
        selector,
        "const t = 'x '.repeat(5e5), s = performance.now(); torchtailor.understand(t); return performance.now() - s",
    )
    assert took < 5000


@pytest.mark.parametrize(
    ("info", "renderer", "platform", "said"),
    [
        (("nvidia", "ada-lovelace", "", ""), "ANGLE (NVIDIA, NVIDIA GeForce RTX 4090 (0x2684) Direct3D11 vs, D3D11)",
         "Win32", "NVIDIA GeForce RTX 4090, Windows"),
        (("apple", "metal-3", "", ""), "ANGLE (Apple, ANGLE Metal Renderer: Apple M2 Pro, Unspecified Version)",
         "MacIntel", "Apple M2 Pro, macOS"),
        (("nvidia", "ada-lovelace", "", ""), "", "Linux x86_64", "a GPU of compute capability 8.9"),
        ((5, None, [], {}), "<img src=x onerror=window.evil=1>", "Linux x86_64", ""),
        (None, "", "", ""),
    ],
)  # fmt: skip
def test_what_the_browser_says_is_a_hint(
    browser: Any, site: Path, info: tuple[Any, ...] | None, renderer: str, platform: str, said: str
) -> None:
    """By WebGPU's adapter and WebGL's renderer; more shapes of them are in tests/unit/site/test_browser_gpu.py."""
    keys = ("vendor", "architecture", "device", "description")
    script = f"""const info = {json.dumps(dict(zip(keys, info, strict=True)) if info else None)};
      Object.defineProperty(navigator, 'gpu', {{ value: {{ requestAdapter: async () => info && {{ info }} }} }});
      Object.defineProperty(navigator, 'platform', {{ value: {json.dumps(platform)} }});
      Object.defineProperty(navigator, 'userAgentData', {{ value: undefined }});
      HTMLCanvasElement.prototype.getContext = () => ({{
        getExtension: () => ({{ UNMASKED_RENDERER_WEBGL: 2 }}), getParameter: () => {json.dumps(renderer)} }});"""
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    try:
        open_page(browser, site / "index.html")
        browser.execute_async_script("setTimeout(arguments[0], 60)")
        shown = ask(browser, "return document.querySelector('#hint span')?.textContent ?? ''")
        assert shown == (f"This browser says: {said}." if said else "")
        if said.startswith("NVIDIA GeForce RTX 4090"):
            browser.find_element("css selector", "#hint button").click()
            settle(browser)
            assert ask(
                browser, "return [document.getElementById('gpu-0').value, document.getElementById('system').value]"
            ) == [
                "NVIDIA GeForce RTX 4090",
                "windows",
            ]
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": added["identifier"]})


def test_on_paper_there_are_all_commands_and_no_controls(browser: Any, site: Path) -> None:
    open_page(browser, site / "index.html", "gpu=RTX+4090&cpu=zen4&driver=570.26")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    visible = (
        "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).map(e => e.textContent)"
    )
    try:
        commands = ask(browser, visible, ".panel pre")
        titles = ask(browser, visible, ".panel .print-only")
        controls = ask(browser, visible, "button, input, select, textarea, summary, nav a, .skip, [role=tab]")
        paper = ask(browser, "return getComputedStyle(document.body).backgroundColor")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert len(commands) == len(titles) == 8
    assert commands[0].startswith("torchtailor install")
    assert controls == []
    assert paper == "rgb(255, 255, 255)"


def test_a_narrow_screen_leads_to_the_answer(browser: Any, site: Path) -> None:
    metrics = {"width": 400, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        open_page(browser, site / "index.html", "gpu=RTX+4090&cpu=zen4&driver=570.26")
        settle(browser)
        jump = browser.find_element("id", "jump")
        assert jump.is_displayed() and "PyTorch 2.14.1" in jump.text
        jump.click()
        settle(browser)
        assert not jump.is_displayed()
        assert ask(browser, "return document.activeElement.id") == "answer"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_colours_can_be_chosen(selector: Any) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    before = ask(selector, paper)
    selector.find_element("id", "theme").click()
    assert ask(selector, paper) != before
    selector.find_element("id", "theme").click()
    assert ask(selector, paper) == before

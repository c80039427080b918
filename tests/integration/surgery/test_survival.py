"""Tailored libraries load and work, and still do after `strip` and `patchelf` have been at them."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.surgery.builds import Toolchain, build, run, runner, toolchain
from tests.unit.gpucode.builders import Entry, container
from tests.unit.surgery.checks import options
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryStatus

RPATH = "$ORIGIN/" + "/".join(["a-path-that-is-longer-than-anything-before"] * 4)
VARIANTS = {
    "plain": (),
    "one segment": ("-Wl,-z,noseparate-code",),
    "two mebibytes": ("-Wl,-z,max-page-size=0x200000",),
    "packed relocations": ("-Wl,-z,pack-relative-relocs",),
    "lazy, no relro": ("-Wl,-z,lazy", "-Wl,-z,norelro"),
}


@pytest.fixture(scope="module", params=["x86_64", "aarch64"])
def tools(request: pytest.FixtureRequest) -> Toolchain:
    return toolchain(request.param)


@pytest.fixture(scope="module")
def program(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner(tmp_path_factory.mktemp("program"), tools)


def patchelf(*arguments: str | Path) -> str:
    tool = shutil.which("patchelf")
    if tool is None:
        pytest.skip("patchelf not found")
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


def quietly(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    assert "arning" not in result.stdout
    return result.stdout


def _combinations() -> Iterator[Any]:
    """All of them; those where one was patched or stripped, but not both, only with the slow tests and `plain`."""
    for variant, patched, strip in itertools.product(VARIANTS, (False, True), (True, False)):
        words = (variant, "patched before" if patched else "as linked", "stripped" if strip else "unstripped")
        usual = variant == "plain" or patched == strip
        yield pytest.param(variant, patched, strip, id="-".join(words), marks=() if usual else pytest.mark.slow)


@pytest.mark.parametrize(("variant", "patched_before", "strip"), [*_combinations()])
def test_survival(
    tmp_path: Path, tools: Toolchain, program: Path, variant: str, patched_before: bool, strip: bool
) -> None:
    stock = build(tmp_path, tools, *VARIANTS[variant])
    if patched_before:  # as auditwheel does to every wheel
        patchelf("--set-rpath", "$ORIGIN", stock)
    assert run(program, tools, stock).startswith("0 ")
    tailored = tmp_path / "tailored" / stock.name
    result = tailor_library(stock, tailored, options("9.0", strip=strip))
    assert result.status is LibraryStatus.CUT
    assert tailored.stat().st_size < 0.45 * stock.stat().st_size
    said = run(program, tools, tailored)
    assert said.startswith("0 ")

    quietly("readelf", "-aW", tailored)
    objdump = tools.strip.replace("strip", "objdump")
    quietly(objdump, "-x", tailored)
    assert patchelf("--print-rpath", tailored).strip() == ("$ORIGIN" if patched_before else "")

    def after(name: str, *steps: str) -> None:
        copy = tmp_path / f"{name}.so"
        shutil.copy(tailored, copy)
        for step in steps:
            if step == "strip":
                quietly(tools.strip, copy)
            else:
                patchelf("--set-rpath", RPATH, copy)
                assert patchelf("--print-rpath", copy).strip() == RPATH
            assert run(program, tools, copy) == said, (name, step)

    after("stripped", "strip")
    after("patched", "patchelf")
    after("stripped-patched", "strip", "patchelf")
    after("patched-stripped", "patchelf", "strip")


def test_digest_is_that_of_a_library_built_for_one_target(tmp_path: Path, tools: Toolchain, program: Path) -> None:
    """Two targets one after the other, or at once: the loaded GPU code is the same."""
    stock = build(tmp_path, tools)
    both, one, other = (tmp_path / name for name in ("both.so", "one.so", "other.so"))
    tailor_library(stock, both, options("9.0,12.0"))
    tailor_library(both, one, options("9.0"))
    tailor_library(stock, other, options("9.0"))
    assert run(program, tools, one) == run(program, tools, other) != run(program, tools, both)


def test_containers_that_cannot_be_moved(tmp_path: Path, tools: Toolchain, program: Path) -> None:
    """They are cut where they are: all addresses stay mapped, and the disk gets the space back."""
    stock = build(tmp_path, tools, containers=60, size=200_000)
    objcopy = tools.strip.replace("strip", "objcopy")
    subprocess.run([objcopy, "--rename-section", ".nv_fatbin=.hidden_code", stock], check=True)
    tailored = tmp_path / "tailored.so"
    result = tailor_library(stock, tailored, options("9.0"))
    assert result.status is LibraryStatus.CUT
    assert run(program, tools, tailored).startswith("0 ")
    assert tailored.stat().st_blocks < 0.5 * stock.stat().st_blocks


EMBEDDED = r"""
#include <stdlib.h>
#include <string.h>
extern const unsigned char fatbin[], fatbin_end[];
int check(void) {
    /* what nvJitLinkAddData and nvFatbinAddCubin do with an embedded fatbin and its sizeof */
    size_t size = SIZE;
    unsigned char *copy = malloc(size);
    memcpy(copy, fatbin, size);
    int wrong = memcmp(copy, fatbin, size);
    free(copy);
    return wrong;
}
unsigned long long digest(void) { return 0; }
"""


@pytest.mark.parametrize("steps", [(), ("strip",)], ids=["tailored", "stripped afterwards"])
def test_host_code_may_copy_an_embedded_fatbin(
    tmp_path: Path, tools: Toolchain, program: Path, steps: tuple[str, ...]
) -> None:
    code = container(*(Entry(bytes(range(256)) * 2000, sm=sm) for sm in (90, 80, 100, 120)))
    (tmp_path / "fatbin.bin").write_bytes(code)
    (tmp_path / "host.c").write_text(EMBEDDED)
    (tmp_path / "code.s").write_text(
        ".section .rodata\n.balign 8\n.globl fatbin\n.hidden fatbin\nfatbin:\n"
        f'.incbin "{tmp_path}/fatbin.bin"\n.section .note.GNU-stack,"",@progbits\n'
    )
    stock, tailored = tmp_path / "libembedded.so", tmp_path / "tailored.so"
    command = [tools.compiler, "-shared", "-fPIC", "-O1", f"-DSIZE={len(code)}", f"-Wl,-z,max-page-size={tools.page}"]
    subprocess.run([*command, "-o", stock, tmp_path / "host.c", tmp_path / "code.s"], check=True)
    assert tailor_library(stock, tailored, options("9.0")).status is LibraryStatus.CUT
    for _ in steps:
        quietly(tools.strip, tailored)
    assert run(program, tools, tailored) == "0 0"


@pytest.mark.parametrize("steps", [(), ("strip",)], ids=["tailored", "stripped afterwards"])
def test_programs_link_against_it(tmp_path: Path, tools: Toolchain, steps: tuple[str, ...]) -> None:
    """C++ extensions are linked against libtorch_cuda: the linker has to understand it."""
    stock = build(tmp_path, tools)
    tailored = tmp_path / "tailored" / stock.name
    tailor_library(stock, tailored, options("9.0"))
    for _ in steps:
        quietly(tools.strip, tailored)
    source = tmp_path / "use.c"
    source.write_text("int check(void);\nint main(void) { return check(); }\n")
    program = tmp_path / "use"
    quietly(tools.compiler, "-o", program, source, tailored, f"-Wl,-rpath,{tailored.parent}")
    subprocess.run([*tools.runner, program], check=True)

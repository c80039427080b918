"""Old unwind tables of BOLT leave the file where nothing leads to them, and exceptions still find their handlers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.surgery.builds import Toolchain, toolchain
from tests.unit.surgery.checks import options
from torchtailor.core.errors import CheckFailedError
from torchtailor.surgery import library as module
from torchtailor.surgery.library import tailor_library

# a library that throws, catches and cleans up, and the sections that BOLT would leave in it
SOURCE = r"""
#include <stdexcept>
#include <string>
#include <vector>
struct Counted { int &left; explicit Counted(int &n) : left(n) { ++left; } ~Counted() { --left; } };
__attribute__((noinline)) static void thrower(int depth, int &left) {
    Counted counted(left);
    std::vector<std::string> strings(depth, "something on the heap that has to be freed");
    if (!depth) throw std::runtime_error("thrown");
    thrower(depth - 1, left);
}
extern "C" int check() {
    int left = 0;
    for (int depth = 0; depth < 20; depth++) {
        try { thrower(depth, left); return 1; }
        catch (const std::runtime_error &error) { if (std::string(error.what()) != "thrown" || left) return 2; }
    }
    return 0;
}
OLD_TABLES
"""
TABLES = """
__asm__(".section .bolt.org.eh_frame_hdr,\\"a\\",@progbits\\n.balign 8\\nold_header: .fill 100000,1,0x5a\\n"
        ".section .bolt.org.eh_frame,\\"a\\",@progbits\\n.balign 8\\nold_entries: .fill 300000,1,0x3c\\n.text\\n");
"""
DECLARED = 'extern "C" __attribute__((visibility("hidden"))) char old_entries[];'
LEADS_THERE = {
    "pointer": f"{DECLARED} char *pointer = old_entries + 4711;",
    "code": f"{DECLARED} char *get() {{ return old_entries + 64; }}",
    "symbol": '__asm__(".globl old_entries\\n.type old_entries,@object\\n.size old_entries,8\\n");',
}
MAIN = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 9; }
    return ((int (*)(void))dlsym(library, "check"))();
}
"""


@pytest.fixture(scope="module", params=["x86_64", "aarch64"])
def tools(request: pytest.FixtureRequest) -> Toolchain:
    return toolchain(request.param)


def build(folder: Path, tools: Toolchain, more: str = "") -> tuple[Path, Path]:
    """The library and the program that loads it."""
    (folder / "lib.cpp").write_text(SOURCE.replace("OLD_TABLES", TABLES + more))
    (folder / "main.c").write_text(MAIN)
    compiler = tools.compiler.replace("gcc", "g++")
    flags = ["-shared", "-fPIC", "-O1", f"-Wl,-z,max-page-size={tools.page}"]
    subprocess.run([compiler, *flags, "-o", folder / "lib.so", folder / "lib.cpp"], check=True)
    subprocess.run([tools.compiler, "-o", folder / "main", folder / "main.c", "-ldl"], check=True)
    return folder / "lib.so", folder / "main"


def works(tools: Toolchain, program: Path, library: Path) -> bool:
    return subprocess.run([*tools.runner, program, library], check=False, timeout=60).returncode == 0


def test_dead_tables_leave_and_exceptions_work(tmp_path: Path, tools: Toolchain) -> None:
    stock, program = build(tmp_path, tools)
    cut = tmp_path / "cut.so"
    result = tailor_library(stock, cut, options("9.0", strip=True))
    assert result.filler == 400_000
    assert stock.stat().st_size - cut.stat().st_size > 400_000 - 3 * tools.page
    assert b"<" * 1000 not in cut.read_bytes()
    assert works(tools, program, stock)
    assert works(tools, program, cut)


@pytest.mark.parametrize("what", LEADS_THERE)
def test_tables_to_which_something_leads_stay(tmp_path: Path, tools: Toolchain, what: str) -> None:
    stock, program = build(tmp_path, tools, LEADS_THERE[what])
    cut = tmp_path / "cut.so"
    result = tailor_library(stock, cut, options("9.0", strip=True))
    assert result.filler == 0
    assert b"<" * 300_000 in cut.read_bytes()
    assert works(tools, program, cut)


@pytest.mark.parametrize("what", LEADS_THERE)
def test_the_proof_does_not_take_the_plans_word(
    tmp_path: Path, tools: Toolchain, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, _ = build(tmp_path, tools, LEADS_THERE[what])
    monkeypatch.setattr(
        module, "dead_tables", lambda elf: tuple(s for s in elf.sections if s.name.startswith(".bolt.org"))
    )
    with pytest.raises(CheckFailedError):
        tailor_library(stock, tmp_path / "cut.so", options("9.0", strip=True))
    assert not (tmp_path / "cut.so").exists()


def test_tables_in_use_stay(tmp_path: Path, tools: Toolchain) -> None:
    """Under the old name, but those that the unwinder searches."""
    stock, program = build(tmp_path, tools, "/* none */")
    objcopy = tools.strip.replace("strip", "objcopy")
    renamed = tmp_path / "renamed.so"
    names = ["--rename-section", ".bolt.org.eh_frame=.other", "--rename-section", ".bolt.org.eh_frame_hdr=.more"]
    names += ["--rename-section", ".eh_frame=.bolt.org.eh_frame"]
    names += ["--rename-section", ".eh_frame_hdr=.bolt.org.eh_frame_hdr"]
    subprocess.run([objcopy, *names, stock, renamed], check=True)
    cut = tmp_path / "cut.so"
    assert tailor_library(renamed, cut, options("9.0", strip=True)).filler == 0
    assert works(tools, program, cut)

"""Libraries built by real linkers, and a check from inside the process that loaded them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry, container

SOURCE = r"""
#include <stdint.h>
#include <string.h>
struct wrapper { int magic, version; const unsigned char *container; const void *last; };
extern const struct wrapper first[] __asm__("wrappers"), last[] __asm__("wrappers_end");
extern const unsigned char resource_begin[], resource_end[];
struct record { const unsigned char *end, *begin; };
extern const struct record records[] __asm__("records"), records_end[] __asm__("records_end");
static const char text[] = "host data that must stay";
static int initialised[1000] = {1, 2, 3};
static int zeroed[100000];
static __thread int local = 42;
int (*volatile indirect)(const char *, const char *) = strcmp;
static int ready;
__attribute__((constructor)) static void start(void) { ready = 1; }

/* 0, or what is wrong */
int check(void) {
    if (!ready || indirect(text, "host data that must stay")) return 1;
    if (initialised[2] != 3 || initialised[999] || zeroed[99999] || local != 42) return 2;
    zeroed[99999] = 1;
    for (const struct wrapper *w = first; w < last; w++) {
        uint32_t magic;
        memcpy(&magic, w->container, 4);
        if (w->magic != 0x466243B1 || magic != 0xBA55ED50) return 3;
    }
    for (const struct record *r = records; r < records_end; r++) {
        uint64_t size;
        memcpy(&size, r->begin + 8, 8);
        if (r->end - r->begin != (long)(16 + size + 8)) return 4;
    }
    return 0;
}
/* a hash of what the wrappers and records lead to, containers only as far as they say they go */
uint64_t digest(void) {
    uint64_t hash = 1469598103934665603u;
    for (const struct wrapper *w = first; w < last; w++) {
        uint64_t size;
        memcpy(&size, w->container + 8, 8);
        for (uint64_t i = 0; i < 16 + size; i++) hash = (hash ^ w->container[i]) * 1099511628211u;
    }
    for (const struct record *r = records; r < records_end; r++)
        for (const unsigned char *p = r->begin; p < r->end; p++) hash = (hash ^ *p) * 1099511628211u;
    return hash;
}
"""

MAIN = r"""
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    int (*check)(void) = (int (*)(void))dlsym(library, "check");
    uint64_t (*digest)(void) = (uint64_t (*)(void))dlsym(library, "digest");
    printf("%d %llx\n", check(), (unsigned long long)digest());
    return dlclose(library);
}
"""


@dataclass(frozen=True)
class Toolchain:
    """A compiler, the strip beside it, and how to run what it makes."""

    name: str
    compiler: str
    strip: str
    page: int
    runner: tuple[str, ...] = ()

    def missing(self) -> str:
        tools = [self.compiler, self.strip, *self.runner[:1]]
        return ", ".join(tool for tool in tools if not shutil.which(tool))


_NATIVE = os.uname().machine
TOOLCHAINS = {
    "x86_64": Toolchain(
        "x86_64",
        "gcc" if _NATIVE == "x86_64" else "x86_64-linux-gnu-gcc",
        "strip" if _NATIVE == "x86_64" else "x86_64-linux-gnu-strip",
        0x1000,
        () if _NATIVE == "x86_64" else ("qemu-x86_64", "-L", "/usr/x86_64-linux-gnu"),
    ),
    "aarch64": Toolchain(
        "aarch64",
        "gcc" if _NATIVE == "aarch64" else "aarch64-linux-gnu-gcc",
        "strip" if _NATIVE == "aarch64" else "aarch64-linux-gnu-strip",
        0x10000,
        () if _NATIVE == "aarch64" else ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"),
    ),
}


def toolchain(name: str) -> Toolchain:
    tools = TOOLCHAINS[name]
    if missing := tools.missing():
        pytest.skip(f"{missing} not found")
    return tools


def _assembly(folder: Path, containers: int, size: int) -> str:
    """Sections of GPU code with wrappers, and a resource table."""
    dice = random.Random(23)
    lines = ['.section .nv_fatbin,"a",@progbits', ".balign 8"]
    wrappers = [
        '.section .nvFatBinSegment,"aw",@progbits',
        ".balign 8",
        ".globl wrappers",
        ".hidden wrappers",
        "wrappers:",
    ]
    records = ['.section .data.records,"aw",@progbits', ".balign 8", ".globl records", ".hidden records", "records:"]
    cask = ['.section .cask_resource,"a",@progbits', ".balign 8"]

    def entries(*sms: int) -> bytes:
        return container(*(Entry(dice.randbytes(dice.randrange(100, size)), sm=sm) for sm in sms))

    for index in range(containers):
        (folder / f"code{index}.bin").write_bytes(entries(80, 90, 100, 120))
        lines += [f"code{index}:", f'.incbin "{folder}/code{index}.bin"']
        wrappers += [".long 0x466243B1, 1", f".quad code{index}, 0"]
    for index in range(6):
        (folder / f"task{index}.bin").write_bytes(entries(*((90, 120) if index == 3 else (100, 120))) + bytes(8))
        cask += [f"task{index}:", f'.incbin "{folder}/task{index}.bin"']
        records += [f".quad task{index}_end, task{index}"]
        cask += [f"task{index}_end:"]
    wrappers += [".globl wrappers_end", ".hidden wrappers_end", "wrappers_end:"]
    records += [".globl records_end", ".hidden records_end", "records_end:"]
    note = '.section .note.GNU-stack,"",@progbits'
    return "\n".join([*lines, *wrappers, *cask, *records, note, ""])


def build(folder: Path, tools: Toolchain, *flags: str, containers: int = 12, size: int = 60_000) -> Path:
    """A shared library with GPU code that checks itself."""
    (folder / "host.c").write_text(SOURCE)
    (folder / "code.s").write_text(_assembly(folder, containers, size))
    library = folder / "libcheck.so"
    command = [tools.compiler, "-shared", "-fPIC", "-O1", "-g", f"-Wl,-z,max-page-size={tools.page}", *flags]
    subprocess.run([*command, "-o", library, folder / "host.c", folder / "code.s"], check=True)
    return library


def runner(folder: Path, tools: Toolchain) -> Path:
    (folder / "main.c").write_text(MAIN)
    program = folder / "main"
    subprocess.run([tools.compiler, "-o", program, folder / "main.c", "-ldl"], check=True)
    return program


def run(program: Path, tools: Toolchain, library: Path) -> str:
    """What the library says of itself: a code, 0 if all is well, and a digest."""
    result = subprocess.run([*tools.runner, program, library], capture_output=True, text=True, check=False)
    assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    return result.stdout.strip()

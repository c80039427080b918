"""A library with code, data, thread-local variables and exceptions in pages of their own, and a trace by hand."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import open_source
from torchtailor.code.binary.symbols import dynamic_symbols
from torchtailor.code.gpucode.scan import scan_elf
from torchtailor.workload.identity import library_identity
from torchtailor.workload.trace import PAGE, Trace, TracedLibrary, ranges_of_pages

FAR = 1 << 20  # bytes between the functions
FUNCTIONS = 6
SOURCE = """
#include <stdexcept>
#include <cstring>
#include <unistd.h>
#include <fcntl.h>
#define FAR __asm__(".text; .balign 65536; .fill %(far)d - 65536, 1, 0xcc; .balign 65536");
#define DATA __asm__(".section .rodata; .balign 65536; .fill %(far)d, 1, 0x5a; .balign 65536; .text");
static thread_local int own = 7;
static int started;
__attribute__((constructor)) static void start() { started += 41; }
extern "C" {
int hot(int x) { return x + started + own; }
FAR
int cold1(int x) { return hot(x) * 3; }
FAR
int cold2(int x) { if (x == 13) throw std::runtime_error("thirteen"); return x * x; }
FAR
int cold3(int x) { try { return cold2(x); } catch (const std::exception &e) { return -(int)strlen(e.what()); } }
DATA
extern const char far_path[];
__asm__(".section .rodata; .balign 65536; far_path: .asciz \\"/dev/null\\"; .balign 65536; .text");
int cold4(int) { int f = open(far_path, O_RDONLY); if (f >= 0) close(f); return f >= 0 ? 0 : -1; }
FAR
int cold5(int x) { own += x; return own; }
#ifdef POINTERS
__asm__(".section .data.rel.ro,\\"aw\\"; .balign 8; here: .rept 40000; .quad here; .endr; .text");
#endif
#ifdef GPU
__asm__(".section .nv_fatbin,\\"a\\"; .balign 8; code: .incbin \\"" GPU "\\"; .balign 8; .text");
__asm__(".section .nvFatBinSegment,\\"aw\\"; .balign 8; .long 0x466243b1, 1; .quad code, 0; .text");
__asm__(".section .gcc_except_table,\\"a\\"; .balign 65536; .fill 262144, 1, 0x3c; .text");
#endif
#ifdef LARGE
extern const unsigned char large[];
__asm__(".section .lrodata,\\"al\\",@progbits; .balign 4096; large: .fill %(far)d, 1, 0x3c; .text");
int large_data(int x) { return large[x]; }
#endif
#ifdef TABLES /* writable data: 2 MB, a pointer, 2 MB, 2 MB that others may know; and 2 MB among relocated data */
#define FILL ".fill 2097152, 1, 0x21;"
__asm__(".section .data; .balign 4096; first:" FILL "pointer: .quad second; .balign 4096; second:" FILL ".text");
__asm__(".globl shared; .type shared,@object; .size shared, 2097152; .section .data; shared:" FILL ".text");
__asm__(".section .data.rel.ro,\\"aw\\"; .balign 4096; fixed: " FILL ".balign 4096; .text");
extern unsigned char first[], second[], *pointer, shared[], fixed[];
int tables(int x) { return first[x] + second[x]++ + pointer[x] + shared[x]++ + fixed[x] + (pointer == second); }
unsigned char *second_at() { return second; }
unsigned char *fixed_at() { return fixed; }
#endif
#ifdef ALSO
#include ALSO
#endif
}
""" % {"far": FAR}  # noqa: UP031


def paged_library(path: Path, *, compiler: Sequence[str] = (), flags: Sequence[str] = ()) -> Path:
    """Compile it; skips the test where there is no compiler."""
    command = list(compiler) or [shutil.which("c++") or shutil.which("g++") or ""]
    if not command[0]:
        pytest.skip("no C++ compiler")
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".cc")
    source.write_text(SOURCE)
    subprocess.run(
        [*command, "-shared", "-fPIC", "-O1", "-fno-toplevel-reorder", *flags, "-o", str(path), str(source)],
        check=True,
    )
    return path


def identity(path: Path) -> str:
    with open_source(path) as source:
        elf = ElfFile(source)
        return library_identity(elf, scan_elf(elf))


def touched(path: Path, pages: Iterable[int] = (), *, writable: bool = False) -> Trace:
    """A trace by which these pages of a library were touched: else the first, and those of what runs at its start;
    those that the dynamic linker writes to, too, as older recorders do not say."""
    with open_source(path) as source:
        elf = ElfFile(source)
        text = next(section for section in elf.sections if section.name == ".text")
        hot = next(symbol for symbol in dynamic_symbols(elf) if symbol.name == "hot")
        relocated = [elf.rela.places[0] // PAGE] if writable else []
    numbers = list(pages) or [0, text.address // PAGE, hot.value // PAGE, *relocated]
    return Trace((TracedLibrary(identity(path), path.name, 0, (), pages=ranges_of_pages(numbers)),))

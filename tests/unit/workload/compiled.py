"""A real library, made by the system's compiler, with containers behind wrappers and an undefined `dlsym`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_C = """
#include <stddef.h>
extern void *dlsym(void *, const char *);
void *reach(const char *name) { return dlsym(NULL, name); }
struct wrapper { int magic, version; const void *container; void *last; };
"""


def compiled(path: Path, containers: Sequence[bytes], more: str = "") -> Path:
    """Compile a library that holds these containers, and more C; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path.parent.mkdir(parents=True, exist_ok=True)
    source = [_C]
    for number, container in enumerate(containers):
        data = path.with_name(f"{path.name}.{number}.fatbin")
        data.write_bytes(container)
        source.append(
            '__asm__(".section .nv_fatbin, \\"a\\"\\n.align 8\\n'
            f'container{number}:\\n.incbin \\"{data}\\"\\n.previous");\n'
            f'extern const char container{number}[] __attribute__((visibility("hidden")));\n'
            f'__attribute__((section(".nvFatBinSegment"), used, aligned(8))) struct wrapper w{number} = '
            f"{{0x466243b1, 1, container{number}, 0}};\n"
            f"const void *wrapper{number}(void) {{ return &w{number}; }}\n"
        )
    c = path.with_name(f"{path.name}.c")
    c.write_text("".join([*source, more]))
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(c)], check=True, capture_output=True)
    return path

"""A real library, made by the system's compiler, with containers behind wrappers and an undefined `dlsym`."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "build_hook.py"
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


def build_tool() -> ModuleType:
    """tools/build_hook.py, which is no package."""
    spec = importlib.util.spec_from_file_location("build_hook", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_built(tool: ModuleType, arch: str, folder: Path) -> bool:
    """Take the hook of the package, if it is of these sources: it takes seconds to compile."""
    built = [tool.NATIVE / arch / name for name, *_ in tool.LIBRARIES]
    newest = max(path.stat().st_mtime for path in (*tool.NATIVE.glob("*.*"), TOOL))
    if not all(path.is_file() and path.stat().st_mtime > newest for path in built):
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for path in built:
        shutil.copy(path, folder)
    return True

"""Compiles the workload hook and recorder: for both architectures against glibc 2.17 with `ziglang`, or here with cc.

    pip install ziglang && python tools/build_hook.py    what releases have; the same bytes wherever it runs
    python tools/build_hook.py --system                  for development: this machine's compilers and C library

The libraries go to src/torchtailor/workload/native/ARCH, where a wheel takes them from (hatch_build.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent / "src" / "torchtailor" / "workload" / "native"
ARCHES = ("x86_64", "aarch64")
GLIBC = "2.17"  # of manylinux2014; the first with aarch64

_FLAGS = (
    *("-std=c11", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong"),
    *("-Wall", "-Wextra", "-Wshadow", "-Werror"),
    # Never unloaded: libcudart and the driver hold its functions. No build-id: it would depend on paths.
    *("-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,defs", "-Wl,--build-id=none"),
)
_SOURCES = ("hook.c", "objects.c", "packs.c", "pages.c", "record.c", "zstd.c")
_C_LIBRARY = ("-ldl", "-lpthread")
# Name, sources, flags of each library.
LIBRARIES = (
    ("libtorchtailor-hook.so.1", _SOURCES, _C_LIBRARY),
    (
        "libtorchtailor-preload.so",
        (*_SOURCES, "preload.c", "touched.c"),
        ("-DTORCHTAILOR_PRELOAD", "-Wl,--version-script=preload.map", *_C_LIBRARY),
    ),
    # without "-nostdlib", for which ziglang has no headers: it needs no library all the same
    ("libtorchtailor-audit.so", ("audit.c",), ("-fno-builtin", "-fno-stack-protector", "-Wl,--as-needed")),
)


class CannotBuildError(Exception):
    """What is missing, and what to do about it."""


def zig(arch: str) -> list[str]:
    """The compiler that knows both architectures and every C library."""
    if not importlib.util.find_spec("ziglang"):
        raise CannotBuildError(
            "The compiler `ziglang` is not installed in this Python.\n"
            "       Run `pip install ziglang`, or use --system for a hook that is for this machine only."
        )
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-gnu.{GLIBC}"]


def system(arch: str) -> list[str]:
    """This machine's C compiler, or what CC names; for the other architecture, a cross compiler."""
    if arch != platform.machine():
        if cross := cross_compiler(arch):
            return [cross]
        raise CannotBuildError(
            f"--system builds for {platform.machine()}; there is no compiler for {arch}.\n"
            "       Run `pip install ziglang` and leave --system out."
        )
    command = shlex.split(os.environ.get("CC") or "cc")
    if not shutil.which(command[0]):
        raise CannotBuildError(
            f"The C compiler {command[0]} was not found.\n"
            "       Install one (on Debian: apt-get install gcc), or `pip install ziglang`."
        )
    return command


def cross_compiler(arch: str) -> str | None:
    return shutil.which(f"{arch}-linux-gnu-gcc")


def system_arches() -> list[str]:
    """This machine's architecture, and the other where there is a cross compiler for it."""
    here = platform.machine()
    return [here, *(arch for arch in ARCHES if arch != here and cross_compiler(arch))]


def build(arch: str, compiler: list[str], folder: Path, *flags: str, strip: bool = True) -> list[Path]:
    """The two libraries in `folder`; nothing is left half-written."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, sources, own in LIBRARIES:
        with tempfile.TemporaryDirectory(dir=folder) as work:
            part = Path(work, name)
            options = [*_FLAGS, *(["-Wl,-s"] if strip else []), f"-Wl,-soname,{name}"]
            # Relative names, from where they are: paths would get into the output.
            command = [*compiler, *options, "-o", str(part), *sources, *own, *flags]
            result = subprocess.run(command, cwd=NATIVE, check=False, capture_output=True, text=True)
            if result.returncode:
                raise CannotBuildError(f"{name} for {arch} could not be compiled.\n{result.stderr.strip()}")
            part.chmod(0o644)
            made.append(part.replace(folder / name))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", action="append", choices=ARCHES, help="only this one (default: both)")
    parser.add_argument("--system", action="store_true", help="this machine's compilers")
    parser.add_argument("--into", type=Path, default=NATIVE, help="folder for ARCH/LIBRARY (default: the package)")
    options = parser.parse_args()
    arches = options.arch or (system_arches() if options.system else ARCHES)
    try:
        with tempfile.TemporaryDirectory(prefix="torchtailor-zig-") as caches:  # not in a home or in the sources
            os.environ.update(ZIG_GLOBAL_CACHE_DIR=caches, ZIG_LOCAL_CACHE_DIR=caches)
            for arch in arches:
                compiler = system(arch) if options.system else zig(arch)
                for library in build(arch, compiler, options.into.absolute() / arch):
                    print(f"{library} ({library.stat().st_size:,} bytes)", flush=True)
    except CannotBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Objects compiled now with real compilers: what -march lets into a static initialiser is caught."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.hostcode.test_hostcode import FIXTURES
from torchtailor.cli import main
from torchtailor.code.hostcode.analyse import analyse
from torchtailor.code.hostcode.reach import Reach
from torchtailor.core.errors import ExitCode

COMPILERS = {"x86_64": "x86_64-linux-gnu-g++", "aarch64": "aarch64-linux-gnu-g++"}


def compile_library(arch: str, flags: str, source: str, out: Path) -> Path:
    compiler = shutil.which(COMPILERS[arch])
    if compiler is None:
        pytest.skip(f"{COMPILERS[arch]} is not installed")
    command = [compiler, "-O3", "-fPIC", "-shared", "-nostdlib", "-DCAPABILITY=AVX512", *flags.split(), "-o", str(out)]
    done = subprocess.run([*command, str(FIXTURES / source)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{compiler} does not know {flags}: {done.stderr.splitlines()[-1] if done.stderr else ''}")
    return out


@pytest.mark.parametrize(
    ("arch", "flags", "isa", "caught"),
    [
        ("x86_64", "-mavx512f -mprefer-vector-width=512", "avx2", True),
        ("x86_64", "-mavx512f -mprefer-vector-width=512", "avx512", False),
        ("x86_64", "-mavx2 -mfma -mf16c", "avx2", False),
        ("aarch64", "-march=armv9-a+sve2", "armv8_2", True),
        ("aarch64", "-march=armv9-a+sve2", "armv9", False),
        ("aarch64", "-march=armv8.2-a+fp16+dotprod", "armv8_2", False),
    ],
)
def test_static_initialiser(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arch: str,
    flags: str,
    isa: str,
    caught: bool,
) -> None:
    library = compile_library(arch, flags, "startup.cpp", tmp_path / "libx.so")
    code = main(["verify", str(library), "--cpu", isa, "--level", "static", "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    (within,) = [check for check in checks if check["name"].startswith(f"host code within {isa}")]
    assert (within["outcome"] == "fail") == caught
    if caught:
        assert code == ExitCode.CHECK_FAILED
        assert "1 function runs at load time" in within["reason"]


def test_every_feature_a_compiler_may_use_is_within_its_isa(tmp_path: Path) -> None:
    """What gcc makes with the catalog's own flags needs nothing beyond the catalog's words."""
    from torchtailor.catalog import load_catalog
    from torchtailor.code.binary.elf_headers import ElfMachine
    from torchtailor.code.hostcode.features import feature_table

    for isa in load_catalog().isas.values():
        for source in ("startup.cpp", "dispatched.cpp"):
            flags = " ".join(isa.compile_flags)
            library = compile_library(isa.arch, flags, source, tmp_path / f"{isa.name}-{source}.so")
            allowed = feature_table(ElfMachine[isa.arch.upper()]).closure(isa.requires)
            assert analyse(library).beyond(allowed, *Reach) == (), isa.name


def test_the_committed_libraries_are_what_the_script_makes(tmp_path: Path) -> None:
    if not all(map(shutil.which, COMPILERS.values())):
        pytest.skip("both compilers are needed")
    copy = tmp_path / "hostcode"
    shutil.copytree(FIXTURES, copy, ignore=shutil.ignore_patterns("x86_64", "aarch64"))
    subprocess.run(["sh", str(copy / "build.sh")], check=True, capture_output=True)
    for committed in sorted(FIXTURES.glob("*/*.so")):
        made = analyse(copy / committed.relative_to(FIXTURES))
        kept = analyse(committed)
        assert [(g.reach, g.functions) for g in made.groups] == [(g.reach, g.functions) for g in kept.groups], committed


@pytest.mark.parametrize(("address", "more"), [("0x30000", 0), ("0x5000", 400_000)])
def test_code_in_two_segments(tmp_path: Path, address: str, more: int) -> None:
    """As BOLT leaves it: what lies between them in memory is not between them in the file."""
    compiler = shutil.which(COMPILERS["x86_64"])
    if compiler is None:
        pytest.skip("no compiler for x86_64 is installed")
    (tmp_path / "a.s").write_text(
        ".globl one, two\n.type one, @function\n.type two, @function\n.text\none: ret\n.size one, .-one\n"
        '.section .text2, "ax", @progbits\ntwo: vaddps %zmm0, %zmm1, %zmm2\nret\n.size two, .-two\n'
    )
    line = [compiler, "-shared", "-nostdlib", f"-Wl,--section-start=.text2={address}", "-o", str(tmp_path / "x.so")]
    subprocess.run([*line, str(tmp_path / "a.s")], check=True)
    with (tmp_path / "x.so").open("ab") as file:
        file.write(bytes(more))
    assert analyse(tmp_path / "x.so").needs(*Reach) == {"avx512f"}

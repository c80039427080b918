"""Our reading of x86_64 code against GNU objdump's, instruction by instruction, on real libraries."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.hostcode import x86, x86_decode
from torchtailor.code.hostcode.features import UNKNOWN
from torchtailor.code.hostcode.image import CodeImage

OBJDUMP = shutil.which("x86_64-linux-gnu-objdump")
TOOL = Path(__file__).parents[3] / "tools" / "x86features.py"
FOLDERS = [Path("/usr/x86_64-linux-gnu/lib"), Path("/usr/lib/x86_64-linux-gnu")]

_LINE = re.compile(r"^\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t(.*)$", re.MULTILINE)


@pytest.mark.skipif(OBJDUMP is None, reason="there is no x86_64-linux-gnu-objdump")
@pytest.mark.parametrize("name", ["libc.so.6", "libm.so.6", "libstdc++.so.6"])
def test_lengths_and_kinds_agree_with_objdump(name: str) -> None:
    library = next((folder / name for folder in FOLDERS if (folder / name).exists()), None)
    if library is None:
        pytest.skip(f"there is no x86_64 {name}")
    image = CodeImage(library.resolve())
    assert image.machine is ElfMachine.X86_64
    section = max(image.code_sections, key=lambda one: one.memory_end - one.address)
    decoded = x86_decode.superset(image.bytes_at(section.address, section.memory_end))
    command = [str(OBJDUMP), "-d", "-w", "--insn-width=16", f"--start-address={section.address}"]
    command += [f"--stop-address={section.memory_end}", str(library.resolve())]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # objdump writes FWAIT and what it waits for as one.
    lines = [
        (int(at, 16) - section.address, len(raw.split()), text)
        for at, raw, text in _LINE.findall(text)
        if raw[:2] != "9b"
    ]
    known = [line for line in lines if "(bad)" not in line[2]]
    assert len(known) > 50_000
    assert [line for line in known if decoded.lengths[line[0]] != line[1]] == []
    classes = x86.classify(decoded, np.array([line[0] for line in known]))
    unknown = x86.table().sets.index(frozenset({UNKNOWN}))
    assert [line for line, number in zip(known, classes.tolist(), strict=True) if number == unknown] == []


@pytest.mark.slow
@pytest.mark.skipif(OBJDUMP is None, reason="there is no x86_64-linux-gnu-objdump")
def test_the_table_is_what_the_script_makes(tmp_path: Path) -> None:
    made = tmp_path / "x86_64.toml"
    subprocess.run([sys.executable, str(TOOL), "--output", str(made)], check=True)
    kept = Path(x86.__file__).with_name("data") / "x86_64.toml"
    if made.read_text().split("[evex]")[0] != kept.read_text().split("[evex]")[0]:
        pytest.skip("another version of binutils")
    assert made.read_bytes() == kept.read_bytes()

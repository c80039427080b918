"""The masks of aarch64 against GNU as: an instruction needs a feature exactly if as refuses it without.

Random words are disassembled by objdump, and the text is assembled again for architectures with and without features.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from torchtailor.code.hostcode import arm

AS, OBJDUMP = shutil.which("aarch64-linux-gnu-as"), shutil.which("aarch64-linux-gnu-objdump")
pytestmark = pytest.mark.skipif(not AS or not OBJDUMP, reason="binutils for aarch64 are not installed")

COUNT = 400_000
# as knows no size for these from their text alone, or they are relative to where they stand
_LEFT_OUT = re.compile(
    r"\.inst|undefined|NYI|^udf|^hint|^(?:msr|mrs|sys|sysl|dc|ic|at|tlbi|brk|hlt|svc|hvc|smc|dcps\d|eret|drps)\b"
    r"|^(?:b|bl|b\.\w+|bc\.\w+|cbn?z|tbn?z|adrp?|ldr|ldrsw|prfm)\b.*0x[0-9a-f]+$"
)


@cache
def instructions() -> tuple[list[str], list[str]]:
    """Texts of random instructions, and the word each of them needs by our masks."""
    words = np.random.default_rng(7).integers(0, 2**32, COUNT, np.uint32)
    classes, names = arm.classify(words), arm.class_words()
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        (folder / "words.bin").write_bytes(words.astype("<u4").tobytes())
        command = [str(OBJDUMP), "-D", "-b", "binary", "-m", "aarch64", "-M", "no-aliases", str(folder / "words.bin")]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        shutil.rmtree(folder)
    texts, needs = [], []
    for line in listing.splitlines():
        match = re.match(r"\s*([0-9a-f]+):\t[0-9a-f]{8} \t(.*)", line)
        if match:
            text = match[2].split("//")[0].strip()
            if not _LEFT_OUT.search(text):
                texts.append(text)
                needs.append(names[classes[int(match[1], 16) // 4]])
    assert len(texts) > COUNT // 10
    return texts, needs


def judged(march: str, tmp_path: Path) -> tuple[set[int], set[int]]:
    """The instructions that as refuses for an architecture, and those whose text it does not understand at all."""
    source = tmp_path / "all.s"
    source.write_text("\n".join(instructions()[0]) + "\n")
    command = [str(AS), f"-march={march}", str(source), "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = re.findall(r"all\.s:(\d+): Error: (.*)", done.stderr)
    refused = {int(number) - 1 for number, why in errors if why.startswith("selected processor")}
    return refused, {int(number) - 1 for number, _ in errors} - refused


def disagreements(march: str, granted: set[str], tmp_path: Path) -> list[tuple[str, str]]:
    """Instructions that as refuses and we think are granted, or the other way round."""
    texts, needs = instructions()
    refused, unreadable = judged(march, tmp_path)
    assert len(unreadable) < len(texts) // 100
    return [
        (text, need)
        for position, (text, need) in enumerate(zip(texts, needs, strict=True))
        if position not in unreadable and need[:1] != "@" and (position in refused) != (need not in granted)
    ]


def test_what_plain_armv8_has(tmp_path: Path) -> None:
    assert disagreements("armv8-a", {""}, tmp_path) == []


def test_what_armv8_2_has(tmp_path: Path) -> None:
    granted = {"", "crc32", "atomics", "asimdrdm", "fphp", "asimdhp", "asimddp"}
    assert disagreements("armv8.2-a+fp16+dotprod", granted, tmp_path) == []


def test_what_sve_has_without_sve2(tmp_path: Path) -> None:
    granted = {"", "crc32", "atomics", "asimdrdm", "fphp", "asimdhp", "fcma", "sve"}
    assert disagreements("armv8.2-a+sve", granted, tmp_path) == []


def test_what_sve2_has(tmp_path: Path) -> None:
    granted = {"", "crc32", "atomics", "asimdrdm", "fphp", "asimdhp", "fcma", "sve", "sve2"}
    assert disagreements("armv8.2-a+sve2", granted, tmp_path) == []

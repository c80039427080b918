"""Classifies aarch64 code: every instruction is four bytes, so masks over whole arrays find what needs which feature.

The masks are data/aarch64.toml. capstone has the last word on every distinct instruction that a mask finds: what it
does not know as an instruction is counted as data, not as a need.
"""

from __future__ import annotations

from functools import cache

import capstone
import numpy as np
import numpy.typing as npt

from torchtailor.code.hostcode.features import UNKNOWN
from torchtailor.core.tables import read_table

Words = npt.NDArray[np.uint32]

_MAX_CONFIRMED = 200_000  # distinct encodings per class; beyond this capstone would only repeat itself


@cache
def rules() -> tuple[tuple[int, int, str], ...]:
    """Mask, value and word of each rule, the first that covers an instruction first."""
    return read_table("code.hostcode", "aarch64.toml", dict[str, tuple[tuple[int, int, str], ...]])["rules"]


@cache
def class_words() -> tuple[str, ...]:
    """The word of each class number; number 0 needs nothing."""
    return ("", *dict.fromkeys(word for _, _, word in rules() if word))


@cache
def _disassembler() -> capstone.Cs:
    return capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)


def text_of(instruction: int, address: int = 0) -> str:
    """An instruction as text; empty where capstone knows none."""
    for _, _, mnemonic, operands in _disassembler().disasm_lite(instruction.to_bytes(4, "little"), address):
        return f"{mnemonic} {operands}".strip()
    return ""


def classify(words: Words) -> npt.NDArray[np.uint8]:
    """The class number of every instruction, by masks alone."""
    numbers = {word: number for number, word in enumerate(class_words())}
    classes = np.zeros(len(words), np.uint8)
    for mask, value, word in reversed(rules()):  # the first rule is applied last and stays
        classes[(words & np.uint32(mask)) == np.uint32(value)] = numbers[word]
    return classes


def confirm(words: Words, classes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Turn into `@unknown` the classes of what is no instruction; only instructions with a class may be given.

    Register numbers of the destination and the first source never decide what an instruction is, so one of all
    instructions that differ in them alone is asked about.
    """
    unknown = class_words().index(UNKNOWN)
    keys, first, inverse = np.unique(words >> np.uint32(10), return_index=True, return_inverse=True)
    known = np.ones(len(keys), bool)
    for position, index in enumerate(first[:_MAX_CONFIRMED].tolist()):
        known[position] = bool(text_of(int(words[index])))
    return np.where(known[inverse], classes, unknown).astype(np.uint8)


def example(code: bytes, address: int, wanted: frozenset[str]) -> str:
    """The first instruction that needs one of the words, as text with its address."""
    words = np.frombuffer(code[: len(code) - len(code) % 4], "<u4")
    classes, names = classify(words), class_words()
    for position in np.flatnonzero(classes).tolist():
        if names[classes[position]] in wanted and (text := text_of(int(words[position]), address + position * 4)):
            return f"{address + position * 4:#x}: {text}"
    return ""


# The first instructions of libgcc's outline atomics: does __aarch64_have_lse_atomics say no? (BTI may come first.)
_OUTLINE = ((0x9F00001F, 0x90000010), (0xFFC003FF, 0x39400210), (0xFF00001F, 0x34000010))  # ADRP, LDRB, CBZ of x16
_BTI = 0xD503245F
_CNTD_ALL = (0xFFFFFFE0, 0x04E0E3E0)
_COMPARE_VG = (0xFFFFFC1F, 0x7100B81F)  # CMP Wn, #46: DWARF's number of the register that holds the vector length


def asks_first(code: bytes) -> bool:
    """Whether a function is one of libgcc's that look before they use a feature, told by its instructions.

    Outline atomics test a byte that libgcc sets; the unwinder reads the length of vectors only for frames that saved
    it, which no frame does on a CPU without SVE.
    """
    words = np.frombuffer(code[: len(code) - len(code) % 4], "<u4")
    start = 1 if len(words) and words[0] == _BTI else 0
    first = words[start : start + len(_OUTLINE)]
    if len(first) == len(_OUTLINE) and all(
        int(word) & mask == value for word, (mask, value) in zip(first, _OUTLINE, strict=True)
    ):
        return True
    used = words[classify(words) > 0]
    reads_length = bool(len(used)) and bool(((used & np.uint32(_CNTD_ALL[0])) == np.uint32(_CNTD_ALL[1])).all())
    return reads_length and bool(((words & np.uint32(_COMPARE_VG[0])) == np.uint32(_COMPARE_VG[1])).any())

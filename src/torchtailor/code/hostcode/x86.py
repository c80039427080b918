"""What x86_64 functions need: every instruction's features, from a table of encodings; and what they refer to.

The table is data/x86_64.toml, which tools/x86features.py makes by asking GNU binutils about every encoding. capstone
only writes instructions as text for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import capstone
import numpy as np
import numpy.typing as npt

from torchtailor.code.hostcode.features import NEWER, UNKNOWN
from torchtailor.code.hostcode.x86_decode import KEYS, Numbers, Space, Superset, key, starts, superset
from torchtailor.core.tables import read_table

_SPACES = {
    "legacy": {"one": Space.ONE, "0f": Space.L0F, "0f38": Space.L0F38, "0f3a": Space.L0F3A},
    "vex": {"1": Space.V0F, "2": Space.V0F38, "3": Space.V0F3A},
    "evex": {"1": Space.E0F, "2": Space.E0F38, "3": Space.E0F3A, "5": Space.E5, "6": Space.E6},
    "xop": {"8": Space.X8, "9": Space.X9, "10": Space.XA},
}
_PP = {"np": 0, "66": 1, "f3": 2, "f2": 3}
_NEAR32 = frozenset({(Space.ONE, 0xE8), (Space.ONE, 0xE9), *((Space.L0F, op) for op in range(0x80, 0x90))})
_NEAR8 = frozenset({(Space.ONE, op) for op in (*range(0x70, 0x80), *range(0xE0, 0xE4), 0xEB)})


@dataclass(frozen=True)
class Table:
    """The class of every encoding, and in `sets` what each needs; 0 is no instruction, 1 one that is not known."""

    classes: npt.NDArray[np.uint16]  # by key; from `_GROUPED` on the number of a group
    groups: npt.NDArray[np.uint8]  # by group and ModRM
    sets: tuple[frozenset[str], ...]

    def of(self, keys: npt.NDArray[np.uint32], modrm: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The class of each instruction."""
        found = self.classes[keys]
        at = np.flatnonzero(found >= _GROUPED)
        found[at] = self.groups[found[at] - _GROUPED, modrm[at]]
        found[(found == 0) & np.isin(keys >> 13, _ONLY_INSTRUCTIONS)] = 1
        return found.astype(np.uint8)


_GROUPED = 256
# Text and numbers between functions seldom have this form, and then not it alone.
_ONLY_INSTRUCTIONS = (Space.V0F, Space.V0F38, Space.V0F3A, Space.E0F, Space.E0F38, Space.E0F3A, Space.E5, Space.E6)


@cache
def table() -> Table:
    """Read data/x86_64.toml."""
    rows = read_table("code.hostcode", "x86_64.toml", dict[str, Any])
    sets: dict[frozenset[str], int] = {frozenset({UNKNOWN}): 0, frozenset({NEWER}): 1}
    classes = np.zeros(KEYS, np.uint16)
    groups: dict[int, npt.NDArray[np.uint8]] = {}
    for name, spaces in _SPACES.items():
        for words, patterns in rows[name].items():
            number = sets.setdefault(frozenset(words.split()), len(sets))
            for pattern in patterns:
                map_, pp, w, length, *opcodes = pattern.split()
                keys = np.array(
                    [
                        key(spaces[map_], p, x, v, 0)
                        for p in (range(4) if pp == "*" else [_PP[pp]])
                        for x in (range(2) if w == "w*" else [int(w[1:])])
                        for v in (range(4) if length == "l*" else [int(length[1:])])
                    ]
                )
                for part in opcodes:
                    span, _, modrm = part.partition("/")
                    first, _, last = span.partition("-")
                    for opcode in range(int(first, 16), int(last or first, 16) + 1):
                        if not modrm:
                            classes[keys + opcode] = number
                            continue
                        for one in (keys + opcode).tolist():
                            groups.setdefault(one, np.zeros(256, np.uint8))[_modrms(modrm)] = number
    for index, one in enumerate(groups):
        classes[one] = _GROUPED + index
    return Table(classes, np.array(list(groups.values())), tuple(sets))


def _modrms(text: str) -> npt.NDArray[np.bool_]:
    """`m`, `r`, `7m`, `7r`, or the byte itself."""
    every = np.arange(256)
    if text[-1] not in "mr":
        chosen: npt.NDArray[np.bool_] = every == int(text, 16)
        return chosen
    side: npt.NDArray[np.bool_] = (every < 0xC0) == (text[-1] == "m")
    if len(text) > 1:
        side &= (every >> 3 & 7) == int(text[:-1])
    return side


def classify(code: Superset, places: Numbers) -> npt.NDArray[np.uint8]:
    """The class of the instructions that begin at some places."""
    return table().of(code.keys[places], code.modrm[places])


def _instructions(code: bytes) -> tuple[Superset, Numbers]:
    """A function decoded, and where its instructions begin."""
    decoded = superset(code)
    return decoded, np.array(starts(decoded.lengths, 0, len(code)), np.int64)


def references(code: bytes, address: int) -> set[int]:
    """Addresses that a function calls, jumps to, or takes by distance."""
    decoded, places = _instructions(code)
    padded = code + bytes(32)
    targets: set[int] = set()
    for place in places.tolist():
        number, end = int(decoded.keys[place]), place + decoded.lengths[place]
        kind = (Space(number >> 13), number & 0xFF)
        modrm_at = int(decoded.modrm_at[place])
        if modrm_at and decoded.modrm[place] & 0xC7 == 0x05:
            start = place + modrm_at + 1
            targets.add(address + end + int.from_bytes(padded[start : start + 4], "little", signed=True))
        elif kind in _NEAR32:
            targets.add(address + end + int.from_bytes(padded[end - 4 : end], "little", signed=True))
        elif kind in _NEAR8:
            targets.add(address + end + int.from_bytes(padded[end - 1 : end], "little", signed=True))
    return targets


@cache
def _disassembler() -> capstone.Cs:
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.syntax = capstone.CS_OPT_SYNTAX_ATT
    return disassembler


def example(code: bytes, address: int, words: frozenset[str]) -> str:
    """The first instruction of a function that needs one of the words, as text with its address."""
    decoded, places = _instructions(code)
    wanted = np.array([bool(needs & words) for needs in table().sets])
    for place in places[wanted[classify(decoded, places)]].tolist():
        raw = code[place : place + decoded.lengths[place]]
        return f"{address + place:#x}: {_text(raw, address + place)}"
    return ""


def _text(raw: bytes, address: int) -> str:
    """An instruction as text; its bytes where capstone does not know it."""
    for _, size, mnemonic, operands in _disassembler().disasm_lite(raw, address):
        if size == len(raw):
            return f"{mnemonic} {operands}".strip()
    return raw.hex(" ")

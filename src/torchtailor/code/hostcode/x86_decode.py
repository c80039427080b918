"""Reads x86_64 machine code with NumPy: at every byte, the instruction that would begin there; then those that do.

No disassembler has wheels for all platforms, the newer instructions and the CPU features each needs. Here only what
decides the length and the kind of an instruction is decoded: prefixes, opcode map, opcode, ModRM.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

LONGEST = 15
_PADDING = 2 * LONGEST + 16  # what is read beyond the last byte of a part


class Space(IntEnum):
    """An opcode map under one kind of prefix; the number is the row in tables."""

    ONE = 0
    L0F = 1
    L0F38 = 2
    L0F3A = 3
    V0F = 4
    V0F38 = 5
    V0F3A = 6
    E0F = 7
    E0F38 = 8
    E0F3A = 9
    E5 = 10
    E6 = 11
    X8 = 12
    X9 = 13
    XA = 14
    NONE = 15


# What follows an opcode: ModRM, and how many bytes of constants.
_MODRM = 0x80
_SIB = 0x80
_IMM8, _IMM16, _IMM32, _Z, _V, _ENTER, _MOFFS, _F6, _F7 = range(1, 10)


@cache
def _forms() -> Bytes:
    """For each space and opcode: whether ModRM follows, and the kind of constant."""
    table = np.zeros((16, 256), np.uint8)
    one = table[Space.ONE]
    for base in range(0, 0x40, 8):
        one[base : base + 4], one[base + 4], one[base + 5] = _MODRM, _IMM8, _Z
    one[[0x63, *range(0x84, 0x90), *range(0xD0, 0xD4), *range(0xD8, 0xE0), 0xFE, 0xFF]] = _MODRM
    one[[0x6A, *range(0x70, 0x80), 0xA8, *range(0xB0, 0xB8), 0xCD, 0xD4, 0xD5, *range(0xE0, 0xE8), 0xEB]] = _IMM8
    one[[0x68, 0xA9]] = _Z
    one[[0x69, 0x81, 0xC7]] = _MODRM | _Z
    one[[0x6B, 0x80, 0x82, 0x83, 0xC0, 0xC1, 0xC6]] = _MODRM | _IMM8
    one[[0xE8, 0xE9]] = _IMM32
    one[[0xC2, 0xCA]] = _IMM16
    one[0xA0:0xA4], one[0xB8:0xC0], one[0xC8] = _MOFFS, _V, _ENTER
    one[0xF6], one[0xF7] = _MODRM | _F6, _MODRM | _F7
    two = table[Space.L0F]
    two[:] = _MODRM
    two[
        [*range(0x05, 0x0D), 0x0E, *range(0x30, 0x38), 0x77, 0xA0, 0xA1, 0xA2, 0xA8, 0xA9, 0xAA, *range(0xC8, 0xD0)]
    ] = 0
    two[0x80:0x90] = _IMM32
    constants = [0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC5, 0xC6]
    two[[0x0F, 0xA4, 0xAC, 0xBA, *constants]] = _MODRM | _IMM8
    for space in (Space.V0F, Space.E0F):
        table[space] = _MODRM
        table[space][constants] = _MODRM | _IMM8
    table[Space.V0F][0x77] = 0  # VZEROUPPER
    for space in (Space.L0F38, Space.V0F38, Space.E0F38, Space.E5, Space.E6, Space.X9):
        table[space] = _MODRM
    for space in (Space.L0F3A, Space.V0F3A, Space.E0F3A, Space.X8):
        table[space] = _MODRM | _IMM8
    table[Space.XA] = _MODRM | _IMM32
    return table.reshape(-1)


@cache
def _addressing() -> Bytes:
    """For each ModRM: bytes that follow it, with `_SIB` where a SIB byte is among them and may ask for more."""
    table = np.zeros(256, np.uint8)
    for modrm in range(0xC0):
        mod, rm = modrm >> 6, modrm & 7
        table[modrm] = (0, 1, 4)[mod] + (4 if mod == 0 and rm == 5 else 0) + (_SIB + 1 if rm == 4 else 0)
    return table


_SIMPLE = np.array([0, 1, 2, 4, 4, 4, 3, 8, 0, 0], np.uint8)  # bytes of each kind of constant, before corrections
_PREFIX = np.zeros(256, bool)
_PREFIX[[0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3]] = True
_VEX_SPACES = np.full(32, Space.NONE, np.uint8)
_VEX_SPACES[[1, 2, 3]] = [Space.V0F, Space.V0F38, Space.V0F3A]
_EVEX_SPACES = np.full(8, Space.NONE, np.uint8)
_EVEX_SPACES[[1, 2, 3, 5, 6]] = [Space.E0F, Space.E0F38, Space.E0F3A, Space.E5, Space.E6]
_XOP_SPACES = np.full(32, Space.NONE, np.uint8)
_XOP_SPACES[[8, 9, 10]] = [Space.X8, Space.X9, Space.XA]


@dataclass(frozen=True, slots=True)
class Superset:
    """What would begin at every byte of some code."""

    lengths: bytes  # never 0
    keys: npt.NDArray[np.uint32]  # see `key`
    modrm_at: npt.NDArray[np.uint8]  # where ModRM lies within the instruction; 0 where there is none
    modrm: Bytes


def key(space: int, pp: int, w: int, length: int, opcode: int) -> int:
    """The number by which tables are asked: space, mandatory prefix, W, vector length, opcode."""
    return (((space * 4 + pp) * 2 + w) * 4 + length) * 256 + opcode


KEYS = key(16, 0, 0, 0, 0)


def superset(code: bytes) -> Superset:
    """Decode at every byte; meant for parts of a megabyte or so."""
    size = len(code)
    raw = np.frombuffer(code + bytes(_PADDING), np.uint8)
    core = _core(raw, size + LONGEST)
    # Legacy prefixes: the instruction behind them decides, they change its constant and its meaning.
    places = np.arange(size + LONGEST, dtype=np.int32)
    prefix = _PREFIX[raw[: size + LONGEST]]
    behind = np.minimum.accumulate(np.where(prefix, size + LONGEST - 1, places)[::-1])[::-1][:size]
    here = places[:size]
    spaces, vector, opcodes, modrm_at, lengths, w, wide, modrm = (part[behind] for part in core)
    count = (behind - here).astype(np.uint8)
    pp = vector & 3
    at = np.flatnonzero(count)
    if len(at):
        small, pp_at = _prefixes(raw, here[at], behind[at])
        legacy = spaces[at] < Space.V0F
        pp[at] = np.where(legacy, pp_at, pp[at])
        lengths[at] -= np.where(small & (wide[at] > 0), wide[at], 0).astype(np.uint8)
        modrm_at[at] += np.where(modrm_at[at] > 0, count[at], 0).astype(np.uint8)
    lengths += count
    keys = (spaces.astype(np.uint32) << 3) | (pp << 1) | w
    keys = ((keys << 2) | (vector >> 2)) << 8 | opcodes
    bad = (spaces == Space.NONE) | (lengths > LONGEST) | (count >= LONGEST)
    keys[bad] = key(Space.NONE, 0, 0, 0, 0)
    lengths[bad] = 1
    return Superset(lengths.tobytes(), keys.astype(np.uint32), modrm_at, modrm)


def _prefixes(
    raw: Bytes, start: npt.NDArray[np.int32], end: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.bool_], Bytes]:
    """Whether operands are 16 bits wide, and the mandatory prefix: the last of F3 and F2, else 66."""
    pp = np.zeros(len(start), np.uint8)
    small = np.zeros(len(start), bool)
    for step in range(LONGEST):
        inside = start + step < end
        if not inside.any():
            break
        byte = raw[start + step]
        small |= inside & (byte == 0x66)
        pp[inside & (byte == 0xF3)] = 2
        pp[inside & (byte == 0xF2)] = 3
    pp[(pp == 0) & small] = 1
    return small, pp


def _core(raw: Bytes, size: int) -> tuple[Bytes, ...]:
    """Space, prefix bits (pp and vector length), opcode, place of ModRM, length, W, bytes lost with 66, ModRM."""
    spaces, vector, opcodes, head, w = _opcodes(raw, size)
    forms = _forms()[(spaces.astype(np.uint16) << 8) | opcodes]
    has_modrm = forms >= _MODRM
    places = np.arange(size, dtype=np.int32)
    modrm = np.where(has_modrm, raw[places + head], 0).astype(np.uint8)
    extra = _addressing()[modrm]
    sib = np.flatnonzero(has_modrm & (extra >= _SIB))
    extra &= ~np.uint8(_SIB)
    base = raw[places[sib] + head[sib] + 1] & 7
    extra[sib] += np.where((base == 5) & (modrm[sib] < 0x40), 4, 0).astype(np.uint8)
    constant, wide = _constants(forms & ~np.uint8(_MODRM), w, modrm)
    lengths = head + np.where(has_modrm, 1 + extra, 0).astype(np.uint8) + constant
    return spaces, vector, opcodes, np.where(has_modrm, head, 0).astype(np.uint8), lengths, w, wide, modrm


def _constants(kinds: Bytes, w: Bytes, modrm: Bytes) -> tuple[Bytes, Bytes]:
    """Bytes of constants, and how many of them an operand-size prefix takes away."""
    constant = _SIMPLE[kinds]
    wide = np.where((kinds == _Z) & (w == 0), 2, 0).astype(np.uint8)
    at = np.flatnonzero(kinds >= _V)
    kind, big, low = kinds[at], w[at] == 1, (modrm[at] & 0x30) == 0
    constant[at] = np.select(
        [kind == _V, kind == _F6, kind == _F7],
        [np.where(big, 8, 4), np.where(low, 1, 0), np.where(low, 4, 0)],
        constant[at],
    )
    wide[at] = np.where(~big & ((kind == _V) | ((kind == _F7) & low)), 2, 0)
    return constant, wide


def _opcodes(raw: Bytes, size: int) -> tuple[Bytes, ...]:
    """Space, prefix bits, opcode, bytes up to and with the opcode, W."""
    b = [raw[i : size + i] for i in range(8)]
    rex = (b[0] & 0xF0) == 0x40
    first = np.where(rex, b[1], b[0])
    second = np.where(rex, b[2], b[1])
    third = np.where(rex, b[3], b[2])
    w = np.where(rex, (b[0] >> 3) & 1, 0).astype(np.uint8)
    spaces = np.full(size, Space.ONE, np.uint8)
    opcodes = first.copy()
    opcode_size = np.ones(size, np.uint8)
    vector = np.zeros(size, np.uint8)

    at = np.flatnonzero(first == 0x0F)
    byte = second[at]
    long = (byte == 0x38) | (byte == 0x3A)
    spaces[at] = np.where(long, np.where(byte == 0x38, Space.L0F38, Space.L0F3A), Space.L0F)
    opcodes[at] = np.where(long, third[at], byte)
    opcode_size[at] = np.where(long, 3, 2)

    # In 64-bit mode these bytes are always such prefixes; with REX before them they are no instruction.
    at = np.flatnonzero(b[0] == 0xC5)
    spaces[at], opcodes[at], opcode_size[at] = Space.V0F, b[2][at], 3
    vector[at], w[at] = b[1][at] & 7, 0
    at = np.flatnonzero((b[0] == 0xC4) | ((b[0] == 0x8F) & ((b[1] & 0x1F) >= 8)))
    maps = b[1][at] & 0x1F
    spaces[at] = np.where(b[0][at] == 0xC4, _VEX_SPACES[maps], _XOP_SPACES[maps])
    opcodes[at], opcode_size[at] = b[3][at], 4
    vector[at], w[at] = b[2][at] & 7, b[2][at] >> 7
    at = np.flatnonzero(b[0] == 0x62)
    spaces[at] = np.where(b[2][at] & 4, _EVEX_SPACES[b[1][at] & 7], Space.NONE)
    opcodes[at], opcode_size[at] = b[4][at], 5
    length = (b[3][at] >> 5) & 3
    rounding = ((b[3][at] & 0x10) > 0) & (b[5][at] >= 0xC0)  # then the length's bits are the rounding mode
    vector[at] = (b[2][at] & 3) | (np.where(rounding, 2, length) << 2).astype(np.uint8)
    w[at] = b[2][at] >> 7
    bad = rex & ((first == 0xC5) | (first == 0xC4) | (first == 0x62))
    spaces[bad] = Space.NONE

    return spaces, vector, opcodes, opcode_size + rex, w


def starts(lengths: bytes, first: int, last: int) -> list[int]:
    """Where the instructions of a function begin, walked from its first byte."""
    found: list[int] = []
    add = found.append
    while first < last:
        add(first)
        first += lengths[first]
    return found

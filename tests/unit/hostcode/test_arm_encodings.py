"""Encodings of aarch64 instructions against what GNU as 2.40 made of their text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.code.hostcode import arm
from torchtailor.code.hostcode.features import UNKNOWN

# assembled with: aarch64-linux-gnu-as (armv9-a+sve2+bf16+i8mm+fp16+dotprod+crc+crypto+sha3+sm4+rng+memtag+...)
ASSEMBLED = [
    (0x88E0FC41, "casal w0,w1,[x2]", "atomics"),
    (0xF8E00041, "ldaddal x0,x1,[x2]", "atomics"),
    (0xF820005F, "stadd x0,[x2]", "atomics"),
    (0x6E42FC20, "bfdot v0.4s,v1.8h,v2.8h", "bf16"),
    (0x6E42EC20, "bfmmla v0.4s,v1.8h,v2.8h", "bf16"),
    (0x1E634020, "bfcvt h0,s1", "bf16"),
    (0x0EA16820, "bfcvtn v0.4h,v1.4s", "bf16"),
    (0x4E82A420, "smmla v0.4s,v1.16b,v2.16b", "i8mm"),
    (0x4E829C20, "usdot v0.4s,v1.16b,v2.16b", "i8mm"),
    (0x4E829420, "sdot v0.4s,v1.16b,v2.16b", "asimddp"),
    (0x4FA2E020, "sdot v0.4s,v1.16b,v2.4b[1]", "asimddp"),
    (0x4E420C20, "fmla v0.8h,v1.8h,v2.8h", "asimdhp"),
    (0x1EE22820, "fadd h0,h1,h2", "fphp"),
    (0x1EE24020, "fcvt s0,h1", ""),
    (0x0E217820, "fcvtl v0.4s,v1.4h", ""),
    (0x4E22EC20, "fmlal v0.4s,v1.4h,v2.4h", "asimdfhm"),
    (0x6E828420, "sqrdmlah v0.4s,v1.4s,v2.4s", "asimdrdm"),
    (0x6E82CC20, "fcmla v0.4s,v1.4s,v2.4s,#90", "fcma"),
    (0x1E7E0000, "fjcvtzs w0,d0", "jscvt"),
    (0x38BFC020, "ldaprb w0,[x1]", "lrcpc"),
    (0xF8BFC020, "ldapr x0,[x1]", "lrcpc"),
    (0xD9408020, "ldapur x0,[x1,#8]", "ilrcpc"),
    (0x1E284020, "frint32z s0,s1", "frint"),
    (0x9AC24C20, "crc32x w0,w1,x2", "crc32"),
    (0x4E284820, "aese v0.16b,v1.16b", "aes"),
    (0x0EE2E020, "pmull v0.1q,v1.1d,v2.1d", "pmull"),
    (0x5E024020, "sha256h q0,q1,v2.4s", "sha2"),
    (0xCE628020, "sha512h q0,q1,v2.2d", "sha512"),
    (0xCE020C20, "eor3 v0.16b,v1.16b,v2.16b,v3.16b", "sha3"),
    (0xCEC08420, "sm4e v0.4s,v1.4s", "sm4"),
    (0xD500401F, "cfinv", "flagm"),
    (0x3A00080D, "setf8 w0", "flagm"),
    (0xBA008402, "rmif x0,#1,#2", "flagm"),
    (0xD500403F, "xaflag", "flagm2"),
    (0xD50330FF, "sb", "sb"),
    (0xD503233F, "paciasp", ""),
    (0xD65F0BFF, "retaa", "paca"),
    (0xDAC10020, "pacia x0,x1", "paca"),
    (0xDAC11020, "autia x0,x1", "paca"),
    (0xD73F0801, "blraa x0,x1", "paca"),
    (0xD503245F, "bti c", ""),
    (0xD53B2400, "mrs x0, rndr", "rng"),
    (0xD5380600, "mrs x0, id_aa64isar0_el1", "@asks-cpu"),
    (0xD53BE040, "mrs x0, cntvct_el0", ""),
    (0xD50B7C20, "dc cvap, x0", ""),
    (0x2598E3E0, "ptrue p0.s", "sve"),
    (0x04A20020, "add z0.s,z1.s,z2.s", "sve"),
    (0x25A11C00, "whilelo p0.s,x0,x1", "sve"),
    (0xA540A000, "ld1w z0.s,p0/z,[x0]", "sve"),
    (0x04A0E3E0, "cntw x0", "sve"),
    (0x04BF5020, "rdvl x0,#1", "sve"),
    (0x64A2E420, "fmmla z0.s,z1.s,z2.s", "svef32mm"),
    (0x64628020, "bfdot z0.s,z1.h,z2.h", "svebf16"),
    (0x6462E420, "bfmmla z0.s,z1.h,z2.h", "svebf16"),
    (0x658AA020, "bfcvt z0.h,p0/m,z1.s", "svebf16"),
    (0x45029820, "smmla z0.s,z1.b,z2.b", "svei8mm"),
    (0x44827820, "usdot z0.s,z1.b,z2.b", "svei8mm"),
    (0x04A27020, "sqdmulh z0.s,z1.s,z2.s", "sve2"),
    (0x05232820, "tbl z0.b,{z1.b,z2.b},z3.b", "sve2"),
    (0x44827020, "sqrdmlah z0.s,z1.s,z2.s", "sve2"),
    (0x4522E020, "aese z0.b,z0.b,z1.b", "sveaes"),
    (0x4582B420, "bdep z0.s,z1.s,z2.s", "svebitperm"),
    (0x25A11000, "whilege p0.s,x0,x1", "sve2"),
    (0x9ADF1020, "irg x0,x1", "mte"),
    (0xD9200820, "stg x0,[x1]", "mte"),
    (0xF8208041, "swp x0,x1,[x2]", "atomics"),
    (0xC85F7C20, "ldxr x0,[x1]", ""),
    (0xC89FFC20, "stlr x0,[x1]", ""),
    (0x4EA28420, "add v0.4s,v1.4s,v2.4s", ""),
    (0x1F420C20, "fmadd d0,d1,d2,d3", ""),
    (0x4C407800, "ld1 {v0.4s},[x0]", ""),
    (0x3DC00000, "ldr q0,[x0]", ""),
    (0x00000000, "udf #0", "@unknown"),
]


def class_of(word: int) -> str:
    return arm.class_words()[int(arm.classify(np.array([word], np.uint32))[0])]


@pytest.mark.parametrize(("word", "text", "needs"), ASSEMBLED, ids=[text for _, text, _ in ASSEMBLED])
def test_what_an_instruction_needs(word: int, text: str, needs: str) -> None:
    assert class_of(word) == needs


def test_the_first_rule_counts() -> None:
    """FCVT from half precision is in the space of half-precision arithmetic and needs nothing."""
    assert class_of(0x1EE24020) == ""
    assert class_of(0x1EE22820) == "fphp"


def test_capstone_knows_them_all() -> None:
    words = np.array([word for word, _, _ in ASSEMBLED], np.uint32)
    classes = arm.classify(words)
    there = classes > 0
    assert (arm.confirm(words[there], classes[there]) == classes[there]).all()


def test_data_is_not_a_need() -> None:
    """A word in SVE's space that is no instruction: capstone says so, and it counts as unknown."""
    data = next(word for word in range(0x0400_3F00, 0x0500_0000, 0x1FD) if not arm.text_of(word))
    words = np.array([data], np.uint32)
    classes = arm.classify(words)
    assert arm.class_words()[int(classes[0])] in ("sve", "sve2")
    assert arm.class_words()[int(arm.confirm(words, classes)[0])] == UNKNOWN


def code(*words: int) -> bytes:
    return np.array(words, "<u4").tobytes()


OUTLINE = (0xD0000350, 0x39458610, 0x34000070, 0xF8E03020, 0xD65F03C0)  # adrp, ldrb, cbz, ldsetal, ret
UNWINDER = (0x7100B8FF, 0x54FFEAA1, 0x04E0E3E0, 0xD65F03C0)  # cmp w7, #46; b.ne; cntd x0; ret


def test_helpers_of_libgcc_that_look_first() -> None:
    assert arm.asks_first(code(*OUTLINE))
    assert arm.asks_first(code(0xD503245F, *OUTLINE))  # with BTI
    assert arm.asks_first(code(*UNWINDER))


def test_code_that_does_not() -> None:
    assert not arm.asks_first(code(*OUTLINE[3:]))
    assert not arm.asks_first(code(*UNWINDER[2:]))
    assert not arm.asks_first(code(*UNWINDER, 0x04A20020))  # and adds vectors
    assert not arm.asks_first(b"")


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_any_bytes_can_be_classified(values: list[int]) -> None:
    words = np.array(values, np.uint32)
    classes = arm.classify(words)
    assert len(classes) == len(words)
    at = np.flatnonzero(classes)
    assert len(arm.confirm(words[at], classes[at])) == len(at)


@given(st.sampled_from([word for word, _, _ in ASSEMBLED[:68]]), st.integers(0, 31), st.integers(0, 31))
def test_registers_do_not_matter(word: int, first: int, second: int) -> None:
    """Confirmation asks capstone about one instruction of all that differ in two registers only."""
    if class_of(word) in ("sb", "flagm", "flagm2", "rng", "paca", "@asks-cpu", ""):
        return  # fixed encodings, and what needs nothing
    other = (word & ~0x3FF) | first | (second << 5)
    assert class_of(other) == class_of(word)

"""Words of /proc/cpuinfo: what implies what, and what x86_64 instructions need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.catalog import load_catalog
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.hostcode import x86, x86_decode
from torchtailor.code.hostcode.features import ASKS_CPU, UNKNOWN, feature_table

X86 = feature_table(ElfMachine.X86_64)
ARM = feature_table(ElfMachine.AARCH64)

# assembled with GNU as 2.40
INSTRUCTIONS = [
    ("addps %xmm1,%xmm0", "0f58c1", set()),
    ("haddps %xmm1,%xmm0", "f20f7cc1", {"pni"}),
    ("pshufb %xmm1,%xmm0", "660f3800c1", {"ssse3"}),
    ("popcnt %eax,%ebx", "f30fb8d8", {"popcnt"}),
    ("tzcnt %eax,%ebx", "f30fbcd8", set()),  # BSF on older CPUs: compilers write it for any x86_64
    ("lzcnt %eax,%ebx", "f30fbdd8", {"abm"}),
    ("vaddps %ymm1,%ymm0,%ymm0", "c5fc58c1", {"avx"}),
    ("vpaddd %ymm1,%ymm0,%ymm0", "c5fdfec1", {"avx2"}),
    ("vfmadd231ps %ymm2,%ymm1,%ymm0", "c4e275b8c2", {"fma"}),
    ("vfmsubadd213ps (%rbx),%ymm0,%ymm4", "c4e27da723", {"fma"}),
    ("vfmsubadd231pd %zmm13,%zmm1,%zmm14", "6252f548b7f5", {"avx512f"}),
    ("vcvtph2ps %xmm0,%ymm0", "c4e27d13c0", {"f16c"}),
    ("vaddps %zmm1,%zmm0,%zmm0", "62f17c4858c1", {"avx512f"}),
    ("vaddps %ymm17,%ymm0,%ymm0", "62b17c2858c1", {"avx512vl"}),
    ("vpdpbusd %zmm2,%zmm1,%zmm0", "62f2754850c2", {"avx512_vnni"}),
    ("vdpbf16ps %zmm2,%zmm1,%zmm0", "62f2764852c2", {"avx512_bf16"}),
    ("cpuid", "0fa2", {ASKS_CPU}),
    ("endbr64", "f30f1efa", set()),
    ("(bad)", "06", {UNKNOWN}),
]


def features(code: bytes) -> frozenset[str]:
    """All words that some instructions need."""
    decoded = x86_decode.superset(code)
    places = np.array(x86_decode.starts(decoded.lengths, 0, len(code)), np.int64)
    return frozenset().union(*(x86.table().sets[number] for number in x86.classify(decoded, places).tolist()))


@pytest.mark.parametrize(("text", "code", "needs"), INSTRUCTIONS, ids=[text for text, _, _ in INSTRUCTIONS])
def test_what_an_x86_instruction_needs(text: str, code: str, needs: set[str]) -> None:
    assert features(bytes.fromhex(code)) == needs


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(code: bytes) -> None:
    assert isinstance(features(code), frozenset)
    x86.references(code, 0x1000)


def test_every_isa_of_the_catalog_is_closed_by_its_words() -> None:
    """A word that no rule knows and no CPU has would make every build of the ISA fail."""
    for isa in load_catalog().isas.values():
        table = feature_table(ElfMachine[isa.arch.upper()])
        assert isa.requires <= table.closure(isa.requires)
        assert table.needed(isa.requires) <= set(table.order), isa.name


def test_stronger_words_bring_the_weaker() -> None:
    assert {"avx2", "fma", "avx", "sse4_2", "ssse3", "pni", "xsave"} <= X86.closure(["avx512f"])
    assert "avx512f" not in X86.closure(["avx2"])
    assert {"sve", "asimdhp", "fphp"} <= ARM.closure(["sve2"])
    assert "avx512_vnni" not in X86.closure(["avx_vnni"])


def test_strongest_words() -> None:
    assert X86.strongest({"avx", "avx2", "sse4_1", "fma"}) == ("fma", "avx2")
    assert ARM.strongest({"fphp", "asimdhp"}) == ("asimdhp",)
    assert X86.strongest(set()) == ()


def test_armv9_has_what_its_compilers_write() -> None:
    allowed = ARM.closure(load_catalog().isa("armv9").requires)
    assert {"sve2", "flagm", "ilrcpc", "sb"} <= allowed
    assert not {"svebf16", "sme", "paca"} & allowed

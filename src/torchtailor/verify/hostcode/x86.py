"""Decodes x86_64 functions: for each, the set of features that its instructions need.

iced-x86 is the decoder: it is compiled, knows for every instruction form which CPUID features it needs, and one
set comprehension per function keeps Python out of the loop over instructions.
"""

from __future__ import annotations

from functools import cache

from iced_x86 import Code, CpuidFeature, Decoder, FlowControl, Formatter, FormatterSyntax, Instruction, OpKind

from torchtailor.gpucode.elf_headers import Machine
from torchtailor.verify.hostcode.features import ASKS_CPU, UNKNOWN, feature_table

_FEATURE_NAMES = {getattr(CpuidFeature, name): name for name in dir(CpuidFeature) if name.isupper()}

# Compilers write TZCNT for any x86_64: older CPUs execute the same bytes as BSF, with the same result where it is used.
_ANY_CPU = frozenset(
    {Code.TZCNT_R16_RM16, Code.TZCNT_R32_RM32, Code.TZCNT_R64_RM64}
)  # fmt: skip

_NEAR = frozenset({FlowControl.CALL, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.CONDITIONAL_BRANCH})
_NEAR_OPERANDS = frozenset({OpKind.NEAR_BRANCH16, OpKind.NEAR_BRANCH32, OpKind.NEAR_BRANCH64})


@cache
def words_of(code: int) -> frozenset[str]:
    """The features one instruction form needs, as words of /proc/cpuinfo."""
    if code == Code.INVALID:
        return frozenset({UNKNOWN})
    if code == Code.CPUID:
        return frozenset({ASKS_CPU})
    if code in _ANY_CPU:
        return frozenset()
    table = feature_table(Machine.X86_64)
    instruction = Instruction()
    instruction.code = code  # type: ignore[assignment]  # the stubs have a class of their own for it
    words = (table.word(_FEATURE_NAMES[feature]) for feature in instruction.cpuid_features())
    return frozenset(word for word in words if word and word not in table.baseline)


def features(code: bytes) -> frozenset[str]:
    """All words that the instructions of a function need."""
    found: frozenset[str] = frozenset()
    for form in {instruction.code for instruction in Decoder(64, code)}:
        found |= words_of(form)
    return found


def references(code: bytes, address: int) -> set[int]:
    """Addresses that a function calls, jumps to, or takes by distance."""
    targets: set[int] = set()
    for instruction in Decoder(64, code, ip=address):
        if instruction.is_ip_rel_memory_operand:
            targets.add(instruction.ip_rel_memory_address)
        elif instruction.flow_control in _NEAR and instruction.op0_kind in _NEAR_OPERANDS:
            targets.add(instruction.near_branch_target)
    return targets


def example(code: bytes, address: int, words: frozenset[str]) -> str:
    """The first instruction of a function that needs one of the words, as text with its address."""
    formatter = Formatter(FormatterSyntax.GAS)
    for instruction in Decoder(64, code, ip=address):
        if words_of(instruction.code) & words:
            return f"{instruction.ip:#x}: {formatter.format(instruction)}"
    return ""

"""An instruction set of one's own for a CPU that runs none of the offered ones, as rows for torchtailor.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchtailor.host.model import Cpu


@dataclass(frozen=True, slots=True)
class OwnIsa:
    """A name, what it needs of a CPU, and how to compile for it."""

    name: str
    arch: str
    requires: tuple[str, ...]
    compile_flag: str

    def toml(self, label: str) -> str:
        words = ", ".join(f'"{word}"' for word in self.requires)
        return (
            f'[[isa]]\nname = "{self.name}"\narch = "{self.arch}"\nlabel = "{label}"\n'
            f'requires = [{words}]\ncompile_flags = ["{self.compile_flag}"]\n'
        )


def own_isa(cpu: Cpu) -> OwnIsa | None:
    """The highest level of the platform that the CPU's flags allow; None for a platform PyTorch is not offered on."""
    flags = frozenset(cpu.flags)
    name = re.sub(r"[^a-z0-9_]", "_", cpu.microarchitecture.lower())
    if cpu.arch == "aarch64" and {"fp", "asimd"} <= flags:
        requires, march = _arm_level(flags)
    elif cpu.arch == "x86_64" and flags:
        requires, march = _x86_level(flags)
    else:
        return None
    return OwnIsa(name, cpu.arch, tuple(sorted(requires)), f"-march={march}")


def _arm_level(flags: frozenset[str]) -> tuple[set[str], str]:
    requires, march = {"fp", "asimd"}, "armv8-a"
    if "crc32" in flags:
        requires, march = requires | {"crc32"}, "armv8-a+crc"
    if {"crc32", "atomics", "asimdrdm"} <= flags:
        requires, march = requires | {"atomics", "asimdrdm"}, "armv8.1-a"
        if {"fphp", "asimdhp"} <= flags:
            requires, march = requires | {"fphp", "asimdhp"}, "armv8.2-a+fp16"
            if "sve" in flags:
                requires, march = requires | {"sve"}, "armv8.2-a+fp16+sve"
    return requires, march


def _x86_level(flags: frozenset[str]) -> tuple[set[str], str]:
    second = {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}
    return (second, "x86-64-v2") if second <= flags else ({"sse2"}, "x86-64")

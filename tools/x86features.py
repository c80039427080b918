"""Writes the table of x86_64 instructions and the CPU features each needs, using GNU binutils.

Every encoding is written once, read back as text by objdump, and the text is assembled for CPUs with one feature, then
with two: the first that the assembler accepts is what the instruction needs. Run again where binutils knows more:

    python tools/x86features.py [--prefix x86_64-linux-gnu-]
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

OUTPUT = Path(__file__).parents[1] / "src/torchtailor/code/hostcode/data/x86_64.toml"
SLOT = 16

# Feature names of gas -> words of /proc/cpuinfo, weakest first: if several match, the first is used.
# "" stands for what every x86_64 CPU has or executes as something else (TZCNT as BSF; BMI1's others are vex-encoded).
FEATURES = {
    "clflush": "", "nop": "", "ibt": "", "shstk": "", "prfchw": "", "prefetchwt1": "", "cldemote": "", "sse3": "pni",
    "cx16": "cx16", "ssse3": "ssse3", "sse4.1": "sse4_1", "popcnt": "popcnt", "sse4.2": "sse4_2", "sse4a": "sse4a",
    "3dnow": "3dnow", "3dnowa": "3dnowext", "aes": "aes", "pclmul": "pclmulqdq", "sha": "sha_ni", "gfni": "gfni",
    "movbe": "movbe", "lzcnt": "abm", "adx": "adx", "rdrnd": "rdrand", "rdseed": "rdseed", "rdtscp": "rdtscp",
    "rdpid": "rdpid", "fsgsbase": "fsgsbase", "xsave": "xsave", "xsaveopt": "xsaveopt", "xsavec": "xsavec",
    "xsaves": "xsaves", "mpx": "", "clflushopt": "clflushopt", "clwb": "clwb", "rtm": "rtm", "invpcid": "invpcid",
    "avx": "avx", "f16c": "f16c", "fma": "fma", "bmi": "bmi1", "bmi2": "bmi2", "avx2": "avx2", "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq", "avx_vnni": "avx_vnni", "avx_ifma": "avx_ifma", "avx_vnni_int8": "avx_vnni_int8",
    "avx_ne_convert": "avx_ne_convert", "cmpccxadd": "cmpccxadd", "fma4": "fma4", "xop": "xop", "tbm": "tbm",
    "lwp": "lwp", "avx512f": "avx512f", "avx512cd": "avx512cd", "avx512dq": "avx512dq", "avx512bw": "avx512bw",
    "avx512vl": "avx512vl", "avx512er": "avx512er", "avx512pf": "avx512pf", "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi", "avx512_vbmi2": "avx512_vbmi2", "avx512_vnni": "avx512_vnni",
    "avx512_bitalg": "avx512_bitalg", "avx512_vpopcntdq": "avx512_vpopcntdq", "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16", "avx512_vp2intersect": "avx512_vp2intersect", "avx512_4fmaps": "avx512_4fmaps",
    "avx512_4vnniw": "avx512_4vnniw", "amx_tile": "amx_tile", "amx_int8": "amx_int8", "amx_bf16": "amx_bf16",
    "amx_fp16": "amx_fp16", "rao_int": "rao_int", "movdiri": "movdiri", "movdir64b": "movdir64b", "enqcmd": "enqcmd",
    "serialize": "serialize", "waitpkg": "waitpkg", "ptwrite": "ptwrite", "tsxldtrk": "tsxldtrk", "uintr": "uintr",
    "kl": "kl", "widekl": "widekl", "hreset": "hreset", "wbnoinvd": "wbnoinvd", "pconfig": "pconfig",
    "clzero": "clzero", "mwaitx": "mwaitx", "rdpru": "rdpru", "mcommit": "mcommit", "ospke": "ospke", "smap": "smap",
    "se1": "sgx", "smx": "smx", "svme": "svm", "vmx": "vmx", "ept": "ept", "vmfunc": "vmfunc", "tdx": "tdx",
    "sev_es": "sev_es", "padlock": "padlock", "wrmsrns": "wrmsrns", "msrlist": "msrlist", "prefetchi": "",
    "rmpquery": "rmpquery",
}  # fmt: skip

_NOT_THE_INSTRUCTION = re.compile(
    r"^(?:(?:rex(?:\.[WRXB]+)?|data16|repz|repnz|rep|bnd|notrack|lock|xacquire|xrelease|addr32|[cdefgs]s)\s+)+"
)


@dataclass(frozen=True, order=True)
class Encoding:
    """One row of the table: everything that can determine an instruction."""

    space: str  # legacy, vex, evex, xop
    map: int
    pp: int  # 0: none, 1: 66, 2: F3, 3: F2
    w: int
    length: int
    opcode: int
    modrm: int  # as far as it decides

    def samples(self) -> Iterator[bytes]:
        """The instruction without and with a mask; one of the two is valid."""
        modrm = bytes([self.modrm])
        tail = modrm + (b"\x48" if self.modrm & 0xC7 == 0x04 else b"")  # index rcx, so that gathers have two registers
        if self.space == "legacy":
            prefix = ("", "66", "f3", "f2")[self.pp]
            rex = b"\x48" if self.w else b""
            head = (b"", b"\x0f", b"\x0f\x38", b"\x0f\x3a")[self.map]
            yield bytes.fromhex(prefix) + rex + head + bytes([self.opcode]) + tail
        elif self.space in ("vex", "xop"):
            third = self.w << 7 | 0x78 | self.length << 2 | self.pp
            first = 0xC4 if self.space == "vex" else 0x8F
            yield bytes([first, 0xE0 | self.map, third, self.opcode]) + tail
            yield bytes([first, 0xE0 | self.map, third & ~0x18, self.opcode]) + tail  # another register
        else:
            for fourth in (0x08, 0x09):
                third = self.w << 7 | 0x7C | self.pp
                yield bytes([0x62, 0xF0 | self.map, third, self.length << 5 | fourth, self.opcode]) + tail


def encodings() -> Iterator[Encoding]:
    """All encodings to try. Groups are distinguished by the middle bits of ModRM, some by all of it."""
    halves = [0x04 | reg << 3 for reg in range(8)] + [0xC0 | reg << 3 | 3 for reg in range(8)]
    whole = {(1, 0x01), (1, 0xAE), (1, 0xC7), (1, 0x1E), (0, 0xC6), (0, 0xC7), *((0, op) for op in range(0xD8, 0xE0))}
    for map_, pp, w, opcode in itertools.product(range(4), range(4), range(2), range(256)):
        if map_ == 0 and (opcode in _PREFIXES or opcode in (0x0F, 0x62, 0xC4, 0xC5)):
            continue
        if map_ == 1 and opcode in (0x38, 0x3A):
            continue
        modrms = [*halves, *range(0xC0, 0x100)] if (map_, opcode) in whole else halves
        for modrm in sorted(set(modrms)):
            yield Encoding("legacy", map_, pp, w, 0, opcode, modrm)
    groups = {(1, 0x71), (1, 0x72), (1, 0x73), (1, 0xAE), (2, 0xC6), (2, 0xC7), (2, 0xF3), (2, 0x49)}
    few = [0x14, 0xD3]
    for map_, pp, w, length, opcode in itertools.product((1, 2, 3), range(4), range(2), range(2), range(256)):
        for modrm in [*halves, 0xC0] if (map_, opcode) in groups else few:
            yield Encoding("vex", map_, pp, w, length, opcode, modrm)
    for map_, pp, w, length, opcode in itertools.product((1, 2, 3, 5, 6), range(4), range(2), range(3), range(256)):
        for modrm in halves if (map_, opcode) in groups else few:
            yield Encoding("evex", map_, pp, w, length, opcode, modrm)
    for map_, w, length, opcode in itertools.product((8, 9, 10), range(2), range(2), range(256)):
        for modrm in halves if map_ != 8 and opcode in (1, 2, 0x12) else few:
            yield Encoding("xop", map_, 0, w, length, opcode, modrm)


_PREFIXES = frozenset({0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3, *range(0x40, 0x50)})


class Binutils:
    """objdump and as."""

    def __init__(self, prefix: str, folder: Path) -> None:
        self.prefix, self.folder = prefix, folder

    def texts(self, samples: list[bytes]) -> list[str]:
        """The text of each; empty if it is not an instruction."""
        image = self.folder / "samples.bin"
        image.write_bytes(b"".join(sample.ljust(SLOT, b"\x90") for sample in samples))
        command = [
            f"{self.prefix}objdump",
            "-D",
            "-b",
            "binary",
            "-m",
            "i386:x86-64",
            "--insn-width=16",
            "-z",
            str(image),
        ]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = [""] * len(samples)
        for address, written in re.findall(r"^\s*([0-9a-f]+):\t[0-9a-f ]+?\s*\t(.*)$", out, re.MULTILINE):
            slot, inside = divmod(int(address, 16), SLOT)
            if inside == 0:
                text = _NOT_THE_INSTRUCTION.sub("", re.sub(r"\s*(?:#|<).*", "", written).strip())
                found[slot] = "" if "(bad)" in text or text.startswith(".byte") else text
        return found

    def rejected(self, lines: list[str], features: Iterable[str]) -> set[int]:
        """The lines that a CPU with these features does not have."""
        source, target = self.folder / "a.s", self.folder / "a.o"
        head = [".arch generic64", *(f".arch .{feature}" for feature in features)]
        source.write_text("\n".join([*head, *lines]) + "\n")
        command = [f"{self.prefix}as", "-mmnemonic=att", "-moperand-check=none", "-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        errors = re.findall(r"^[^:]*:(\d+): Error:", done.stderr, re.MULTILINE)
        return {int(number) - 1 - len(head) for number in errors}


def decode(tools: Binutils) -> dict[Encoding, str]:
    """The text of every encoding that is an instruction, with the prefix that keeps its space."""
    found: dict[Encoding, str] = {}
    every = encodings()
    while rows := list(itertools.islice(every, 200_000)):
        samples = [(row, sample) for row in rows for sample in row.samples()]
        for (row, _), text in zip(samples, tools.texts([sample for _, sample in samples]), strict=True):
            if text and row not in found:
                explicit = text.startswith("{") or row.space not in ("vex", "evex")
                found[row] = text if explicit else f"{{{row.space}}} {text}"
    return found


def needs(tools: Binutils, texts: list[str]) -> dict[str, str]:
    """The features each text needs, joined by spaces; what no CPU accepts is omitted."""
    found: dict[str, str] = {}
    everything = tools.rejected(texts, FEATURES)
    left = [text for index, text in enumerate(texts) if index not in everything]
    tried: list[tuple[str, ...]] = [(), *((feature,) for feature in FEATURES)]
    tried += [(a, b) for b in ("avx", "avx2", "avx512f", "avx512vl") for a in FEATURES if FEATURES[a] and a != b]
    for features in tried:
        rejected = tools.rejected(left, features) if left else set()
        words = " ".join(FEATURES[feature] for feature in features)
        found |= {text: words for index, text in enumerate(left) if index not in rejected}
        left = [text for index, text in enumerate(left) if index in rejected]
    for text in left:
        print(f"no two features are enough: {text}")
    return found


_ASKS = {"cpuid": "@asks-cpu", "tzcnt": ""}  # by name: what asks the CPU, and what older CPUs execute as BSF
_MAPS = {"legacy": ("one", "0f", "0f38", "0f3a")}
_PP = ("np", "66", "f3", "f2")


def word_of(row: Encoding, text: str, words: dict[str, str]) -> str | None:
    name = text.split(maxsplit=1)[0]
    if row.space == "legacy" and name in _ASKS:
        return _ASKS[name]
    # What as does not accept from objdump is old: far jumps, segment registers.
    return words.get(text, "" if row.space == "legacy" else None)


def patterns(known: dict[Encoding, str]) -> dict[str, dict[str, list[str]]]:
    """Space -> word -> patterns such as `0f38 66 w0 l1 50-53` and `0f np w* l* ae/7m`."""
    universe: dict[tuple[str, int, int], set[int]] = defaultdict(set)
    for row in encodings():
        universe[row.space, row.map, row.opcode].add(row.modrm)
    points: dict[tuple[str, str, int, int], set[tuple[int, int, int, int]]] = defaultdict(set)
    for row, word in known.items():
        points[row.space, word, row.map, row.opcode].add((row.pp, row.w, row.length, row.modrm))
    lines: dict[tuple[str, str, str], list[tuple[int, str]]] = defaultdict(list)
    for (space, word, map_, opcode), found in points.items():
        modrms: dict[tuple[int, int, int], set[int]] = defaultdict(set)
        for pp, w, length, modrm in found:
            modrms[pp, w, length].add(modrm)
        suffixes: dict[str, set[tuple[int, int, int]]] = defaultdict(set)
        for place, chosen in modrms.items():
            for suffix in describe(chosen, universe[space, map_, opcode]):
                suffixes[suffix].add(place)
        name = _MAPS[space][map_] if space in _MAPS else f"{map_}"
        for suffix, places in suffixes.items():
            for where in collapse(places, {"evex": 3, "legacy": 1}.get(space, 2), space):
                lines[space, word, f"{name} {where}"].append((opcode, suffix))
    result: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (space, word, head), opcodes in sorted(lines.items()):
        result[space][word].append(f"{head} {ranges(opcodes)}")
    return result


def describe(chosen: set[int], universe: set[int]) -> list[str]:
    """The parts of ModRM that identify the selected ones: nothing, m or r, /reg with m or r, or the whole byte."""
    if chosen == universe:
        return [""]
    memory, registers = ({m for m in universe if (m < 0xC0) == side} for side in (True, False))
    found = []
    for half, letter in ((memory, "m"), (registers, "r")):
        mine = chosen & half
        if mine == half:
            found += [f"/{letter}"] if half else []
            continue
        for reg in range(8):
            same = {m for m in half if m >> 3 & 7 == reg}
            if mine & same == same:
                found += [f"/{reg}{letter}"] if same else []
            else:
                found += [f"/{modrm:02x}" for modrm in sorted(mine & same)]
    return found


def collapse(places: set[tuple[int, int, int]], lengths: int, space: str) -> list[str]:
    """`pp w length` for each, with * for all."""
    by_length: dict[tuple[int, int], set[int]] = defaultdict(set)
    for pp, w, length in places:
        by_length[pp, w].add(length)
    short: dict[tuple[int, str], set[int]] = defaultdict(set)
    for (pp, w), found in by_length.items():
        for text in ["*"] if len(found) == lengths else [str(length) for length in sorted(found)]:
            short[pp, text].add(w)
    shorter: dict[tuple[str, str], set[int]] = defaultdict(set)
    for (pp, vector), ws in short.items():
        for text in ["*"] if len(ws) == 2 else [str(w) for w in sorted(ws)]:
            shorter[text, vector].add(pp)
    all_pp = 1 if space == "xop" else 4
    return [
        f"{name} w{w} l{vector}"
        for (w, vector), pps in sorted(shorter.items())
        for name in (["*"] if len(pps) == all_pp else [_PP[pp] for pp in sorted(pps)])
    ]


def ranges(opcodes: list[tuple[int, str]]) -> str:
    """`00-0b 50/7m`: adjacent values with the same suffix as a range."""
    words = []
    for suffix in sorted({suffix for _, suffix in opcodes}):
        numbers = sorted(opcode for opcode, own in opcodes if own == suffix)
        for _, group in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
            run = [number for _, number in group]
            words.append(f"{run[0]:02x}-{run[-1]:02x}{suffix}" if len(run) > 1 else f"{run[0]:02x}{suffix}")
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefix", default="x86_64-linux-gnu-", help="before the names of as and objdump")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tools = Binutils(options.prefix, Path(folder))
        decoded = decode(tools)
        words = needs(tools, sorted(set(decoded.values())))
    known = {row: word for row, text in decoded.items() if (word := word_of(row, text, words)) is not None}
    version = subprocess.run([f"{options.prefix}as", "--version"], capture_output=True, text=True, check=True).stdout
    text = [
        "# x86_64 instructions and the words of /proc/cpuinfo that they need; written by tools/x86features.py.",
        "# A pattern is: opcode map, mandatory prefix, W, vector length (0: 128 bits), opcodes, each with /m (memory),",
        "# /r (register), /7m (and ModRM's middle bits) or /d0 (the whole of ModRM). What none covers is none.",
        "",
        f'source = "{version.splitlines()[0]}"',
    ]
    for space, rows in patterns(known).items():
        text += ["", f"[{space}]"]
        for word, lines in rows.items():
            text += [f'"{word}" = [', *(f'  "{line}",' for line in lines), "]"]
    options.output.write_text("\n".join(text) + "\n", "utf-8")
    print(f"{len(known)} encodings in {options.output}")


if __name__ == "__main__":
    main()

"""The CPU that a text describes by its flags, or names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchtailor.advise.host.cpu import detect_cpu
from torchtailor.advise.host.model import Cpu
from torchtailor.advise.host.probe import Basics, Recording, ReplayProbe
from torchtailor.catalog.load import Catalog
from torchtailor.core.errors import TorchtailorError
from torchtailor.site.paste.lines import value_of

_START = re.compile(
    r"(?<![A-Za-z0-9])(?P<start>(?:\d\dth Gen )?Intel\(R\)|AMD (?:Ryzen|EPYC|Opteron|FX)|Ryzen|EPYC|Threadripper|Xeon"
    r"|Core\(TM\)|Core Ultra|Core i[3579]|i[3579]-\d{4,5}|Graviton|Neoverse|Cortex-A|Ampere|Grace|Apple M\d"
    r"|ARMv[89])(?=(?P<rest>.{0,70}))",
    re.IGNORECASE,
)
_MOST_MENTIONS = 6
_MOST_WORDS = 9
_FEWEST_FLAGS = 12


def described_cpu(lines: Sequence[str]) -> Cpu | None:
    """By its flags, which decide: /proc/cpuinfo, lscpu in any language, or a report that holds one of them."""
    arm = any(re.match(r"Features\s*:", line) for line in lines)
    if arm or any(re.match(r"flags\s*:", line) for line in lines):
        return _by_flags("\n".join(lines), "aarch64" if arm else "x86_64")
    rows = [(value_of(line), set(value_of(line).split())) for line in lines if len(line) > 60]
    for value, words in rows:
        if len(words) < _FEWEST_FLAGS or not ({"fpu", "sse2"} <= words or {"fp", "asimd"} <= words):
            continue
        is_arm = "asimd" in words
        name = next((found for line in lines if (found := _model(line))), "unknown")
        vendor = next((one for one in ("GenuineIntel", "AuthenticAMD") if any(one in line for line in lines)), "")
        key = "Features" if is_arm else "flags"
        text = f"processor : 0\nvendor_id : {vendor}\nmodel name : {name}\n{key} : {value}\n"
        return _by_flags(text, "aarch64" if is_arm else "x86_64")
    return None


def mentioned_cpu(catalog: Catalog, lines: Sequence[str]) -> str | None:
    """By its name alone, in a list or a sentence."""
    starts = (match for line in lines for match in _START.finditer(line))
    for number, match in enumerate(starts):
        if number >= _MOST_MENTIONS:
            break
        words = (match["start"] + match["rest"]).partition(",")[0].split()[:_MOST_WORDS]
        for count in range(len(words)):
            name = " ".join(words[: len(words) - count]).rstrip(".;:?!")
            if _is_cpu(catalog, name):
                return name
    return None


def _model(line: str) -> str:
    found = re.search(r": *(\S.*)", line) if _START.search(line) else None
    return found[1] if found else ""


def _by_flags(cpuinfo: str, arch: str) -> Cpu:
    """The CPU of a machine of which nothing is known but its /proc/cpuinfo."""
    basics = Basics(arch=arch, kernel="", affinity=4096)
    return detect_cpu(ReplayProbe(Recording(basics=basics, files={"/proc/cpuinfo": cpuinfo})))


def _is_cpu(catalog: Catalog, name: str) -> bool:
    try:
        catalog.microarchitecture(name)
    except TorchtailorError:
        return False
    return True

"""PTX as text: what it is for stands in its head."""

from __future__ import annotations

import re

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, Suffix

PTX_MARK = b"\n.target sm_"

_HEAD = re.compile(
    rb"^\s*\.version\s+\d+\.\d+[^\n]*\n(?:\s*(?://[^\n]*)?\n)*\s*\.target\s+sm_(\d{2,3})([af]?)\b", re.MULTILINE
)


def ptx_target(head: bytes) -> CodeTarget | None:
    """What the first bytes of a PTX text say it is for; None where they are none."""
    found = _HEAD.search(head)
    if found is None:
        return None
    return CodeTarget(CodeKind.PTX, Capability.from_number(int(found[1])), Suffix(found[2].decode()))

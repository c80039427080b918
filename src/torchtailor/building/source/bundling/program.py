"""Copies the libraries that a wheel needs into it, with auditwheel; runs in an environment that has only that.

Reads an order as JSON from standard input, and writes an answer to the file that it names. Where auditwheel knows no
tag for the symbols that are used, the libraries are copied all the same, and the caller chooses the tag.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from auditwheel.error import NonPlatformWheelError
from auditwheel.hashfile import hashfile
from auditwheel.lddtree import LIBPYTHON_RE
from auditwheel.patcher import ElfPatcher
from auditwheel.repair import repair_wheel
from auditwheel.wheel_abi import analyze_wheel_abi
from auditwheel.wheeltools import get_wheel_architecture


def audit(order: dict[str, Any]) -> dict[str, Any]:
    """What was found and copied."""
    wheel, out = Path(order["wheel"]), Path(order["out"])
    try:
        found = analyze_wheel_abi(
            None,
            get_wheel_architecture(wheel.name),
            wheel,
            frozenset(order["excluded"]),
            disable_isa_ext_check=True,  # a newer instruction set is what the build is for
            allow_graft=True,
            requested_policy_base_name="auto",
        )
    except NonPlatformWheelError:
        return {"platforms": [], "libraries": [], "missing": [], "system": [], "symbols": [], "wheel": None}
    known = found.overall_policy != found.policies.linux
    policy = found.overall_policy if known else found.policies.lowest  # the one with the newest glibc
    sources: dict[str, Path | None] = {}
    for references in found.full_external_refs.values():
        sources |= references[policy.name].libs
    wanted = {name: path for name, path in sources.items() if not LIBPYTHON_RE.match(name)}
    symbols = {symbol for symbols in found.versioned_symbols.values() for symbol in symbols}
    answer = {
        "platforms": sorted([policy.name, *policy.aliases]) if known else [],
        "newest": found.policies.lowest.name,
        "unknown": sorted(_unknown(symbols, found.policies.lowest)),
        "symbols": sorted(symbols),
        "missing": sorted(name for name, path in wanted.items() if path is None),
        "system": sorted(policy.whitelist),
        "libraries": [_library(name, path) for name, path in sorted(wanted.items()) if path is not None],
        "wheel": None,
    }
    if not answer["missing"]:
        patcher = ElfPatcher.get_patcher("patchelf", policy.name)
        made = repair_wheel(
            found,
            wheel,
            [policy.name],
            ".libs",
            out,
            update_tags=False,
            patcher=patcher,
            strip=False,
            zip_compression_level=0,
        )
        answer["wheel"] = str(made) if made else None
    return answer


def _unknown(symbols: set[str], policy: Any) -> set[str]:
    """Versions of symbols that a policy does not allow: of the libraries that it says something of."""
    allowed = {f"{name}_{version}" for name, versions in policy.symbol_versions.items() for version in versions}
    return {symbol for symbol in symbols - allowed if symbol.partition("_")[0] in policy.symbol_versions}


def _library(soname: str, path: Path) -> dict[str, str]:
    """A library that is copied, with the name that auditwheel gives the copy."""
    with path.open("rb") as file:
        digest = hashfile(file)[:8]
    base, _, rest = path.name.partition(".")
    name = path.name if base.endswith(f"-{digest}") else f"{base}-{digest}.{rest}"
    return {"soname": soname, "path": str(path), "name": name}


if __name__ == "__main__":
    ordered = json.loads(sys.stdin.read())
    Path(ordered["answer"]).write_text(json.dumps(audit(ordered)), "utf-8")

"""The facts of an artifact: sizes per library and architecture, before and after, and how it was made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from torchtailor.trees.artifact.artifact import Artifact
from torchtailor.verification.result import HOST
from torchtailor.verification.static.cuts import cut_records
from torchtailor.verification.static.expect import Expectation
from torchtailor.verification.static.read import LibraryFacts
from torchtailor.verification.static.whole import PagedFacts


def artifact_facts(
    artifact: Artifact,
    libraries: Sequence[LibraryFacts],
    expected: Expectation,
    stock: Artifact | None,
    stock_libraries: Sequence[LibraryFacts],
) -> dict[str, Any]:
    """Plain values for JSON."""
    before = {facts.name: _row(facts) for facts in stock_libraries} or _from_manifests(artifact)
    rows = []
    for facts in libraries:
        row = _row(facts)
        row["before"] = before.pop(facts.name, None)
        rows.append(row)
    rows.sort(key=lambda row: -max(row["size"], (row["before"] or row)["size"]))
    return {
        "kind": artifact.kind.value,
        "path": str(artifact.path),
        "wheels": [{"name": wheel.name, "size": wheel.stat().st_size} for wheel in artifact.wheels],
        "size": artifact.size,
        "torch": artifact.torch_version,
        "kept_images": sum(
            int(tally["images"]) for record in cut_records(artifact) for tally in record.row.get("kept", {}).values()
        ),
        "stock": _stock(artifact, stock),
        "expected": {
            "variant": expected.name,
            "from": expected.source,
            "gpus": [str(gpu) for gpu in expected.gpus],
            "isa": expected.isa.name if expected.isa else "",
            "arch": expected.arch,
            "python": expected.python,
        },
        "made": _made(artifact),
        "install": _install(artifact),
        "libraries": rows,
        "packs": [_packed(facts) for facts in libraries if facts.packed.containers],
        "pages": [_paged(facts.name, facts.pages) for facts in libraries if facts.pages],
    }


def _row(facts: LibraryFacts) -> dict[str, Any]:
    """One library: its bytes by architecture; they add up to its size."""
    codes = {group.label: group.stored for group in facts.gpu.architectures} if facts.gpu else {}
    gpu = sum(codes.values())
    return {
        "name": facts.name,
        "owner": facts.file.owner,
        "size": facts.file.size,
        "bytes": {HOST: max(facts.file.size - gpu, 0), **codes},
    }


def _packed(facts: LibraryFacts) -> dict[str, Any]:
    """What a library keeps of its GPU code, for the program that was recorded, and what is in packs."""
    return {
        "name": facts.name,
        "stays": sum(group.stored for group in facts.gpu.architectures) if facts.gpu else 0,
        "in_packs": facts.packed.stored,
        "containers": facts.packed.containers,
        "missing": facts.packed.missing,
    }


def _paged(name: str, pages: PagedFacts) -> dict[str, Any]:
    """What of a library's segments is in its file, and what is in its pack alone."""
    there = not (pages.missing or pages.problem)
    return {"name": name, "hot": pages.hot, "cold": pages.cold, "data": pages.data, "pack": there}


def _from_manifests(artifact: Artifact) -> dict[str, dict[str, Any]]:
    """What the libraries were before they were cut, as far as their manifests record it."""
    found = {}
    for record in cut_records(artifact):
        codes, row = record.bytes_before, record.row
        size = int(row["size_before"])
        if codes or (size != row.get("size_after") and not row.get("gpu_before")):
            rest = max(size - sum(codes.values()), 0)
            found[record.library] = {"name": record.library, "owner": "", "size": size, "bytes": {HOST: rest, **codes}}
    return found


def _stock(artifact: Artifact, stock: Artifact | None) -> dict[str, Any] | None:
    if stock is not None:
        return {"path": str(stock.path), "size": stock.size, "from": "--against"}
    totals = artifact.manifest.get("totals")
    if totals and totals.get("input_bytes"):
        return {"path": "", "size": int(totals["input_bytes"]), "from": "manifest.json"}
    return None


def _made(artifact: Artifact) -> dict[str, Any]:
    """What was built and from what, from the manifests."""
    if artifact.manifest:
        wheels = [
            {
                "name": row.get("name", ""),
                "step": row.get("step", ""),
                "input": row.get("input", {}),
                "output": row.get("output", {}),
            }
            for row in artifact.manifest.get("wheels", ())
        ]
        keys = ("variant", "target", "pytorch", "way", "gives", "tool", "totals")
        return {**{key: artifact.manifest[key] for key in keys if key in artifact.manifest}, "wheels": wheels}
    sizes = {wheel.name: wheel.stat().st_size for wheel in artifact.wheels}
    inputs = [
        {
            "name": owner,
            "input": manifest.get("input", {}),
            "output": {"size": sizes[owner]} if owner in sizes else {},
            "target": manifest.get("target", {}),
            "policy": manifest.get("policy", {}),
        }
        for owner, manifest in artifact.tailored.items()
    ]
    return {"wheels": inputs} if inputs else {}


def _install(artifact: Artifact) -> list[str]:
    """Commands that install it."""
    if artifact.manifest.get("requirements") and (artifact.path / "simple").is_dir():
        index = (artifact.path / "simple").absolute().as_uri()
        wanted = shlex.join(artifact.manifest["requirements"])
        return [
            f"pip install --index-url {index} {wanted}",
            f"uv pip install --default-index {index} {wanted}",
        ]
    if len(artifact.wheels) == 1:
        return [f"pip install {artifact.wheels[0]}", f"uv pip install {artifact.wheels[0]}"]
    if artifact.wheels:
        return [f"pip install --no-index --find-links {artifact.wheels[0].parent} torch"]
    return []

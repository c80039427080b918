"""The manifest: what was cut, from what and for which GPUs; the same input gives the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchtailor.artifact.drops import DroppedFile
from torchtailor.errors import BadInputError
from torchtailor.surgery.options import TailorOptions
from torchtailor.surgery.result import CodeTally, LibraryResult
from torchtailor.tailoring.gpu_stand_ins import GpuStandIn
from torchtailor.version import __version__

SCHEMA = 1


def manifest(
    options: TailorOptions,
    source: Mapping[str, Any],
    output: Mapping[str, Any],
    libraries: Iterable[LibraryResult],
    dropped: Iterable[DroppedFile] = (),
    *,
    label: str = "",
    stand_ins: Sequence[GpuStandIn] = (),
    changed_requirements: Mapping[str, str | None] | None = None,
) -> bytes:
    """The JSON text of a manifest; `label` is that of the version, where it is not the label of the options."""
    settings = options.to_json()
    if label:
        settings["target"]["label"] = label
    settings |= no_gpu_json(stand_ins, changed_requirements or {})
    return _encode(settings, source, output, map(library_json, libraries), map(dropped_json, dropped))


def environment_manifest(
    options: Mapping[str, Any],
    name: str,
    version: str,
    libraries: Iterable[Mapping[str, Any]],
    dropped: Iterable[Mapping[str, Any]],
) -> bytes:
    """The manifest of a distribution that was cut in place, from the rows of its journal."""
    return _encode(options, {"kind": "environment", "name": name, "version": version}, {}, libraries, dropped)


def _encode(
    options: Mapping[str, Any],
    source: Mapping[str, Any],
    output: Mapping[str, Any],
    libraries: Iterable[Mapping[str, Any]],
    dropped: Iterable[Mapping[str, Any]],
) -> bytes:
    """No times and no paths of this machine, so that manifests can be compared."""
    rows = sorted(libraries, key=lambda library: str(library["path"]))
    left_out = sorted(dropped, key=lambda file: str(file["path"]))
    document = {
        "schema": SCHEMA,
        "tool": {"name": "torchtailor", "version": __version__},
        **options,
        "input": dict(source),
        "output": dict(output),
        "libraries": rows,
        **({"dropped_files": left_out} if left_out else {}),
        "totals": {
            "libraries": len(rows),
            "size_before": sum(row["size_before"] for row in rows),
            "size_after": sum(row["size_after"] for row in rows),
        },
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def dropped_json(file: DroppedFile) -> dict[str, Any]:
    """A file that the output goes without."""
    return {"path": file.path, "rule": file.rule, "size": file.size, **({"code": file.code} if file.code else {})}


def no_gpu_json(stand_ins: Sequence[GpuStandIn], changed_requirements: Mapping[str, str | None]) -> dict[str, Any]:
    """What replaces the packages that are for a GPU only, and what is left of the requirements of them."""
    rows = [
        {
            "path": one.path,
            "symbols": one.symbols,
            "size": len(one.content),
            "sha256": hashlib.sha256(one.content).hexdigest(),
        }
        for one in stand_ins
    ]
    return _present({"stand_ins": rows, "changed_requirements": dict(changed_requirements)})


def library_json(library: LibraryResult) -> dict[str, Any]:
    """One library of a manifest."""
    document: dict[str, Any] = {
        "path": library.path,
        "status": library.status.value,
        "size_before": library.size_before,
        "size_after": library.size_after,
    }
    if library.reason:
        return {**document, "reason": library.reason}
    document |= {
        "gpu_before": library.gpu_before,
        "gpu_after": library.gpu_after,
        "warnings": list(library.warnings),
    }
    if library.status.changed:
        document |= {
            "sha256_before": library.sha256_in or None,
            "sha256_after": library.sha256_out or None,
            "instructions_sha256": library.instructions_sha256 or None,
            "kept": tallies_json(library.kept),
            "dropped": tallies_json(library.dropped),
            "stripped": list(library.stripped),
        }
        if library.moved:
            document["moved"] = tallies_json(library.moved)
            if library.packed:
                document["packed"] = tallies_json(library.packed)
            if library.pack:
                document["pack"] = {"name": library.pack, "size": library.pack_size, "sha256": library.pack_sha256}
        document |= _present({"filler": library.filler, "zeroed": library.zeroed, "relr": library.relr})
        if done := library.recompressed:
            document["recompressed"] = {
                "images": done.images,
                "before": done.before,
                "after": done.after,
                "level": done.level,
            }
    return document | _present(
        {
            "only_ptx": list(library.only_ptx),
            "not_packed": library.not_packed,
            "could_save": library.could_save,
            "could_strip": library.could_strip,
        }
    )


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def label_of(data: bytes) -> str:
    """The version label an earlier cut gave, from its manifest."""
    try:
        label = json.loads(data)["target"]["label"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInputError("torchtailor.json is not a torchtailor manifest.", "Fetch the wheel again.") from error
    return str(label)


def tallies_json(tallies: Mapping[str, CodeTally]) -> dict[str, dict[str, int]]:
    """Images and bytes, by architecture."""
    return {name: {"images": tally.images, "stored": tally.stored} for name, tally in tallies.items()}

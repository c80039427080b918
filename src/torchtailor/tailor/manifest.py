"""The manifest: what was cut, from what, for what; the same input gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchtailor import __version__
from torchtailor.errors import BadInputError
from torchtailor.gpucode.targets import Targets
from torchtailor.surgery.library import Recompress
from torchtailor.surgery.result import CodeTally
from torchtailor.tailor.outcome import LibraryOutcome

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user asked for, as far as it decides the bytes of the output."""

    targets: Targets
    strip: bool
    nvidia: bool
    recompress: Recompress | None

    def to_json(self) -> dict[str, Any]:
        return {
            "target": {
                "gpus": [str(device) for device in self.targets.devices],
                "archs": [str(arch) for arch in self.targets.archs],
                "keep_ptx": self.targets.keep_ptx,
                "label": self.targets.label,
            },
            "policy": {
                "strip": self.strip,
                "nvidia": self.nvidia,
                "recompress": self.recompress and {"level": self.recompress.level, "driver": self.recompress.driver},
            },
        }


def manifest(
    choices: Choices, source: Mapping[str, Any], output: Mapping[str, Any], libraries: Iterable[Mapping[str, Any]]
) -> bytes:
    """The JSON text of a manifest; `libraries` are what `library_json` gives."""
    return _encode(choices.to_json(), source, output, libraries)


def environment_manifest(
    choices: Mapping[str, Any], name: str, version: str, libraries: Iterable[Mapping[str, Any]]
) -> bytes:
    """The manifest of a distribution that was cut in place, from what its journal says."""
    return _encode(choices, {"kind": "environment", "name": name, "version": version}, {}, libraries)


def _encode(
    choices: Mapping[str, Any],
    source: Mapping[str, Any],
    output: Mapping[str, Any],
    libraries: Iterable[Mapping[str, Any]],
) -> bytes:
    """No times and no paths of this machine, so that manifests can be compared."""
    rows = sorted(libraries, key=lambda library: str(library["path"]))
    document = {
        "schema": SCHEMA,
        "tool": {"name": "torchtailor", "version": __version__},
        **choices,
        "input": dict(source),
        "output": dict(output),
        "libraries": rows,
        "totals": {
            "libraries": len(rows),
            "size_before": sum(row["size_before"] for row in rows),
            "size_after": sum(row["size_after"] for row in rows),
        },
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def library_json(library: LibraryOutcome) -> dict[str, Any]:
    """One library of a manifest."""
    document: dict[str, Any] = {
        "path": library.path,
        "fate": library.fate.value,
        "size_before": library.size_before,
        "size_after": library.size_after,
    }
    if library.reason:
        document["reason"] = library.reason
    result = library.result
    if result:
        document |= {
            "gpu_before": result.gpu_before,
            "gpu_after": result.gpu_after if library.fate.changed else result.gpu_before,
            "warnings": list(result.warnings),
        }
    if result and library.fate.changed:
        document |= {
            "sha256_before": result.sha256_in,
            "sha256_after": result.sha256_out,
            "kept": _tallies(result.kept),
            "dropped": _tallies(result.dropped),
            "stripped": list(result.stripped),
        }
        if done := result.recompressed:
            document["recompressed"] = {
                "images": done.images,
                "before": done.before,
                "after": done.after,
                "level": done.level,
            }
    if library.could_save:
        document["could_save"] = library.could_save
    return document


def label_of(data: bytes) -> str:
    """The version label an earlier cut gave, from its manifest."""
    try:
        label = json.loads(data)["target"]["label"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError("torchtailor.json is not a manifest of ours", "fetch the wheel again") from error
    return str(label)


def _tallies(tallies: Mapping[str, CodeTally]) -> dict[str, dict[str, int]]:
    return {name: {"images": tally.images, "stored": tally.stored} for name, tally in tallies.items()}

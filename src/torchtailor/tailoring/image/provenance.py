"""What is attached to a cut image with --attest: how it was cut, and which packages it has, as others read such things.

No times and nothing of this machine: the same cut has the same documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from torchtailor.core.documents import plain
from torchtailor.core.format import printable
from torchtailor.core.version import __version__
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.filesystem import LayerFile
from torchtailor.oci.referrers import Attachment
from torchtailor.surgery.result import LibraryResult
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.tailoring.image.packages import Packages
from torchtailor.tailoring.image.result import ImageResult
from torchtailor.tailoring.manifest import library_json

PROVENANCE = "https://slsa.dev/provenance/v1"
BILL = "https://cyclonedx.org/bom"
_STATEMENT = "https://in-toto.io/Statement/v1"
_TOOL = f"pkg:pypi/torchtailor@{__version__}"
_BUILD_TYPE = "pkg:pypi/torchtailor#image"


def provenance_of(
    name: str, cut: Descriptor, source: str, stock: Descriptor, result: ImageResult, options: ImageOptions
) -> Attachment:
    """From which image a cut one was made, with which options, and what was removed; `source` is its name in a
    registry, or empty."""
    named = {"name": source} if source else {}
    libraries = [
        {**library_json(one.result), "path": printable(one.result.path), "layer": one.layer} for one in result.changed
    ]
    files = [{**plain(file), "path": printable(file.path)} for file in result.dropped_files]
    layers = [
        {"before": layer.digest_before, "after": layer.digest_after, "squashed": layer.squashed}
        for layer in result.layers
        if layer.changed
    ]
    removed = {"libraries": libraries, "files": files, "layers": layers}
    return _statement(
        name,
        cut,
        PROVENANCE,
        {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {
                    **({"source": source} if source else {}),
                    "platform": result.platform,
                    "gpus": [str(gpu) for gpu in options.cut.targets.devices],
                    "command": options.line(),
                    "options": plain(options.document),
                },
                "resolvedDependencies": [
                    {**named, "mediaType": stock.media_type, "digest": {stock.algorithm: stock.hex}}
                ],
            },
            "runDetails": {
                "builder": {"id": _TOOL, "version": {"torchtailor": __version__}},
                "byproducts": [{"name": "removed", "annotations": removed}],
            },
        },
    )


def bill_of(name: str, cut: Descriptor, packages: Packages, result: ImageResult, gone: Iterable[str]) -> Attachment:
    """The Python packages of a cut image, and the files that are not what their makers published."""
    changed = {one.result.path: one.result for one in result.changed if not one.shadowed}
    components = [*_python_packages(packages, changed, {*gone})]
    components += [_file(path, one) for path, one in sorted(changed.items()) if not packages.packages(path)]
    root = {
        "type": "container",
        "bom-ref": cut.digest,
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": cut.hex}] if cut.algorithm == "sha256" else [],
    }
    tool = {"type": "application", "name": "torchtailor", "version": __version__, "purl": _TOOL}
    return _statement(
        name,
        cut,
        BILL,
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": root, "tools": {"components": [tool]}},
            "components": components,
            "compositions": [{"aggregate": "incomplete", "assemblies": [cut.digest]}],  # no packages of the system
        },
    )


def _statement(name: str, cut: Descriptor, kind: str, predicate: Mapping[str, Any]) -> Attachment:
    whole = {
        "_type": _STATEMENT,
        "subject": [{"name": name, "digest": {cut.algorithm: cut.hex}}],
        "predicateType": kind,
        "predicate": predicate,
    }
    return Attachment.statement(kind, json.dumps(whole, sort_keys=True, separators=(",", ":")).encode())


def _python_packages(
    packages: Packages, changed: Mapping[str, LibraryResult], gone: set[str]
) -> Iterator[dict[str, Any]]:
    seen: dict[str, list[LayerFile]] = {}
    for text in packages.survey.records:
        if text.file.hidden_by is None and text.file.path not in gone:
            seen.setdefault(text.dist_info, []).append(text.file)
    for place in sorted(seen):
        found = packages.survey.package(place)
        if found is None:
            continue
        own = {
            path: one
            for path, one in changed.items()
            if any(package.dist_info == place for package in packages.packages(path))
        }
        link = f"pkg:pypi/{quote(found.name.lower().replace('_', '-'))}@{quote(found.version)}"
        row: dict[str, Any] = {
            "type": "library",
            "bom-ref": f"{link}#{quote(printable(place))}",
            "name": found.name,
            "version": found.version,
            "purl": link,
        }
        if own:
            stock = {"type": "library", "name": found.name, "version": found.version, "purl": link}
            row["pedigree"] = {"ancestors": [stock], "notes": f"Cut by torchtailor {__version__}."}
            row["components"] = [_file(path, one) for path, one in sorted(own.items())]
        yield row


def _file(path: str, library: LibraryResult) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "name": printable(path)}
    row["hashes"] = [{"alg": "SHA-256", "content": library.sha256_out}]
    stock = {**row, "hashes": [{"alg": "SHA-256", "content": library.sha256_in}]}
    what = [*library.dropped, *library.stripped]
    row["pedigree"] = {"ancestors": [stock], "notes": f"Removed: {', '.join(what) or 'nothing that is loaded'}."}
    return row

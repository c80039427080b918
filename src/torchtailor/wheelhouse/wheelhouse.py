"""The wheelhouse of a variant: wheels, a static index, a manifest; written beside its place and swapped into it.

    dist/VARIANT/wheels/*.whl, *.whl.metadata     hard links to the cache where the disk allows it
    dist/VARIANT/simple/...                       the index for pip and uv
    dist/VARIANT/manifest.json                    every input with its hash, every step, every size

No times and no paths of this machine are in it: the same input and version give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torchtailor
from torchtailor.backends.wheel.cut import Cut
from torchtailor.backends.wheel.options import Options
from torchtailor.backends.wheel.plan import Input, Treatment, VariantPlan
from torchtailor.disk import link_or_copy, new_folder
from torchtailor.fetch.download import Fetched
from torchtailor.fetch.metadata import read_local
from torchtailor.fetch.target import Target
from torchtailor.index.pages import METADATA_SUFFIX, IndexedFile, index_pages, indexed

MANIFEST_NAME = "manifest.json"
WHEELS = "wheels"
SIMPLE = "simple"
SCHEMA = 1


@dataclass(frozen=True)
class Placed:
    """A wheel for the wheelhouse: what it was, what was done, what it is now."""

    source: Input
    stock: Fetched
    cut: Cut | None

    @property
    def path(self) -> Path:
        return self.cut.path if self.cut else self.stock.path

    @property
    def changed(self) -> bool:
        return self.cut is not None and self.cut.changed

    @property
    def filename(self) -> str:
        return self.path.name if self.changed else self.source.file.filename

    @property
    def sha256(self) -> str:
        return self.cut.sha256 if self.cut else self.stock.sha256

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def metadata(self) -> bytes:
        return read_local(self.path) if self.changed else self.source.metadata

    def to_json(self) -> dict[str, object]:
        step: dict[str, object] = {
            "name": self.source.name,
            "input": {
                "filename": self.source.file.filename,
                "sha256": self.stock.sha256,
                "size": self.source.size,
                **_address(self.source),
            },
            "step": "cut" if self.changed else "taken as it is",
            "output": {"filename": self.filename, "sha256": self.sha256, "size": self.size},
            "required_by": list(self.source.required_by),
        }
        if self.changed:
            assert self.cut is not None
            step["libraries"] = list(self.cut.libraries)
        elif self.source.treatment is Treatment.LEFT_TO_CONSENT:
            step["why"] = "NVIDIA's licence: cut only with --nvidia"
        return step


def _address(source: Input) -> dict[str, str]:
    """Where an input came from, unless that is a place on this machine."""
    shown = source.file.shown
    return {"url": shown} if shown.startswith(("http://", "https://")) else {}


@dataclass(frozen=True)
class Wheelhouse:
    """A finished wheelhouse."""

    variant: str
    path: Path
    torch_version: str
    requirements: tuple[str, ...]
    target: Target
    input_bytes: int
    output_bytes: int
    changed: int
    wheels: int

    @property
    def index_url(self) -> str:
        return (self.path / SIMPLE).absolute().as_uri()

    @property
    def pip_line(self) -> str:
        return f"pip install --index-url {self.index_url} {' '.join(self.requirements)}"

    @property
    def uv_line(self) -> str:
        return f"uv pip install --default-index {self.index_url} {' '.join(self.requirements)}"

    def to_json(self) -> dict[str, object]:
        return {
            "variant": self.variant,
            "path": str(self.path),
            "torch": self.torch_version,
            "index_url": self.index_url,
            "pip": self.pip_line,
            "uv": self.uv_line,
            "input_bytes": self.input_bytes,
            "output_bytes": self.output_bytes,
            "wheels": self.wheels,
            "wheels_cut": self.changed,
        }


def write_wheelhouse(plan: VariantPlan, placed: Sequence[Placed], options: Options, out: Path) -> Wheelhouse:
    """Put a variant's wheels, index and manifest at `out/VARIANT`; readers see the old one or the new one, whole."""
    place = out / plan.name
    with new_folder(place) as stage:
        files = _place_wheels(placed, stage / WHEELS)
        write_pages(index_pages(files), stage / SIMPLE)
        (stage / MANIFEST_NAME).write_bytes(manifest(plan, placed, options))
    return read_wheelhouse(place)


def _place_wheels(placed: Sequence[Placed], folder: Path) -> list[IndexedFile]:
    folder.mkdir(parents=True)
    files = []
    for item in placed:
        target = folder / item.filename
        link_or_copy(item.path, target)
        metadata = item.metadata
        (folder / (item.filename + METADATA_SUFFIX)).write_bytes(metadata)
        files.append(indexed(target, item.sha256, metadata, f"../../{WHEELS}/"))
    return files


def write_pages(pages: Mapping[str, bytes], folder: Path) -> None:
    """Write the pages of an index, by relative path."""
    for name, content in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def manifest(plan: VariantPlan, placed: Sequence[Placed], options: Options) -> bytes:
    """What was made, from what, how; nothing in it depends on when or where."""
    variant = plan.variant
    document = {
        "schema": SCHEMA,
        "tool": {"name": "torchtailor", "version": torchtailor.__version__},
        "variant": plan.name,
        "target": {
            "gpu": str(variant.gpu.capability) if variant.gpu else None,
            "isa": variant.isa.name,
            "arch": variant.arch,
            "python": variant.python,
        },
        "pytorch": {"version": str(variant.release.version), "build": plan.label, "release": variant.release.name},
        "way": "wheel",
        "options": options.to_json(),
        "gives": plan.gives,
        "requirements": _requirements(placed, options),
        "wheels": [item.to_json() for item in sorted(placed, key=lambda item: item.source.name)],
        "totals": {
            "input_bytes": sum(item.source.size for item in placed),
            "output_bytes": sum(item.size for item in placed),
        },
    }
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _requirements(placed: Sequence[Placed], options: Options) -> list[str]:
    """What to ask pip for: torch and the companions, pinned to the wheels that are here."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name, parse_wheel_filename

    names = ["torch", *(canonicalize_name(Requirement(word).name) for word in options.companions)]
    versions = {item.source.name: parse_wheel_filename(item.filename)[1] for item in placed}
    return [f"{name}=={versions[name]}" for name in names if name in versions]


def read_wheelhouse(path: Path) -> Wheelhouse:
    """A wheelhouse that was written before, from its manifest."""
    from torchtailor.errors import BadInputError

    try:
        document = json.loads((path / MANIFEST_NAME).read_bytes())
        wheels = document["wheels"]
        requirements = tuple(document["requirements"])
        return Wheelhouse(
            variant=document["variant"],
            path=path,
            torch_version=requirements[0].partition("==")[2],
            requirements=requirements,
            target=Target(document["target"]["python"], document["target"]["arch"]),
            input_bytes=document["totals"]["input_bytes"],
            output_bytes=document["totals"]["output_bytes"],
            changed=sum(item["step"] == "cut" for item in wheels),
            wheels=len(wheels),
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise BadInputError(
            f"{path} is not a wheelhouse of torchtailor.", "Give a folder that `torchtailor build` has made."
        ) from error

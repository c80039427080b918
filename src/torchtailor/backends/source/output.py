"""From the wheel that setup.py left to a wheelhouse: its tags checked, proven, cut for each GPU, put in its place."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torchtailor
from torchtailor.backends.source.configuration import Configuration
from torchtailor.backends.source.tree import Origin, Source, Tree
from torchtailor.catalog import Catalog
from torchtailor.disk import hash_file, link_or_copy, new_folder
from torchtailor.errors import BuildFailedError, CheckFailedError, NetworkError, NoMatchError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.metadata import read_local
from torchtailor.fetch.target import Target
from torchtailor.host.pythons import find_base_python
from torchtailor.index.pages import METADATA_SUFFIX, index_pages, indexed
from torchtailor.variants.variant import Variant
from torchtailor.wheelhouse.wheelhouse import MANIFEST_NAME, SIMPLE, WHEELS, Wheelhouse, read_wheelhouse, write_pages
from torchtailor.wheels.name import WheelName

if TYPE_CHECKING:
    from torchtailor.backends.source.runner import Request


@dataclass(frozen=True, slots=True)
class Placed:
    """A wheel of the wheelhouse: the one that was built, one cut out of it, or a dependency."""

    path: Path
    step: str
    required_by: tuple[str, ...] = ()

    @property
    def project(self) -> str:
        return WheelName.parse(self.path).project

    def to_json(self) -> dict[str, object]:
        size = self.path.stat().st_size
        output = {"filename": self.path.name, "sha256": hash_file(self.path), "size": size}
        return {"name": self.project, "step": self.step, "output": output, "required_by": list(self.required_by)}


@dataclass(frozen=True)
class Output:
    """Writes the wheelhouses of one build."""

    catalog: Catalog
    request: Request
    source: Source
    tree: Tree
    configuration: Configuration

    def write(self, wheel: Path) -> tuple[Wheelhouse, ...]:
        """One wheelhouse; of a fat library, one for each GPU that it was built for."""
        self._check_name(wheel)
        dependencies = self._dependencies(wheel) if self.request.with_dependencies else ()
        if not self.request.gpus:
            return (self._house(self.request.variant, Placed(wheel, "built"), dependencies),)
        return tuple(self._cut_houses(wheel, dependencies))

    def _cut_houses(self, fat: Path, dependencies: tuple[Placed, ...]) -> Iterator[Wheelhouse]:
        """Every GPU's wheel out of the fat one, in one pass."""
        from torchtailor.backends.wheel.cut import Cutter
        from torchtailor.backends.wheel.options import Options
        from torchtailor.fetch.download import Fetched
        from torchtailor.fetch.pages import WheelFile
        from torchtailor.fetch.settings import Source as Place
        from torchtailor.fetch.settings import SourceKind

        place = Place(fat.parent.as_uri(), SourceKind.LINKS, "built")
        sha256 = hash_file(fat)
        stock = Fetched(WheelFile(fat.name, fat.as_uri(), place, {"sha256": sha256}), fat, sha256, downloaded=0)
        cuts = Cutter(self.catalog, Cache(), Options()).cut(stock, self.configuration.gpus)
        for gpu in self.configuration.gpus:
            if gpu not in cuts:
                raise BuildFailedError(f"{fat.name} holds no code for {gpu}, though it was built for it.", "Report it.")
            variant = replace(self.request.variant, gpu=self.catalog.gpus[gpu])
            yield self._house(variant, Placed(cuts[gpu].path, "cut"), dependencies)

    def _house(self, variant: Variant, torch: Placed, dependencies: Iterable[Placed]) -> Wheelhouse:
        place = self.request.out / variant.unique_name
        placed = [torch, *dependencies]
        with new_folder(place) as stage:
            folder = stage / WHEELS
            folder.mkdir(parents=True)
            files = []
            for item in placed:
                target = folder / item.path.name
                link_or_copy(item.path, target)
                metadata = read_local(item.path)
                (folder / (target.name + METADATA_SUFFIX)).write_bytes(metadata)
                files.append(indexed(target, hash_file(target), metadata, f"../../{WHEELS}/"))
            write_pages(index_pages(files), stage / SIMPLE)
            whole = len(placed) > 1
            proof = self._prove(folder, torch.path, variant, whole=whole) if self.request.verify else None
            (stage / MANIFEST_NAME).write_bytes(self._manifest(variant, torch, placed, proof))
        return read_wheelhouse(place)

    def _check_name(self, wheel: Path) -> None:
        """The wheel must be for the variant's Python and machine, or something else was built than was asked for."""
        name = WheelName.parse(wheel)
        target = Target(self.request.variant.python, self.request.variant.arch)
        fits = (
            name.platform.endswith(f"_{target.arch}") and name.python == target.interpreter and name.abi == target.abi
        )
        if name.project != "torch" or not fits:
            raise BuildFailedError(
                f"{wheel.name} was built, which is not torch for Python {target.python} on {target.arch}.",
                "Check the source's setup.py and the Python of the build environment.",
            )

    def _dependencies(self, wheel: Path) -> tuple[Placed, ...]:
        """What the wheel requires, from the configured indexes; none of it where they cannot be reached."""
        from packaging.requirements import Requirement

        from torchtailor.fetch.download import Downloader
        from torchtailor.fetch.finder import Finder
        from torchtailor.fetch.resolve import resolve
        from torchtailor.fetch.settings import read_settings

        version = WheelName.parse(wheel).version
        target = Target(self.request.variant.python, self.request.variant.arch)
        finder = Finder(read_settings(find_links=[str(wheel.parent)]), Cache())
        try:
            closure = resolve([Requirement(f"torch==={version}")], finder, target)
            others = [item for item in closure if item.name != "torch"]
            fetched = Downloader(finder.client, finder.cache).fetch([item.file for item in others])
        except (NetworkError, NoMatchError):
            return ()
        return tuple(Placed(fetched[item.file.url].path, "taken as it is", item.required_by) for item in others)

    def _prove(self, wheels: Path, torch: Path, variant: Variant, *, whole: bool) -> dict[str, object]:
        """GPU code, host code and files; import and the CPU's op suite too, where all it needs and its CPU are here."""
        from torchtailor.artifact.artifact import open_artifact
        from torchtailor.verify.levels import running_checks
        from torchtailor.verify.result import Level
        from torchtailor.verify.static.expect import expectation
        from torchtailor.verify.static.verify import verify_static

        artifact = open_artifact(wheels)
        gpus = (variant.gpu.capability,) if variant.gpu else ()
        expected = expectation(artifact, self.catalog, gpus=gpus, isa=variant.isa.name)
        checks = list(verify_static(artifact, expected, self.catalog).checks)
        if whole and runs_here(variant):
            levels = frozenset({Level.STATIC, Level.IMPORT})
            python = find_base_python(variant.python)
            checks += running_checks(artifact, expected, self.catalog, levels, python=python, asked=True)
        failed = [check for check in checks if check.outcome.value == "fail"]
        if failed:
            told = "; ".join(f"{check.name}: {check.reason}" for check in failed[:3])
            raise CheckFailedError(
                f"The wheel was built, but it is not what {variant.unique_name} should be. {told}",
                f"It is {torch}; `torchtailor verify` shows all checks, --no-verify takes it as it is.",
            )
        elsewhere = sorted({name for check in checks for name in check.details.get("elsewhere", ())})
        return {"checks": {check.name: check.outcome.value for check in checks}, "libraries_of_the_system": elsewhere}

    def _manifest(
        self, variant: Variant, torch: Placed, placed: list[Placed], proof: dict[str, object] | None
    ) -> bytes:
        """What was made, from what, how; no times and no paths of this machine."""
        version = WheelName.parse(torch.path).version
        place = self.source.place if self.source.origin is Origin.GIT else Path(self.source.place).name
        size = sum(item.path.stat().st_size for item in placed)
        document = {
            "schema": 1,
            "tool": {"name": "torchtailor", "version": torchtailor.__version__},
            "variant": variant.unique_name,
            "target": {
                "gpu": str(variant.gpu.capability) if variant.gpu else None,
                "isa": variant.isa.name,
                "arch": variant.arch,
                "python": variant.python,
            },
            "pytorch": {"version": self.tree.version, "build": variant.build.label, "release": variant.release.name},
            "way": "source",
            "source": {
                "kind": self.source.origin.value,
                "place": place,
                "ref": self.source.ref,
                "identity": self.tree.identity if self.source.origin is not Origin.FOLDER else "",
            },
            "configuration": self.configuration.to_json(),
            "proof": proof,
            "requirements": [f"torch=={version}"],
            "wheels": [item.to_json() for item in sorted(placed, key=lambda item: item.project)],
            "totals": {"input_bytes": size, "output_bytes": size},
        }
        return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def runs_here(variant: Variant) -> bool:
    """Whether this CPU runs the variant's instruction set."""
    text = Path("/proc/cpuinfo").read_text("ascii", "replace")
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return platform.machine() == variant.arch and bool(flags) and variant.isa.runs_on(flags[1].split() if flags else ())

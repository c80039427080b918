"""From the wheel that setup.py built to a wheelhouse: its tags checked, proven, cut for each GPU."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import Requirement

from torchtailor.building.cutting import Cutter
from torchtailor.building.source.options import SourceRequest
from torchtailor.building.source.tree import SourceOrigin, SourceTree, TorchSource
from torchtailor.catalog import SOURCE, Catalog
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.disk import hash_file
from torchtailor.core.errors import BuildFailedError, CheckFailedError, NetworkError, NoMatchError
from torchtailor.core.pythons import find_base_python
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.download import Downloader
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.options import IndexOptions
from torchtailor.fetch.resolve import resolve
from torchtailor.fetch.target import DEFAULT_GLIBC, Target
from torchtailor.surgery.cut import Cut
from torchtailor.trees.wheels.name import WheelName
from torchtailor.wheelhouse.entry import WheelhouseDescription, WheelhouseEntry, WheelStep
from torchtailor.wheelhouse.wheelhouse import Wheelhouse, check_place, write_wheelhouse


@dataclass(frozen=True)
class SourceOutput:
    """Writes the wheelhouses of one build."""

    catalog: Catalog
    request: SourceRequest
    source: TorchSource
    tree: SourceTree
    configuration: Mapping[str, object]  # for the manifest, as is what was bundled
    bundle: Mapping[str, object] | None = None
    warnings: list[str] = field(default_factory=list)

    def write(self, wheel: Path) -> tuple[Wheelhouse, ...]:
        """One wheelhouse; of a library for several GPUs, one for each of them."""
        self._check_name(wheel)
        torch = WheelhouseEntry(wheel, wheel.name, hash_file(wheel), WheelStep.BUILT)
        dependencies = self._dependencies(wheel) if self.request.options.with_dependencies else ()
        if not self.request.gpus:
            return (self._write(self.request.variant, torch, dependencies),)
        return tuple(self._write_each(torch, dependencies))

    def _write_each(self, fat: WheelhouseEntry, dependencies: tuple[WheelhouseEntry, ...]) -> Iterator[Wheelhouse]:
        """Every GPU's wheel, all cut in one pass."""
        gpus = sorted(self.request.gpus)
        cuts = Cutter(self.catalog, Cache(), Cut().for_job).cut(
            fat.path, fat.sha256, fat.filename, [(gpu,) for gpu in gpus]
        )
        for gpu in gpus:
            cut = cuts.get((gpu,))
            if cut is None:
                raise BuildFailedError(
                    f"{fat.filename} has no code for {gpu}, though it was built for it.", "Please report this."
                )
            variant = replace(self.request.variant, gpu=self.catalog.gpus[gpu])
            torch = WheelhouseEntry(cut.path, cut.path.name, cut.sha256, WheelStep.CUT)
            yield self._write(variant, torch, dependencies)

    def _write(self, variant: Variant, torch: WheelhouseEntry, dependencies: tuple[WheelhouseEntry, ...]) -> Wheelhouse:
        def check(wheels: Path) -> dict[str, object]:
            proves = self.request.options.verify
            return {"proof": self._prove(wheels, torch.path, variant, whole=bool(dependencies)) if proves else None}

        entries = [torch, *dependencies]
        description, cache = self._description(variant), Cache().root
        check_place(self.request.out / description.variant)
        return write_wheelhouse(description, entries, self.request.out, cache=cache, check=check)

    def _check_name(self, wheel: Path) -> None:
        """The wheel must be for the variant's Python and machine."""
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

    def _dependencies(self, wheel: Path) -> tuple[WheelhouseEntry, ...]:
        """What the wheel requires, from the configured indexes; nothing, with a warning, where they do not have it."""
        name = WheelName.parse(wheel)
        version, own = name.version, name.oldest_glibc
        target = Target(
            self.request.variant.python, self.request.variant.arch, max(own or DEFAULT_GLIBC, DEFAULT_GLIBC)
        )
        finder = Finder.of(IndexOptions(find_links=(str(wheel.parent),)))
        try:
            label = self.request.variant.build.label
            closure = resolve([Requirement(f"torch==={version}")], finder, target, label=label)
            others = [item for item in closure if item.name != "torch"]
            fetched = Downloader(finder.client, finder.cache).fetch([item.file for item in others])
        except (NetworkError, NoMatchError) as error:
            self.warnings.append(
                f"The packages that torch requires were not fetched: {error.message} The wheelhouse holds torch alone, "
                "whose import was not tested; run the same command again to add them."
            )
            return ()
        found = [(item, fetched[item.file.url]) for item in others]
        return tuple(
            WheelhouseEntry(got.path, got.path.name, got.sha256, WheelStep.UNCHANGED, item.required_by)
            for item, got in found
        )

    def _prove(self, wheels: Path, torch: Path, variant: Variant, *, whole: bool) -> dict[str, object]:
        """GPU code, host code and files; also import and the CPU's op suite, where this machine can run them."""
        from torchtailor.verification.result import Level
        from torchtailor.verification.verify import verify

        runs = whole and runs_here(variant)
        report = verify(
            wheels,
            gpus=(variant.gpu.capability,) if variant.gpu else (),
            cpu=variant.isa.name,
            level=Level.IMPORT if runs else Level.STATIC,
            python=find_base_python(variant.python) if runs else None,
            catalog=self.catalog,
        )
        checks, failed = report.checks, report.failures
        if failed:
            reasons = "; ".join(f"{check.name}: {check.reason}" for check in failed[:3])
            raise CheckFailedError(
                f"The wheel was built, but it is not what {variant.unique_name} should be. {reasons}",
                f"It is {torch}; `torchtailor verify` shows all checks, --no-verify accepts it unchecked.",
            )
        elsewhere = sorted({name for check in checks for name in check.details.get("elsewhere", ())})
        return {"checks": {check.name: check.outcome.value for check in checks}, "libraries_of_the_system": elsewhere}

    def _description(self, variant: Variant) -> WheelhouseDescription:
        folder = self.source.origin is SourceOrigin.FOLDER
        place = self.source.shown if self.source.origin is SourceOrigin.GIT else Path(self.source.place).name
        details = {
            "source": {
                "kind": self.source.origin.value,
                "place": place,
                "ref": self.source.ref,
                "identity": "" if folder else self.tree.identity,  # a folder's depends on its path and times
            },
            "configuration": self.configuration,
            "bundle": self.bundle,
            "warnings": self.warnings,
        }
        return WheelhouseDescription.of(variant, SOURCE, details, pytorch=self.tree.version)


def runs_here(variant: Variant) -> bool:
    """Whether this CPU runs the variant's instruction set."""
    text = Path("/proc/cpuinfo").read_text("ascii", "replace")
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return platform.machine() == variant.arch and bool(flags) and variant.isa.runs_on(flags[1].split() if flags else ())

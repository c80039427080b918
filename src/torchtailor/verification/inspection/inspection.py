"""The answers of `torchtailor inspect`: reports, seen for some GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtailor.catalog.gpus import Capability, Fit, Gpu, GpuRules, TorchArch
from torchtailor.code.gpucode.files import CodeFile
from torchtailor.code.gpucode.fitness import gpu_fit, kept_bytes, zeroed_bytes
from torchtailor.code.gpucode.policy import Policy
from torchtailor.code.gpucode.report import ImageGroup, LibraryReport, merge_groups
from torchtailor.code.gpucode.targets import Targets
from torchtailor.surgery.result import LibraryResult
from torchtailor.trees.artifact.artifact import ArtifactKind
from torchtailor.trees.artifact.drops import Drops, drop_rules, paths_installed
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.verification.inspection.kernels import KernelRow
from torchtailor.verification.inspection.unused import CodeUse, Loaded, UnusedCode, repeated

if TYPE_CHECKING:
    from torchtailor.verification.inspection.document import InspectDocument


@dataclass(frozen=True, slots=True)
class Skipped:
    """An ELF file that was not read, and why."""

    name: str
    reason: str
    damaged: bool  # False where it is whole but none of ours: another processor, 32-bit


@dataclass(frozen=True, slots=True)
class Droppable:
    """What a rule of --drop would leave out; of NVIDIA's packages only with --nvidia."""

    rule: str
    files: int
    size: int
    only_with_nvidia: int  # bytes


@dataclass(frozen=True, slots=True)
class ArtifactReport:
    """All libraries of one path."""

    path: str
    kind: ArtifactKind
    libraries: tuple[LibraryReport, ...]
    skipped: tuple[Skipped, ...]
    files: tuple[CodeFile, ...] = ()  # that are GPU code themselves
    every_file: Mapping[str, int] = field(default_factory=dict)  # all of them, as they are installed, with their sizes
    deciders: Mapping[str, bytes] = field(default_factory=dict)  # the beginnings of those that a rule of --drop goes by
    nvidias: frozenset[str] = frozenset()  # those of NVIDIA's proprietary packages
    kernels: tuple[KernelRow, ...] = ()
    use: tuple[tuple[str, CodeUse], ...] = ()  # by library
    cuts: Mapping[Capability, Mapping[str, LibraryResult]] = field(default_factory=dict)  # where there is a dry run

    def droppable(self, policy: Policy | None) -> Iterator[Droppable]:
        """What each rule of --drop would leave out for these targets."""
        files = {file.name: file for file in self.files}
        installed = paths_installed(self.every_file)
        for name in drop_rules():
            dropped = Drops.of([name], policy).find(
                self.every_file, files.get, lambda path: self.deciders.get(path, b""), installed
            )
            if dropped:
                asked = (file.size for path, file in dropped.items() if installed_path(path) in self.nvidias)
                yield Droppable(name, len(dropped), sum(file.size for file in dropped.values()), sum(asked))


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that was found, and the GPUs it is seen for."""

    artifacts: tuple[ArtifactReport, ...]
    gpus: tuple[Gpu, ...]
    rules: GpuRules

    @property
    def libraries(self) -> tuple[LibraryReport, ...]:
        return tuple(library for report in self.artifacts for library in report.libraries)

    @property
    def files(self) -> tuple[CodeFile, ...]:
        return tuple(file for report in self.artifacts for file in report.files)

    @property
    def kernels(self) -> tuple[KernelRow, ...]:
        return tuple(row for report in self.artifacts for row in report.kernels)

    @property
    def _uses(self) -> list[tuple[str, CodeUse]]:
        return [use for report in self.artifacts for use in report.use]

    @property
    def unused(self) -> tuple[UnusedCode, ...]:
        """The code that no GPU loads, of all libraries."""
        return (*(code for _, use in self._uses for code in use.unused), *repeated(self._uses))

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """What each GPU would load of each library."""
        return tuple(row for _, use in self._uses for row in use.loaded)

    @property
    def never_cut(self) -> dict[str, tuple[int, int]]:
        """How many files of platforms that are not cut there are, by what they are, and the bytes of their GPU code."""
        kinds = dict.fromkeys(file.kind for file in self.files if file.kind.never_cut)
        alike = {kind.value: [file for file in self.files if file.kind is kind] for kind in kinds}
        return {name: (len(files), sum(file.stored for file in files)) for name, files in alike.items()}

    @property
    def pinned(self) -> dict[str, int]:
        """Bytes of bare cubins that a cut leaves, whatever the GPU, by library: how they are reached is not known."""
        sizes = {
            library.name: sum(group.stored for group in library.container_groups if group.bare and not group.can_be_cut)
            for library in self.libraries
        }
        return {name: size for name, size in sizes.items() if size}

    @property
    def damaged(self) -> tuple[Skipped, ...]:
        return tuple(skipped for report in self.artifacts for skipped in report.skipped if skipped.damaged)

    @property
    def foreign(self) -> tuple[Skipped, ...]:
        """What is whole, but for other processors."""
        return tuple(skipped for report in self.artifacts for skipped in report.skipped if not skipped.damaged)

    @property
    def devices(self) -> tuple[Capability, ...]:
        return tuple(gpu.capability for gpu in self.gpus)

    @property
    def architectures(self) -> tuple[ImageGroup, ...]:
        """All images, whatever the library."""
        return merge_groups(group for library in self.libraries for group in library.architectures)

    def _cut(self, library: LibraryReport, device: Capability) -> LibraryResult | None:
        """How it would be cut with --nvidia; None where there was no dry run of its artifact, or it says nothing."""
        report = next(artifact for artifact in self.artifacts if any(library is own for own in artifact.libraries))
        found = report.cuts.get(device, {})
        return next(iter(found.values()), None) if report.kind is ArtifactKind.LIBRARY else found.get(library.name)

    def saved(self, library: LibraryReport, device: Capability) -> int:
        """How many bytes tailoring for this device would take out, symbol tables too; of an image, about how many of
        its GPU code. What was cut to a program before, or split, keeps what it has."""
        if cut := self._cut(library, device):
            return cut.saved
        return 0 if library.moved else library.stored - kept_bytes(library, self._policy(device))

    def symbols_in_all(self, device: Capability) -> int:
        """How many of the bytes that tailoring would take out are no GPU code: symbol tables, and filler."""
        cuts = (self._cut(library, device) for library in self.libraries)
        return sum(max(cut.saved - (cut.gpu_before - cut.gpu_after), 0) for cut in cuts if cut)

    def zeroed_in_all(self, device: Capability) -> int:
        """How many bytes of removed code stay in their files as zeros, in all libraries; of an image, about."""
        policy = self._policy(device)
        whole = [library for library in self.libraries if not library.moved]
        return sum(
            cut.zeroed if (cut := self._cut(library, device)) else zeroed_bytes(library, policy) for library in whole
        )

    def only_ptx(self, device: Capability) -> int:
        """The number of libraries of which the device uses PTX, or objects that the driver has to link."""
        fits = (gpu_fit(library, device, self.rules) for library in self.libraries if library.has_code)
        return sum(fit.fit is Fit.JIT for fit in fits)

    def _policy(self, *devices: Capability) -> Policy:
        return Policy(Targets(tuple(TorchArch(device) for device in devices)), self.rules)

    def lto_in_all(self, device: Capability) -> int:
        """About how many bytes --no-lto would take out in addition, in all libraries."""
        targets = Targets((TorchArch(device),))
        with_lto, without = (Policy(targets, self.rules, keep_lto=keep) for keep in (True, False))
        return sum(
            kept_bytes(library, with_lto) - kept_bytes(library, without)
            for library in self.libraries
            if not library.moved and without.keep(library.container_groups, lambda _: frozenset()).served
        )

    def saved_in_all(self, device: Capability, *, proprietary: bool) -> int:
        """The same over all libraries that do (or do not) need --nvidia."""
        return sum(self.saved(library, device) for library in self.libraries if library.proprietary is proprietary)

    @property
    def droppable(self) -> tuple[Droppable, ...]:
        """What each rule of --drop would leave out of everything."""
        policy = self._policy(*self.devices) if self.devices else None
        by_rule: dict[str, list[Droppable]] = {}
        for one in (one for report in self.artifacts for one in report.droppable(policy)):
            by_rule.setdefault(one.rule, []).append(one)
        return tuple(
            Droppable(
                rule,
                sum(one.files for one in each),
                sum(one.size for one in each),
                sum(one.only_with_nvidia for one in each),
            )
            for rule, each in by_rule.items()
        )

    @property
    def document(self) -> InspectDocument:
        """What `inspect --json` prints."""
        from torchtailor.verification.inspection.document import inspect_document

        return inspect_document(self)

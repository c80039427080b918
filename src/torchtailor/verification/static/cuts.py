"""What the manifests of an artifact (torchtailor.json) record of its libraries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchtailor.catalog import Catalog, CodeTarget, TorchArch
from torchtailor.catalog.gpus import NO_GPU_LABEL, codes_named
from torchtailor.code.gpucode.policy import Policy
from torchtailor.code.gpucode.targets import Targets
from torchtailor.surgery.result import LibraryStatus
from torchtailor.trees.artifact.artifact import Artifact
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.verification.static.read import LibraryFacts

_UNTOUCHED = frozenset(status.value for status in LibraryStatus if not status.changed)


@dataclass(frozen=True, slots=True)
class CutRecord:
    """One library in one manifest; without a row, the manifest is of its wheel and does not name it."""

    owner: str
    library: str  # as it is installed
    manifest: Mapping[str, Any]
    row: Mapping[str, Any]

    @property
    def untouched(self) -> bool:
        return self.row.get("status") in _UNTOUCHED

    @property
    def code_kept(self) -> bool:
        """Whether it was written again with all of its GPU code, because removing some would have saved nothing."""
        others = self.row.get("status") == LibraryStatus.STRIPPED.value or "pages" in self.row
        return others and not self.bytes_before

    @property
    def split(self) -> bool:
        """Whether all its code that a hook can hand out went to packs, for whichever GPU."""
        return bool(self.manifest.get("policy", {}).get("split"))

    @property
    def sha256(self) -> str:
        """Of the file that was written; empty where none was."""
        return str(self.row.get("sha256_after", ""))

    @property
    def sha256_before(self) -> str:
        """Of the file that was cut; empty where none was."""
        return str(self.row.get("sha256_before", ""))

    @property
    def instructions(self) -> str:
        """The hash of the host instructions, which the proof of the cut found to be the same before and after."""
        return str(self.row.get("instructions_sha256", ""))

    @property
    def bytes_before(self) -> dict[str, int]:
        """The GPU code before the cut, by architecture; empty where it was not changed."""
        sizes: dict[str, int] = {}
        for part in ("kept", "moved", "dropped"):
            for label, tally in self.row.get(part, {}).items():
                sizes[label] = sizes.get(label, 0) + int(tally["stored"])
        return sizes

    @property
    def codes_before(self) -> tuple[CodeTarget, ...]:
        return codes_named(self.bytes_before)

    @property
    def codes_removed(self) -> tuple[CodeTarget, ...]:
        return codes_named(self.row.get("dropped", {}))

    def policy(self, catalog: Catalog) -> Policy:
        """The policy it was cut by."""
        target = self.manifest.get("target", {})
        named = " ".join(target.get("archs") or target.get("gpus", ()))
        archs = TorchArch.parse_list(named) if named else ()  # of a split its libraries are for none
        targets = Targets(archs, bool(target.get("keep_ptx")))
        policy = Policy(targets, catalog.rules, keep_lto=keeps_lto(self.manifest))
        return policy.for_library(self.library)


def keeps_lto(manifest: Mapping[str, Any]) -> bool:
    """Whether LTO-IR stayed: with --no-lto it was removed on purpose."""
    return manifest.get("policy", {}).get("lto") is not False


def cut_for_no_gpu(artifact: Artifact) -> bool:
    """Whether something in it was cut with --gpu none."""
    labels = (str(one.get("target", {}).get("label", "")) for one in artifact.tailored.values())
    return NO_GPU_LABEL in labels


def dropped_files(artifact: Artifact) -> frozenset[str]:
    """The files that --drop left out on purpose, as they would be installed."""
    return frozenset(
        installed_path(str(row.get("path", "")))
        for manifest in artifact.tailored.values()
        for row in manifest.get("dropped_files", ())
    )


def cut_records(artifact: Artifact) -> Iterator[CutRecord]:
    """Every library of every manifest; those of a split's packs are no libraries."""
    for owner, manifest in artifact.tailored.items():
        if manifest.get("output", {}).get("kind") == "packs":
            continue
        for row in manifest.get("libraries", ()):
            yield CutRecord(owner, installed_path(str(row.get("path", ""))), manifest, row)


def cut_record(artifact: Artifact, facts: LibraryFacts) -> CutRecord | None:
    """The record of a library; where several manifests have one, that of the very file."""
    records = [record for record in cut_records(artifact) if record.library == facts.name]
    if owner := facts.file.owner:
        manifest = artifact.tailored.get(owner)
        if manifest is None:
            return None
        own = (record for record in records if record.owner == owner)
        return next(own, CutRecord(owner, facts.name, manifest, {}))
    wrote = (record for record in records if record.sha256 == facts.sha256)
    return next(wrote, records[-1] if records else None)

"""What a cut would save of an artifact, by library: what a dry run of `tailor --nvidia` says."""

from __future__ import annotations

from collections.abc import Mapping

from torchtailor.catalog import Capability, Catalog, TorchArch
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.errors import ImpossibleError, NoMatchError
from torchtailor.core.progress import Progress
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.result import LibraryResult
from torchtailor.tailoring.inputs import tailor_inputs
from torchtailor.trees.artifact.artifact import Artifact


def cut_for_savings(
    artifact: Artifact, device: Capability, catalog: Catalog, processes: int | None, progress: Progress | None
) -> Mapping[str, LibraryResult] | None:
    """The libraries as they would be cut; None where there is no dry run: of images, and of what is never cut."""
    if artifact.label or artifact.never_cut:
        return None
    targets = Targets((TorchArch(device),), source="--gpu")
    cut = Cut(targets=targets, nvidia=True, dry_run=True, processes=processes or 0).resolved(catalog)
    places = () if artifact.site_packages else (artifact.path,)
    try:
        report = tailor_inputs(places, cut, env=None if places else artifact.path, progress=progress)
    except (NoMatchError, ImpossibleError):  # nothing in it is cut, or it was cut for others
        return {}
    return {library.path: library for result in report.results for library in result.libraries}

"""The sizes of a project's releases, and what made each one grow or shrink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from packaging.version import Version

from torchtailor.core.documents import Bytes
from torchtailor.verification.inspection.measure import Sizes
from torchtailor.verification.inspection.parts import ByteClass
from torchtailor.verification.sizes.compare import SizeChange, SizeComparison

_WORTH = 0.02  # of the release before: smaller changes are no jumps


class ReleaseSize(msgspec.Struct, frozen=True):
    """One release: its wheel, and what it grew or shrank by since the one before."""

    version: str
    wheel: str
    size: Bytes
    packed: Bytes
    classes: Mapping[str, int]
    architectures: Mapping[str, int]
    causes: tuple[SizeChange, ...]  # by architecture and class, the largest first

    @property
    def gpu(self) -> int:
        return self.classes.get(ByteClass.GPU.value, 0)


class HistoryDocument(msgspec.Struct, frozen=True):
    """The releases of a project, oldest first."""

    project: str
    releases: tuple[ReleaseSize, ...]


def history(project: str, measured: Iterable[tuple[Version, Sizes]]) -> HistoryDocument:
    """Releases in their order, each compared with the one before."""
    releases, before = [], None
    for version, sizes in measured:
        causes = _causes(SizeComparison(before, sizes)) if before else ()
        releases.append(
            ReleaseSize(
                str(version),
                sizes.name,
                sizes.total,
                sizes.packed or 0,
                {name: total.size for name, total in sizes.by(lambda row: row.kind.value).items()},
                {name: total.size for name, total in sizes.by(lambda row: row.code).items()},
                causes,
            )
        )
        before = sizes
    return HistoryDocument(project, tuple(releases))


def newest_of_each(versions: Iterable[Version]) -> tuple[Version, ...]:
    """The last patch release of each minor one: 2.7.1, not 2.7.0, and not 2.7.1+cpu, another build of it."""
    newest: dict[tuple[int, ...], Version] = {}
    for version in sorted(versions, key=lambda one: (Version(one.public), one.local is None, one)):
        newest[version.release[:2]] = version
    return tuple(newest.values())


def _causes(comparison: SizeComparison) -> tuple[SizeChange, ...]:
    gpu = [architecture for architecture in comparison.architectures if architecture.name]
    rest = [one for one in comparison.classes if one.name != ByteClass.GPU.value]
    changes = sorted((*gpu, *rest), key=lambda one: -abs(one.growth))
    return tuple(change for change in changes if abs(change.growth) >= comparison.old.total * _WORTH)

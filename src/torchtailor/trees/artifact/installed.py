"""Distributions that are installed in a folder: their RECORD, their METADATA, and which files are theirs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchtailor.core.errors import BadInputError
from torchtailor.core.trust import Limit, read_limited
from torchtailor.trees.wheels.metadata import LICENCE_HEAD, Metadata, is_licence_file
from torchtailor.trees.wheels.record import Record, RecordRow, UnusualRecordError

_PLAIN = re.compile(r"[^/.][^/]*(?:/[^/.][^/]*)*")  # a path that has no second spelling: nearly all

_METADATA_FILES = ("*.egg-info", "*.egg-info/PKG-INFO", "*.dist-info/METADATA")


@dataclass(frozen=True)
class InstalledDistribution:
    """One installed distribution; `files` are its rows of RECORD by their path from the folder that was searched."""

    dist_info: Path
    metadata: Metadata
    record: Record
    files: Mapping[str, RecordRow]

    @property
    def record_path(self) -> Path:
        return self.dist_info / "RECORD"

    def rows_on_disk(self) -> Iterator[tuple[RecordRow, os.stat_result | None]]:
        """The rows of RECORD with what is there now; None where nothing is."""
        site = self.dist_info.parent
        for row in self.record:
            try:
                yield row, os.stat(os.path.normpath(os.path.join(site, row.path)))  # noqa: PTH116, PTH118
            except (OSError, ValueError):
                yield row, None

    @property
    def installer(self) -> str:
        """Who installed it: `pip`, `uv`; empty where it does not say."""
        try:
            return read_limited(self.dist_info / "INSTALLER", Limit.SMALL).decode("utf-8", "replace").strip()
        except (BadInputError, OSError):
            return ""


def find_installed(root: Path, dist_infos: Iterable[Path]) -> tuple[tuple[InstalledDistribution, ...], tuple[str, ...]]:
    """The distributions of these `.dist-info` folders, which are anywhere under a folder; and which of them are left
    alone because their RECORD is unusual, and why."""
    found: list[InstalledDistribution] = []
    reasons: list[str] = []
    for dist_info in sorted(dist_infos):
        try:
            found += _read(root, dist_info)
        except UnusualRecordError as error:
            reasons.append(_left_alone(dist_info.name, error))
    return tuple(found), tuple(reasons)


def installed_in(site: Path) -> tuple[InstalledDistribution, ...]:
    """The distributions of one site-packages folder."""
    return find_installed(site, site.glob("*.dist-info"))[0]


def metadata_in(site: Path) -> Iterator[Metadata]:
    """What is installed in a site-packages folder, also by those who write no RECORD; what cannot be read is not."""
    for pattern in _METADATA_FILES:
        for path in sorted(site.glob(pattern)):
            with suppress(BadInputError, OSError):
                yield Metadata.parse(read_limited(path, Limit.METADATA), path.name)


def unreadable_in(root: Path) -> tuple[str, ...]:
    """The distributions anywhere under a folder that are left alone because their RECORD is unusual, and why."""
    reasons: list[str] = []
    for place, names, _ in os.walk(root):
        for name in sorted(name for name in names if name.endswith(".dist-info")):
            record = Path(place, name, "RECORD")
            try:
                Record.parse(read_limited(record, Limit.RECORD))
            except UnusualRecordError as error:
                reasons.append(_left_alone(name, error))
            except (BadInputError, OSError):
                continue
        names[:] = [name for name in names if name not in ("__pycache__", "include")]
    return tuple(reasons)


def _left_alone(dist_info: str, error: UnusualRecordError) -> str:
    return f"{dist_info.removesuffix('.dist-info')} is left alone: {error.message.rstrip('.')}."


def owners_by_file(installed: Iterable[InstalledDistribution]) -> dict[str, tuple[InstalledDistribution, ...]]:
    """Whose RECORD lists a file: mostly one distribution, and sometimes several; of one that brings others along, as
    setuptools does in its `_vendor`, it is the first: Python runs `.pth` files beside it only."""
    owners: dict[str, tuple[InstalledDistribution, ...]] = {}
    for one in sorted(installed, key=lambda one: len(one.dist_info.parts)):
        for path in one.files:
            owners[path] = (*owners.get(path, ()), one)
    return owners


def read_installed(root: Path, dist_infos: Iterable[Path]) -> tuple[InstalledDistribution, ...]:
    """Those of the `.dist-info` folders that have what is needed, where each must have a RECORD in the usual form; what
    Debian or conda left without RECORD is not ours to change."""
    found: list[InstalledDistribution] = []
    for dist_info in sorted(dist_infos):
        try:
            found += _read(root, dist_info)
        except UnusualRecordError as error:
            raise BadInputError(f"{dist_info}: {error.message}", error.hint) from error
    return tuple(found)


def _read(root: Path, dist_info: Path) -> Iterator[InstalledDistribution]:
    """The distribution of a `.dist-info` folder, if it has what is needed."""
    try:
        text = read_limited(dist_info / "METADATA", Limit.METADATA)
        metadata = Metadata.parse(text, dist_info.name, _licence_heads(dist_info))
        record = Record.parse(read_limited(dist_info / "RECORD", Limit.RECORD))
    except FileNotFoundError:
        return
    except UnusualRecordError:
        raise
    except BadInputError as error:
        raise BadInputError(f"{dist_info}: {error.message}", "Reinstall that package.") from error
    except OSError as error:
        raise BadInputError(f"{dist_info} cannot be read: {error.strerror}.", "Reinstall that package.") from error
    yield InstalledDistribution(dist_info, metadata, record, _files(root, dist_info.parent, record))


def _licence_heads(dist_info: Path) -> Iterator[bytes]:
    for path in sorted(dist_info.rglob("*")):
        if is_licence_file(path.name) and path.is_file():
            with path.open("rb") as file:
                yield file.read(LICENCE_HEAD)


def _files(root: Path, site: Path, record: Record) -> dict[str, RecordRow]:
    """RECORD's paths are relative to site-packages and may lead out of it (`../../../bin/x`)."""
    prefix = site.relative_to(root).as_posix()
    start = "" if prefix == "." else f"{prefix}/"
    paths = (
        (start + row.path if _PLAIN.fullmatch(row.path) else os.path.normpath(f"{prefix}/{row.path}"), row)
        for row in record
    )
    return {path: row for path, row in paths if not path.startswith(("/", ".."))}

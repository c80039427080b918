"""Undoes an in-place tailoring, or prints how to reinstall what cannot be restored."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from packaging.utils import canonicalize_name

from torchtailor.core.disk import copy_attributes, disk_errors, give_to, sync_folder
from torchtailor.core.errors import BadInputError, CheckFailedError
from torchtailor.core.progress import Progress
from torchtailor.core.pythons import find_uv
from torchtailor.core.trust import Label, Limit, decode_json, inside, leads_inside, read_limited
from torchtailor.tailoring.delta import rebuild
from torchtailor.tailoring.environment_plan import environment_sites
from torchtailor.tailoring.in_place import link_again
from torchtailor.tailoring.journal import STATE_FOLDER, Change, Journal, reconcile
from torchtailor.tailoring.tree import FileState
from torchtailor.trees.artifact.installed import InstalledDistribution, read_installed
from torchtailor.trees.wheels.distribution import MANIFEST


class _CondaRecord(msgspec.Struct):
    name: Label
    version: Label
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was restored, and what has to be reinstalled because what was removed was not kept."""

    site: Path
    libraries: Annotated[tuple[str, ...], Meta(description="and other files")]
    size: Annotated[int, Meta(description="bytes of the restored files")]
    to_reinstall: tuple[str, ...]  # `torch==2.10.0`
    commands: Annotated[tuple[str, ...], Meta(description="what reinstalls packages whose removed code was not kept")]
    came_cut: Annotated[
        tuple[str, ...], Meta(description="what was cut elsewhere: packages, or the folder itself")
    ] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored in an environment, or in a dry run would be."""

    dry_run: bool
    environments: tuple[RestoreResult, ...]


def restore(
    env: Path | str | None = None, *, dry_run: bool = False, progress: Progress | None = None
) -> tuple[RestoreResult, ...]:
    """Restore an environment, or the active one: one result for each of its site-packages folders."""
    sites = environment_sites(Path(env) if env is not None else None)
    return tuple(restore_environment(site, dry_run=dry_run, progress=progress) for site in sites)


def restore_environment(site: Path, *, dry_run: bool = False, progress: Progress | None = None) -> RestoreResult:
    """Restore every file whose removed bytes were kept."""
    progress = progress or Progress()
    if not (site / STATE_FOLDER).is_dir() and not (site / STATE_FOLDER).is_symlink():
        return RestoreResult(site, (), 0, (), (), tuple(_came_cut(site)))
    with (
        disk_errors(site, unchanged="What was restored before is whole and recorded."),
        Journal.locked(site) as journal,
    ):
        chains = reconcile(journal)
        kept = {path for path, chain in chains.items() if all(one.removed or not one.before for one in chain)}
        lost = [change for path, chain in chains.items() if path not in kept for change in chain]
        ready = {path: chains[path] for path in kept if not lost or chains[path][0].before or chains[path][0].moved}
        commands = _reinstall_commands(site, lost)
        size = sum(chain[0].size_before for chain in ready.values())
        if not dry_run:
            progress.begin(str(site), size)
            try:
                for path, chain in sorted(ready.items(), key=lambda item: item[1][0].same_as is not None):
                    if moved := chain[-1].moved:
                        moved.move_back(journal.site)
                    else:
                        _restore(journal, path, chain)
                    progress.advance(chain[0].size_before)
            finally:
                if not reconcile(journal):
                    journal.delete()
    packages = (*(f"{one.metadata.name}=={one.metadata.version}" for one in _owners(site, lost)), *_left(site, lost))
    return RestoreResult(site, tuple(sorted(ready)), size, packages, commands)


def _came_cut(site: Path) -> Iterator[str]:
    """What was cut before it came here: a copy that `tailor -o` made, or packages from wheels that were cut."""
    if (site / MANIFEST).is_file():
        yield str(site)
        return
    for dist_info in sorted(one.parent for one in site.glob(f"*.dist-info/{MANIFEST}")):
        for one in read_installed(site, [dist_info]):
            yield f"{one.metadata.name}=={one.metadata.version}"


def _restore(journal: Journal, path: str, chain: Sequence[Change]) -> None:
    """Undo the changes of one file, newest first, and replace it when the stock file is complete."""
    place = inside(journal.site, path)
    first = chain[-1].same_as
    if chain[0].before is None:
        place.unlink()
        sync_folder(place.parent)
        return
    if first is not None and _is(journal, first, chain[0].before):  # another name of a file that is restored already
        link_again(inside(journal.site, first), place, journal.staging)
        sync_folder(place.parent)
        return
    stock, last = chain[0].before, chain[-1]
    if last.dropped:
        if not leads_inside(journal.site, place):
            raise CheckFailedError(f"{path} leads out of the environment.", "Reinstall its package instead.")
        place.parent.mkdir(parents=True, exist_ok=True)
        owner, mode = journal.site.stat(), last.mode
    else:
        owner = place.stat()
        mode = owner.st_mode & 0o7777
    current = None if last.dropped else place
    for step, change in enumerate(reversed(chain)):
        staged = journal.staging / f"{step}-{place.name}"
        hasher = hashlib.sha256()
        with staged.open("wb") as file:
            written = 0
            assert change.before is not None
            for chunk in rebuild(current, journal.removed / change.removed):
                written += len(chunk)
                if written > change.before.size:
                    break  # it would fill the disk
                hasher.update(chunk)
                file.write(chunk)
            file.flush()
            give_to(file.fileno(), owner)
            if not last.dropped:
                copy_attributes(place, file.fileno())
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if hasher.hexdigest() != change.before.sha256:
            raise CheckFailedError(
                f"{path} cannot be restored: its removed bytes are damaged.", "Reinstall its package instead."
            )
        if current not in (None, place):
            current.unlink()
        current = staged
    assert current is not None
    if FileState.of(current, sizes={stock.size}) != stock or not leads_inside(journal.site, place):
        raise CheckFailedError(f"{path} was replaced while it was being restored.", "Run the same command again.")
    current.replace(place)
    sync_folder(place.parent)


def _is(journal: Journal, path: str, state: FileState) -> bool:
    return FileState.of(inside(journal.site, path), sizes={state.size}) == state


def _owners(site: Path, changes: Iterable[Change]) -> tuple[InstalledDistribution, ...]:
    names = {name for change in changes for name in change.distributions}
    folders = [site / name for name in sorted(names) if name.endswith(".dist-info")]
    return read_installed(site, [folder for folder in folders if not folder.is_symlink()])


def _left(site: Path, changes: Sequence[Change]) -> list[str]:
    """The packages that left as a whole, `triton==3.4.0`: only the names of their folders are known."""
    names = sorted({name for change in changes if change.of_no_use for name in change.distributions})
    parts = (name.removesuffix(".dist-info").partition("-") for name in names if not (site / name).is_dir())
    return [f"{canonicalize_name(name)}=={version}" for name, _, version in parts]


def _reinstall_commands(site: Path, changes: Sequence[Change]) -> tuple[str, ...]:
    """The commands that reinstall the stock packages, with the tool that installed them."""
    groups: dict[str, list[str]] = {}
    for one in _owners(site, changes):
        tool = one.installer if one.installer in ("conda", "uv") else "pip"
        if tool == "pip" and _lacks_pip(site) and find_uv():
            tool = "uv"
        groups.setdefault(tool, []).append(_conda_name(one) if tool == "conda" else _requirement(one))
    if left := _left(site, changes):
        pips = [tool for tool in groups if tool != "conda"]
        groups.setdefault(pips[0] if pips else "pip", []).extend(left)
    return tuple(_command(site, packages, tool) for tool, packages in sorted(groups.items()))


def _conda_name(one: InstalledDistribution) -> str:
    """`pytorch=2.10.0`: conda's own names are in the record that lists the package's files."""
    prefix = _prefix(one.dist_info.parent)
    wanted = f"{one.dist_info.relative_to(prefix).as_posix()}/METADATA"
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            package = decode_json(read_limited(path, Limit.RECORD), _CondaRecord, str(path))
        except (BadInputError, OSError):
            continue
        if wanted in package.files:
            return f"{package.name}={package.version}"
    return f"{one.metadata.name}={one.metadata.version}"


def _requirement(one: InstalledDistribution) -> str:
    """`torch==2.10.0`, or the address it was installed from."""
    direct = one.dist_info / "direct_url.json"
    if direct.is_file():
        try:
            url = str(json.loads(read_limited(direct, Limit.SMALL))["url"])
            if not url.startswith("-"):
                return url
        except (ValueError, KeyError, TypeError, RecursionError, OSError, BadInputError):
            pass
    return f"{one.metadata.name}=={one.metadata.version}"


def _prefix(site: Path) -> Path:
    """The environment that a site-packages folder is part of."""
    return next((parent for parent in site.parents if (parent / "bin" / "python").exists()), site)


def _command(site: Path, packages: Sequence[str], tool: str) -> str:
    prefix = _prefix(site)
    python = str(prefix / "bin" / "python") if prefix != site else "python"
    if tool == "conda":
        start = ["conda", "install", "--prefix", str(prefix), "--force-reinstall", "--no-deps"]
    elif tool == "uv":
        start = ["uv", "pip", "install", "--python", python, "--reinstall", "--no-deps"]
    else:
        start = [python, "-m", "pip", "install", "--force-reinstall", "--no-deps"]
    line = shlex.join([*start, *packages])
    return f"{shlex.quote(python)} -m ensurepip && {line}" if tool == "pip" and _lacks_pip(site) else line


def _lacks_pip(site: Path) -> bool:
    return _prefix(site) != site and not (site / "pip").is_dir()

"""Undoes an in-place tailoring, or prints how to reinstall what cannot be restored."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.artifact.installed import InstalledDistribution, read_installed
from torchtailor.disk import disk_errors, sync_folder
from torchtailor.errors import CheckFailedError
from torchtailor.progress import NoProgress, Progress
from torchtailor.tailoring.delta import rebuild
from torchtailor.tailoring.environment import environment_sites
from torchtailor.tailoring.journal import STATE_FOLDER, Change, Journal, reconcile


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was restored, and what has to be reinstalled because its removed code was not kept."""

    site: Path
    libraries: tuple[str, ...]
    size: int  # bytes of the restored files
    to_reinstall: tuple[str, ...]  # `torch==2.10.0`
    commands: tuple[str, ...]


def restore(
    env: Path | None = None, *, dry_run: bool = False, progress: Progress | None = None
) -> tuple[RestoreResult, ...]:
    """Restore an environment, or the active one: one result for each of its site-packages folders."""
    return tuple(restore_environment(site, dry_run=dry_run, progress=progress) for site in environment_sites(env))


def restore_environment(site: Path, *, dry_run: bool = False, progress: Progress | None = None) -> RestoreResult:
    """Restore every library whose removed bytes were kept."""
    progress = progress or NoProgress()
    if not (site / STATE_FOLDER).is_dir():
        return RestoreResult(site, (), 0, (), ())
    with (
        disk_errors(site, unchanged="What was restored before is whole and recorded."),
        Journal.locked(site) as journal,
    ):
        chains = reconcile(journal)
        ready = {path: chain for path, chain in chains.items() if all(change.removed for change in chain)}
        lost = [change for path, chain in chains.items() if path not in ready for change in chain]
        commands = _reinstall_commands(site, lost)
        size = sum(chain[0].before.size for chain in ready.values())
        if not dry_run:
            progress.begin(str(site), size)
            try:
                for path, chain in ready.items():
                    _restore(journal, path, chain)
                    progress.advance(chain[0].before.size)
            finally:
                if not reconcile(journal):
                    journal.delete()
    packages = tuple(f"{one.metadata.name}=={one.metadata.version}" for one in _owners(site, lost))
    return RestoreResult(site, tuple(sorted(ready)), size, packages, commands)


def _restore(journal: Journal, path: str, chain: Sequence[Change]) -> None:
    """Undo the changes of one file, newest first, and replace it when the stock file is complete."""
    place = journal.site / path
    current = place
    for step, change in enumerate(reversed(chain)):
        staged = journal.staging / f"{step}-{place.name}"
        hasher = hashlib.sha256()
        with staged.open("wb") as file:
            for chunk in rebuild(current, journal.removed / change.removed):
                hasher.update(chunk)
                file.write(chunk)
            file.flush()
            os.fchmod(file.fileno(), place.stat().st_mode & 0o7777)
            os.fsync(file.fileno())
        if hasher.hexdigest() != change.before.sha256:
            raise CheckFailedError(
                f"{path} cannot be restored: its removed bytes are damaged.", "Reinstall its package instead."
            )
        if current != place:
            current.unlink()
        current = staged
    current.replace(place)
    sync_folder(place.parent)


def _owners(site: Path, changes: Iterable[Change]) -> tuple[InstalledDistribution, ...]:
    names = {name for change in changes for name in change.distributions}
    return read_installed(site, [site / name for name in sorted(names)])


def _reinstall_commands(site: Path, changes: Iterable[Change]) -> tuple[str, ...]:
    """The commands that reinstall the stock packages, with the tool that installed them."""
    groups: dict[bool, list[str]] = {}
    for one in _owners(site, changes):
        groups.setdefault(one.installer == "uv", []).append(_requirement(one))
    return tuple(_command(site, packages, uv=uv) for uv, packages in sorted(groups.items()))


def _requirement(one: InstalledDistribution) -> str:
    """`torch==2.10.0`, or the address it was installed from."""
    direct = one.dist_info / "direct_url.json"
    if direct.is_file():
        try:
            return str(json.loads(direct.read_bytes())["url"])
        except (ValueError, KeyError, TypeError):
            pass
    return f"{one.metadata.name}=={one.metadata.version}"


def _command(site: Path, packages: Sequence[str], *, uv: bool) -> str:
    python = next((path for parent in site.parents if (path := parent / "bin" / "python").exists()), Path("python"))
    start = (
        ["uv", "pip", "install", "--python", str(python), "--reinstall", "--no-deps"]
        if uv
        else [str(python), "-m", "pip", "install", "--force-reinstall", "--no-deps"]
    )
    return shlex.join([*start, *packages])

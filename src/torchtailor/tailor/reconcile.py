"""Brings RECORD, manifests and journal in line with what the files of an environment really are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchtailor.artifact.installed import Installed, read_installed
from torchtailor.disk import write_atomically
from torchtailor.tailor.journal import Change, FileState, Journal
from torchtailor.tailor.manifest import environment_manifest
from torchtailor.wheels.distribution import MANIFEST
from torchtailor.wheels.record import FileHash, RecordRow

Chains = dict[str, list[Change]]


def reconcile(journal: Journal, known: Mapping[str, FileState] | None = None) -> Chains:
    """Set right whatever an interrupted run left, and return the changes in force, by path, oldest first.

    A file that is neither what a change found nor what it made was reinstalled or changed by somebody else: it is
    forgotten, with what was kept of it. `known` are files that we have just put in place, which spares reading them.
    """
    recorded: Chains = {}
    for change in journal.changes():
        recorded.setdefault(change.path, []).append(change)
    actual = {path: (known or {}).get(path) or _actual(journal.site / path, chain) for path, chain in recorded.items()}
    in_force = {path: _in_force(chain, actual[path]) for path, chain in recorded.items()}
    chains = {path: chain for path, chain in in_force.items() if chain}
    names = {name for chain in recorded.values() for change in chain for name in change.distributions}
    folders = [journal.site / name for name in sorted(names) if (journal.site / name).is_dir()]
    for one in read_installed(journal.site, folders):
        states = {path: state for path in one.files if (state := actual.get(path))}
        settle(journal, one, states, chains)
    journal.rewrite(change for chain in chains.values() for change in chain)
    return chains


def settle(journal: Journal, one: Installed, states: Mapping[str, FileState], chains: Chains) -> None:
    """Write a distribution's manifest and RECORD so that they say what is there."""
    rows = [merged_row(chains[path]) for path in sorted(one.files) if path in chains]
    manifest_path = one.dist_info / MANIFEST
    manifest_name = manifest_path.relative_to(one.dist_info.parent).as_posix()
    changes: dict[str, RecordRow | None] = {}
    if rows:
        newest = chains[next(path for path in sorted(one.files) if path in chains)][-1]
        document = environment_manifest(newest.choices, one.metadata.name, one.metadata.version, rows)
        if not manifest_path.is_file() or manifest_path.read_bytes() != document:
            write_atomically(manifest_path, document, durable=True, staging=journal.staging)
        changes[manifest_name] = RecordRow(manifest_name, FileHash.of(document), len(document))
    else:
        manifest_path.unlink(missing_ok=True)
        changes[manifest_name] = None
    for path, state in states.items():
        row = one.files[path]
        changes[row.path] = RecordRow(row.path, FileHash.from_hex(state.sha256), state.size)
    data = one.record.updated(changes).encode()
    if data != one.record_path.read_bytes():
        mode = one.record_path.stat().st_mode & 0o777
        write_atomically(one.record_path, data, mode=mode, durable=True, staging=journal.staging)


def merged_row(chain: Sequence[Change]) -> dict[str, Any]:
    """A library's row in the manifest, from the stock file to what it is now."""
    first, last = chain[0].library, chain[-1].library
    return {**last, **{key: first[key] for key in ("size_before", "gpu_before", "sha256_before") if key in first}}


def _actual(path: Path, chain: Sequence[Change]) -> FileState | None:
    known = [state for change in chain for state in (change.before, change.after)]
    state = FileState.of(path, sizes={state.size for state in known})
    return state if state in known else None


def _in_force(chain: list[Change], actual: FileState | None) -> list[Change]:
    for index in reversed(range(len(chain))):
        if chain[index].after == actual:
            start = index
            while start and chain[start - 1].after == chain[start].before:
                start -= 1
            return chain[start : index + 1]
    return []

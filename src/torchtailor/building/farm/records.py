"""What a finished job gave, and who may say so: the store is no more trusted than an index.

Whoever can write to the store can put any record there. So a record counts only if it proves itself, as that of a wheel
whose hash the index listed does, or if it has the signature of the key that the client and its workers share. A record
with neither counts as none, and its job runs again.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.core.disk import disk_errors, locked, state_folder, write_atomically
from torchtailor.core.errors import BadInputError, EnvironmentProblem
from torchtailor.core.trust import Limit, RelativePath, Sha256, Size, is_sha256, read_limited
from torchtailor.fetch.pages import content_key

KEY_VARIABLE = "TORCHTAILOR_STORE_KEY"
_OWN_KEY = "store.key"
_LEAST = 16  # bytes of a key that is not guessed


class FarmFile(msgspec.Struct, frozen=True):
    """A file of an output."""

    path: RelativePath
    sha256: Sha256
    size: Size


class JobRecord(msgspec.Struct, frozen=True):
    """What a finished job gave."""

    kind: str
    files: tuple[FarmFile, ...]
    facts: dict[str, Any] = {}
    worker: str = ""
    seconds: float = 0.0
    inputs: dict[str, Sha256] = {}  # by key, the digests of the outputs that it was made of
    signature: str = ""

    def file(self, path: str) -> FarmFile:
        return next(file for file in self.files if file.path == path)

    @property
    def digest(self) -> str:
        """Of what it gave, not of where and when."""
        return digest_of((file.path, file.sha256) for file in self.files)


def digest_of(files: Iterable[tuple[str, str]]) -> str:
    """The digest of an output: of the names and hashes of its files."""
    lines = sorted(f"{sha256}  {path}\n" for path, sha256 in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def signed(record: JobRecord, key: str, secret: str) -> JobRecord:
    """The record with the signature that it may lie under this key."""
    return msgspec.structs.replace(record, signature=_signature(record, key, secret) if secret else "")


def is_trusted(record: JobRecord, key: str, secret: str) -> bool:
    """Whether a record proves itself or is signed; without a secret, nobody asks for signatures."""
    if proves_itself(record, key) or not secret:
        return True
    return hmac.compare_digest(record.signature.encode(), _signature(record, key, secret).encode())


def proves_itself(record: JobRecord, key: str) -> bool:
    """Whether the key itself demands these bytes: it is made of the SHA-256 that an index listed."""
    return record.kind == "fetch" and [content_key("sha256", file.sha256) for file in record.files] == [key]


def _signature(record: JobRecord, key: str, secret: str) -> str:
    text = msgspec.json.encode(msgspec.structs.replace(record, signature=""), order="deterministic")
    return hmac.new(secret.encode(), key.encode() + b"\n" + text, hashlib.sha256).hexdigest()


def find_secret(store: str, configured: str = "") -> str:
    """The secret that signs the records of a store; empty where the user has no key yet.

    It is made of the key that was configured, which all who share the store have, else of the user's own, which no
    other user has. Workers get the secret of one store, not the key.
    """
    given = os.environ.get(KEY_VARIABLE) or configured
    if given:
        return _derived(_configured_key(Path(given).expanduser()), "")
    try:
        own = read_limited(state_folder() / _OWN_KEY, Limit.STATE).decode("ascii", "replace")
    except (OSError, BadInputError):
        return ""
    return _derived(own.encode(), store) if is_sha256(own) else ""


def need_secret(store: str, configured: str = "") -> str:
    """The same; the user's own key is made where there is none."""
    if found := find_secret(store, configured):
        return found
    path = state_folder() / _OWN_KEY
    with disk_errors(path.parent), locked(path.with_suffix(".lock"), "The key of the store"):
        if not find_secret(store, configured):
            write_atomically(path, secrets.token_hex(32).encode(), mode=0o600)
    return find_secret(store, configured)


def _configured_key(path: Path) -> bytes:
    """The content of a key file; refused where it is none, or where others can read it."""
    hint = f"Make one with `openssl rand -hex 32 > {path}`, the same on every machine that shares the store."
    try:
        content = read_limited(path, Limit.STATE).strip()
        mode = path.stat().st_mode
    except (OSError, BadInputError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a small plain file"
        raise EnvironmentProblem(f"The key of the store, {path}, cannot be read: {reason}.", hint) from error
    if len(content) < _LEAST:
        raise EnvironmentProblem(f"The key of the store, {path}, is shorter than {_LEAST} bytes.", hint)
    if mode & 0o007:
        raise EnvironmentProblem(
            f"The key of the store, {path}, can be read or changed by everybody.", f"Run `chmod o= {path}`."
        )
    return content


def _derived(key: bytes, store: str) -> str:
    return hmac.new(key, f"records of {store}".encode(), hashlib.sha256).hexdigest()

"""Results of disassembly, kept by the content of the library they were read from."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np

from torchtailor.code.hostcode.analyse import HostCode, analyse
from torchtailor.code.hostcode.image import CodeImage
from torchtailor.code.hostcode.needs import Needs, read_needs
from torchtailor.core.disk import cache_folder, hash_file, write_atomically
from torchtailor.core.shapes import shaped
from torchtailor.core.version import code_key

_log = logging.getLogger(__name__)


def host_code(
    path: Path, allowed: frozenset[str] = frozenset(), *, sha256: str = "", folder: Path | None = None
) -> HostCode:
    """`analyse`, but the same bytes are read only once per machine; `sha256` spares hashing a file again."""
    folder = folder or cache_folder() / "hostcode"
    content = sha256 or hash_file(path)
    if (found := known_host_code(content, allowed, folder=folder)) is not None:
        _log.info("the host code of %s is in the cache", path.name)
        return found
    began = time.monotonic()
    code = analyse(path, allowed, needs=_needs(path, content, folder))
    _log.info("the host code of %s took %.2f s", path.name, time.monotonic() - began)
    _keep(_place(content, allowed, folder), msgspec.json.encode(code))
    return code


def known_host_code(
    sha256: str, allowed: frozenset[str] = frozenset(), *, folder: Path | None = None
) -> HostCode | None:
    """What was found in a library of this content before; None where it was not read on this machine."""
    return _load(_place(sha256, allowed, folder or cache_folder() / "hostcode"))


def _place(sha256: str, allowed: frozenset[str], folder: Path) -> Path:
    key = hashlib.sha256("\0".join((sha256, fingerprint(), *sorted(allowed))).encode()).hexdigest()
    return folder / f"{key}.json"


@cache
def fingerprint() -> str:
    """Changes whenever the same bytes could give another result."""
    return f"{code_key()} {version('capstone')}"


def _keep(kept: Path, content: bytes) -> None:
    """A cache that cannot be written costs time the next time, and nothing else."""
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, content)


def _kept(path: Path) -> bytes:
    content = path.read_bytes()
    with suppress(OSError):
        os.utime(path)  # it is in use: `cache prune` goes by that
    return content


def _load(kept: Path) -> HostCode | None:
    try:
        return msgspec.json.decode(_kept(kept), type=shaped(HostCode))
    except (OSError, msgspec.DecodeError):  # absent, or cut short by a full disk: it is made again
        return None


def _needs(path: Path, content: str, folder: Path) -> Needs:
    """The reading of all instructions, which is most of the time, does not depend on what is allowed."""
    key = hashlib.sha256(f"{content}\0{fingerprint()}\0needs".encode()).hexdigest()
    kept = folder / f"{key}.msgpack"
    try:
        sets, indices = msgspec.msgpack.decode(_kept(kept), type=shaped(tuple[tuple[tuple[str, ...], ...], bytes]))
        return Needs(tuple(map(frozenset, sets)), np.frombuffer(indices, np.uint16))
    except (OSError, msgspec.DecodeError):
        pass
    needs = read_needs(CodeImage(path))
    rows = tuple(tuple(sorted(words)) for words in needs.sets)
    _keep(kept, msgspec.msgpack.encode((rows, needs.indices.tobytes())))
    return needs

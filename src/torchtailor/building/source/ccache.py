"""ccache, configured so that builds share objects: another GPU reuses host objects, another ISA device objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from torchtailor.building.source.folders import Folders
from torchtailor.core.disk import expand_home
from torchtailor.core.errors import UsageError
from torchtailor.core.urls import redact

_STORAGES = ("file", "http", "redis", "redis+unix")


@dataclass(frozen=True, slots=True)
class Hits:
    """Hits and misses of ccache."""

    hits: int
    misses: int

    @property
    def rate(self) -> float | None:
        total = self.hits + self.misses
        return self.hits / total if total else None

    def __str__(self) -> str:
        return (
            "nothing compiled" if self.rate is None else f"{self.hits} of {self.hits + self.misses} ({self.rate:.0%})"
        )


def ccache_environment(program: str, folders: Folders, build: Path, *, remote: str = "") -> dict[str, str]:
    """A cache and settings of our own, independent of the user's.

    Paths below the build's folder become relative and the working directory is not hashed, so that builds in different
    folders share. Each build has its own log of statistics. `remote` is a storage that other machines share.
    """
    shared = {"CCACHE_REMOTE_STORAGE": remote_storage(remote), "CCACHE_RESHARE": "1"} if remote else {}
    return {
        **shared,
        "CCACHE_DIR": str(folders.ccache),
        "CCACHE_CONFIGPATH": str(folders.ccache / "torchtailor.conf"),
        "CCACHE_BASEDIR": str(build),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_MAXSIZE": "30G",
        "CCACHE_COMPILERCHECK": "content",
        "CCACHE_STATSLOG": str(build / "ccache-stats.log"),
        "CMAKE_C_COMPILER_LAUNCHER": program,
        "CMAKE_CXX_COMPILER_LAUNCHER": program,
        "CMAKE_CUDA_COMPILER_LAUNCHER": program,
    }


def remote_storage(objects: str) -> str:
    """`--objects` as ccache takes it: redis:// and http:// as they are, a folder as file://."""
    try:
        scheme, host = urlsplit(objects).scheme, urlsplit(objects).hostname
    except ValueError as error:
        raise UsageError(f"{redact(objects)} cannot be read: {error}.", "Write redis://HOST or http://HOST.") from error
    if scheme in ("http", "redis") and not host:
        raise UsageError(f"{redact(objects)} names no host.", f"Write {scheme}://HOST.")
    if scheme in _STORAGES:
        return objects
    if scheme == "":
        return expand_home(objects).absolute().as_uri()
    raise UsageError(
        f"{redact(objects)} cannot hold objects: ccache has no storage {scheme}://.",
        "Give a folder, redis://HOST or http://HOST/PATH.",
    )


def prepare(environment: Mapping[str, str]) -> None:
    """An empty configuration file, so that no other one is read."""
    conf = Path(environment["CCACHE_CONFIGPATH"])
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.touch()


def count_from_zero(environment: Mapping[str, str]) -> None:
    """Delete the statistics so far: those of CMake's own tests are not about PyTorch's files."""
    Path(environment["CCACHE_STATSLOG"]).unlink(missing_ok=True)


def read_hits(environment: Mapping[str, str]) -> Hits | None:
    """Hits and misses of this build; None where ccache wrote no statistics."""
    try:
        text = Path(environment["CCACHE_STATSLOG"]).read_text("utf-8", "replace")
    except OSError:
        return None
    words = text.split()
    hits = sum(word in ("direct_cache_hit", "preprocessed_cache_hit") for word in words)
    return Hits(hits, words.count("cache_miss"))

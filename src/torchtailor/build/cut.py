"""Cuts fetched wheels for GPUs, each input and target once: results are kept in the cache by what made them."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import torchtailor
from torchtailor.build.options import Options
from torchtailor.build.swap import stage_beside
from torchtailor.catalog import Capability, Catalog, TorchArch
from torchtailor.errors import ImpossibleError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.download import Fetched
from torchtailor.tailor.outcome import Outcome
from torchtailor.tailor.policy import Policy
from torchtailor.tailor.recompress import Recompress
from torchtailor.tailor.settings import Settings, Watcher
from torchtailor.tailor.targets import Targets
from torchtailor.tailor.wheel import tailor_wheel

_OUTCOME = "outcome.json"
# The parts of the package whose code decides the bytes of a cut wheel.
_ENGINE = ("catalog", "gpucode", "tailor", "wheels")


@dataclass(frozen=True, slots=True)
class Cut:
    """What became of one wheel for one GPU; `path` is the stock wheel where nothing was cut."""

    path: Path
    sha256: str
    size: int
    changed: bool
    libraries: tuple[dict[str, object], ...]
    from_cache: bool


class Cutter:
    """Cuts wheels for one GPU at a time, and remembers."""

    def __init__(self, catalog: Catalog, cache_: Cache, options: Options, *, processes: int = 2) -> None:
        self._catalog, self._cache, self._options, self._processes = catalog, cache_, options, processes

    def cut(self, stock: Fetched, gpu: Capability, watcher: Watcher | None = None) -> Cut:
        """The wheel for this GPU, from the cache or made now; it is proven before it is there."""
        folder = self._cache.made(self._key(stock.sha256, stock.file.filename, gpu))
        if (known := _read(folder, stock)) is not None:
            return known
        with stage_beside(folder) as scratch:
            outcome = tailor_wheel(stock.path, scratch, self._settings(gpu), watcher)
            if outcome.useless_for_target:
                raise ImpossibleError(
                    f"{stock.file.filename} holds GPU code, and none of it runs on {gpu}.",
                    "Choose another release, or build it with --via source.",
                )
            _write(scratch, outcome)
            _put_in_place(scratch, folder)
        made = _read(folder, stock)
        assert made is not None
        return Cut(made.path, made.sha256, made.size, made.changed, made.libraries, from_cache=False)

    def known(self, sha256: str, filename: str, gpu: Capability) -> bool:
        """Whether this cut was made before."""
        return (self._cache.made(self._key(sha256, filename, gpu)) / _OUTCOME).is_file()

    def _key(self, sha256: str, filename: str, gpu: Capability) -> str:
        options = self._options
        parts = [
            torchtailor.__version__,
            engine_digest(),
            sha256,
            filename,
            str(gpu),
            json.dumps([options.nvidia, options.recompress, options.keep_ptx, options.strip]),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _settings(self, gpu: Capability) -> Settings:
        options = self._options
        arch = TorchArch(gpu)
        known = self._catalog.gpus.get(gpu)
        policy = Policy(
            targets=(arch,),
            rules=self._catalog.rules,
            keep_ptx=options.keep_ptx,
            unified_tegra=bool(known and known.unified),
        )
        return Settings(
            targets=Targets((arch,), options.keep_ptx, "variant"),
            policy=policy,
            strip=options.strip,
            nvidia=options.nvidia,
            recompress=Recompress(processes=self._processes) if options.recompress else None,
            processes=self._processes,
        )


@cache
def engine_digest() -> str:
    """A hash of the code that cuts, so that a changed torchtailor does not take an older one's results."""
    hasher = hashlib.sha256()
    package = Path(str(files("torchtailor")))
    for part in _ENGINE:
        for path in sorted((package / part).rglob("*")):
            if path.suffix in (".py", ".toml"):
                hasher.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()


def _read(folder: Path, stock: Fetched) -> Cut | None:
    try:
        document = json.loads((folder / _OUTCOME).read_bytes())
    except (OSError, ValueError):
        return None
    changed = bool(document["changed"])
    path = folder / document["filename"] if changed else stock.path
    if not path.is_file() or path.stat().st_size != document["size"]:
        return None
    libraries = tuple(document["libraries"])
    return Cut(path, document["sha256"], document["size"], changed, libraries, from_cache=True)


def _write(scratch: Path, outcome: Outcome) -> None:
    from torchtailor.tailor.manifest import library_json

    assert outcome.output is not None
    changed = bool(outcome.changed)
    if changed:
        outcome.output.chmod(0o444)
    else:
        outcome.output.unlink()  # a copy of the stock wheel, which is in the cache already
    document = {
        "filename": outcome.output.name,
        "changed": changed,
        "sha256": outcome.sha256_after,
        "size": outcome.size_after,
        "libraries": [library_json(library) for library in outcome.libraries],
    }
    (scratch / _OUTCOME).write_text(json.dumps(document, indent=1, sort_keys=True), "utf-8")


def _put_in_place(scratch: Path, folder: Path) -> None:
    """Rename; where another process was quicker, or a damaged result lies there, that one goes first."""
    if folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)

"""Cuts fetched wheels for GPUs, each input and target once: results are kept in the cache by what made them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torchtailor
from torchtailor.backends.wheel.options import Options
from torchtailor.catalog import Capability, Catalog, TorchArch
from torchtailor.disk import code_digest
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.download import Fetched
from torchtailor.gpucode.policy import Policy
from torchtailor.gpucode.targets import Targets
from torchtailor.progress import Progress
from torchtailor.surgery.recompress import Recompress
from torchtailor.tailor.outcome import Outcome
from torchtailor.tailor.settings import Settings
from torchtailor.tailor.wheel import Order, tailor_wheel_each

_OUTCOME = "outcome.json"
# The parts of the package whose code decides the bytes of a cut wheel.
_ENGINE = ("artifact", "binary", "catalog", "disk.py", "gpucode", "licences", "surgery", "tailor", "wheels")


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
    """Cuts wheels for GPUs, and remembers."""

    def __init__(self, catalog: Catalog, cache_: Cache, options: Options, *, processes: int = 2) -> None:
        self._catalog, self._cache, self._options, self._processes = catalog, cache_, options, processes

    @property
    def folder(self) -> Path:
        """Where the results are kept."""
        return self._cache.root

    def cut(
        self,
        stock: Fetched,
        gpus: Sequence[Capability],
        progress: Progress | None = None,
        making: Callable[[Sequence[Capability]], None] | None = None,
    ) -> dict[Capability, Cut]:
        """The wheel for each GPU, from the cache or made now, all in one pass; each is proven before it is there.

        A GPU that none of the wheel's code runs on is left out. `making` is told for which it must be made now.
        """
        keys = {gpu: self._key(stock.sha256, stock.file.filename, gpu) for gpu in gpus}
        cuts = {gpu: known for gpu, key in keys.items() if (known := _read(self._cache.made(key), stock)) is not None}
        missing = [gpu for gpu in keys if gpu not in cuts]
        if not missing:
            return cuts
        if making:
            making(missing)

        def complete(folder: Path) -> bool:
            return _read(folder, stock) is not None

        with self._cache.staging() as staging:
            orders = [Order(staging / str(gpu), self._settings(gpu)) for gpu in missing]
            outcomes = tailor_wheel_each(stock.path, orders, progress)
            for gpu, order, outcome in zip(missing, orders, outcomes, strict=True):
                if not outcome.useless_for_target:
                    _write(order.output, outcome)
                    folder = self._cache.put_made(keys[gpu], order.output, complete)
                    made = _read(folder, stock)
                    assert made is not None
                    cuts[gpu] = replace(made, from_cache=False)
        return cuts

    def _key(self, sha256: str, filename: str, gpu: Capability) -> str:
        options = self._options
        parts = [
            torchtailor.__version__,
            code_digest(*_ENGINE),
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
            strip=None if options.strip else False,
            nvidia=options.nvidia,
            recompress=Recompress(processes=self._processes) if options.recompress else None,
            processes=self._processes,
        )


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
    with suppress(OSError):
        os.utime(folder / _OUTCOME)  # it is in use: `cache prune` goes by that
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

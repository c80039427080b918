"""Cuts wheels for GPUs, each input and target once: results are in the cache under a key of all that decides them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.catalog import Capability, Catalog, TorchArch
from torchtailor.code.gpucode.targets import NO_GPU
from torchtailor.core.disk import is_intact
from torchtailor.core.errors import BadInputError
from torchtailor.core.progress import Progress
from torchtailor.core.trust import FileName, Label, Limit, Sha256, Size, decode_json, read_limited
from torchtailor.core.version import code_key
from torchtailor.fetch.cache import Cache
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.cut_document import JobCut
from torchtailor.tailoring.result import PackWheel, TailorResult
from torchtailor.tailoring.wheel import WheelOrder, tailor_wheel_each

_log = logging.getLogger(__name__)
_OUTCOME = "outcome.json"
Gpus = tuple[Capability, ...]  # what one wheel is cut for; none: machines without a GPU


@dataclass(frozen=True, slots=True)
class WheelCut:
    """One wheel for the GPUs of one machine; `path` is the stock wheel where nothing was cut."""

    path: Path
    sha256: str
    size: int
    changed: bool
    libraries: tuple[dict[str, object], ...]
    from_cache: bool
    pack: PackWheel | None = None  # of a split


class Cutter:
    """Cuts wheels for GPUs, and keeps the results in the cache."""

    def __init__(self, catalog: Catalog, cache_: Cache, options: JobCut, *, processes: int = 2) -> None:
        self._catalog, self._cache, self._options, self._processes = catalog, cache_, options, processes

    def cut(
        self,
        stock: Path,
        sha256: str,
        filename: str,
        gpus: Sequence[Gpus],
        progress: Progress | None = None,
        before_cut: Callable[[Sequence[Gpus]], None] | None = None,
    ) -> dict[Gpus, WheelCut]:
        """The wheel for each GPU, from the cache or cut now, all in one pass; each is proven before it is cached.

        No GPUs are for machines without one.
        A GPU that none of the wheel's code runs on is left out. `before_cut` gets the GPUs that are not in the cache.
        """
        keys = {gpu: cut_key(sha256, filename, gpu, self._options) for gpu in gpus}
        cuts = {
            gpu: known for gpu, key in keys.items() if (known := read_cut(self._cache.made(key), stock)) is not None
        }
        missing = [gpu for gpu in keys if gpu not in cuts]
        for gpu, key in keys.items():
            _log.info(
                "%s for %s %s (%s)",
                filename,
                shown_gpus(gpu),
                "is in the cache" if gpu in cuts else "will be cut",
                key[:12],
            )
        if not missing:
            return cuts
        if before_cut:
            before_cut(missing)

        def complete(folder: Path) -> bool:
            return read_cut(folder, stock) is not None

        with self._cache.staging() as staging:
            orders = [WheelOrder(staging / shown_gpus(gpu), self._cut_for(gpu)) for gpu in missing]
            outcomes = tailor_wheel_each(stock, orders, progress)
            for gpu, order, outcome in zip(missing, orders, outcomes, strict=True):
                if not outcome.useless_for_target:
                    _write(order.output, outcome)
                    folder = self._cache.put_made(keys[gpu], order.output, complete)
                    made = read_cut(folder, stock)
                    assert made is not None
                    cuts[gpu] = replace(made, from_cache=False)
        return cuts

    def _cut_for(self, gpus: Gpus) -> Cut:
        cut = Cut.of(self._options, processes=self._processes, rules=self._catalog.rules)
        archs = tuple(map(TorchArch, gpus))
        return replace(cut, targets=replace(cut.targets, archs=archs, source="variant"))


def parse_gpus(text: str) -> Gpus:
    """The GPUs that a job names: a compute capability, several with commas, or `none`."""
    return () if text == NO_GPU else tuple(map(Capability.parse, text.split(",")))


def shown_gpus(gpus: Gpus) -> str:
    """The same as a job names them."""
    return ",".join(map(str, gpus)) or NO_GPU


def cut_key(sha256: str, filename: str, gpus: Gpus, options: JobCut) -> str:
    """The key of a cut: its input, its options, and the code that cuts."""
    parts = [code_key(), sha256, filename, shown_gpus(gpus)]
    chosen = msgspec.json.encode(options, order="deterministic")
    return hashlib.sha256("\n".join(parts).encode() + b"\n" + chosen).hexdigest()


class _OutcomePack(msgspec.Struct):
    filename: FileName
    target: Label
    sha256: Sha256
    size: Size


class _Outcome(msgspec.Struct):
    filename: FileName
    changed: bool
    sha256: Sha256
    size: Size
    libraries: list[dict[str, Any]]
    pack: _OutcomePack | None = None


def read_cut(folder: Path, stock: Path) -> WheelCut | None:
    """What a folder of the cache holds; None where it is no whole cut."""
    try:
        outcome = decode_json(read_limited(folder / _OUTCOME, Limit.MANIFEST), _Outcome, _OUTCOME)
    except (OSError, BadInputError):
        return None
    path = folder / outcome.filename if outcome.changed else stock
    if outcome.changed and not is_intact(path, outcome.sha256):
        return None
    pack = None
    if (made := outcome.pack) is not None:
        pack = PackWheel(folder / made.filename, made.target, made.size, made.sha256)
        if not is_intact(pack.path, pack.sha256):
            return None
    with suppress(OSError):
        os.utime(folder / _OUTCOME)  # it is in use: `cache prune` goes by that
    libraries = tuple(outcome.libraries)
    return WheelCut(path, outcome.sha256, outcome.size, outcome.changed, libraries, from_cache=True, pack=pack)


def _write(scratch: Path, outcome: TailorResult) -> None:
    from torchtailor.tailoring.manifest import library_json

    assert outcome.output is not None
    changed = bool(outcome.changed)
    if changed:
        outcome.output.chmod(0o444)
    else:
        outcome.output.unlink()  # a copy of the stock wheel
    packs = [
        {"filename": pack.path.name, "target": pack.target, "sha256": pack.sha256, "size": pack.size}
        for pack in outcome.pack_wheels
    ]
    for pack in outcome.pack_wheels:
        pack.path.chmod(0o444)
    document = {
        **({"pack": packs[0]} if packs else {}),
        "filename": outcome.output.name,
        "changed": changed,
        "sha256": outcome.sha256_after,
        "size": outcome.size_after,
        "libraries": [library_json(library) for library in outcome.libraries],
    }
    (scratch / _OUTCOME).write_text(json.dumps(document, indent=1, sort_keys=True), "utf-8")

"""Cuts wheels for GPUs, each input and target once: results are in the cache under a key of all that decides them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.catalog import Capability, Catalog, TorchArch
from torchtailor.disk import is_intact
from torchtailor.errors import BadInputError
from torchtailor.fetch.cache import Cache
from torchtailor.gpucode.policy import Policy
from torchtailor.gpucode.targets import NO_GPU, Targets
from torchtailor.progress import Progress
from torchtailor.surgery.options import TailorOptions
from torchtailor.tailoring.result import PackWheel, TailorResult
from torchtailor.tailoring.wheel import WheelOrder, tailor_wheel_each
from torchtailor.trust import FileName, Label, Limit, Sha256, Size, decode_json, read_limited
from torchtailor.version import code_key
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import decode_trace

_log = logging.getLogger(__name__)
_OUTCOME = "outcome.json"


@dataclass(frozen=True, slots=True)
class CutOptions:
    """How wheels are cut."""

    nvidia: bool = False
    recompress: bool = False
    keep_ptx: bool = False
    strip: bool = True
    trace: str = ""  # of a workload, as JSON: what it does not use goes to packs
    margin: str = "exact"
    split: bool = False  # one wheel without GPU code for all GPUs, and a wheel of packs for each
    also: tuple[str, ...] = ()  # other distributions that are split, whose packs come with this one's


@dataclass(frozen=True, slots=True)
class WheelCut:
    """One wheel for one GPU; `path` is the stock wheel where nothing was cut."""

    path: Path
    sha256: str
    size: int
    changed: bool
    libraries: tuple[dict[str, object], ...]
    from_cache: bool
    pack: PackWheel | None = None  # of a split


class Cutter:
    """Cuts wheels for GPUs, and keeps the results in the cache."""

    def __init__(self, catalog: Catalog, cache_: Cache, options: CutOptions, *, processes: int = 2) -> None:
        self._catalog, self._cache, self._options, self._processes = catalog, cache_, options, processes

    def cut(
        self,
        stock: Path,
        sha256: str,
        filename: str,
        gpus: Sequence[Capability | None],
        progress: Progress | None = None,
        before_cut: Callable[[Sequence[Capability | None]], None] | None = None,
    ) -> dict[Capability | None, WheelCut]:
        """The wheel for each GPU, from the cache or cut now, all in one pass; each is proven before it is cached.

        None is for machines without a GPU.
        A GPU that none of the wheel's code runs on is left out. `before_cut` gets the GPUs that are not in the cache.
        """
        keys = {gpu: cut_key(sha256, filename, gpu, self._options) for gpu in gpus}
        cuts = {gpu: known for gpu, key in keys.items() if (known := _read(self._cache.made(key), stock)) is not None}
        missing = [gpu for gpu in keys if gpu not in cuts]
        for gpu, key in keys.items():
            _log.info("%s for %s %s (%s)", filename, gpu, "is in the cache" if gpu in cuts else "will be cut", key[:12])
        if not missing:
            return cuts
        if before_cut:
            before_cut(missing)

        def complete(folder: Path) -> bool:
            return _read(folder, stock) is not None

        with self._cache.staging() as staging:
            also = self._options.also
            orders = [WheelOrder(staging / str(gpu), self._tailor_options(gpu), also) for gpu in missing]
            outcomes = tailor_wheel_each(stock, orders, progress)
            for gpu, order, outcome in zip(missing, orders, outcomes, strict=True):
                if not outcome.useless_for_target:
                    _write(order.output, outcome)
                    folder = self._cache.put_made(keys[gpu], order.output, complete)
                    made = _read(folder, stock)
                    assert made is not None
                    cuts[gpu] = replace(made, from_cache=False)
        return cuts

    def _tailor_options(self, gpu: Capability | None) -> TailorOptions:
        """The one place where a build's options become those of the tailor."""
        options = self._options
        targets = Targets((TorchArch(gpu),) if gpu else (), options.keep_ptx, "variant")
        return TailorOptions(
            Policy(targets, self._catalog.rules),
            strip=None if options.strip else False,
            nvidia=options.nvidia,
            recompress=options.recompress,
            workload=TracedWorkload(decode_trace(options.trace.encode()), options.margin) if options.trace else None,
            split=options.split,
            processes=self._processes,
        )


def parse_gpu(text: str) -> Capability | None:
    """The GPU that a job names: a compute capability, or `none`."""
    return None if text == NO_GPU else Capability.parse(text)


def cut_key(sha256: str, filename: str, gpu: Capability | None, options: CutOptions) -> str:
    """The key of a cut: its input, its options, and the code that cuts."""
    parts = [code_key(), sha256, filename, str(gpu or NO_GPU), json.dumps(asdict(options))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


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


def _read(folder: Path, stock: Path) -> WheelCut | None:
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

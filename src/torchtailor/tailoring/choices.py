"""Makes a `Cut` of what was written: on a command line, or as arguments of the API."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torchtailor.advise.host.targets import ARCH_LIST_VARIABLE, read_targets
from torchtailor.catalog import load_catalog
from torchtailor.code.gpucode.targets import NO_GPU, Targets
from torchtailor.core.errors import UsageError
from torchtailor.surgery.cut import DEFAULT_LEVEL, Cut, HostPages, PackCompression
from torchtailor.workload.caches import Caches, read_caches
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import read_trace

# What is written otherwise than the fields are named.
_WRITTEN = ("keep_ptx", "margin")
CHOICES = (*_WRITTEN, *(field.name for field in fields(Cut) if field.name != "targets"))


def with_choices(
    cut: Cut,
    *,
    keep_ptx: bool | None = None,
    workload: Sequence[Path | str] | TracedWorkload | None = None,
    margin: str = "",
    drop: Iterable[str] = (),
    host_pages: str | HostPages | None = None,
    pack_compress: str | PackCompression | None = None,
    caches: Path | str | Caches | None = None,
    **others: Any,
) -> Cut:
    """The cut with these choices; `workload` are the files of traces, or what was read from them."""
    if margin and not workload:
        raise UsageError("--margin needs --workload.", "Add the trace of the program: --workload app.trace")
    if keep_ptx is not None:
        cut = replace(cut, targets=replace(cut.targets, keep_ptx=keep_ptx))
    if workload is not None and not isinstance(workload, TracedWorkload):
        workload = TracedWorkload.of([read_trace(Path(path)) for path in workload], margin or "exact")
    if host_pages is not None:
        others["host_pages"] = HostPages.of(host_pages) if isinstance(host_pages, str) else host_pages
    if pack_compress is not None:
        others["pack_compress"] = PackCompression.of(pack_compress) if isinstance(pack_compress, str) else pack_compress
    if caches is not None:
        others["caches"] = caches if isinstance(caches, Caches) else read_caches(Path(caches))
    return replace(cut, workload=workload or cut.workload, drop=tuple(drop) or cut.drop, **others)


def cut_for(
    gpus: str | Sequence[str] = (),
    *,
    keep_ptx: bool = False,
    environment: Mapping[str, str] = os.environ,
    **choices: Any,
) -> Cut:
    """The cut for these GPUs (without any, TORCH_CUDA_ARCH_LIST decides), with all that torchtailor.toml implies."""
    catalog = load_catalog()
    cut = with_choices(Cut(), **choices)
    named = gpus or environment.get(ARCH_LIST_VARIABLE)
    if named or keep_ptx or cut.workload is None or cut.workload.uses_gpu_code:
        targets = read_targets(gpus, catalog, environment, keep_ptx=keep_ptx)
    else:
        targets = Targets((), source="the trace", cpu=True)
    cut = replace(cut, targets=targets)
    if targets.none:
        check_without_gpu(cut)
    return cut.resolved(catalog)


def chosen_in(cut: Cut) -> dict[str, Any]:
    """What decides the bytes of a cut, by the names of the options that choose it."""
    used, pages = cut.workload, cut.pages
    values: dict[str, Any] = {
        "gpu": ",".join(map(str, cut.targets.archs)) or NO_GPU,
        "nvidia": cut.nvidia or None,
        "keep_ptx": cut.targets.keep_ptx or None,
        "no_lto": not cut.lto or None,
        "strip": cut.strip,
        "relr": cut.relr or None,
        "recompress": cut.recompress or None,
        "zstd_level": cut.level if cut.recompress and cut.level != DEFAULT_LEVEL else None,
        "driver": cut.driver,
        "split": cut.split or None,
        "workload": used and used.label,
        "margin": used and used.margin,
        "no_pack": cut.no_pack or None,
        "host_pages": pages.value if cut.host_pages or pages is not HostPages.KEEP else None,
        "gap": cut.gap,
        "debuggable": cut.debuggable or None,
        "pack_compress": cut.pack_compress.value if cut.pack_compress is not PackCompression.NONE else None,
        "drop_unopened": cut.drop_unopened or None,
        "bake_caches": cut.caches and cut.caches.digest[:7],
        "index_modules": cut.index_modules or None,
        "drop": ",".join(sorted(cut.drop)) or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def words_of(chosen: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line, by their names; a value that is a list is given one by one."""
    words: list[str] = []
    for name, value in chosen.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [
                word for one in (value if isinstance(value, list) else [value]) for word in (f"--{option}", str(one))
            ]
    return words


def check_without_gpu(cut: Cut) -> None:
    """Refuse choices about GPU code where all of it is removed."""
    given = {"--split": cut.split, "--workload": cut.workload is not None, "--keep-ptx": cut.targets.keep_ptx}
    if names := [name for name, chosen in given.items() if chosen]:
        raise UsageError(
            f"--gpu none removes all GPU code: it cannot be combined with {' and '.join(names)}.",
            "Leave one of them out.",
        )

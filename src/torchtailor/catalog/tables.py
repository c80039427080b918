"""The tables of the catalog's TOML files and of `torchtailor.toml`, and how a file adds to those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from torchtailor.catalog.budgets import Budget
from torchtailor.catalog.compiled import CompiledBuild
from torchtailor.catalog.cpus import CpuName, Isa, Microarchitecture
from torchtailor.catalog.gpus import Capability, Gpu
from torchtailor.catalog.methods import Method
from torchtailor.catalog.releases import ExtraRow, Release
from torchtailor.catalog.schema import Dotted, Strict, Word, decode
from torchtailor.catalog.toolkits import CudaToolkit, Cudnn, DriverBranch, Triton

# The key that tells the rows of a table apart, and how it is read.
KEYS: Mapping[str, str] = {
    "gpu": "capability",
    "isa": "name",
    "microarchitecture": "name",
    "cuda": "version",
    "cudnn": "version",
    "triton": "version",
    "driver": "branch",
    "release": "name",
    "method": "name",
    "compiled": "isa",
    "build": "cuda",
}
_WORDS: Mapping[str, type[Word]] = {"capability": Capability, "version": Dotted, "cuda": Dotted}
_REPLACE = "replace"
_REPLACE_MEANING = (
    "true: this row takes the place of the catalog's row with the same key. Without it the two are merged: lists are "
    "appended, tables are merged, and other values override the catalog's."
)


class TailorSettings(Strict, frozen=True, kw_only=True):
    """The user's standing choices for cutting."""

    nvidia: Annotated[bool, Meta(description="Cut NVIDIA's libraries too, on this machine.")] = False


class FarmSettings(Strict, frozen=True, kw_only=True):
    """A cluster that `build --on NAME` uses: the address of its scheduler, or how Dask starts one."""

    scheduler: Annotated[str, Meta(description="The address of a running scheduler: tls://host:8786.")] = ""
    cluster: Annotated[
        str,
        Meta(description="What Dask starts: slurm, pbs, sge, lsf, oar, htcondor, ssh, kubernetes, or module:Class."),
    ] = ""
    options: Annotated[
        Mapping[str, Any], Meta(description="The arguments of that class, handed to Dask as they are.")
    ] = {}
    workers: Annotated[int, Meta(description="How many workers are asked for.", ge=1)] = 1
    store: Annotated[str, Meta(description="The store, where --store is not given.", min_length=1)] = ""
    store_key: Annotated[
        str, Meta(description="A file with the key that all who share the store have, for signatures.", min_length=1)
    ] = ""
    objects: Annotated[str, Meta(description="The object cache, where --objects is not given.", min_length=1)] = ""
    cache: Annotated[
        str, Meta(description="A folder of each worker's own disk, for what it fetches.", min_length=1)
    ] = ""
    processes: Annotated[int, Meta(description="Processes that one job of a worker may use.", ge=1)] = 1
    job_timeout: Annotated[
        int,
        Meta(description="Seconds without news until a job counts as hung; 0: ten times its time, at least 1 h.", ge=0),
    ] = 0
    wait_minutes: Annotated[
        int,
        Meta(description="Minutes without any worker until a run ends; 0: 60 of `cluster`, 10 of `scheduler`.", ge=0),
    ] = 0


class CatalogTables(Strict, frozen=True, kw_only=True):
    """All tables of the catalog; `torchtailor.toml` adds to them, and holds settings."""

    gpu: Annotated[tuple[Gpu, ...], Meta(description="GPU architectures.")] = ()
    isa: Annotated[tuple[Isa, ...], Meta(description="CPU instruction sets that variants are compiled for.")] = ()
    microarchitecture: Annotated[tuple[Microarchitecture, ...], Meta(description="CPU cores and their flags.")] = ()
    cpu_name: Annotated[tuple[CpuName, ...], Meta(description="Names of CPUs; the first that matches counts.")] = ()
    cuda: Annotated[tuple[CudaToolkit, ...], Meta(description="CUDA toolkits.")] = ()
    cudnn: Annotated[tuple[Cudnn, ...], Meta(description="cuDNN releases.")] = ()
    triton: Annotated[tuple[Triton, ...], Meta(description="Triton releases.")] = ()
    driver: Annotated[tuple[DriverBranch, ...], Meta(description="Branches of NVIDIA's driver.")] = ()
    release: Annotated[tuple[Release, ...], Meta(description="PyTorch releases.")] = ()
    compiled: Annotated[
        tuple[CompiledBuild, ...], Meta(description="What builds from source gained over the official wheel.")
    ] = ()
    method: Annotated[tuple[Method, ...], Meta(description="Build methods.")] = ()
    row: Annotated[tuple[ExtraRow, ...], Meta(description="More variants of releases that exist.")] = ()
    sources: Annotated[Mapping[str, str], Meta(description="What the names in `sources` stand for.")] = {}
    checked: Annotated[str, Meta(description="The day on which the facts were last checked.")] = ""
    wheel_index: Annotated[
        str, Meta(description="The index of PyTorch's official wheels; {label} stands for cpu, cu128, ...")
    ] = ""
    tailor: Annotated[TailorSettings, Meta(description="Standing choices for cutting.")] = TailorSettings()
    budget: Annotated[Budget, Meta(description="Sizes that `diff --budget torchtailor.toml` allows.")] = Budget()
    farm: Annotated[Mapping[str, FarmSettings], Meta(description="Clusters, by the name that --on takes.")] = {}


def read_tables(documents: Sequence[Mapping[str, Any]]) -> CatalogTables:
    """The documents as one, each added to those before it."""
    merged: Mapping[str, Any] = {}
    for document in documents:
        merged = _merge(merged, document)
    return decode(merged, CatalogTables, {**KEYS, "row": "release", "cpu_name": "label"})


def _merge(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**base, **{name: _join(name, base.get(name), value) for name, value in more.items()}}


def _join(name: str, old: object, new: object) -> object:
    """Two values of one key: tables are merged, rows by their key, lists appended; anything else is overridden."""
    if name in KEYS and isinstance(new, list):
        return _join_rows(old if isinstance(old, list) else [], new, KEYS[name])
    if name == "checked" and isinstance(old, str) and isinstance(new, str):
        return max(old, new)  # an old file does not make newer facts old
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _merge(old, new)
    if isinstance(old, list) and isinstance(new, list):
        return [*old, *(item for item in new if item not in old)]
    return new


def _join_rows(old: list[Any], new: list[Any], key: str) -> list[Any]:
    if not all(isinstance(row, Mapping) for row in new):
        return [*old, *new]  # the decoder says what is wrong
    rows = {_identity(row, key): row for row in old}
    for row in new:
        replace = row.get(_REPLACE, False)
        if replace not in (True, False):
            raise ValueError(f"{key} {row.get(key)}: `{_REPLACE}` must be true or false, not {replace!r}")
        identity = _identity(row, key)
        base = {} if replace else rows.get(identity, {})
        known = (_REPLACE, key) if base else (_REPLACE,)
        rows[identity] = _merge(base, {name: value for name, value in row.items() if name not in known})
    return list(rows.values())


def _identity(row: Mapping[str, Any], key: str) -> object:
    """What tells a row apart; a word that cannot be read stands for itself, and the decoder says what is wrong."""
    text = row.get(key)
    try:
        return _WORDS[key].parse(text) if key in _WORDS and isinstance(text, str) else str(text)
    except ValueError:
        return text


def user_file_schema() -> dict[str, Any]:
    """The JSON schema of `torchtailor.toml`.

    A row that is merged into the catalog's needs no more than its key.
    """
    (reference,), definitions = msgspec.json.schema_components([CatalogTables], schema_hook=_word_schema)
    for definition in [*definitions.values()]:
        for table, value in definition.get("properties", {}).items():
            if table in KEYS and "items" in value:
                _allow_merging(definitions[value["items"]["$ref"].rpartition("/")[2]], KEYS[table])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "torchtailor.toml",
        **reference,
        "$defs": definitions,
    }


def _allow_merging(definition: dict[str, Any], key: str) -> None:
    definition["required"] = [name for name in definition["required"] if name == key]
    definition["properties"][_REPLACE] = {"type": "boolean", "default": False, "description": _REPLACE_MEANING}


def _word_schema(kind: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": kind.pattern}

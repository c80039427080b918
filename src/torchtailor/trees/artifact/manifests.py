"""The manifests in an artifact, which others may have written: what is read of them has the type it should have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from torchtailor.core.trust import Gpus, Size, decode_json

_Gpu = Annotated[str, Meta(pattern=r"^[0-9]{1,2}\.[0-9]$")]
_Arch = Annotated[str, Meta(pattern=r"^[0-9]{1,2}\.[0-9][af]?(\+PTX)?$")]


class _Target(Struct):
    gpus: tuple[_Gpu, ...] = ()
    archs: tuple[_Arch, ...] = ()
    label: str | None = None
    keep_ptx: bool = False
    gpu: Gpus | None = None  # of a wheelhouse: one, or those of a machine, with commas
    isa: str = ""
    arch: str = ""
    python: str = ""


class _Workload(Struct):
    pack: object = None


class _Policy(Struct):
    split: object = None
    lto: object = None
    workload: _Workload | UnsetType = UNSET


class _Tally(Struct):
    stored: Size


class _Library(Struct):
    path: str = ""
    status: str = ""
    size_before: Size = 0
    size_after: Size = 0
    sha256_before: str | None = None
    sha256_after: str | None = None
    instructions_sha256: str | None = None
    kept: Mapping[str, _Tally] = {}
    moved: Mapping[str, _Tally] = {}
    dropped: Mapping[str, _Tally] = {}


class _Dropped(Struct):
    path: str = ""


class _Output(Struct):
    kind: str = ""


class _Input(Struct):
    name: str = ""


class _Tailored(Struct):
    target: _Target | UnsetType = UNSET
    policy: _Policy | UnsetType = UNSET
    libraries: tuple[_Library, ...] = ()
    dropped_files: tuple[_Dropped, ...] = ()
    input: _Input | UnsetType = UNSET
    output: _Output | UnsetType = UNSET


class _File(Struct):
    filename: str
    sha256: str
    size: Size


class _Wheel(Struct):
    output: _File
    input: _File | UnsetType = UNSET
    step: str = ""
    name: str = ""


class _Totals(Struct):
    input_bytes: Size = 0
    output_bytes: Size = 0


class _Proof(Struct):
    libraries_of_the_system: tuple[str, ...] = ()


class _Wheelhouse(Struct):
    variant: str = ""
    target: _Target | UnsetType = UNSET
    wheels: tuple[_Wheel, ...] = ()
    requirements: tuple[str, ...] = ()
    totals: _Totals | UnsetType = UNSET
    proof: _Proof | None = None


def read_tailored(data: bytes, owner: str) -> Mapping[str, Any]:
    """The torchtailor.json of something that was cut; `owner` is what an error calls it."""
    return _checked(data, _Tailored, owner)


def read_wheelhouse_manifest(data: bytes, owner: str) -> Mapping[str, Any]:
    """The manifest.json of a wheelhouse."""
    return _checked(data, _Wheelhouse, owner)


def _checked(data: bytes, shape: type[Struct], owner: str) -> Mapping[str, Any]:
    hint = "Fetch or build it again."
    decode_json(data, shape, owner, hint)
    whole: dict[str, Any] = decode_json(data, dict[str, Any], owner, hint)
    return whole

"""The pins of recipes: nixpkgs revisions, PyTorch sources, patches, DGX Spark components, and their hashes."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from torchtailor.catalog.schema import Strict
from torchtailor.core.errors import BadInputError, NoMatchError
from torchtailor.core.shapes import shaped
from torchtailor.core.tables import read_table
from torchtailor.core.trust import decode_toml
from torchtailor.nix.tree import read_recipe

LOCK_NAME = "torchtailor-hashes.toml"
KEPT_NAME = "torchtailor-kept.toml"
UNKNOWN_HASH = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
_SRI = re.compile(r"sha256-[A-Za-z0-9+/]{43}=")


class NixpkgsRow(Strict, frozen=True):
    """A nixpkgs revision and the versions in it."""

    rev: str
    torch: str
    pythons: tuple[str, ...]
    cuda: Mapping[str, str]
    aliases: Mapping[str, str]
    broken_cuda: tuple[int, ...] = ()
    triton: str = ""
    torchvision: str = ""
    torchaudio: str = ""
    cudnn_refuses: Mapping[str, tuple[str, ...]] = {}
    sha256: str = ""
    verified: tuple[str, ...] = ()
    believed: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"https://github.com/NixOS/nixpkgs/archive/{self.rev}.tar.gz"

    @property
    def key(self) -> str:
        return f"nixpkgs/{self.rev}"


class SourceRow(Strict, frozen=True):
    """PyTorch's source at one revision, and the version in nixpkgs whose recipe it is built with."""

    version: str
    rev: str
    on: str
    hash: str = ""
    sources: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"pytorch/{self.rev}"


class MagmaRow(Strict, frozen=True):
    """MAGMA's patch for a CUDA major."""

    name: str
    commit: str
    cuda_major: int
    hash: str = ""
    sources: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"https://github.com/icl-utk-edu/magma/commit/{self.commit}.patch"

    @property
    def key(self) -> str:
        return f"magma/{self.commit}"


class ComponentRow(Strict, frozen=True):
    """One CUDA component package for DGX Spark."""

    name: str
    version: str
    summary: str


class SparkRow(Strict, frozen=True):
    """What DGX Spark (SM121) needs in addition to the matrix."""

    cuda: str
    gpu: str
    isa: str
    release: str
    repository: str
    component: tuple[ComponentRow, ...]
    nightly: SourceRow
    sources: tuple[str, ...] = ()


class SiblingSource(Strict, frozen=True):
    """The source of a sibling for one version of PyTorch."""

    torch: str
    version: str
    rev: str
    hash: str = ""


class SiblingRow(Strict, frozen=True):
    """A package that is built on torch, from a repository of the same organisation."""

    name: str
    repo: str
    source: tuple[SiblingSource, ...] = ()
    sources: tuple[str, ...] = ()

    def for_torch(self, version: str) -> SiblingSource | None:
        return next((row for row in self.source if row.torch == version), None)

    def key(self, source: SiblingSource) -> str:
        return f"{self.name}/{source.rev}"


class WithoutRow(Strict, frozen=True):
    """What builds for a CPU instruction set or a GPU must disable."""

    exports: Mapping[str, str]
    parts: tuple[str, ...]
    why: str
    isa: str | None = None
    gpu: str | None = None
    cache: tuple[str, ...] = ()


class NixFile(Strict, frozen=True):
    """The content of nix.toml."""

    checked: str
    sources: Mapping[str, str]
    nixpkgs: tuple[NixpkgsRow, ...]
    source: tuple[SourceRow, ...]
    magma: MagmaRow
    spark: SparkRow
    sibling: tuple[SiblingRow, ...] = ()
    without: tuple[WithoutRow, ...] = ()


class KeptRow(Strict, frozen=True):
    """What a migration kept of a hand-written recipe."""

    description: str = ""
    long_description: tuple[str, ...] = ()
    cpu_flags: tuple[str, ...] = ()
    exports: Mapping[str, str] = {}
    comments: tuple[str, ...] = ()  # those above it
    nixpkgs: str = ""  # a revision that the catalog does not know
    nixpkgs_sha256: str = ""
    not_carried: tuple[str, ...] = ()  # what only its author can place; for the record


class LockFile(Strict, frozen=True):
    """The lock of a tree: hashes that `recipes hash` found."""

    hashes: Mapping[str, str]


@dataclass(frozen=True)
class Pins:
    """All pins, with the hashes of a tree's lock over the packaged ones."""

    file: NixFile
    lock: Mapping[str, str]
    kept: Mapping[str, KeptRow] = field(default_factory=dict)

    @cached_property
    def _nixpkgs(self) -> Mapping[str, NixpkgsRow]:
        return {row.rev: row for row in self.file.nixpkgs}

    def nixpkgs(self, rev: str) -> NixpkgsRow:
        if rev not in self._nixpkgs:
            raise NoMatchError(
                f"The nixpkgs revision {rev} is unknown.",
                f"Use {' or '.join(known[:12] for known in self._nixpkgs)}, or add a [[nixpkgs]] row to nix.toml.",
            )
        return self._nixpkgs[rev]

    @property
    def newest(self) -> NixpkgsRow:
        """The newest revision, which recipes from wheels use."""
        return self.file.nixpkgs[-1]

    def find_nixpkgs(self, rev: str) -> NixpkgsRow | None:
        """The row of a revision, which may be abbreviated; None if it is unknown."""
        return next((row for row in self.file.nixpkgs if rev and row.rev.startswith(rev)), None)

    def source(self, version: str) -> SourceRow:
        for row in self.file.source:
            if row.version == version:
                return row
        raise NoMatchError(f"The source of PyTorch {version} is not pinned.", "Add a [[source]] row to nix.toml.")

    def hash_of(self, row: NixpkgsRow | SourceRow | MagmaRow) -> str:
        """The hash of a pin; empty if it is not known yet."""
        packaged = row.sha256 if isinstance(row, NixpkgsRow) else row.hash
        return self.lock.get(row.key, packaged)

    def unknown_source(self, row: Mapping[str, object]) -> str:
        """The key of the source that a recipe's row is built from, if its hash is not known."""
        sources = (*self.file.source, self.file.spark.nightly)
        known = [(source.version, source.key, self.hash_of(source)) for source in sources]
        if (package := row.get("package")) is not None:
            siblings = [sibling for sibling in self.file.sibling if sibling.name == package]
            known = [
                (source.version, sibling.key(source), self.lock.get(sibling.key(source), source.hash))
                for sibling in siblings
                for source in sibling.source
            ]
        return next((key for version, key, value in known if version == row.get("version") and not value), "")

    def sibling(self, name: str) -> SiblingRow:
        for row in self.file.sibling:
            if row.name == name:
                return row
        known = ", ".join(row.name for row in self.file.sibling)
        raise NoMatchError(f"There are no recipes of {name!r}.", f"Write --with {known}.")


def load_pins(tree: Path | None = None) -> Pins:
    """The packaged pins, with the lock of a tree (its `.flox` folder) if given."""
    packaged = read_table("catalog", "nix.toml", NixFile)
    return Pins(packaged, read_lock(tree), read_kept(tree)) if tree else Pins(packaged, {})


def read_lock(flox: Path) -> Mapping[str, str]:
    """The hashes of a tree's lock; empty without a lock."""
    path = flox / LOCK_NAME
    if not path.is_file():
        return {}
    try:
        lock = msgspec.convert(decode_toml(read_recipe(path)), shaped(LockFile))
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise BadInputError(
            f"{path} is not a valid lock file: {error}.", "Delete it and run `torchtailor recipes hash` again."
        ) from error
    for key, value in lock.hashes.items():
        if not _SRI.fullmatch(value):
            raise BadInputError(
                f"{path}: the hash of {key} is {value!r}, not sha256-... of 43 characters and `=`.",
                "Delete that line and run `torchtailor recipes hash` again.",
            )
    return dict(lock.hashes)


def read_kept(flox: Path) -> Mapping[str, KeptRow]:
    """What a migration kept of a tree's hand-written recipes, by name."""
    path = flox / KEPT_NAME
    if not path.is_file():
        return {}
    try:
        kept = msgspec.convert(decode_toml(read_recipe(path)), shaped(dict[str, KeptRow]))
        _check_kept(kept)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise BadInputError(
            f"{path} is not valid: {error}.",
            "Each table is a recipe's name, with description, long_description, cpu_flags, exports, comments, nixpkgs, "
            "nixpkgs_sha256 and not_carried.",
        ) from error
    return kept


def _check_kept(kept: Mapping[str, KeptRow]) -> None:
    """Exports become shell code and pins Nix code, so they must be plain words; a comment is one line."""
    for row in kept.values():
        if not re.fullmatch(r"(?:[0-9a-f]{7,40})?", row.nixpkgs):
            raise msgspec.ValidationError(f"{row.nixpkgs!r} is not a revision of nixpkgs")
        if not re.fullmatch(r"[\w:/+=-]*", row.nixpkgs_sha256):
            raise msgspec.ValidationError(f"{row.nixpkgs_sha256!r} is not a hash")
        if split := next((text for text in row.comments if len(text.splitlines()) > 1), None):
            raise msgspec.ValidationError(f"{split!r} is not one line")
        for name, value in row.exports.items():
            if not re.fullmatch(r"[A-Za-z_]\w*", name) or not re.fullmatch(r"[\w.,:/+=;%@-]*", value):
                raise msgspec.ValidationError(f"{name}={value} is not a variable with a plain value")


def kept_text(kept: Mapping[str, KeptRow]) -> str:
    """The kept rows as TOML, whose strings may be written as JSON's."""
    tables = []
    for name, row in sorted(kept.items()):
        lines = [f"[{json.dumps(name)}]"]
        texts = {key: getattr(row, key) for key in ("description", "nixpkgs", "nixpkgs_sha256")}
        lines += [f"{key} = {json.dumps(text, ensure_ascii=False)}" for key, text in texts.items() if text]
        for key in ("long_description", "cpu_flags", "comments", "not_carried"):
            if values := getattr(row, key):
                lines.append(f"{key} = [")
                lines += [f"    {json.dumps(value, ensure_ascii=False)}," for value in values]
                lines.append("]")
        if row.exports:
            pairs = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(row.exports.items()))
            lines.append(f"exports = {{ {', '.join(pairs)} }}")
        tables.append("\n".join(lines) + "\n")
    head = "# Kept from hand-written recipes; `torchtailor recipes write` puts it into the generated ones.\n\n"
    return head + "\n".join(tables)


def lock_text(hashes: Mapping[str, str]) -> str:
    """The lock as TOML."""
    lines = [f'"{key}" = "{value}"' for key, value in sorted(hashes.items())]
    head = "# Hashes found by `torchtailor recipes hash`; `torchtailor recipes write` puts them into the recipes.\n"
    return head + "[hashes]\n" + "\n".join(lines) + ("\n" if lines else "")

"""Finds missing hashes: runs a fetch that must fail, reads the right hash from Nix's error, and writes it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.catalog.load import Catalog
from torchtailor.core.disk import write_output
from torchtailor.core.errors import BuildFailedError, NoMatchError
from torchtailor.nix.audit import open_tree
from torchtailor.nix.flake import FLAKE, FilledFlake, fill_flake, find_flake
from torchtailor.nix.nix import need_tool, run_nix
from torchtailor.nix.nixerrors import HASH_MISMATCH, explain
from torchtailor.nix.nixlibrary import library_files
from torchtailor.nix.pins import LOCK_NAME, UNKNOWN_HASH, load_pins, lock_text, read_lock
from torchtailor.nix.recipe import ARCHIVE, PinUse, Recipe
from torchtailor.nix.render import rerender
from torchtailor.nix.rules import AuditContext
from torchtailor.nix.syntax import Binding, NixSource
from torchtailor.nix.tree import FileOrigin, find_trees, restamp

_BASE32 = "0123456789abcdfghijklmnpqrsvwxyz"
_ZEROS = "0" * 52
_NIXPKGS = "nixpkgs/"  # and the revision: the key of a pin in the lock
_MISSING = ("", UNKNOWN_HASH)
_UNKNOWN_PIN = "\n    # sha256 is not known yet: `torchtailor recipes hash` fills it in"  # as in the templates
# The recipe's source if it has one, else the recipe itself.
_SOURCE = "let r = (\n{text}\n); d = if builtins.isFunction r then r {{ }} else r; in d.src or d"


@dataclass(frozen=True, slots=True)
class FoundHash:
    """A hash that was missing or wrong."""

    key: str
    before: str
    after: str
    recipe: str


@dataclass(frozen=True)
class HashResult:
    """The hashes found for one tree, and the files they were written to."""

    found: tuple[FoundHash, ...]
    written: tuple[Path, ...]


@dataclass(frozen=True)
class HashResults:
    """The hashes found for all trees at a folder."""

    trees: tuple[HashResult, ...]


def find_hashes(
    catalog: Catalog, root: Path, names: Sequence[str] = (), *, dry_run: bool = False
) -> tuple[HashResult, ...]:
    """Find the missing hashes of recipes (of all, without names) in every tree at a folder, and write them into the
    lock and the recipes."""
    contexts = [open_tree(catalog, tree, with_nix=False) for tree in find_trees(root)]
    for context in contexts:
        context.require_recipes()
        context.require_all_read()
    for name in names:
        if not any(name in context.names for context in contexts):
            raise NoMatchError(f"There is no recipe {name} in {root}.", "`torchtailor recipes write` writes recipes.")
    need_tool("nix-build")
    return tuple(_hash_tree(catalog, context, names, dry_run=dry_run) for context in contexts)


def _hash_tree(catalog: Catalog, context: AuditContext, names: Sequence[str], *, dry_run: bool) -> HashResult:
    known: dict[str, str] = {}
    found: list[FoundHash] = []
    texts: dict[Path, str] = {}
    for recipe in context.recipes:
        if not recipe.readable or (names and recipe.name not in names):
            continue
        for item, text in _of_recipe(recipe, context, known):
            found.append(item)
            texts[recipe.path] = text
    flake = _flake(context, known)
    found += [FoundHash(f"{_NIXPKGS}{rev}", "", value, FLAKE) for rev, value in flake.hashes.items()] if flake else []
    written: tuple[Path, ...] = ()
    if not dry_run and (known or texts):
        written = _write(catalog, context, known, texts)
    if not dry_run and flake:
        write_output(flake.path, flake.text.encode())
        written = (*written, flake.path)
    return HashResult(tuple(dict.fromkeys(found)), written)


def _flake(context: AuditContext, known: Mapping[str, str]) -> FilledFlake | None:
    """The tree's flake with the hashes of the nixpkgs that the recipes pin."""
    path = find_flake(context.tree.root)
    hashes = {
        key.removeprefix(_NIXPKGS): value
        for key, value in {**context.pins.lock, **known}.items()
        if key.startswith(_NIXPKGS)
    }
    return fill_flake(path, hashes) if path else None


def prefetch_tarball(url: str) -> str:
    """The hash of an unpacked tarball, as fetchTarball expects it."""
    expression = f'builtins.fetchTarball {{ url = {json.dumps(url)}; sha256 = "{_ZEROS}"; }}'
    done = run_nix("nix-instantiate", ["--eval", "--expr", expression])
    return _got(done.code, done.err, url)


def fetch_source(recipe: Path, text: str) -> tuple[str, str] | None:
    """Run the fetch of a recipe's text: the hash it has and the one it should have; None if the fetch succeeds."""
    # The text and not its file, of which a pin may just have got its hash; its paths are relative to the folder.
    done = run_nix("nix-build", ["--no-out-link", "--expr", _SOURCE.format(text=text)], folder=recipe.resolve().parent)
    if done.code == 0:
        return None
    specified = re.search(r"(?:specified|wanted):\s*(\S+)", done.err)
    return (to_sri(specified[1]) if specified else UNKNOWN_HASH), _got(done.code, done.err, recipe.name)


def to_sri(text: str) -> str:
    """A sha256 in any of Nix's notations as `sha256-...=`."""
    bare = text.removeprefix("sha256:")
    if bare.startswith("sha256-"):
        return bare
    if re.fullmatch(r"[0-9a-f]{64}", bare):
        return "sha256-" + base64.b64encode(bytes.fromhex(bare)).decode()
    if re.fullmatch(rf"[01][{_BASE32}]{{51}}", bare):
        number = 0
        for letter in bare:
            number = number * 32 + _BASE32.index(letter)
        return "sha256-" + base64.b64encode(number.to_bytes(32, "little")).decode()
    raise BuildFailedError(f"Nix printed a hash that is not a sha256: {text!r}.", "Recipes need sha256 hashes.")


def _got(code: int, errors: str, what: str) -> str:
    failure = explain(errors)
    if failure.cause != HASH_MISMATCH or not failure.got:
        if code == 0:
            raise BuildFailedError(
                f"{what} was fetched although its hash is a placeholder.", "Check that the Nix store is writable."
            )
        raise failure.error()
    return to_sri(failure.got)


def _of_recipe(recipe: Recipe, context: AuditContext, known: dict[str, str]) -> list[tuple[FoundHash, str]]:
    """The hashes that a recipe lacks, each with the recipe's text after it was filled in."""
    results: list[tuple[FoundHash, str]] = []
    text = recipe.text
    for pin in recipe.pins:
        key = f"{_NIXPKGS}{pin.rev}"
        if pin.hash not in _MISSING:
            continue
        if key not in known:
            known[key] = context.pins.lock.get(key) or prefetch_tarball(_pin_url(recipe, pin))
        text = insert_pin_hash(text, pin, known[key])
        results.append((FoundHash(key, "", known[key], recipe.name), text))
    key = context.pins.unknown_source(recipe.row) or (_source_key(recipe) if _placeholder(recipe.source) else "")
    if key and key not in known and (hashes := fetch_source(recipe.path, text)):
        before, after = hashes
        known[key] = after
        text = replace_placeholder(NixSource(text), after)
        results.append((FoundHash(key, before, after, recipe.name), text))
    return results


def _placeholder(source: NixSource) -> Binding | None:
    """The binding of a source's hash that is empty or a placeholder; those of pins are not a source's."""
    for binding in source.named("hash", "sha256", "outputHash"):
        if source.value(binding.node) in _MISSING and not _is_pin(source, binding):
            return binding
    return None


def _is_pin(source: NixSource, binding: Binding) -> bool:
    """Whether a binding is beside the address of a nixpkgs."""
    urls = (source.value(peer.node) for peer in _beside(source, binding) if peer.name == "url")
    return any(isinstance(url, str) and ARCHIVE.search(url) for url in urls)


def _beside(source: NixSource, binding: Binding) -> tuple[Binding, ...]:
    """The bindings of the same attribute set."""
    return source.inside(binding.node.parent.parent.parent)  # binding, binding set, attribute set


def _source_key(recipe: Recipe) -> str:
    rev = recipe.source.last("rev")
    value = recipe.source.value(rev.node) if rev else None
    package = recipe.recipe_name.package if recipe.recipe_name else "pytorch"
    return f"{package}/{value}" if isinstance(value, str) else f"recipe/{recipe.name}"


def _pin_url(recipe: Recipe, pin: PinUse) -> str:
    for binding in recipe.source.named("url"):
        value = recipe.source.value(binding.node)
        if isinstance(value, str) and pin.rev in value:
            return value
    return f"https://github.com/NixOS/nixpkgs/archive/{pin.rev}.tar.gz"


def replace_placeholder(source: NixSource, after: str) -> str:
    """The text with the first placeholder replaced, found in the syntax tree."""
    binding = _placeholder(source)
    if binding is None:
        return source.text
    return _with_value(source, binding, after)


def _with_value(source: NixSource, binding: Binding, value: str) -> str:
    """The text with a string as the value of a binding."""
    raw = source.text.encode()
    return (raw[: binding.node.start_byte] + f'"{value}"'.encode() + raw[binding.node.end_byte :]).decode()


def insert_pin_hash(text: str, pin: PinUse, value: str) -> str:
    """The text with the pin's `sha256`: in the place of an empty one, else after its url."""
    source = NixSource(text)
    raw = text.encode()
    for binding in source.named("url"):
        found = source.value(binding.node)
        if isinstance(found, str) and pin.rev in found:
            present = next((peer for peer in _beside(source, binding) if peer.name == "sha256"), None)
            if present and source.value(present.node) not in _MISSING:
                continue
            if present:
                return _with_value(source, present, value)
            end = raw.index(b";", binding.node.end_byte) + 1
            indent = " " * int(binding.node.parent.start_point[1])
            return (raw[:end] + f'\n{indent}sha256 = "{value}";'.encode() + raw[end:]).decode()
    return text


def _write(catalog: Catalog, context: AuditContext, known: dict[str, str], texts: dict[Path, str]) -> tuple[Path, ...]:
    """Write the lock, rewrite generated recipes from it, and edit the hash into hand-written ones."""
    flox = context.tree.flox
    lock = flox / LOCK_NAME
    write_output(lock, lock_text({**read_lock(flox), **known}).encode())
    written = [lock]
    pins = load_pins(flox)
    for name, library in library_files(catalog, pins).items():
        if (flox / name).is_file() and (flox / name).read_text("utf-8") != library:
            write_output(flox / name, library.encode())
            written.append(flox / name)
    for recipe in context.recipes:
        if recipe.origin is FileOrigin.GENERATED and (text := rerender(catalog, pins, recipe)) is not None:
            new = text
        elif recipe.path in texts and recipe.origin is FileOrigin.GENERATED:
            new = restamp(texts[recipe.path].replace(_UNKNOWN_PIN, ""))
        elif recipe.path in texts:
            new = texts[recipe.path]
        else:
            continue
        if new != recipe.text:
            write_output(recipe.path, new.encode())
            written.append(recipe.path)
    return tuple(written)

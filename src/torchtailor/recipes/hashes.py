"""`recipes hash`: runs a fetch that must fail, reads the right hash from Nix's error, and writes it down."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.catalog.load import Catalog
from torchtailor.disk import write_output
from torchtailor.errors import BuildFailedError, NoMatchError
from torchtailor.recipes.audit import open_tree
from torchtailor.recipes.header import Origin
from torchtailor.recipes.nix import need_tool, run_nix
from torchtailor.recipes.nixerrors import Cause, explain
from torchtailor.recipes.pins import LOCK_NAME, UNKNOWN_HASH, load_pins, lock_text, read_lock
from torchtailor.recipes.recipe import PinUse, Recipe
from torchtailor.recipes.rerender import rerender
from torchtailor.recipes.rules import Context
from torchtailor.recipes.syntax import Binding, Source
from torchtailor.recipes.tree import Tree

_BASE32 = "0123456789abcdfghijklmnpqrsvwxyz"
_ZEROS = "0" * 52
# Whatever the recipe is: its source where it has one, else itself.
_SOURCE = "let r = import {path}; d = if builtins.isFunction r then r {{ }} else r; in d.src or d"


@dataclass(frozen=True, slots=True)
class FoundHash:
    """A hash that was not known, or not right."""

    key: str
    before: str
    after: str
    recipe: str


@dataclass(frozen=True)
class HashResult:
    """What `recipes hash` found and which files carry it now."""

    found: tuple[FoundHash, ...]
    written: tuple[Path, ...]


def find_hashes(
    catalog: Catalog, tree: Tree, names: Sequence[str] = (), *, release: str | None = None, dry_run: bool = False
) -> HashResult:
    """Find the unknown hashes of recipes (of all, without names) and write them into the lock and the recipes."""
    need_tool("nix-build")
    context = open_tree(catalog, tree, release=release, by_nix=False)
    chosen = _chosen(context, names)
    known: dict[str, str] = {}
    found: list[FoundHash] = []
    texts: dict[Path, str] = {}
    for recipe in chosen:
        for item, text in _of_recipe(recipe, context, known):
            found.append(item)
            if text is not None:
                texts[recipe.path] = text
    if dry_run or not found:
        return HashResult(tuple(dict.fromkeys(found)), ())
    return HashResult(tuple(dict.fromkeys(found)), _write(catalog, context, known, texts))


def prefetch_tarball(url: str) -> str:
    """The hash of an unpacked tarball, as fetchTarball wants it."""
    expression = f'builtins.fetchTarball {{ url = {json.dumps(url)}; sha256 = "{_ZEROS}"; }}'
    done = run_nix("nix-instantiate", ["--eval", "--expr", expression])
    return _got(done.code, done.err, url)


def fetch_source(recipe: Path) -> tuple[str, str] | None:
    """Run a recipe's fetch: the hash it says and the one it should say; None when the fetch works as it is."""
    expression = _SOURCE.format(path=json.dumps(str(recipe.resolve())).strip('"'))
    done = run_nix("nix-build", ["--no-out-link", "--expr", expression])
    if done.code == 0:
        return None
    said = re.search(r"(?:specified|wanted):\s*(\S+)", done.err)
    return (to_sri(said[1]) if said else UNKNOWN_HASH), _got(done.code, done.err, recipe.name)


def to_sri(text: str) -> str:
    """Any of Nix's spellings of a sha256 as `sha256-...=`."""
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
    raise BuildFailedError(f"Nix gave a hash that is not a sha256: {text!r}.", "Is the recipe's hash of another kind?")


def _got(code: int, errors: str, what: str) -> str:
    failure = explain(errors)
    if failure.cause is not Cause.HASH_MISMATCH or not failure.got:
        if code == 0:
            raise BuildFailedError(f"{what} was fetched although its hash was made up.", "Is the Nix store writable?")
        raise failure.error()
    return to_sri(failure.got)


def _chosen(context: Context, names: Sequence[str]) -> list[Recipe]:
    readable = [recipe for recipe in context.recipes if recipe.readable]
    missing = [name for name in names if name not in context.names]
    if missing:
        raise NoMatchError(
            f"There is no recipe {missing[0]} in {context.tree.pkgs}.", "`torchtailor recipes write` writes them."
        )
    return [recipe for recipe in readable if not names or recipe.name in names]


def _of_recipe(recipe: Recipe, context: Context, known: dict[str, str]) -> list[tuple[FoundHash, str | None]]:
    results: list[tuple[FoundHash, str | None]] = []
    text = recipe.text
    for pin in recipe.pins:
        key = f"nixpkgs/{pin.rev}"
        if pin.hash or key in context.pins.lock:
            continue
        if key not in known:
            known[key] = prefetch_tarball(_pin_url(recipe, pin))
        text = insert_pin_hash(text, pin, known[key])
        results.append((FoundHash(key, "", known[key], recipe.name), text))
    unknown = _placeholder(recipe.source)
    if unknown is not None:
        answer = fetch_source(recipe.path)
        if answer:
            before, after = answer
            key = _source_key(recipe, context)
            known[key] = after
            text = replace_placeholder(Source(text), after)
            results.append((FoundHash(key, before, after, recipe.name), text))
    return results


def _placeholder(source: Source) -> Binding | None:
    """The binding of a hash that is empty or made up."""
    for binding in source.named("hash", "sha256", "outputHash"):
        if source.value(binding.node) in ("", UNKNOWN_HASH):
            return binding
    return None


def _source_key(recipe: Recipe, context: Context) -> str:
    rev = recipe.source.last("rev")
    value = recipe.source.value(rev.node) if rev else None
    return f"pytorch/{value}" if isinstance(value, str) else f"recipe/{recipe.name}"


def _pin_url(recipe: Recipe, pin: PinUse) -> str:
    for binding in recipe.source.named("url"):
        value = recipe.source.value(binding.node)
        if isinstance(value, str) and pin.rev in value:
            return value
    return f"https://github.com/NixOS/nixpkgs/archive/{pin.rev}.tar.gz"


def replace_placeholder(source: Source, after: str) -> str:
    """The text with the first placeholder replaced, by its place in the syntax tree."""
    binding = _placeholder(source)
    if binding is None:
        return source.text
    raw = source.text.encode()
    return (raw[: binding.node.start_byte] + f'"{after}"'.encode() + raw[binding.node.end_byte :]).decode()


def insert_pin_hash(text: str, pin: PinUse, value: str) -> str:
    """The text with `sha256` after the pin's url."""
    source = Source(text)
    raw = text.encode()
    for binding in source.named("url"):
        found = source.value(binding.node)
        if isinstance(found, str) and pin.rev in found:
            end = raw.index(b";", binding.node.end_byte) + 1
            indent = " " * int(binding.node.parent.start_point[1])
            return (raw[:end] + f'\n{indent}sha256 = "{value}";'.encode() + raw[end:]).decode()
    return text


def _write(catalog: Catalog, context: Context, known: dict[str, str], texts: dict[Path, str]) -> tuple[Path, ...]:
    """The lock first, then generated recipes anew, then hand-made ones with the hash put in."""
    flox = context.tree.flox
    lock = flox / LOCK_NAME
    write_output(lock, lock_text({**read_lock(flox), **known}).encode())
    written = [lock]
    pins = load_pins(flox)
    for recipe in context.recipes:
        if recipe.origin is Origin.GENERATED and (text := rerender(catalog, pins, recipe)) is not None:
            new = text
        elif recipe.path in texts and recipe.origin is not Origin.GENERATED:
            new = texts[recipe.path]
        else:
            continue
        if new != recipe.text:
            write_output(recipe.path, new.encode())
            written.append(recipe.path)
    return tuple(written)

"""Rules about pins: one nixpkgs revision per release, with a hash, and no floating aliases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.format import counted
from torchtailor.nix.pins import UNKNOWN_HASH
from torchtailor.nix.recipe import Recipe
from torchtailor.nix.rules.base import AuditContext, Severity, recipe_rule, tree_rule, variant_rule

_REVISION = re.compile(r"[0-9a-f]{7,40}")
_BUILTIN_FETCHERS = ("fetchTarball", "fetchGit", "fetchTree")  # of pins, or by a revision
_INHERITS_HASH = re.compile(r"\binherit\b[^;]*\b(?:hash|sha256)\b")
_CUDA_ALIAS = re.compile(r"cudaPackages(?:_\d+)?")
_PYTHON_ALIAS = re.compile(r"python3?(?:Packages)?")


@recipe_rule(
    "pin-wrong",
    Severity.ERROR,
    "a nixpkgs revision other than the release's",
    "Pin the release's revision; `torchtailor help recipes` lists them.",
)
def pin_wrong(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.readable or not context.owns(recipe):
        return
    for pin in recipe.pins:
        if not context.pin.rev.startswith(pin.rev) and context.pins.find_nixpkgs(pin.rev):
            written = context.release.recipe_name
            yield (
                pin.line,
                f"nixpkgs is pinned to {pin.rev[:12]}; release {written} has {context.pin.rev[:12]}",
            )


@recipe_rule(
    "pin-missing",
    Severity.ERROR,
    "a recipe without a pinned nixpkgs",
    "Import nixpkgs with builtins.fetchTarball at the release's revision.",
)
def pin_missing(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if recipe.is_torch and not recipe.is_builder and not recipe.opaque and not recipe.all_pins:
        if recipe.evaluated and recipe.evaluated.pin:
            return
        yield 1, "nixpkgs is not pinned, so the build depends on the machine"


@recipe_rule(
    "pin-hash",
    Severity.WARNING,
    "a pin without a hash, which is not reproducible",
    "Run `torchtailor recipes hash` with network access: it finds the hash and writes it.",
)
def pin_hash(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.readable:
        return
    for pin in recipe.pins:
        if not pin.hash:
            yield pin.line, f"nixpkgs {pin.rev[:12]} is fetched without sha256"


@tree_rule(
    "pins-several",
    Severity.ERROR,
    "several nixpkgs revisions in one release",
    "Pin one revision for all recipes of a release.",
)
def pins_several(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    readable = (recipe for recipe in (*context.recipes, *context.builders) if recipe.readable)
    uses = [(pin.rev, recipe.path, pin.line) for recipe in readable for pin in recipe.pins]
    counts = Counter(rev for rev, _, _ in uses)
    if len(counts) < 2:
        return
    right = context.pin.rev if context.pin.rev in counts else counts.most_common(1)[0][0]
    revisions = ", ".join(f"{rev[:12]} ({count} times)" for rev, count in counts.most_common())
    path, line = next((path, line) for rev, path, line in uses if rev != right)
    yield path, line, f"the recipes of this tree pin {revisions}"


@tree_rule(
    "pin-unknown",
    Severity.WARNING,
    "a nixpkgs revision whose content torchtailor does not know: its recipes are parsed, but not evaluated",
    "Pin a known revision; `torchtailor help recipes` lists them.",
)
def pin_unknown(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    uses: dict[str, list[tuple[Path, int]]] = {}
    for recipe in context.recipes:
        if recipe.readable:
            for pin in recipe.all_pins:
                if context.pins.find_nixpkgs(pin.rev) is None:
                    where = recipe.path if recipe.pins else recipe.builder.path if recipe.builder else recipe.path
                    uses.setdefault(pin.rev, []).append((where, pin.line))
            if recipe.failed and recipe.failed.unknown:
                uses.setdefault(recipe.failed.unknown, []).append((recipe.path, recipe.failed.line))
    for what, places in uses.items():
        path, line = places[0]
        unchecked = "its package sets, versions and drivers are not checked"
        if _REVISION.fullmatch(what):
            yield path, line, f"nixpkgs {what[:12]} ({counted(len(places), 'recipe')}) is unknown: {unchecked}"
        elif what.startswith("nixpkgs"):
            yield path, line, f"{what} ({counted(len(places), 'recipe')}) is unknown: {unchecked}"
        else:
            yield path, line, f"{what} is not fetched: {len(places)} recipes that need it were not evaluated"


@recipe_rule(
    "hash-placeholder",
    Severity.WARNING,
    "a source or patch with an empty or placeholder hash",
    "Run `torchtailor recipes hash NAME`: it finds the hash and writes it.",
)
def hash_placeholder(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.readable:
        return
    if key := context.pins.unknown_source(recipe.row):
        yield recipe.row_bindings["version"].line, f"the hash of {key} is not known"
    for name, line, argument in recipe.source.calls:
        if not name.rpartition(".")[2].startswith("fetch") or name.endswith(_BUILTIN_FETCHERS):
            continue
        bindings = {binding.name: binding for binding in recipe.source.inside(argument)}
        if not bindings or _INHERITS_HASH.search(recipe.source.raw(argument)):  # its arguments are elsewhere
            continue
        given = bindings.get("hash") or bindings.get("sha256")
        value = recipe.source.value(given.node) if given else ""
        text = recipe.source.text.encode()[given.node.start_byte : given.node.end_byte].decode() if given else ""
        if value in ("", UNKNOWN_HASH) or text.endswith(("fakeHash", "fakeSha256")):
            yield given.line if given else line, f"{name.rpartition('.')[2]} has no real hash"


def _fixed(recipe: Recipe, context: AuditContext) -> bool:
    """Whether its nixpkgs is one revision, so that a floating name in it stays what it is."""
    return bool(recipe.all_pins)


@variant_rule(
    "alias-cuda",
    Severity.ERROR,
    "a floating CUDA package set (`cudaPackages_13`) instead of the file name's version; at a fixed pin a note",
    "Use the versioned set: `cudaPackages_13_0`.",
    note_if=_fixed,
)
def alias_cuda(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    if variant.build.cuda is None:
        return
    wanted = f"cudaPackages_{str(variant.build.cuda).replace('.', '_')}"
    for selection in (*recipe.source.selections, *recipe.source.formals):
        word = selection.text.rpartition(".")[2] if selection.text.count(".") == 1 else selection.text
        owner = selection.text.partition(".")[0]
        if _CUDA_ALIAS.fullmatch(word) and word != "cudaPackages":
            yield selection.number, f"{word} changes with nixpkgs; use {wanted}"
        elif word == "cudaPackages" and owner in ("final", "prev", "cudaPackages") and not recipe.sets_cuda:
            yield selection.number, f"{word} is nixpkgs' default CUDA; use {wanted}"


@variant_rule(
    "alias-python",
    Severity.ERROR,
    "a floating Python package set (`python3Packages`) instead of the file name's version; at a fixed pin a note",
    "Use the versioned set: `python313Packages`.",
    note_if=_fixed,
)
def alias_python(recipe: Recipe, variant: Variant, context: AuditContext) -> Iterator[tuple[int, str]]:
    wanted = f"python{variant.python.replace('.', '')}Packages"
    seen: set[int] = set()
    for selection in (*recipe.source.selections, *recipe.source.formals):
        for word in selection.text.split("."):
            if _PYTHON_ALIAS.fullmatch(word) and selection.number not in seen:
                seen.add(selection.number)
                yield selection.number, f"{word} is nixpkgs' default Python; use {wanted}"


@recipe_rule(
    "result-link",
    Severity.ERROR,
    "a build's result link used as an input",
    "Import the package's .nix file: result links change and get garbage-collected.",
)
def result_link(recipe: Recipe, context: AuditContext) -> Iterator[tuple[int, str]]:
    if not recipe.readable:
        return
    for path in recipe.source.paths:
        if re.search(r"(?:^|/)result(?:-[\w.-]+)?(?:/|$)", path.text):
            yield path.number, f"{path.text} is a result link of a build"
    for line in recipe.source.strings:
        if re.search(r"(?:^|[\s\"'=/])\.{1,2}/(?:[\w.-]+/)*result-[\w.-]+", line.text):
            yield line.number, "a result link is used as an input"

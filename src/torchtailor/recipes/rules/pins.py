"""Rules about pins: the right nixpkgs, one per release, with a hash, and no floating aliases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from torchtailor.recipes.pins import UNKNOWN_HASH
from torchtailor.recipes.recipe import Recipe
from torchtailor.recipes.rules.base import Context, Severity, expected, recipe_rule, tree_rule

_CUDA_ALIAS = re.compile(r"cudaPackages(?:_\d+)?")
_PYTHON_ALIAS = re.compile(r"python3?(?:Packages)?")


@recipe_rule(
    "pin-wrong",
    Severity.ERROR,
    "a nixpkgs revision that is not the release's",
    "Pin the release's revision; `torchtailor matrix` and the table in docs/recipes.md name it.",
)
def pin_wrong(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if not recipe.readable or not context.owns(recipe):
        return
    for pin in recipe.pins:
        if not context.pin.rev.startswith(pin.rev):
            yield (
                pin.line,
                f"nixpkgs is pinned to {pin.rev[:12]}; release {context.release.name} has {context.pin.rev[:12]}",
            )


@recipe_rule(
    "pin-missing",
    Severity.ERROR,
    "a recipe that builds with whatever nixpkgs is at hand",
    "Import nixpkgs with builtins.fetchTarball at the release's revision.",
)
def pin_missing(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if recipe.is_torch and not recipe.pins:
        yield 1, "no nixpkgs revision is pinned, so the build changes with the machine"


@recipe_rule(
    "pin-hash",
    Severity.WARNING,
    "a pin without a hash, which is not reproducible",
    "Run `torchtailor recipes hash` where there is a network: it finds the hash and writes it.",
)
def pin_hash(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
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
def pins_several(context: Context) -> Iterator[tuple[Path, int, str]]:
    uses = [(pin.rev, recipe.path, pin.line) for recipe in context.recipes if recipe.readable for pin in recipe.pins]
    counts = Counter(rev for rev, _, _ in uses)
    if len(counts) < 2:
        return
    right = context.pin.rev if context.pin.rev in counts else counts.most_common(1)[0][0]
    said = ", ".join(f"{rev[:12]} ({count} times)" for rev, count in counts.most_common())
    for rev, path, line in uses:
        if rev != right:
            yield path, line, f"the recipes of this release pin {said}"


@recipe_rule(
    "hash-placeholder",
    Severity.WARNING,
    "a source or patch with an empty or made-up hash",
    "Run `torchtailor recipes hash NAME`: it runs the fetch, reads the right hash and writes it.",
)
def hash_placeholder(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if not recipe.readable:
        return
    for name, line, argument in recipe.source.calls:
        if not name.rpartition(".")[2].startswith("fetch") or name.endswith("fetchTarball"):
            continue
        bindings = {binding.name: binding for binding in recipe.source.inside(argument)}
        given = bindings.get("hash") or bindings.get("sha256")
        value = recipe.source.value(given.node) if given else ""
        text = recipe.source.text.encode()[given.node.start_byte : given.node.end_byte].decode() if given else ""
        if value in ("", UNKNOWN_HASH) or text.endswith(("fakeHash", "fakeSha256")):
            yield given.line if given else line, f"{name.rpartition('.')[2]} has no real hash"


@recipe_rule(
    "alias-cuda",
    Severity.ERROR,
    "a CUDA package set that floats (`cudaPackages_13`) where the name promises one version",
    "Name the version: `cudaPackages_13_0`.",
)
def alias_cuda(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None or variant.build.cuda is None:
        return
    promised = f"cudaPackages_{str(variant.build.cuda).replace('.', '_')}"
    for selection in (*recipe.source.selections, *recipe.source.formals):
        word = selection.text.rpartition(".")[2] if selection.text.count(".") == 1 else selection.text
        owner = selection.text.partition(".")[0]
        if _CUDA_ALIAS.fullmatch(word) and word != "cudaPackages":
            yield selection.number, f"{word} follows nixpkgs; {promised} was promised"
        elif word == "cudaPackages" and owner in ("final", "prev", "cudaPackages") and not recipe.sets_cuda:
            yield selection.number, f"{word} is nixpkgs' default CUDA; {promised} was promised"


@recipe_rule(
    "alias-python",
    Severity.ERROR,
    "a Python package set that floats (`python3Packages`) where the name promises one version",
    "Name the version: `python313Packages`.",
)
def alias_python(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    variant = expected(recipe)
    if variant is None:
        return
    promised = f"python{variant.python.replace('.', '')}Packages"
    seen: set[int] = set()
    for selection in (*recipe.source.selections, *recipe.source.formals):
        for word in selection.text.split("."):
            if _PYTHON_ALIAS.fullmatch(word) and selection.number not in seen:
                seen.add(selection.number)
                yield selection.number, f"{word} follows nixpkgs' default Python; {promised} was promised"


@recipe_rule(
    "result-link",
    Severity.ERROR,
    "a result link of a build used as an input",
    "Import the package's .nix file: result links change and are collected as garbage.",
)
def result_link(recipe: Recipe, context: Context) -> Iterator[tuple[int, str]]:
    if not recipe.readable:
        return
    for path in recipe.source.paths:
        if re.search(r"(?:^|/)result(?:-[\w.-]+)?(?:/|$)", path.text):
            yield path.number, f"{path.text} is a link that a build left behind"
    for line in recipe.source.strings:
        if re.search(r"(?:^|[\s\"'=/])\.{1,2}/(?:[\w.-]+/)*result-[\w.-]+", line.text):
            yield line.number, "a result link is used as an input"

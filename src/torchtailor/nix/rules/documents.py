"""Rules about files next to the recipes: documents that mention them, scripts that check them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from glob import iglob
from pathlib import Path

from torchtailor.core.errors import NoMatchError
from torchtailor.nix.recipe import NAME, RecipeName
from torchtailor.nix.render import spark_names
from torchtailor.nix.rules.base import AuditContext, Severity, tree_rule
from torchtailor.nix.shell import ShellCommand, commands
from torchtailor.nix.syntax import TextLine
from torchtailor.nix.tree import FileOrigin, origin, read_document

_NAME = re.compile(rf"(?<![\w-]){NAME}(?:\.\d+)?(?:-[a-z][a-z0-9_-]*)?")  # also what is misspelt, as armv8.2
_FAILS = re.compile(r"\b(?:exit|return)\s+(?:[1-9]|\"?\$)|\bset\s+-\w*e|\bfalse\b")
_LOOKS = ("grep", "rg", "nix-instantiate", "diff", "test", "[", "[[", "ls", "find")


@tree_rule(
    "document-recipe",
    Severity.ERROR,
    "a document that mentions a recipe which does not exist in any release",
    "Use the name of an existing recipe; `torchtailor matrix` lists them.",
)
def document_recipe(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    for path, line, name in _mentions(context):
        if name not in context.names and not _exists(context, name):
            yield path, line, f"{name} does not exist in this tree or in any release"


@tree_rule(
    "document-elsewhere",
    Severity.WARNING,
    "a document that mentions a recipe of another release",
    "Mention the release, or use a recipe of this tree.",
)
def document_elsewhere(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    for path, line, name in _mentions(context):
        if name not in context.names and _exists(context, name):
            yield path, line, f"{name} is not in this tree"


def _mentions(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    packages = {recipe.pname.text for recipe in context.recipes if recipe.readable and recipe.pname}
    for path in context.tree.documents:
        seen: set[str] = set()
        whole = read_document(path)
        if origin(whole) is FileOrigin.GENERATED:
            continue
        for number, text in enumerate(whole.splitlines(), 1):
            for match in _NAME.finditer(text):
                name = match[0].rstrip("-")
                if text[match.end() : match.end() + 1] in ("*", "{") or name in seen or name in packages:
                    continue
                seen.add(name)
                yield path, number, name


def _exists(context: AuditContext, name: str) -> bool:
    if name in spark_names(context.pins):
        return True
    found = RecipeName.parse(name)
    if found is None or found.suffix:
        return False
    try:
        context.matrix.resolve(found.base)
    except NoMatchError:
        return False
    return True


@tree_rule(
    "script-exit",
    Severity.ERROR,
    "a script that checks recipes and always exits 0",
    "Make it fail: `exit 1` on a problem, or `set -e`.",
)
def script_exit(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    for path, script in _scripts(context):
        checks = [c for c in script if (c.words[0] in ("for", "if", *_LOOKS) and ".nix" in c.text) or "grep" in c.words]
        reports = [
            c
            for c in script
            if "echo" in c.words and re.search(r"broken|fail|wrong|error|missing", c.text, re.IGNORECASE)
        ]
        if checks and reports and not any(_FAILS.search(command.text) for command in script):
            yield path, reports[0].line, "it reports problems, but always exits 0"


@tree_rule(
    "script-glob",
    Severity.ERROR,
    "a script that checks recipes with a pattern that matches no file",
    "Change the pattern so that it matches the recipes.",
)
def script_glob(context: AuditContext) -> Iterator[tuple[Path, int, str]]:
    for path, script in _scripts(context):
        for command in script:
            if command.words[0] != "for" or "in" not in command.words:
                continue
            for word in command.words[command.words.index("in") + 1 :]:
                pattern = word.rstrip(";")
                if ".nix" in pattern and "$" not in pattern and not _matches(context, path, pattern):
                    yield path, command.line, f"{pattern} matches no file"


def _matches(context: AuditContext, script: Path, pattern: str) -> bool:
    """Whether a shell would find a file; of patterns that lead out of the tree that is not asked."""
    if pattern.startswith("/") or ".." in pattern.split("/"):
        return True
    folders = (context.tree.root, script.parent)
    return any(any(iglob(pattern, root_dir=folder)) for folder in folders)  # noqa: PTH207  (it takes any pattern)


def _scripts(context: AuditContext) -> Iterator[tuple[Path, list[ShellCommand]]]:
    for path in context.tree.scripts:
        lines = read_document(path).splitlines()
        yield (
            path,
            [c for c in commands(TextLine(at, text) for at, text in enumerate(lines, 1)) if not c.document],
        )

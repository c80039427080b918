"""Trees of recipes on disk: which files they have, how those are read and written, and who wrote them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from torchtailor.core.errors import BadInputError, NoMatchError
from torchtailor.core.trust import Limit, NotPlainError, read_limited

FLOX = ".flox"
PKGS = "pkgs"
LIBRARY = "torchtailor"  # the folder of the Nix library, beside pkgs
_MARK = re.compile(r"^(?:# |<!-- )torchtailor-content: sha256:([0-9a-f]{64})(?: -->)?$", re.MULTILINE)


@dataclass(frozen=True)
class RecipeTree:
    """A folder with `.flox/pkgs`, or a plain folder of recipes."""

    root: Path
    pkgs: Path

    @property
    def flox(self) -> Path:
        """The folder of the manifest, the lock and the table of recipes."""
        return self.pkgs.parent if self.pkgs.name == PKGS else self.pkgs

    @cached_property
    def recipes(self) -> dict[str, Path]:
        """Recipe files by name, sorted: `NAME.nix` or `NAME/default.nix`."""
        if not self.pkgs.is_dir():
            return {}
        found = {path.stem: path for path in self.pkgs.glob("*.nix") if not path.is_dir()}
        folders = (path for path in self.pkgs.glob("*/default.nix") if path.parent.name != LIBRARY)
        found |= {path.parent.name: path for path in folders}
        return dict(sorted(found.items()))

    @property
    def documents(self) -> tuple[Path, ...]:
        """Markdown that may name recipes: at the top, in docs and in `.flox`."""
        return self._beside("docs", "*.md")

    @property
    def scripts(self) -> tuple[Path, ...]:
        """Shell scripts that may check the recipes."""
        return self._beside("scripts", "*.sh")

    def _beside(self, folder: str, pattern: str) -> tuple[Path, ...]:
        places = [self.root.glob(pattern), (self.root / folder).rglob(pattern), self.flox.glob(pattern)]
        return tuple(sorted({path for place in places for path in place if path.is_file()}))

    def shown(self, path: Path) -> str:
        """A path relative to the tree's root, for messages."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)


def tree_at(root: Path) -> RecipeTree:
    """The tree that has, or will have, its recipes in `root/.flox/pkgs`."""
    return RecipeTree(root, root / FLOX / PKGS)


def find_trees(root: Path) -> tuple[RecipeTree, ...]:
    """The trees at or directly below a folder."""
    if not root.is_dir():
        raise NoMatchError(f"{root} is not a folder.", "Give the folder that has .flox/pkgs.")
    if tree_at(root).recipes:
        return (tree_at(root),)
    place = root if root.name else root.absolute()  # "." has no name
    if place.name == FLOX and tree_at(place.parent).recipes:
        return (tree_at(place.parent),)
    trees = (tree_at(path.parent.parent) for path in sorted(root.glob(f"*/{FLOX}/{PKGS}")))
    if below := tuple(tree for tree in trees if tree.recipes):
        return below
    inside_flox = place.name == PKGS and place.absolute().parent.name == FLOX
    if (plain := RecipeTree(place.absolute().parent.parent if inside_flox else root, root)).recipes:
        return (plain,)
    raise NoMatchError(f"There are no recipes in {root}.", "Give a folder that has .flox/pkgs, or *.nix files.")


class UnreadableFileError(BadInputError):
    """A file of a tree that cannot be read, why, and where it is wrong."""

    def __init__(self, path: Path, reason: str, hint: str, line: int = 1) -> None:
        super().__init__(f"{path} {reason}.", hint)
        self.reason = reason
        self.line = line


def read_recipe(path: Path) -> str:
    """The text of a plain file, which must be UTF-8."""
    try:
        return _lines(read_limited(path, Limit.RECIPE).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UnreadableFileError(
            path,
            f"is not UTF-8 text: byte {error.object[error.start]:#04x} at position {error.start}",
            "Save it as UTF-8.",
            error.object.count(b"\n", 0, error.start) + 1,
        ) from error
    except FileNotFoundError as error:
        raise UnreadableFileError(
            path, "is a link to a file that does not exist", "Delete it, or bring the file back."
        ) from error
    except OSError as error:
        raise UnreadableFileError(path, f"cannot be read: {error.strerror}", "Check its permissions.") from error
    except NotPlainError as error:
        raise UnreadableFileError(path, error.reason, "Delete it, or put a file in its place.") from error


def read_document(path: Path) -> str:
    """The text of a file beside the recipes, whatever its bytes; empty where it is no plain file of a usual size."""
    try:
        return _lines(read_limited(path, Limit.RECIPE).decode("utf-8", "replace"))
    except (OSError, NotPlainError):
        return ""


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


class FileOrigin(Enum):
    """Who wrote a file."""

    GENERATED = "generated"  # by torchtailor, and unchanged since
    EDITED = "edited"  # by torchtailor, then changed by hand
    FOREIGN = "foreign"  # not by torchtailor


@dataclass(frozen=True, slots=True)
class CommentStyle:
    """How a kind of file writes a comment."""

    before: str
    after: str = ""

    def line(self, text: str) -> str:
        return f"{self.before}{text}{self.after}\n"


HASHES = CommentStyle("# ")
MARKDOWN = CommentStyle("<!-- ", " -->")


def stamp(body: str, title: str, style: CommentStyle = HASHES) -> str:
    """A generated file: its header, a hash that reveals changes by hand, and the body."""
    head = style.line(title) + style.line(
        "Generated by torchtailor. Do not edit: change the catalog and run `torchtailor recipes write`."
    )
    return head + style.line(f"torchtailor-content: sha256:{_digest(head + body)}") + body


def restamp(text: str) -> str:
    """A generated text with the hash of what it says now."""
    mark = _MARK.search(text)
    if mark is None:
        return text
    rest = text[: mark.start()] + text[mark.end() + 1 :]
    return text[: mark.start(1)] + _digest(rest) + text[mark.end(1) :]


def origin(text: str) -> FileOrigin:
    """Who wrote this text."""
    mark = _MARK.search(text)
    if mark is None:
        return FileOrigin.FOREIGN
    rest = text[: mark.start()] + text[mark.end() + 1 :]
    return FileOrigin.GENERATED if _digest(rest) == mark[1] else FileOrigin.EDITED


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

"""Trees of recipes on disk: where they are and which files they have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torchtailor.errors import BadInputError, NoMatchError

FLOX = ".flox"
PKGS = "pkgs"


@dataclass(frozen=True)
class Tree:
    """A folder with `.flox/pkgs`, or a plain folder of recipes."""

    root: Path
    pkgs: Path

    @property
    def flox(self) -> Path:
        """Where the manifest, the lock and the table live."""
        return self.pkgs.parent if self.pkgs.name == PKGS else self.pkgs

    @cached_property
    def recipes(self) -> dict[str, Path]:
        """Recipe files by name, sorted: `NAME.nix` or `NAME/default.nix`."""
        if not self.pkgs.is_dir():
            return {}
        found = {path.stem: path for path in self.pkgs.glob("*.nix")}
        found |= {path.parent.name: path for path in self.pkgs.glob("*/default.nix")}
        return dict(sorted(found.items()))

    @property
    def documents(self) -> tuple[Path, ...]:
        """Markdown that may name recipes: at the top, in docs and in `.flox`."""
        places = [self.root.glob("*.md"), (self.root / "docs").rglob("*.md"), self.flox.glob("*.md")]
        return tuple(sorted({path for place in places for path in place if path.is_file()}))

    @property
    def scripts(self) -> tuple[Path, ...]:
        """Shell scripts that may check the recipes."""
        places = [self.root.glob("*.sh"), (self.root / "scripts").rglob("*.sh"), self.flox.glob("*.sh")]
        return tuple(sorted({path for place in places for path in place if path.is_file()}))

    def shown(self, path: Path) -> str:
        """A path as people read it: from the tree's root."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)


def tree_at(root: Path) -> Tree:
    """The tree that has, or will have, its recipes in `root/.flox/pkgs`."""
    return Tree(root, root / FLOX / PKGS)


def find_trees(root: Path) -> tuple[Tree, ...]:
    """The trees at or right below a folder."""
    if not root.is_dir():
        raise NoMatchError(f"{root} is not a folder.", "Give the folder that has .flox/pkgs.")
    if (root / FLOX / PKGS).is_dir():
        return (tree_at(root),)
    below = tuple(tree_at(path.parent.parent) for path in sorted(root.glob(f"*/{FLOX}/{PKGS}")) if path.is_dir())
    if below:
        return below
    if any(root.glob("*.nix")):
        inside_flox = root.name == PKGS and root.parent.name == FLOX
        return (Tree(root.parent.parent if inside_flox else root, root),)
    raise NoMatchError(f"There are no recipes in {root}.", "Give a folder that has .flox/pkgs, or *.nix files.")


def read_recipe(path: Path) -> str:
    """The text of a file, which must be UTF-8."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path} is not UTF-8 text: {error}.", "Recipes are UTF-8.") from error
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}.", "Look at its permissions.") from error

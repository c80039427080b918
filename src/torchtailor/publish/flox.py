"""Publishes a Nix variant with `flox publish`, after the checks that it needs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtailor.catalog import NIX, Catalog, load_catalog
from torchtailor.catalog.variants import matrix_of
from torchtailor.core.errors import BuildFailedError, EnvironmentProblem, NoMatchError
from torchtailor.core.trust import no_option
from torchtailor.nix.tree import tree_at


@dataclass(frozen=True, slots=True)
class FloxCall:
    """The command that publishes a package from a checkout."""

    folder: Path
    package: str
    organisation: str

    @classmethod
    def for_variant(cls, name: str, folder: Path, organisation: str, *, catalog: Catalog | None = None) -> FloxCall:
        no_option(organisation, "The organisation")
        variant = matrix_of(catalog or load_catalog()).resolve(name, via=NIX).variant
        return cls(folder, variant.name, organisation)

    @property
    def line(self) -> tuple[str, ...]:
        return ("flox", "publish", "-o", self.organisation, self.package)

    def check(self) -> None:
        """flox publishes a pushed commit: the tree must be clean, and its commit on a remote."""
        if shutil.which("git") is None:
            raise EnvironmentProblem("git is not installed; flox publishes from a git checkout.", "Install git.")
        if self.package not in tree_at(self.folder).recipes:
            raise NoMatchError(
                f"{self.folder} has no recipe {self.package}.", "`torchtailor recipes write FOLDER` writes it."
            )
        if self._git("rev-parse", "--is-inside-work-tree") is None:
            raise EnvironmentProblem(f"{self.folder} is not a git checkout.", "Run it in the recipes' repository.")
        if self._git("status", "--porcelain"):
            raise EnvironmentProblem(
                f"{self.folder} has changes that are not committed.", "Commit them: flox publishes a commit."
            )
        if not self._git("remote"):
            raise EnvironmentProblem(
                f"{self.folder} has no remote.", "Add one with `git remote add origin ...`, and push."
            )
        if not self._git("branch", "-r", "--contains", "HEAD"):
            raise EnvironmentProblem(
                "The current commit is on no remote.", "Push it with `git push`: flox builds from there."
            )

    @property
    def without_flox(self) -> str:
        """What is said where flox is missing, which a dry run does not need."""
        return "" if shutil.which("flox") else "flox is not installed; `flox publish` is run."

    def run(self) -> None:
        """Check, then publish; flox writes to the terminal itself."""
        self.check()
        if self.without_flox:
            raise EnvironmentProblem(self.without_flox, "Install flox.")
        code = subprocess.run(self.line, cwd=self.folder, check=False).returncode
        if code != 0:
            raise BuildFailedError(
                f"`{' '.join(self.line)}` failed with exit code {code}.", "Its own message is above."
            )

    def _git(self, *words: str) -> str | None:
        line: Sequence[str] = ("git", "-C", str(self.folder), *words)
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None


@dataclass(frozen=True, slots=True)
class FloxPublished:
    """What was run, or in a dry run would be."""

    command: tuple[str, ...]
    done: bool

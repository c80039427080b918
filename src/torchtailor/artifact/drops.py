"""Files that a package has and its users mostly do not need: the rules of `--drop`, and which files each finds.

drops = Drops.of(["static-libs"], devices)
dropped = drops.find({"demo/lib/libx.a": 1000})
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from torchtailor.artifact.artifact import Artifact, ArtifactKind
from torchtailor.artifact.sites import installed_path
from torchtailor.catalog import Capability
from torchtailor.errors import NoMatchError
from torchtailor.wheels.archive import WheelArchive

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_NEVER = re.compile(r"(?:.*/)?[^/]+\.dist-info/.*")


class DropGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files that go together, perhaps only for some targets."""

    globs: tuple[str, ...]
    keep: tuple[str, ...] = ()
    all_below: str = ""
    all_from: str = ""
    beside: str = ""

    def counts_for(self, devices: Sequence[Capability]) -> bool:
        """Whether the targets let these files go; without targets only what depends on none does."""
        if self.all_below and not (devices and max(devices) < Capability.parse(self.all_below)):
            return False
        return not self.all_from or bool(devices and min(devices) >= Capability.parse(self.all_from))

    def has(self, path: str) -> bool:
        return bool(_pattern(self.globs).fullmatch(path)) and not (self.keep and _pattern(self.keep).fullmatch(path))


class DropRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named kind of files: what they are, what no longer works without them, and why all else does."""

    name: str
    what: str
    breaks: str
    why: str
    source: str
    files: tuple[DropGroup, ...]


@dataclass(frozen=True, slots=True)
class DroppedFile:
    """A file that a rule leaves out."""

    path: str
    rule: str
    size: int


@dataclass(frozen=True)
class Drops:
    """The chosen rules, for some targets."""

    rules: tuple[DropRule, ...]
    devices: tuple[Capability, ...]

    @classmethod
    def of(cls, names: Iterable[str], devices: Sequence[Capability]) -> Drops:
        known = drop_rules()
        chosen = []
        for name in dict.fromkeys(names):
            if name not in known:
                raise NoMatchError(f"There is no rule {name} for --drop.", f"There are {', '.join(known)}.")
            chosen.append(known[name])
        return cls(tuple(chosen), tuple(devices))

    def find(self, sizes: Mapping[str, int]) -> dict[str, DroppedFile]:
        """Of these paths, with the sizes of the files, those that go; the first rule that finds one has it."""
        installed = {path: installed_path(path) for path in sizes}
        present = set(installed.values())
        groups = [
            (rule.name, group)
            for rule in self.rules
            for group in rule.files
            if group.counts_for(self.devices) and (not group.beside or group.beside in present)
        ]
        found: dict[str, DroppedFile] = {}
        for path, name in installed.items() if groups else ():
            rule = next((rule for rule, group in groups if group.has(name)), None)
            if rule is not None and not _NEVER.fullmatch(path):
                found[path] = DroppedFile(path, rule, sizes[path])
        return found


@cache
def drop_rules() -> dict[str, DropRule]:
    """All rules, by name."""
    text = files("torchtailor.artifact").joinpath("data/drops.toml").read_text("utf-8")
    rules = msgspec.convert(tomllib.loads(text)["rule"], tuple[DropRule, ...])
    return {rule.name: rule for rule in rules}


def files_of(artifact: Artifact) -> Iterator[tuple[str, int]]:
    """Every file of an artifact, as it is installed, with its size."""
    for wheel in artifact.wheels:
        with WheelArchive(wheel) as archive:
            yield from ((installed_path(member.name), member.size) for member in archive.files)
    if artifact.wheels or artifact.kind is ArtifactKind.LIBRARY:
        return
    roots = artifact.site_packages if artifact.kind is ArtifactKind.ENVIRONMENT else (artifact.path,)
    for root in roots:
        yield from sizes_in(root).items()


def sizes_in(folder: Path) -> dict[str, int]:
    """The files of a folder and the links in it, by their path below it, with their sizes."""
    return {
        Path(place, name).relative_to(folder).as_posix(): Path(place, name).lstat().st_size
        for place, _, names in os.walk(folder)
        for name in names
    }


@cache
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{_translated(glob)})" for glob in globs))


def _translated(glob: str) -> str:
    return "".join(_MEANING.get(token) or re.escape(token) for token in _TOKEN.findall(glob))

"""Files that a package has and its users mostly do not need: the rules of `--drop`, and which files each finds.

drops = Drops.of(["static-libs"], policy)
dropped = drops.find({"demo/lib/libx.a": 1000})

A file is never changed, only left out. Of files that are GPU code themselves a rule leaves out those for other GPUs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from torchtailor.catalog import Capability
from torchtailor.code.gpucode.files import CodeFile, CodeFileKind
from torchtailor.code.gpucode.policy import Policy
from torchtailor.core.errors import NoMatchError
from torchtailor.core.tables import read_table
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind
from torchtailor.trees.artifact.libraries import LibraryFile
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.trees.wheels.archive import WheelArchive

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_NEVER = re.compile(r"(?:.*/)?[^/]+\.dist-info/.*")


class Decider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file whose beginning says from which GPU on another is used: its number is a group of the expression."""

    file: str
    expression: str

    def number(self, head: bytes) -> Capability | None:
        found = re.search(self.expression, head.decode("utf-8", "replace"))
        return Capability.from_number(int(found[found.lastindex or 0])) if found else None


class DropGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files that go together, perhaps only for some targets."""

    globs: tuple[str, ...]
    keep: tuple[str, ...] = ()
    all_below: str = ""
    all_from: str = ""
    beside: str = ""
    decider: Decider | None = None
    code: Literal["", "cubin", "bitcode"] = ""

    def counts_for(self, devices: Sequence[Capability], decided: Capability | None) -> bool:
        """Whether the targets let these files go; without targets only what depends on none does."""
        if self.all_below and not (devices and max(devices) < (decided or Capability.parse(self.all_below))):
            return False
        return not self.all_from or bool(devices and min(devices) >= (decided or Capability.parse(self.all_from)))

    @property
    def by_target(self) -> bool:
        """Whether what goes depends on the targets."""
        return bool(self.all_below or self.all_from or self.code)

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
    default: bool = False  # counts without being asked for

    @property
    def by_target(self) -> bool:
        return any(group.by_target for group in self.files)


@dataclass(frozen=True, slots=True)
class DropRules:
    """All rules of --drop."""

    rules: tuple[DropRule, ...]


@dataclass(frozen=True, slots=True)
class DroppedFile:
    """A file that a rule leaves out."""

    path: str
    rule: str
    size: int
    code: (
        Annotated[str, msgspec.Meta(description="what it was for, where that is why it goes: sm_100, bitcode_75")]
        | msgspec.UnsetType
    ) = msgspec.UNSET


# What a file of GPU code is; None where it is something else, or may not be left out.
ReadCode = Callable[[str], CodeFile | None]


# The beginning of a file.
ReadHead = Callable[[str], bytes]


def _no_code(_: str) -> CodeFile | None:
    return None


def _no_head(_: str) -> bytes:
    return b""


@dataclass(frozen=True)
class Drops:
    """The chosen rules, for the targets of a policy; without one only what depends on no target goes."""

    rules: tuple[DropRule, ...]
    policy: Policy | None

    @classmethod
    def of(cls, names: Iterable[str], policy: Policy | None) -> Drops:
        known = drop_rules()
        chosen = []
        for name in dict.fromkeys(names):
            if name not in known:
                raise NoMatchError(f"There is no rule {name} for --drop.", f"There are {', '.join(known)}.")
            chosen.append(known[name])
        return cls(tuple(chosen), policy)

    @property
    def devices(self) -> tuple[Capability, ...]:
        return self.policy.devices if self.policy else ()

    def find(
        self,
        sizes: Mapping[str, int],
        read_code: ReadCode = _no_code,
        read_head: ReadHead = _no_head,
        installed: Mapping[str, str] | None = None,
    ) -> dict[str, DroppedFile]:
        """Of these paths, with the sizes of the files, those that go; the first rule that finds one has it. `installed`
        is what `paths_installed` says of them, if somebody asks several times."""
        if not self.rules:
            return {}
        installed = paths_installed(sizes) if installed is None else installed
        present = set(installed.values())
        found: dict[str, DroppedFile] = {}
        for rule in self.rules:
            for group in rule.files:
                if group.beside and group.beside not in present:
                    continue
                numbers = set()
                if decider := group.decider:
                    deciders = [path for path, name in installed.items() if name == decider.file]
                    numbers = {decider.number(read_head(path)) for path in deciders}
                if not group.counts_for(self.devices, numbers.pop() if len(numbers) == 1 else None):
                    continue
                paths = [path for path, name in installed.items() if path not in found and group.has(name)]
                if group.code:
                    codes = self._foreign(filter(None, map(read_code, paths)))
                    found |= {path: DroppedFile(path, rule.name, sizes[path], code) for path, code in codes.items()}
                else:
                    found |= {path: DroppedFile(path, rule.name, sizes[path]) for path in paths}
        return {path: found[path] for path in sizes if path in found}

    def _foreign(self, files: Iterable[CodeFile]) -> dict[str, str]:
        """The files that are for other GPUs, and what they are for; of files that belong together all stay where none
        is for a target, unless there is no target."""
        if self.policy is None:
            return {}
        families: dict[tuple[CodeFileKind, str], list[CodeFile]] = {}
        for file in files:
            if file.target and file.kind is CodeFileKind.BITCODE:
                families.setdefault((file.kind, file.family), []).append(file)
            elif file.target and file.kind is CodeFileKind.CUBIN:
                families.setdefault((file.kind, installed_path(file.name).split("/")[0]), []).append(file)
        foreign: dict[str, str] = {}
        for (kind, _), alike in families.items():
            wanted = (_wanted_bitcode if kind is CodeFileKind.BITCODE else _fitting)(alike, self.policy)
            if wanted or self.policy.targets.none:
                foreign |= {file.name: file.architectures[0].label for file in alike if file.name not in wanted}
        return foreign


def _fitting(files: Sequence[CodeFile], policy: Policy) -> set[str]:
    """The cubins that a target can run."""
    return {file.name for file in files if file.target and any(policy.fits(gpu, file.target) for gpu in policy.devices)}


def _wanted_bitcode(files: Sequence[CodeFile], policy: Policy) -> set[str]:
    """For each target its own and those of lower minors; without one of its major, all older ones: bitcode works on any
    newer GPU, and who picks one by name may take an older one."""
    made_for = {file.name: file.target.capability for file in files if file.target}
    wanted: set[str] = set()
    for gpu in policy.devices:
        older = {name for name, capability in made_for.items() if capability <= gpu}
        own = {name for name in older if made_for[name].major == gpu.major}
        wanted |= own or older
    if policy.targets.keep_ptx:  # for GPUs that do not exist yet
        newest = max(made_for.values())
        wanted |= {name for name, capability in made_for.items() if capability == newest}
    return wanted


def paths_installed(paths: Iterable[str]) -> dict[str, str]:
    """Those that a rule may leave out, with the paths that they have when they are installed."""
    return {path: installed_path(path) for path in paths if ".dist-info/" not in path or not _NEVER.fullmatch(path)}


@cache
def drop_rules() -> dict[str, DropRule]:
    """All rules, by name."""
    rules = read_table("trees.artifact", "drops.toml", dict[str, tuple[DropRule, ...]])["rule"]
    return {rule.name: rule for rule in rules}


def default_rules() -> tuple[str, ...]:
    """The rules that count without being asked for."""
    return tuple(name for name, rule in drop_rules().items() if rule.default)


def rules_of_code() -> tuple[str, ...]:
    """The rules for files that are GPU code."""
    return tuple(name for name, rule in drop_rules().items() if any(group.code for group in rule.files))


def files_of(artifact: Artifact) -> Iterator[tuple[str, int]]:
    """Every file of an artifact, as it is installed, with its size."""
    for wheel in artifact.wheels:
        with WheelArchive(wheel) as archive:
            yield from ((installed_path(member.name), member.size) for member in archive.files)
    for root in _roots(artifact):
        yield from sizes_in(root).items()


@cache
def is_decider(name: str) -> bool:
    """Whether a file, as it is installed, says what a rule goes by."""
    return any(group.decider and group.decider.file == name for rule in drop_rules().values() for group in rule.files)


def deciders_of(artifact: Artifact, sizes: Mapping[str, int]) -> dict[str, bytes]:
    """The beginnings of those files of an artifact that say what a rule goes by."""
    found = {}
    for wheel in artifact.wheels:
        with WheelArchive(wheel) as archive:
            members = {installed_path(member.name): member for member in archive.files}
        for name, member in members.items():
            if is_decider(name):
                found[name] = LibraryFile(name, wheel.name, member.size, wheel, member).head()
    for root in _roots(artifact):
        for name in sizes:
            if is_decider(installed_path(name)) and (root / name).is_file():
                found[name] = LibraryFile(name, "", sizes[name], root / name).head()
    return found


def _roots(artifact: Artifact) -> Sequence[Path]:
    """The folders that it is, or that its packages are in."""
    if artifact.wheels or artifact.kind is ArtifactKind.LIBRARY:
        return ()
    return artifact.site_packages if artifact.kind is ArtifactKind.ENVIRONMENT else (artifact.path,)


def sizes_in(folder: Path) -> dict[str, int]:
    """The files of a folder and the links in it, by their path below it, with their sizes."""
    top = len(os.path.join(folder, ""))  # noqa: PTH118 (a Path for each of ten thousand files is slow)
    paths = (f"{place}/{name}" for place, _, names in os.walk(folder) for name in names)
    return {path[top:]: os.lstat(path).st_size for path in paths}


@cache
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{_translated(glob)})" for glob in globs))


def _translated(glob: str) -> str:
    return "".join(_MEANING.get(token) or re.escape(token) for token in _TOKEN.findall(glob))

"""The machine that wheels are fetched for, not necessarily this one: its wheel tags and its markers; and which build of
PyTorch a wheel belongs to, by its local version."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.version import Version

from torchtailor.core.errors import UsageError
from torchtailor.trees.wheels.name import OWN_LABEL

# What PyTorch's own wheels require; a wheelhouse made for it installs wherever torch does.
DEFAULT_GLIBC = (2, 28)

_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
_OLDEST = {"x86_64": (2, 5), "aarch64": (2, 17)}


@dataclass(frozen=True)
class Target:
    """A Linux machine with a CPython."""

    python: str
    arch: str
    glibc: tuple[int, int] = DEFAULT_GLIBC

    def __post_init__(self) -> None:
        if not re.fullmatch(r"3\.\d{1,2}t?", self.python):
            raise UsageError(f"{self.python!r} is not a Python such as 3.13 or 3.13t.")
        if self.arch not in _OLDEST:
            raise UsageError(f"{self.arch!r} is not x86_64 or aarch64.")

    @property
    def version(self) -> tuple[int, int]:
        major, minor = self.python.rstrip("t").split(".")
        return int(major), int(minor)

    @property
    def interpreter(self) -> str:
        return "cp{}{}".format(*self.version)

    @property
    def abi(self) -> str:
        return self.interpreter + ("t" if self.python.endswith("t") else "")

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags it accepts, the newest glibc first."""
        return tuple(self._platforms())

    def _platforms(self) -> Iterator[str]:
        oldest = _OLDEST[self.arch]
        for minor in range(self.glibc[1], oldest[1] - 1, -1):
            yield f"manylinux_2_{minor}_{self.arch}"
            if legacy := _LEGACY.get((2, minor)):
                yield f"{legacy}_{self.arch}"
        yield f"linux_{self.arch}"

    @cached_property
    def _ranks(self) -> dict[Tag, int]:
        platforms = self.platforms
        tags = [
            *cpython_tags(self.version, abis=[self.abi], platforms=platforms),
            *compatible_tags(self.version, interpreter=self.interpreter, platforms=platforms),
        ]
        return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}

    def rank(self, tags: Iterable[Tag]) -> int | None:
        """How well a wheel with these tags fits: 0 is best, None is not at all."""
        return min((self._ranks[tag] for tag in tags if tag in self._ranks), default=None)

    def accepts_python(self, requires: str) -> bool:
        """Whether its Python satisfies a Requires-Python; an invalid one counts as satisfied."""
        try:
            return SpecifierSet(requires).contains(self.environment["python_full_version"], prereleases=True)
        except ValueError:  # InvalidSpecifier, or a version of thousands of digits
            return True

    @cached_property
    def environment(self) -> dict[str, str]:
        """Values of the markers; like pip for another Python, its first patch release is assumed."""
        version = "{}.{}".format(*self.version)
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{version}.0",
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": "linux",
        }


_BUILD = re.compile(r"cpu|cu\d+|rocm\d*|xpu")


def build_label_of(version: Version) -> str:
    """`2.8.0+cu128.sm90` -> `cu128`; empty where it does not say."""
    first = _parts(version)[0]
    return first if _BUILD.fullmatch(first) else ""


def is_official(version: Version) -> bool:
    """Whether it lacks the labels of torchtailor's own wheels, such as `2.8.0+cu128.sm90`, which fit one machine."""
    return not any(OWN_LABEL.fullmatch(part) for part in _parts(version))


def match_of(version: Version, label: str) -> int | None:
    """How well it fits a torch of this build: 2 the same, 1 it does not say, 0 the same major CUDA, None not at all."""
    own = build_label_of(version)
    if not own:
        return 1
    if own == label:
        return 2
    same = own.startswith("cu") and label.startswith("cu") and own[2:4] == label[2:4]
    return 0 if same else None


def _parts(version: Version) -> list[str]:
    return (version.local or "").split(".")

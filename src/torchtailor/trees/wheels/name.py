"""The file name of a wheel, and the version label that says for which GPUs it was cut."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from torchtailor.catalog.gpus import NO_GPU_LABEL
from torchtailor.core.errors import BadInputError

_NAME = re.compile(
    r"(?P<distribution>[^\s/-]+)-(?P<version>[^\s/-]+)(-(?P<build>\d[^\s/-]*))?"
    r"-(?P<python>[^\s/-]+)-(?P<abi>[^\s/-]+)-(?P<platform>[^\s/-]+)\.whl"
)
_MANYLINUX = re.compile(
    r"(?:manylinux(?:(?P<legacy>1|2010|2014)|_(?P<major>\d+)_(?P<minor>\d+))|linux)_(?P<machine>\w+)"
)
_LEGACY = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}
GlibcVersion = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WheelName:
    """`torch-2.10.0-3-cp313-cp313-manylinux_2_28_x86_64.whl` in its parts, each as it is spelt."""

    distribution: str
    version: str
    build: str
    python: str
    abi: str
    platform: str

    @classmethod
    def parse(cls, path: Path) -> WheelName:
        match = _NAME.fullmatch(path.name)
        if not match:
            raise BadInputError(
                f"{path.name} is not the name of a wheel.",
                "Give the file its published name: name-version-python-abi-platform.whl.",
            )
        name = cls(**{key: value or "" for key, value in match.groupdict().items()})
        try:
            Version(name.version)
        except ValueError as error:  # InvalidVersion, or thousands of digits
            raise BadInputError(f"{path.name} has no valid version in its name.", "Rename it as published.") from error
        return name

    @property
    def project(self) -> str:
        """The normalised name, as in an index: `nvidia-cublas-cu12`."""
        return canonicalize_name(self.distribution)

    def with_version(self, version: str) -> WheelName:
        return replace(self, version=version)

    def for_glibc(self, version: GlibcVersion, machines: Iterable[str]) -> WheelName:
        """The same with tags that promise no older glibc; `machines` are those of a wheel whose tags name none."""
        machines = sorted(machines)
        tags = (new for tag in self.platform.split(".") for new in _tags_for_glibc(tag, version, machines))
        return replace(self, platform=".".join(dict.fromkeys(tags)))

    @property
    def tags(self) -> list[str]:
        """`cp313-cp313-manylinux_2_28_x86_64`, each of a compressed set of its own."""
        sets = (self.python.split("."), self.abi.split("."), self.platform.split("."))
        return ["-".join(tag) for tag in product(*sets)]

    @property
    def oldest_glibc(self) -> GlibcVersion | None:
        """The oldest glibc that its tags promise to run with; None where they promise none."""
        found = [match for tag in self.platform.split(".") if (match := _MANYLINUX.fullmatch(tag))]
        versions = [(int(match["major"]), int(match["minor"])) for match in found if match["major"]]
        return min([*versions, *(_LEGACY[match["legacy"]] for match in found if match["legacy"])], default=None)

    def __str__(self) -> str:
        parts = [self.distribution, self.version, self.build, self.python, self.abi, self.platform]
        return "-".join(part for part in parts if part) + ".whl"


def _tags_for_glibc(tag: str, version: GlibcVersion, machines: Sequence[str]) -> list[str]:
    match = _MANYLINUX.fullmatch(tag)
    if match and match["major"] and (int(match["major"]), int(match["minor"])) >= version:
        return [tag]
    if match or tag == "any":
        return [f"manylinux_{version[0]}_{version[1]}_{one}" for one in ([match["machine"]] if match else machines)]
    return [tag]  # of another C library or system


def wheels_in(path: Path) -> tuple[Path, ...]:
    """A wheel itself, or the wheels of a folder or of a wheelhouse, which keeps them in `wheels/`."""
    if path.is_dir():
        return tuple(sorted(path.glob("*.whl")) or sorted(path.glob("wheels/*.whl")))
    return (path,) if path.suffix == ".whl" and path.is_file() else ()


TAILORED = "tailored"  # in the version of a wheel from which nothing was taken out for the sake of a GPU
HOST = "host"  # in the version of a wheel whose GPU code is in packs
# The parts of a local version that only torchtailor writes: of a cut, and of a build from source for one CPU.
OWN_LABEL = re.compile(rf"sm\d+[a-z]?|{TAILORED}|{HOST}|{NO_GPU_LABEL}|avx\w*|armv\d+")


def labelled_version(version: str, label: str, *, stock_local: str = "", earlier_label: str = "") -> str:
    """`2.10.0` of a torch that calls itself `+cu128`, cut for `sm90` -> `2.10.0+cu128.sm90`.

    `stock_local` is the local label the package's own code knows though its metadata does not say it; `earlier_label`
    is what an earlier cut added, and is replaced.
    """
    parsed = Version(version)
    local = (parsed.local or stock_local).split(".") if parsed.local or stock_local else []
    earlier = earlier_label.split(".") if earlier_label else []
    if earlier and local[-len(earlier) :] == earlier:
        local = local[: -len(earlier)]
    return f"{parsed.public}+{'.'.join([*local, label])}"

"""What a wheel is: its `.dist-info`, checked against its name, its RECORD and its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchtailor.core.errors import BadInputError
from torchtailor.trees.wheels.archive import Member, WheelArchive
from torchtailor.trees.wheels.metadata import LICENCE_HEAD, Metadata, is_licence_file
from torchtailor.trees.wheels.name import WheelName
from torchtailor.trees.wheels.record import FileHash, Record, UnusualRecordError

MANIFEST = "torchtailor.json"
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")  # of RECORD; worthless once it changes
_OWN_VERSION = re.compile(rb"""^__version__(?:\s*:\s*[\w.]+)?\s*=\s*['"]([^'"\r\n]+)['"]""", re.MULTILINE)
_AGAIN = "Fetch the wheel again and compare its hash with the index's."


def required_packages(wheel: Path) -> frozenset[str]:
    """The packages that a wheel requires on some machine, without its extras; none of one that cannot be read."""
    found = set()
    try:
        with WheelArchive(wheel) as archive:
            requires = read_metadata(archive).requires
    except BadInputError:
        return frozenset()
    for text in requires:
        with suppress(InvalidRequirement):
            requirement = Requirement(text)
            if "extra" not in str(requirement.marker or ""):
                found.add(canonicalize_name(requirement.name))
    return frozenset(found)


def read_metadata(archive: WheelArchive) -> Metadata:
    """What a wheel says about itself."""
    dist_info = _dist_info(archive)
    heads = (
        archive.head(member, LICENCE_HEAD)
        for member in archive.files
        if member.name.startswith(f"{dist_info}/") and is_licence_file(member.name)
    )
    return Metadata.parse(archive.read(f"{dist_info}/METADATA"), archive.path.name, heads)


@dataclass(frozen=True)
class WheelDistribution:
    """A wheel whose name, metadata and RECORD agree with its list of files."""

    archive: WheelArchive
    name: WheelName
    dist_info: str
    metadata: Metadata
    record: Record

    @classmethod
    def of(cls, archive: WheelArchive) -> WheelDistribution:
        owner = archive.path.name
        name = WheelName.parse(archive.path)
        dist_info = _dist_info(archive)
        metadata = read_metadata(archive)
        if name.project != metadata.name or Version(name.version) != Version(metadata.version):
            raise BadInputError(
                f"{owner} holds {metadata.name} {metadata.version}, which is not what its name says.",
                "Give the file its published name.",
            )
        try:
            record = Record.parse(archive.read(f"{dist_info}/RECORD"))
        except UnusualRecordError:
            raise
        except BadInputError as error:
            raise BadInputError(f"{owner}: {error.message.removeprefix(f'{archive.path}: ')}", error.hint) from error
        wheel = cls(archive, name, dist_info, metadata, record)
        wheel._check_record()
        return wheel

    @property
    def path(self) -> Path:
        return self.archive.path

    def payload(self) -> Iterator[Member]:
        """All entries but RECORD, its signatures and our manifest, which are written anew."""
        written_anew = {f"{self.dist_info}/{name}" for name in ("RECORD", MANIFEST, *_SIGNATURES)}
        return (member for member in self.archive.members.values() if member.name not in written_anew)

    def renamed(self, path: str, version: str) -> str:
        """A member's path in a wheel of another version: `.dist-info` and `.data` folders carry it."""
        folder, separator, rest = path.partition("/")
        for suffix in (".dist-info", ".data"):
            if separator and folder == self.dist_info.removesuffix(".dist-info") + suffix:
                return f"{self.name.distribution}-{version}{suffix}/{rest}"
        return path

    def hash_of(self, member: Member) -> FileHash | None:
        """The hash that RECORD has of a file."""
        row = self.record.get(member.name)
        return row.hash if row else None

    @cached_property
    def stock_local(self) -> str:
        """The local version that the package's code knows and its metadata leaves out: `cu128` of torch 2.10.0.

        The default index takes no local versions, so torch's wheels there say 2.10.0 and torch/version.py 2.10.0+cu128.
        """
        if Version(self.metadata.version).local:
            return ""
        for member in self.archive.files:
            folder, _, file = member.name.partition("/")
            if file in ("version.py", "_version.py") and canonicalize_name(folder) == self.metadata.name:
                match = _OWN_VERSION.search(self.archive.read(member.name))
                own = match[1].decode("ascii", "replace") if match else ""
                public, _, local = own.partition("+")
                if public == self.metadata.version and re.fullmatch(r"[a-z0-9]+(\.[a-z0-9]+)*", local):
                    return local
        return ""

    def checked_chunks(self, member: Member) -> Iterator[bytes]:
        """The bytes of a member, which must have the hash that RECORD says once they are all read."""
        row = self.record.get(member.name)
        hasher = row.hash.new() if row and row.hash else None
        for chunk in self.archive.chunks(member):
            if hasher:
                hasher.update(chunk)
            yield chunk
        if row and row.hash and hasher and hasher.digest() != row.hash.digest:
            raise BadInputError(f"{self.path.name}: {member.name} does not have the hash its RECORD says.", _AGAIN)

    def check(self, member: Member) -> None:
        """Read a member only to see that it is what RECORD says."""
        for _ in self.checked_chunks(member):
            pass

    def _check_record(self) -> None:
        owner = self.path.name
        unhashed = {f"{self.dist_info}/{name}" for name in ("RECORD", *_SIGNATURES)}
        files = {member.name: member for member in self.archive.files}
        for name, member in files.items():
            row = self.record.get(name)
            if name in unhashed:
                continue
            if row is None or row.hash is None:
                raise BadInputError(f"{owner}: RECORD has no hash of {name}.", _AGAIN)
            if row.size is not None and row.size != member.size:
                raise BadInputError(f"{owner}: {name} is {member.size} bytes long and RECORD says {row.size}.", _AGAIN)
        for row in self.record:
            if row.path not in files and row.path not in unhashed:
                raise BadInputError(f"{owner}: RECORD lists {row.path}, which is not in the wheel.", _AGAIN)


def _dist_info(archive: WheelArchive) -> str:
    found = {
        folder
        for folder, _, rest in (name.partition("/") for name in archive.members)
        if folder.endswith(".dist-info") and rest
    }
    if len(found) != 1:
        raise BadInputError(f"{archive.path.name} has {len(found)} .dist-info folders instead of one.", _AGAIN)
    dist_info = found.pop()
    for name in ("METADATA", "WHEEL", "RECORD"):
        if f"{dist_info}/{name}" not in archive.members:
            raise BadInputError(f"{archive.path.name} has no {name} in its {dist_info}.", _AGAIN)
    return dist_info

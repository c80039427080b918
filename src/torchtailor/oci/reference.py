"""Names of images, as skopeo writes them: `docker://host/repository:tag`, `oci:folder:name`, archives and pipes."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from torchtailor.core.errors import UsageError
from torchtailor.fetch.locations import is_this_machine

# What a name without a host means to docker, podman and skopeo: where it is served, and how `docker login` files it.
DEFAULT_REGISTRY = "docker.io"
DEFAULT_REGISTRY_SERVER = "registry-1.docker.io"
DEFAULT_REGISTRY_ALIASES = ("docker.io", "index.docker.io", "registry-1.docker.io")
_DEFAULT_NAMESPACE = "library"
_DEFAULT_TAG = "latest"

PIPE = "-"
# Endings of names that nobody outside of one network can resolve.
_LOCAL_ENDINGS = (".localhost", ".local", ".internal", ".intranet", ".lan", ".home.arpa")

_NAME = re.compile(r"(?:docker://|oci:|oci-archive:|docker-archive:)")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._/]|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_REF_NAME = re.compile(r"[A-Za-z0-9]+(?:(?:--|[-._:@+/])[A-Za-z0-9]+)*")
_POSITION = re.compile(r"@[0-9]{1,6}")
_SHOWN = 200
_DEFAULT_PORTS = (443, 80)

_HOW = (
    "Write docker://HOST/REPOSITORY:TAG, oci:FOLDER:NAME, oci-archive:FILE or docker-archive:FILE; "
    "FILE can be - for a pipe."
)
_ELSEWHERE = {
    "docker-daemon": "Use a pipe: docker save IMAGE | torchtailor image docker-archive:- ...",
    "containers-storage": "Use a pipe: podman save IMAGE | torchtailor image docker-archive:- ...",
    "dir": "Copy it first: skopeo copy dir:FOLDER oci:FOLDER.",
}


def is_image_name(text: str) -> bool:
    """Whether a word on the command line names an image, and not a path."""
    return bool(_NAME.match(text)) and not Path(text).exists()


class Transport(Enum):
    """The kinds of places for images."""

    REGISTRY = "docker"
    OCI_FOLDER = "oci"
    OCI_ARCHIVE = "oci-archive"
    DOCKER_ARCHIVE = "docker-archive"


@dataclass(frozen=True, slots=True)
class RepositoryName:
    """A repository of a registry, and what is meant in it: a tag, a digest, or both (then the digest decides)."""

    host: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def familiar(self) -> str:
        """As docker shows it: without the default registry, unless its first part would then be taken for a host."""
        if self.host != DEFAULT_REGISTRY:
            return str(self)
        short = self.repository.removeprefix(f"{_DEFAULT_NAMESPACE}/")
        path = self.repository if "/" in short else short
        return path + self._end if _split_host(path)[0] == DEFAULT_REGISTRY else str(self)

    @property
    def server(self) -> str:
        """The host that serves it."""
        return DEFAULT_REGISTRY_SERVER if self.host == DEFAULT_REGISTRY else self.host

    @property
    def is_on_this_machine(self) -> bool:
        return is_this_machine(_host_name(self.host))

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine or one of its own network, judged by its name or address alone."""
        name = _host_name(self.host)
        if address := _address(name):
            return address.is_private and not address.is_unspecified
        return "." not in name or name.endswith(_LOCAL_ENDINGS)

    def shares_registry(self, other: RepositoryName) -> bool:
        """Whether both hosts are one registry, however they are written, judged by names and addresses alone."""
        mine, theirs = _identity(self.server), _identity(other.server)
        return mine[0] == theirs[0] and not mine[1].isdisjoint(theirs[1])

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}{self._end}"

    @property
    def _end(self) -> str:
        return (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


@dataclass(frozen=True, slots=True)
class ImageReference:
    """Where an image is, and which one of several in that place is meant."""

    transport: Transport
    path: Path | None = None  # of a folder or archive; None for a registry
    image: RepositoryName | None = None  # in a registry or a docker archive
    ref: str | None = None  # the name in an OCI layout
    position: int | None = None  # the n-th image of an archive or layout, from 0

    @property
    def is_pipe(self) -> bool:
        return self.path is not None and str(self.path) == PIPE

    def __str__(self) -> str:
        if self.path is None:
            return f"{self.transport.value}://{self.image}"
        inside = self.ref or (self.image.familiar if self.image else None)
        if self.position is not None:
            inside = f"@{self.position}"
        return f"{self.transport.value}:{self.path}" + (f":{inside}" if inside else "")


def parse_reference(text: str) -> ImageReference:
    """The image that a text names; a UsageError says how it should be written."""
    if not text.isprintable():
        raise UsageError(f"{text[:_SHOWN]!r} is not the name of an image.", _HOW)
    prefix, colon, rest = text.partition(":")
    if prefix in _ELSEWHERE and colon:
        raise UsageError(f"Images cannot be read from or written to {prefix}: directly.", _ELSEWHERE[prefix])
    try:
        transport = Transport(prefix) if colon else None
    except ValueError:
        transport = None
    if transport is None:
        raise UsageError(f"{_shown(text)} does not say where the image is.", _HOW)
    if transport is Transport.REGISTRY:
        if not rest.startswith("//"):
            raise UsageError(f"{_shown(text)} lacks the // after docker:.", f"Write docker://{_shown(rest)}.")
        return ImageReference(transport, image=parse_repository(rest.removeprefix("//"), text))
    return _in_file(transport, rest, text)


def parse_repository(name: str, shown: str | None = None) -> RepositoryName:
    """A repository with tag or digest, with docker's defaults for host and tag."""
    shown = shown or name
    bare, at, digest = name.partition("@")
    if at and not _DIGEST.fullmatch(digest):  # the name is not shown: it may hold a password
        raise UsageError(
            "What follows the @ in the name of the image is not a digest.",
            "Write @sha256: and 64 hexadecimal digits, or a tag; who needs a password logs in with docker login.",
        )
    host, path = _split_host(bare)
    path, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise UsageError(
            f"{_shown(shown)} has a tag that no registry takes.",
            "Write letters, digits, dots, dashes and underscores, at most 128.",
        )
    if not _valid_host(host):
        raise UsageError(f"{_shown(shown)} names a host that cannot exist.", "Write docker://HOST[:PORT]/REPOSITORY.")
    if host == DEFAULT_REGISTRY and "/" not in path and path:
        path = f"{_DEFAULT_NAMESPACE}/{path}"
    if len(host) + len(path) > 255 or not _REPOSITORY.fullmatch(path):
        raise UsageError(
            f"{_shown(shown)} does not name a repository.",
            "Write it in lower case, with letters and digits, and between them dots, dashes, underscores or slashes.",
        )
    return RepositoryName(host, path, tag or (None if digest else _DEFAULT_TAG), digest or None)


def _split_host(name: str) -> tuple[str, str]:
    """The host, if the first part can only be one, and the rest."""
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or not {".", ":"}.isdisjoint(first) or first != first.lower()):
        return (DEFAULT_REGISTRY if first in DEFAULT_REGISTRY_ALIASES else first), rest
    return DEFAULT_REGISTRY, name


def _valid_host(host: str) -> bool:
    if not _HOST.fullmatch(host) or ".." in host:
        return False
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if name.startswith("[") and _address(name.strip("[]")) is None:
        return False
    return not name or not port.isdigit() or 0 < int(port) < 1 << 16


def _in_file(transport: Transport, rest: str, text: str) -> ImageReference:
    place, _, inside = rest.partition(":")
    if not place:
        raise UsageError(f"{_shown(text)} lacks the path.", f"Write {transport.value}:PATH.")
    if transport is Transport.OCI_FOLDER and place == PIPE:
        raise UsageError("A folder cannot be a pipe.", "Write oci-archive:- or docker-archive:-.")
    if not inside:
        return ImageReference(transport, Path(place))
    if _POSITION.fullmatch(inside):
        return ImageReference(transport, Path(place), position=int(inside[1:]))
    if transport is Transport.DOCKER_ARCHIVE:
        image = parse_repository(inside, text)
        if image.digest:
            raise UsageError(f"{_shown(text)}: docker archives know tags, not digests.", "Write NAME:TAG.")
        return ImageReference(transport, Path(place), image=image)
    if not _REF_NAME.fullmatch(inside) or len(inside) > 255:
        raise UsageError(
            f"{_shown(text)} gives the image a name that OCI layouts do not take.",
            "Write letters and digits, joined by one of - . _ : @ + /.",
        )
    return ImageReference(transport, Path(place), ref=inside)


def _host_name(host: str) -> str:
    """A host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def host_and_port(host: str) -> tuple[str, int | None]:
    """The name or address in lower case, and the port if there is one."""
    end = host.rpartition("]")[2] if host.startswith("[") else host
    port = end.partition(":")[2]
    return _host_name(host), int(port) if port else None


def _identity(host: str) -> tuple[str, frozenset[int]]:
    """One name for all that mean the same host, and the ports that may be meant."""
    name, port = host_and_port(host)
    address = _address(name)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if is_this_machine(name) or (address and (address.is_loopback or address.is_unspecified)):
        name = "localhost"
    elif address:
        name = str(address)
    return name, frozenset(_DEFAULT_PORTS if port is None else (port,))


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

"""Logins for registries, from the files of docker, podman and skopeo and from the programs that these name."""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from torchtailor.core.errors import BadInputError, EnvironmentProblem, UsageError
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Limit, read_limited
from torchtailor.oci.reference import DEFAULT_REGISTRY, DEFAULT_REGISTRY_ALIASES, RepositoryName

_DEFAULT_SERVER = "https://index.docker.io/v1/"  # what helpers know the default registry by
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_SECONDS = 60
_TOKEN_USER = "<token>"  # what helpers write where the secret is an identity token


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """A user and password, or the identity token of a user."""

    origin: str  # the file or program that has it
    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


class _Entry(msgspec.Struct):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _AuthFile(msgspec.Struct, rename="camel"):
    auths: dict[str, _Entry | None] = {}
    cred_helpers: dict[str, str] = {}
    creds_store: str = ""


class _Secret(msgspec.Struct, rename="pascal"):
    username: str = ""
    secret: str = ""


def find_login(image: RepositoryName, environment: Mapping[str, str] | None = None) -> RegistryLogin | None:
    """The login for a repository; the first file that has one decides, and in it the most specific path."""
    environment = os.environ if environment is None else environment
    for path in _files(environment):
        try:
            data = read_limited(path, Limit.CONFIGURATION)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, BadInputError) as error:
            raise UsageError(f"The logins in {path} cannot be read.", "Check its permissions.") from error
        try:
            found = _in_file(msgspec.json.decode(data, type=shaped(_AuthFile)), path, image, environment)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:  # not quoted: it holds secrets
            raise UsageError(f"{path} is damaged.", "Remove it and log in again, with docker login.") from error
        if found:
            return found
    return None


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    if chosen := environment.get("REGISTRY_AUTH_FILE"):
        if not Path(chosen).exists():
            raise UsageError(f"{chosen} does not exist.", "Correct or unset REGISTRY_AUTH_FILE.")
        yield Path(chosen)
        return
    home = Path(environment.get("HOME") or Path.home())
    run = environment.get("XDG_RUNTIME_DIR")
    yield (Path(run) if run else Path(f"/run/containers/{os.getuid()}")) / (
        "containers/auth.json" if run else "auth.json"
    )
    yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"
    yield Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def _in_file(
    file: _AuthFile, path: Path, image: RepositoryName, environment: Mapping[str, str]
) -> RegistryLogin | None:
    helpers = {_key(name): helper for name, helper in file.cred_helpers.items()}
    if helper := helpers.get(image.host):
        return _ask(helper, path, image, environment)
    entries = {_key(name): entry for name, entry in file.auths.items() if entry}
    for key in _paths(image):
        if (entry := entries.get(key)) and (login := _login(entry, path)):
            return login
    return _ask(file.creds_store, path, image, environment) if file.creds_store else None


def _paths(image: RepositoryName) -> Iterator[str]:
    """The repository and all that it is in, the most specific first."""
    path = f"{image.host}/{image.repository}"
    while path:
        yield path
        path = path.rpartition("/")[0]


def _key(name: str) -> str:
    """A key of a file as host or path; docker writes addresses there."""
    bare = re.sub(r"/v[12]/?$", "", re.sub(r"^https?://", "", name)).rstrip("/")
    host, slash, rest = bare.partition("/")
    return (DEFAULT_REGISTRY if host in DEFAULT_REGISTRY_ALIASES else host) + slash + rest


def _login(entry: _Entry, path: Path) -> RegistryLogin | None:
    user, password = entry.username, entry.password
    if entry.auth:
        try:
            user, colon, password = base64.b64decode(entry.auth, validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if not colon:
            raise UsageError(f"A login in {path} is damaged.", "Log in again, with docker login or podman login.")
    if entry.identitytoken:
        return RegistryLogin(str(path), user, identity_token=entry.identitytoken)
    return RegistryLogin(str(path), user, password.rstrip("\0")) if user else None


def _ask(helper: str, path: Path, image: RepositoryName, environment: Mapping[str, str]) -> RegistryLogin | None:
    """What a program knows that docker and podman ask for logins too."""
    program = f"docker-credential-{helper}"
    if not _HELPER.fullmatch(helper):
        raise UsageError(f"{path} names a credential helper that cannot exist.", "Correct credHelpers and credsStore.")
    server = _DEFAULT_SERVER if image.host == DEFAULT_REGISTRY else image.host
    try:
        done = subprocess.run(
            [program, "get"],
            input=server.encode(),
            capture_output=True,
            timeout=_HELPER_SECONDS,
            check=False,
            env=dict(environment),
        )
    except FileNotFoundError as error:
        raise EnvironmentProblem(
            f"{path} names the program {program}, which is not installed.", "Install it, or log in without it."
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"{program} gave no answer.", f"Try: echo {server} | {program} get") from error
    if done.returncode:
        said = " ".join((done.stdout + b" " + done.stderr).decode("utf-8", "replace").split())
        if "not found" in said.lower():
            return None
        raise EnvironmentProblem(f"{program} failed: {said[:200]}.", f"Try: echo {server} | {program} get")
    try:
        secret = msgspec.json.decode(done.stdout, type=shaped(_Secret))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EnvironmentProblem(f"{program} gave no login.", f"Try: echo {server} | {program} get") from error
    if secret.username == _TOKEN_USER:
        return RegistryLogin(program, identity_token=secret.secret)
    return RegistryLogin(program, secret.username, secret.secret) if secret.username else None

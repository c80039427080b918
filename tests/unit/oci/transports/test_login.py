"""Logins: which file, which entry, which program."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import LONG
from torchtailor.core.errors import EnvironmentProblem, TorchtailorError, UsageError
from torchtailor.oci.reference import parse_repository
from torchtailor.oci.transports.challenge import Challenge, parse_challenges
from torchtailor.oci.transports.login import RegistryLogin, find_login

IMAGE = parse_repository("r.example:5000/team/app/x:1")


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def entry(user: str, password: str = "pw") -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def write(path: Path, **content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def user_of(login: RegistryLogin | None) -> str | None:
    return login.user if login else None


def docker(**content: Any) -> Path:
    return write(Path.home() / ".docker" / "config.json", **content)


def test_no_files_no_login() -> None:
    assert find_login(IMAGE) is None


def test_the_order_of_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    docker(auths={"r.example:5000": entry("docker")})
    assert user_of(find_login(IMAGE)) == "docker"
    write(tmp_path / "elsewhere" / "config.json", auths={"r.example:5000": entry("moved")})
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "elsewhere"))
    assert user_of(find_login(IMAGE)) == "moved"
    write(Path.home() / ".config" / "containers" / "auth.json", auths={"r.example:5000": entry("podman")})
    assert user_of(find_login(IMAGE)) == "podman"
    write(tmp_path / "run" / "containers" / "auth.json", auths={"other.example": entry("nobody")})
    assert user_of(find_login(IMAGE)) == "podman"
    write(tmp_path / "run" / "containers" / "auth.json", auths={"r.example:5000": entry("session")})
    assert user_of(find_login(IMAGE)) == "session"
    chosen = write(tmp_path / "chosen.json", auths={"r.example:5000": entry("chosen")})
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(chosen))
    assert user_of(find_login(IMAGE)) == "chosen"
    write(chosen, auths={})
    assert find_login(IMAGE) is None
    chosen.unlink()
    with pytest.raises(UsageError, match="does not exist"):
        find_login(IMAGE)


def test_the_most_specific_entry() -> None:
    keys = ["r.example:5000/team/app/x", "r.example:5000/team/app", "r.example:5000/team", "https://r.example:5000/v2/"]
    auths = {key: entry(str(number)) for number, key in enumerate(keys)}
    auths |= {
        "r.example": entry("no port"),
        "r.example:5000/team/other": entry("other"),
        "r.example:5000/te": entry("te"),
    }
    for number, key in enumerate(keys):
        docker(auths=auths)
        assert user_of(find_login(IMAGE)) == str(number)
        del auths[key]
    docker(auths=auths)
    assert find_login(IMAGE) is None


@pytest.mark.parametrize("key", ["https://index.docker.io/v1/", "docker.io", "index.docker.io", "https://docker.io"])
def test_the_default_registry_has_several_names(key: str) -> None:
    docker(auths={key: entry("joe")})
    assert user_of(find_login(parse_repository("ubuntu"))) == "joe"
    assert find_login(IMAGE) is None


def test_kinds_of_entries() -> None:
    docker(auths={"r.example:5000": entry("joe", "with:colon")})
    login = find_login(IMAGE)
    assert login is not None
    assert (login.user, login.password) == ("joe", "with:colon")
    assert "with:colon" not in repr(login)
    docker(auths={"r.example:5000": {"username": "joe", "password": "pw"}})
    assert user_of(find_login(IMAGE)) == "joe"
    docker(auths={"r.example:5000": entry("joe", "") | {"identitytoken": "tok"}})
    login = find_login(IMAGE)
    assert login is not None
    assert login.identity_token == "tok"
    docker(auths={"r.example:5000": {}, "r.example:5000/team": None})
    assert find_login(IMAGE) is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"auths": 5}',
        '{"auths": {"r.example:5000": {"auth": "!!"}}}',
        '{"auths": {"r.example:5000": {"auth": "am9l"}}}',
    ],
)
def test_damaged_files_are_named_and_not_quoted(content: str) -> None:
    path = docker()
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        find_login(IMAGE)
    assert str(path) in caught.value.message
    assert "am9l" not in caught.value.message


@given(st.binary(max_size=80))
def test_any_bytes_in_a_file_are_a_sentence(data: bytes) -> None:
    path = docker()
    path.write_bytes(data)
    try:
        find_login(IMAGE)
    except TorchtailorError as error:
        assert error.hint


# Programs


def helper(name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path.home() / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


SAYS = """read server; echo "$1 $server" >> $HOME/asked; echo '{"ServerURL": "", "Username": "USER", "Secret": "pw"}'"""


def test_programs_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    helper("one", SAYS.replace("USER", "helped"), monkeypatch)
    docker(credHelpers={"r.example:5000": "one"}, auths={"r.example:5000": entry("file")})
    assert user_of(find_login(IMAGE)) == "helped"
    docker(credsStore="one", auths={"other.example": {}})
    assert user_of(find_login(parse_repository("ubuntu"))) == "helped"
    assert (Path.home() / "asked").read_text() == "get r.example:5000\nget https://index.docker.io/v1/\n"
    docker(credsStore="one", auths={"r.example:5000": entry("file")})
    assert user_of(find_login(IMAGE)) == "file"


def test_a_program_with_an_identity_token(monkeypatch: pytest.MonkeyPatch) -> None:
    helper("tok", SAYS.replace("USER", "<token>"), monkeypatch)
    docker(credsStore="tok")
    login = find_login(IMAGE)
    assert login is not None
    assert (login.user, login.identity_token) == ("", "pw")


def test_a_program_that_knows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    helper("none", "echo credentials not found in native keychain; exit 1", monkeypatch)
    docker(credsStore="none")
    assert find_login(IMAGE) is None


@pytest.mark.parametrize("script", ["exit 3", "echo locked >&2; exit 1", "echo hello", "true"])
def test_programs_that_fail(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    helper("bad", script, monkeypatch)
    docker(credsStore="bad")
    with pytest.raises(EnvironmentProblem, match="docker-credential-bad") as caught:
        find_login(IMAGE)
    assert "docker-credential-bad get" in caught.value.hint


def test_a_program_that_is_not_there() -> None:
    docker(credsStore="absent")
    with pytest.raises(EnvironmentProblem, match="not installed"):
        find_login(IMAGE)


@pytest.mark.parametrize("name", ["../../bin/sh", "a b", "-x", "a;b"])
def test_names_that_are_no_programs(name: str) -> None:
    docker(credsStore=name)
    with pytest.raises(UsageError, match="cannot exist"):
        find_login(IMAGE)


# Challenges


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", []),
        ("Negotiate", [("negotiate", {})]),
        ('Basic realm="x y"', [("basic", {"realm": "x y"})]),
        (
            'Bearer realm="https://a/token",service="s",scope="repository:a/b:pull,push"',
            [("bearer", {"realm": "https://a/token", "service": "s", "scope": "repository:a/b:pull,push"})],
        ),
        ('bearer Realm = "a" , SERVICE=b', [("bearer", {"realm": "a", "service": "b"})]),
        ('Basic realm="a", Bearer realm="b"', [("basic", {"realm": "a"}), ("bearer", {"realm": "b"})]),
        ('Negotiate, Basic realm="a\\"b"', [("negotiate", {}), ("basic", {"realm": 'a"b'})]),
    ],
)
def test_challenges(header: str, found: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_challenges(header) == tuple(Challenge(scheme, values) for scheme, values in found)


@given(st.text(alphabet='Ba1="\\, \té\x00', max_size=60))
def test_any_header_is_read(header: str) -> None:
    for challenge in parse_challenges(header):
        assert challenge.scheme == challenge.scheme.lower()


@pytest.mark.parametrize(
    "header", [" " * 65_000 + '"', "," * 65_000 + '"', "a" * 65_000, 'a="' * 20_000, "a =" * 20_000]
)
def test_long_headers_are_read_quickly(header: str) -> None:
    started = time.monotonic()
    parse_challenges(header)
    assert time.monotonic() - started < LONG / 10


@pytest.mark.parametrize(
    ("realm", "registry", "same"),
    [
        ("auth.docker.io", "registry-1.docker.io", True),
        ("ghcr.io", "ghcr.io", True),
        ("gitlab.com", "registry.gitlab.com", True),
        ("gitlab.example.org", "registry.example.org", True),
        ("evil.com", "registry.example.com", False),
        ("example.com.evil.org", "registry.example.com", False),
        ("docker.io.evil.io", "registry-1.docker.io", False),
        ("evil.io", "ghcr.io", False),
        ("10.0.0.2", "10.0.0.1", False),
        ("::2", "::1", False),
        ("", "ghcr.io", False),
        ("localhost", "127.0.0.1", False),
        ("auth.registry.co.uk", "registry.co.uk", True),
        ("evil.co.uk", "registry.co.uk", False),
        ("evil.com.au", "r.com.au", False),
    ],
)
def test_a_login_stays_with_its_registry(realm: str, registry: str, same: bool) -> None:
    from torchtailor.oci.transports.server import _is_of

    assert _is_of(realm, registry) is same

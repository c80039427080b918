"""requirements/*.txt: what pyproject.toml asks for, pinned with hashes for every supported Python and machine."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
_SUPPORTED = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
PYTHONS = [match[1] for line in PROJECT["project"]["classifiers"] if (match := _SUPPORTED.match(line))]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
BASE: list[str] = PROJECT["project"]["dependencies"]


def asked(lines: list[str]) -> Iterator[Requirement]:
    """Requirements, with those of torchtailor's own extras in their place."""
    for requirement in map(Requirement, lines):
        if requirement.name == "torchtailor":
            for extra in sorted(requirement.extras):
                yield from asked(EXTRAS[extra])
        else:
            yield requirement


LOCKED = {
    "test.txt": [*asked(BASE), *asked(EXTRAS["test"]), *asked(PROJECT["build-system"]["requires"])],
    "docs.txt": [*asked(BASE), *asked(EXTRAS["docs"])],
    "hook.txt": list(asked(EXTRAS["hook"])),
    "uv.txt": [requirement for requirement in asked(EXTRAS["test"]) if requirement.name == "uv"],
}


def entries(text: str) -> list[str]:
    """A lock's lines without comments, each with the hashes that continue it."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return "\n".join(lines).replace("\\\n", " ").splitlines()


@cache
def requirements(name: str) -> list[Requirement]:
    text = (ROOT / "requirements" / name).read_text("utf-8")
    return [Requirement(entry.partition(" --hash")[0]) for entry in entries(text)]


def pins(name: str, environment: dict[str, str]) -> dict[str, str]:
    """The version of every package that a lock has for an environment."""
    versions: dict[str, str] = {}
    for requirement in requirements(name):
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        package = canonicalize_name(requirement.name)
        assert package not in versions, f"{package} is in {name} twice for {environment}"
        versions[package] = str(requirement.specifier).removeprefix("==")
    return versions


def environment_of(python: str, machine: str) -> dict[str, str]:
    """What differs; the rest is as on this machine."""
    return {"python_version": python, "python_full_version": f"{python}.1", "platform_machine": machine}


def test_the_supported_pythons_begin_with_requires_python() -> None:
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert len(PYTHONS) >= 4


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_has_what_the_project_asks_for(name: str, python: str, machine: str) -> None:
    environment = environment_of(python, machine)
    versions = pins(name, environment)
    shared = pins("test.txt", environment)
    for requirement in LOCKED[name]:
        version = versions.get(canonicalize_name(requirement.name))
        assert version, f"{requirement} is not in requirements/{name}: run `make lock`"
        assert requirement.specifier.contains(version), f"{name} has {version}, not {requirement}: run `make lock`"
    for package in versions.keys() & shared.keys():
        assert versions[package] == shared[package], f"{package} differs between {name} and test.txt"


@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_has_pins_with_hashes_and_no_address(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text("utf-8")
    assert "://" not in text and "index" not in re.sub(r"^\S+==", "", text, flags=re.MULTILINE)
    for entry in entries(text):
        assert re.match(r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==\S+ ( ?; .+)?( +--hash=sha256:[0-9a-f]{64})+$", entry), entry

"""The data that workflows are made of: pinned actions, runners, schemes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec

from torchtailor.core.tables import read_table


class PinnedAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action of GitHub, pinned to the commit of a release."""

    uses: str
    commit: str
    version: str

    def __str__(self) -> str:
        return f"{self.uses}@{self.commit} # {self.version}"


class SystemRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A system that runs workflows."""

    path: str
    most_jobs: int
    most_minutes: int  # of a job on a hosted runner
    runner: Mapping[str, tuple[str, ...]]
    image: str = ""


class OidcRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A login by the identity of a job, without a secret."""

    action: str  # of GitHub
    inputs: Mapping[str, str]
    variables: tuple[str, ...]  # that the project has to have
    settings: Mapping[str, str] = {}  # of the job on GitHub; GitLab gives jobs all variables of the project
    audience: str = ""  # of GitLab's token; empty: credentials are added by hand there
    token_file: str = ""  # the variable that names the file of the token


class SchemeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a store or index with this scheme needs."""

    packages: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}  # with what they are where they are not set
    oidc: OidcRow | None = None


class CiTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them."""

    action: Mapping[str, PinnedAction]
    system: Mapping[str, SystemRow]
    scheme: Mapping[str, SchemeRow]
    cluster: Mapping[str, tuple[str, ...]]  # packages, by the kind of a farm's cluster


@cache
def ci_tables() -> CiTables:
    """The data of this version."""
    return read_table("publish.ci", "ci.toml", CiTables)

"""Where this torchtailor is from: an index, a commit of its repository, or a checkout; and how to get it again."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote

import msgspec

from torchtailor.core import version
from torchtailor.core.shapes import shaped

SOMEWHERE = "git+URL@COMMIT"  # where that is not known, and in pages
_CHECKOUT = Path(__file__).resolve().parents[3]


class _Vcs(msgspec.Struct):
    commit_id: str = ""


class _Noted(msgspec.Struct):
    """The part of PEP 610's direct_url.json that is asked for."""

    url: str = ""
    vcs_info: _Vcs | None = None


def shown_version() -> str:
    """`0.1.0`, and in a checkout or from one the commit too."""
    return f"{version.__version__} (commit {commit()[:12]})" if commit() else version.__version__


@cache
def commit() -> str:
    """The commit that this code is of; empty for a release, and where nobody knows."""
    noted = _installed_from().vcs_info
    return _git("rev-parse", "HEAD") or (noted.commit_id if noted else "")


@cache
def repository() -> str:
    """The URL of the repository: that of the installation, of the checkout's remote, or of the package's metadata."""
    installed = _installed_from()
    if installed.vcs_info:
        return installed.url
    remote = re.sub(r"^git@([^:]+):", r"https://\1/", _git("remote", "get-url", "origin"))
    if remote.startswith("https://") and "@" not in remote:
        return remote
    with suppress(PackageNotFoundError):
        rows = map(str, distribution("torchtailor").metadata.get_all("Project-URL") or ())
        return next((row.removeprefix("Source, ") for row in rows if row.startswith("Source, https://")), "")
    return ""


def requirement(extra: str) -> str:
    """What pip installs to get the same torchtailor with an extra: by its name where it is published, else from where
    this one is."""
    if version.PUBLISHED:
        return f"torchtailor[{extra}]"
    if (_CHECKOUT / "pyproject.toml").is_file():
        return f"{_CHECKOUT}[{extra}]"
    if (place := _place()) and place.exists():
        return f"{place}[{extra}]"
    return f"torchtailor[{extra}] @ {address() or SOMEWHERE}"


def pinned() -> str:
    """What a workflow installs: this release where it is published, else the repository at this commit; empty where
    that is not known."""
    return f"torchtailor=={version.__version__}" if version.PUBLISHED else address()


def address() -> str:
    """`git+https://HOST/NAME@COMMIT`; empty where one of both is not known."""
    return f"git+{repository()}@{commit()}" if repository() and commit() else ""


def _place() -> Path | None:
    """The checkout, or the wheel, of this machine that was installed."""
    scheme, _, path = _installed_from().url.partition("://")
    return Path(unquote(path)) if scheme == "file" and path.startswith("/") else None


@cache
def _installed_from() -> _Noted:
    """What the installer noted of where it was told to install from."""
    with suppress(PackageNotFoundError, OSError, ValueError):
        text = distribution("torchtailor").read_text("direct_url.json") or "{}"
        return msgspec.json.decode(text, type=shaped(_Noted))
    return _Noted()


def _git(*words: str) -> str:
    """What git says of the checkout that this code is in; empty where it is in none."""
    if not (_CHECKOUT / ".git").exists():
        return ""
    with suppress(OSError):
        line = ["git", "-C", str(_CHECKOUT), *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""

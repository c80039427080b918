"""Where packages are installed: the site-packages of a venv, of conda, of a system, of a Nix result, of a folder."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_PATTERNS = ("lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages")
_NAMES = ("site-packages", "dist-packages")
_UP_TO_SITE = re.compile(r"^(?:(?:.*/)?(?:site|dist)-packages/|[^/]+\.data/(?:platlib|purelib)/)")

_SYSTEM_TOO = re.compile(r"^\s*include-system-site-packages\s*=\s*true\s*$", re.IGNORECASE | re.MULTILINE)


def find_sites(folder: Path) -> tuple[Path, ...]:
    """The folders in which the packages of an environment lie; a plain folder may itself be one (`pip --target`)."""
    if folder.name in _NAMES:
        return (folder,)
    places = [place for pattern in _PATTERNS for place in sorted(folder.glob(pattern)) if place.is_dir()]
    if any(folder.glob("*.dist-info")):
        places.append(folder)
    first: dict[Path, Path] = {}  # lib64 is often a link to lib, and conda's python3.1 one to python3.12
    for place in places:
        first.setdefault(place.resolve(), place)
    return tuple(first.values())


def sites_below(root: Path) -> tuple[Path, ...]:
    """Every folder of packages anywhere below a root; links are not followed."""
    found = []
    for place, names, _ in os.walk(root):
        names.sort()
        if Path(place).name in _NAMES or any(name.endswith(".dist-info") for name in names):
            found.append(Path(place))
            names.clear()
    return tuple(found)


def is_environment(folder: Path) -> bool:
    """Whether a folder is a venv or a conda environment, or the site-packages of one."""
    if folder.name in _NAMES:
        return True
    marked = (folder / "pyvenv.cfg").is_file() or (folder / "conda-meta").is_dir()
    return marked and bool(find_sites(folder))


def own_python(folder: Path) -> Path | None:
    """The interpreter of an environment, given the environment or its site-packages."""
    candidates = (prefix / "bin" / name for prefix in _prefixes(folder) for name in ("python3", "python"))
    return next((python.absolute() for python in candidates if python.exists()), None)


def sees_system_packages(folder: Path) -> bool:
    """Whether an environment, given it or its site-packages, also uses the packages of the Python it was made with."""
    for prefix in _prefixes(folder):
        with suppress(OSError, UnicodeDecodeError):
            if _SYSTEM_TOO.search((prefix / "pyvenv.cfg").read_text("utf-8")):
                return True
    return False


def _prefixes(folder: Path) -> list[Path]:
    return [folder, *(folder.absolute().parents[2:3] if folder.name in _NAMES else ())]


def active_environment() -> Path | None:
    """The environment that the shell is in."""
    prefix = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    return Path(prefix) if prefix else None


def project_environment(folder: Path) -> Path | None:
    """The `.venv` of a folder or of the nearest above it, where uv looks too."""
    candidates = (place / ".venv" for place in (folder.absolute(), *folder.absolute().parents))
    return next((place for place in candidates if (place / "pyvenv.cfg").is_file()), None)


def installed_path(path: str) -> str:
    """`lib/python3.13/site-packages/torch/lib/x.so` -> `torch/lib/x.so`; so also `k2-1.0.data/platlib/k2/x.so` of a
    wheel, whose folder has the version in its name."""
    return _UP_TO_SITE.sub("", path) if "-packages/" in path or ".data/" in path else path

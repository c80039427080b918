"""pip's configuration: PIP_* variables and every pip.conf."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import platformdirs

from torchtailor.core.errors import BadInputError, UsageError
from torchtailor.core.trust import Limit, read_limited
from torchtailor.fetch.locations import ConfiguredIndexes, IndexLocation, LocationKind, make_location

_SECTIONS = ("global", "install", "download")  # later ones win, as in pip


def read(environment: Mapping[str, str]) -> ConfiguredIndexes:
    """pip's settings: files from the most general to the most specific, then the environment."""
    values: dict[str, tuple[str, str, Path]] = {}
    for path in config_files(environment):
        for key, value in _read_file(path):
            values[key] = (value, str(path), path.parent)
    for name, value in environment.items():
        if name.startswith("PIP_") and value:
            key = name.removeprefix("PIP_").lower().replace("_", "-")
            values[key] = (value, name, Path.cwd())
    found = ConfiguredIndexes(values={key: value for key, (value, _, _) in values.items()})
    found.no_index = found.values.get("no-index", "").lower() in ("1", "true", "yes", "on")
    if "index-url" in values and not found.no_index:
        text, origin, folder = values["index-url"]
        found.index = make_location(text, LocationKind.INDEX, origin, folder)
    for key, kind, into in (
        ("extra-index-url", LocationKind.INDEX, found.extra),
        ("find-links", LocationKind.LINKS, found.links),
    ):
        if key in values and not (kind is LocationKind.INDEX and found.no_index):
            text, origin, folder = values[key]
            into += [make_location(word, kind, origin, folder) for word in text.split()]
    return found


def config_files(environment: Mapping[str, str]) -> Iterator[Path]:
    """The pip.conf files that exist, from the whole machine's to the environment's own."""
    special = environment.get("PIP_CONFIG_FILE")
    if special == os.devnull:
        return
    home = Path(environment.get("HOME") or Path.home())
    shared = (Path(folder) / "pip" for folder in platformdirs.site_config_dir(multipath=True).split(os.pathsep))
    own = Path(environment["XDG_CONFIG_HOME"]) / "pip" if environment.get("XDG_CONFIG_HOME") else None
    candidates = [
        *(folder / "pip.conf" for folder in shared),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        (own or home / ".config" / "pip") / "pip.conf",
        Path(sys.prefix) / "pip.conf",
    ]
    if sys.platform == "darwin":
        candidates.insert(-1, home / "Library" / "Application Support" / "pip" / "pip.conf")
    if special:
        candidates.append(Path(special))
    yield from (path for path in candidates if path.is_file())


def _read_file(path: Path) -> Iterator[tuple[str, str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(read_limited(path, Limit.CONFIGURATION).decode("utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError, BadInputError, configparser.Error) as error:
        raise UsageError(
            f"pip's configuration file {path} cannot be read: {_problem(error)}.", "Correct or move it."
        ) from None  # the error itself quotes the file, which may hold a password
    for section in _SECTIONS:
        if parser.has_section(section):
            for key, value in parser.items(section):
                yield key.lower().replace("_", "-"), value


def _problem(error: Exception) -> str:
    """What is wrong, without a word of the file."""
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"line {error.lineno} is in no [section]"
    if isinstance(error, configparser.ParsingError):
        return f"line {error.errors[0][0]} is not `name = value`" if error.errors else "it is no configuration file"
    if isinstance(error, configparser.DuplicateOptionError | configparser.DuplicateSectionError):
        return f"line {error.lineno} repeats an earlier one"
    if isinstance(error, OSError):
        return error.strerror or "the disk refuses"
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "it is too large or no plain file"


def default_index() -> IndexLocation:
    """The index that pip uses when none is configured, from pip itself."""
    url = _from_pip() or _from_bundled_pip()
    if not url:
        raise UsageError(
            "No package index is configured, and no pip is installed whose default could be used.",
            "Set PIP_INDEX_URL or UV_DEFAULT_INDEX, or give --index-url.",
        )
    return IndexLocation(url, LocationKind.INDEX, "pip's default")


def _from_pip() -> str | None:
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return None
    return str(PyPI.simple_url)


def _from_bundled_pip() -> str | None:
    """Environments made by uv have no pip, but Python has a wheel for ensurepip: its own, or the distribution's."""
    import subprocess
    import sysconfig
    from importlib.util import find_spec

    ensurepip, shared = find_spec("ensurepip"), sysconfig.get_config_var("WHEEL_PKG_DIR")
    folders = [Path(ensurepip.origin).parent / "_bundled"] if ensurepip and ensurepip.origin else []
    folders += [Path(shared)] if shared else []
    for wheel in (wheel for folder in folders for wheel in folder.glob("pip-*.whl")):
        code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
        answer = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONPATH": str(wheel)}, capture_output=True, text=True, check=False
        )
        if answer.returncode == 0:
            return answer.stdout.strip()
    return None

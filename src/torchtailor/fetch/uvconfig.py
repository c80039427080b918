"""uv's configuration: UV_* variables, uv.toml and [tool.uv]."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import platformdirs

from torchtailor.core.errors import BadInputError, UsageError
from torchtailor.core.trust import Limit, decode_toml, read_limited
from torchtailor.fetch.locations import ConfiguredIndexes, IndexLocation, LocationKind, make_location

_TRUE = ("1", "true", "yes", "on")


def read(environment: Mapping[str, str], directory: Path) -> ConfiguredIndexes:
    """uv's settings: the environment first, then the project's, the user's and the machine's files."""
    found = ConfiguredIndexes()
    found.offline = environment.get("UV_OFFLINE", "").lower() in _TRUE
    found.no_index = environment.get("UV_NO_INDEX", "").lower() in _TRUE
    found.strategy = environment.get("UV_INDEX_STRATEGY", "")
    _read_environment(environment, directory, found)
    if environment.get("UV_NO_CONFIG", "").lower() not in _TRUE:
        for path in config_files(environment, directory):
            _read_tables(path, environment, found)
    if found.no_index:
        found.index, found.extra = None, []
    return found


def _read_environment(environment: Mapping[str, str], directory: Path, found: ConfiguredIndexes) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if not found.index and environment.get(name):
            found.index = _named(environment[name], name, directory, environment)
    for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL"):
        found.extra += [_named(word, name, directory, environment) for word in environment.get(name, "").split()]
    words = re.split(r"[,\s]+", environment.get("UV_FIND_LINKS", ""))
    found.links += [make_location(word, LocationKind.LINKS, "UV_FIND_LINKS", directory) for word in words if word]


def config_files(environment: Mapping[str, str], directory: Path) -> Iterator[Path]:
    """The files that uv would read in this directory, the nearest first."""
    if special := environment.get("UV_CONFIG_FILE"):
        yield Path(special)
        return
    for folder in (directory, *directory.parents):
        here = [path for path in (folder / "uv.toml", folder / "pyproject.toml") if path.is_file()]
        if here and (here[0].name == "uv.toml" or _uv_table(here[0]) is not None):
            yield here[0]
            break
    home = Path(environment.get("HOME") or Path.home())
    own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    shared = [Path(folder) for folder in platformdirs.site_config_dir(multipath=True).split(os.pathsep)]
    candidates = [own, *shared, Path("/etc")]
    yield from (path for path in (folder / "uv" / "uv.toml" for folder in candidates) if path.is_file())


def _load(path: Path) -> dict[str, Any]:
    try:
        return decode_toml(read_limited(path, Limit.CONFIGURATION).decode("utf-8"))
    except (OSError, ValueError, BadInputError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}"
        said = str(error) if isinstance(error, tomllib.TOMLDecodeError) else said
        raise UsageError(f"uv's configuration file {path} cannot be read: {said}.", "Correct or move it.") from None


def _uv_table(path: Path) -> dict[str, Any] | None:
    tables = _load(path)
    if path.name == "pyproject.toml":
        tool = tables.get("tool", {})
        return tool.get("uv") if isinstance(tool, dict) else None
    return tables


def _read_tables(path: Path, environment: Mapping[str, str], found: ConfiguredIndexes) -> None:
    table = _uv_table(path) or {}
    folder, origin = path.parent, str(path)
    for part in (table, table.get("pip", {})):
        if not isinstance(part, dict):
            continue
        found.offline = found.offline or part.get("offline") is True
        found.no_index = found.no_index or part.get("no-index") is True
        if not found.strategy and isinstance(part.get("index-strategy"), str):
            found.strategy = part["index-strategy"]
        if not found.index and isinstance(part.get("index-url"), str):
            found.index = _named(part["index-url"], origin, folder, environment)
        found.extra += [_named(url, origin, folder, environment) for url in _strings(part.get("extra-index-url"))]
        found.links += [
            make_location(url, LocationKind.LINKS, origin, folder) for url in _strings(part.get("find-links"))
        ]
        for row in part["index"] if isinstance(part.get("index"), list) else []:
            _read_index_row(row, origin, folder, environment, found)


def _read_index_row(
    row: Any, origin: str, folder: Path, environment: Mapping[str, str], found: ConfiguredIndexes
) -> None:
    if not isinstance(row, dict) or not isinstance(row.get("url"), str) or row.get("explicit") is True:
        return  # an explicit index is only for the packages that a project pins to it
    name = row.get("name")
    source = _named(f"{name}={row['url']}" if isinstance(name, str) else row["url"], origin, folder, environment)
    if row.get("format") == "flat":
        found.links.append(IndexLocation(source.url, LocationKind.LINKS, origin))
    elif row.get("default") is True and not found.index:
        found.index = source
    else:
        found.extra.append(source)


def _named(text: str, origin: str, folder: Path, environment: Mapping[str, str]) -> IndexLocation:
    """An index that may be written `name=URL`; its credentials are in the environment under its name."""
    match = re.fullmatch(r"([\w.-]+)=(.*)", text)
    source = make_location(match[2] if match else text, LocationKind.INDEX, origin, folder)
    if not match:
        return source
    key = re.sub(r"[^A-Z0-9]", "_", match[1].upper())
    user = environment.get(f"UV_INDEX_{key}_USERNAME")
    password = environment.get(f"UV_INDEX_{key}_PASSWORD")
    parts = urlsplit(source.url)
    if (user or password) and "@" not in parts.netloc:
        login = f"{quote(user or '', safe='')}:{quote(password or '', safe='')}@"
        return IndexLocation(urlunsplit(parts._replace(netloc=login + parts.netloc)), source.kind, origin)
    return source


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

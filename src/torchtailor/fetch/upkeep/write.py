"""Puts rows into a TOML file: tables are appended, so that all that was written by hand stays as it was."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from torchtailor.catalog import load_catalog
from torchtailor.catalog.load import USER_FILE
from torchtailor.catalog.variants import Matrix
from torchtailor.core.disk import disk_errors, staging_folder, write_atomically
from torchtailor.core.errors import TorchtailorError, UsageError

_HEADER = re.compile(r"^\s*\[", re.MULTILINE)
_CHECKED = re.compile(r"^checked\s*=.*$", re.MULTILINE)
_SOURCES = re.compile(r"^\[sources\][^\n]*\n", re.MULTILINE)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class NewRows:
    """Rows by their table, the sources they name, and the day on which everything was read."""

    checked: str  # empty where something could not be read
    releases: tuple[Mapping[str, Any], ...] = ()
    toolkits: tuple[Mapping[str, Any], ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.releases or self.toolkits)

    @property
    def text(self) -> str:
        """The rows as TOML."""
        blocks = [_block("[[cuda]]", row) for row in self.toolkits]
        for row in self.releases:
            blocks.append(_block("[[release]]", {name: value for name, value in row.items() if name != "build"}))
            blocks += [_block("[[release.build]]", build) for build in row["build"]]
        return "\n".join(blocks)


def merged(old: str, rows: NewRows) -> str:
    """A file's text with the rows added: `checked` and the sources in their places, the tables at its end."""
    text = _with_checked(old, rows.checked) if rows.checked else old
    text = _with_sources(text, rows.sources)
    return _below(text, rows.text) if rows else text


def _below(text: str, block: str) -> str:
    return text.rstrip("\n") + "\n\n" + block if text else block


def write_user_file(path: Path, rows: NewRows) -> None:
    """Add the rows to a `torchtailor.toml`, unless the result is no catalog that can be used."""
    with disk_errors(path.parent):
        try:
            old = path.read_text("utf-8") if path.exists() else ""
            text = merged(old, rows)
            with staging_folder(path.parent) as folder:
                (folder / USER_FILE).write_text(text, "utf-8")
                Matrix(load_catalog(folder))
        except (TorchtailorError, UnicodeDecodeError) as error:
            raise UsageError(
                f"The rows cannot be added to {path}: {error}", "Add them by hand: --dry-run prints them."
            ) from error
        write_atomically(path, text.encode())


def repository_data() -> Path:
    """The folder of the catalog's own files, where the package runs from a repository."""
    folder = Path(str(files("torchtailor.catalog"))) / "data"
    if not (folder.parents[3] / "pyproject.toml").is_file():
        raise UsageError(
            "--write-data changes a repository of torchtailor, and this one is installed.",
            "Leave it out: the rows then go to torchtailor.toml.",
        )
    return folder


def write_data(folder: Path, rows: NewRows) -> tuple[Path, ...]:
    """Add the rows to the catalog's own files in a repository."""
    paths = []
    for name, part in (
        ("cuda.toml", NewRows(rows.checked, (), rows.toolkits, _only(rows.sources, "cuda-"))),
        ("pytorch.toml", NewRows(rows.checked, rows.releases, (), _only(rows.sources, "index-"))),
    ):
        path = folder / name
        old = path.read_text("utf-8")
        text = merged(old, part) if part or name == "pytorch.toml" else old
        tomllib.loads(text)
        if text != old:
            with disk_errors(folder):
                write_atomically(path, text.encode())
            paths.append(path)
    return tuple(paths)


def _only(sources: Mapping[str, str], start: str) -> dict[str, str]:
    return {name: text for name, text in sources.items() if name.startswith(start)}


def _with_checked(text: str, day: str) -> str:
    """The day replaces the earlier one, or is put above the first table, below a comment at the top."""
    line = f"checked = {_value(day)}"
    first = _HEADER.search(text)
    head, rest = (text[: first.start()], text[first.start() :]) if first else (text, "")
    if _CHECKED.search(head):
        return _CHECKED.sub(lambda _: line, head, count=1) + rest
    # a comment right above the first table belongs to that table
    own = re.search(r"(?:^[ \t]*#[^\n]*\n)+\Z", head, re.MULTILINE) if rest else None
    cut = own.start() if own else len(head)
    before, comment = head[:cut], head[cut:]
    if before and not before.endswith("\n"):
        before += "\n"
    return f"{before}{line}\n\n{comment}{rest}".rstrip("\n") + "\n"


def _with_sources(text: str, sources: Mapping[str, str]) -> str:
    if not sources:
        return text
    present = tomllib.loads(text).get("sources", {})
    lines = "".join(f"{_key(name)} = {_value(value)}\n" for name, value in sources.items() if name not in present)
    for name in sources.keys() & present.keys():  # read again: the newer text counts
        line = f"{_key(name)} = {_value(sources[name])}"
        place = re.search(rf"^{re.escape(_key(name))}\s*=.*$", text, re.MULTILINE)
        text = text[: place.start()] + line + text[place.end() :] if place else text
    header = _SOURCES.search(text)
    if header:
        return text[: header.end()] + lines + text[header.end() :]
    return _below(text, f"[sources]\n{lines}") if lines else text


def _block(header: str, row: Mapping[str, Any]) -> str:
    return header + "\n" + "".join(f"{_key(name)} = {_value(value)}\n" for name, value in row.items())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: object) -> str:
    """A value as TOML; rows hold words, numbers, lists and small tables only."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped) + '"'
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, Sequence):
        if value and all(isinstance(item, Mapping) for item in value):
            return "[\n" + "".join(f"    {_value(item)},\n" for item in value) + "]"
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise TypeError(f"{type(value).__name__} is not written to TOML")

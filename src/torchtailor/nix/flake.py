"""The flake beside a tree of recipes: finds it and gives its nixpkgs pins their hashes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtailor.nix.syntax import Binding, NixSource
from torchtailor.nix.tree import read_recipe

FLAKE = "flake.nix"
_HASH = "narHash"


@dataclass(frozen=True)
class FilledFlake:
    """A flake whose pins got hashes: its new text, and the hashes by revision."""

    path: Path
    text: str
    hashes: Mapping[str, str]


def find_flake(root: Path) -> Path | None:
    """The flake that a tree belongs to: in its folder or in one above, up to the repository's."""
    here = root.resolve()
    for folder in (here, *here.parents):
        if (folder / FLAKE).is_file():
            return folder / FLAKE
        if (folder / ".git").exists():
            return None
    return None


def fill_flake(path: Path, hashes: Mapping[str, str]) -> FilledFlake | None:
    """The flake with the hashes of these revisions where it lacks them; None if it lacks none."""
    text = read_recipe(path)
    if NixSource(text).error_line is not None:
        return None
    filled: dict[str, str] = {}
    raw = text.encode()
    # From the end, so that the positions before an edit stay right.
    for pin, rev, empty in reversed(list(_without_hash(NixSource(text)))):
        if (value := hashes.get(rev)) is None:
            continue
        if empty:
            raw = raw[: empty.node.start_byte] + f'"{value}"'.encode() + raw[empty.node.end_byte :]
        else:
            end = raw.index(b";", pin.node.end_byte) + 1
            line = f'\n{" " * int(pin.node.parent.start_point[1])}{".".join((*pin.path[:-1], _HASH))} = "{value}";'
            raw = raw[:end] + line.encode() + raw[end:]
        filled[rev] = value
    return FilledFlake(path, raw.decode(), filled) if filled else None


def _without_hash(source: NixSource) -> Iterator[tuple[Binding, str, Binding | None]]:
    """Inputs and arguments of fetchTree that name a revision but no hash: `rev`, its value, and an empty narHash."""
    for pin in source.named("rev"):
        owner = pin.node.parent.parent.parent  # binding, binding set, attribute set
        peers = {item.name: item for item in source.inside(owner) if item.path[:-1] == pin.path[:-1]}
        rev = source.value(pin.node)
        if "type" not in peers or not isinstance(rev, str):  # other fetchers name their hash otherwise
            continue
        present = peers.get(_HASH)
        if present is None or source.value(present.node) == "":
            yield pin, rev, present

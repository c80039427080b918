"""Evaluates recipes with Nix: each one unchanged, against a strict stand-in for nixpkgs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import msgspec

from torchtailor.core.cgroups import available_cores
from torchtailor.core.shapes import shaped
from torchtailor.nix.nix import EVALUATE, NixRun, run_nix
from torchtailor.nix.pins import Pins

_UNKNOWN = re.compile(r"torchtailor does not fetch (.*)")  # as evaluate.nix throws it
_BATCH = 64
_SECONDS = 120.0
_AT = re.compile(r"at (?:\S*?)(/\S+\.nix):(\d+)(?::\d+)?")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Evaluated(msgspec.Struct, frozen=True):
    """A recipe that Nix evaluated."""

    path: str
    pname: str
    name: str
    version: str
    drv: str
    torch: bool
    arch_list: str | None
    capabilities: tuple[str, ...]
    cuda: str | None
    python: str | None
    platforms: tuple[str, ...]
    description: str
    long_description: str
    broken: bool
    allow_broken: bool
    blas: str | None
    magma_patches: tuple[str, ...]
    magma_targets: tuple[str, ...]
    nccl_targets: tuple[str, ...]
    changelog: str
    on: str | None  # the pname of the torch that it is built on
    pin: str
    pin_hash: str | None
    patches: int
    cmake_flags: tuple[str, ...]
    pre_patch: str
    post_patch: str
    post_install: str
    pre_configure: str
    pre_build: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A recipe that Nix cannot evaluate, and the line of the error."""

    path: str
    message: str
    line: int

    @property
    def unknown(self) -> str:
        """What it needs and whose content is not known, such as another nixpkgs: nothing can be said about it then."""
        found = _UNKNOWN.search(self.message)
        return found[1] if found else ""


Evaluation = Evaluated | Failed


def evaluate(recipes: Mapping[Path, str], pins: Pins, *, without_pin: str = "") -> Mapping[Path, Evaluation]:
    """Evaluate recipes, each for its system; a failing batch is split, so that one failure does not hide others.

    `without_pin` is the nixpkgs revision that stands for the machine's own, by default the newest known one.
    """
    items = [{"path": str(path.resolve()), "system": system} for path, system in recipes.items()]
    batches = [items[at : at + _BATCH] for at in range(0, len(items), _BATCH)]
    with (
        as_file(files("torchtailor.nix").joinpath("standin")) as folder,
        tempfile.TemporaryDirectory() as scratch,
    ):
        run = _Runner(folder / "evaluate.nix", _pins_json(pins, Path(scratch), without_pin), Path(scratch))
        with ThreadPoolExecutor(max_workers=available_cores()) as pool:
            outcomes = [outcome for found in pool.map(run.batch, batches) for outcome in found]
    by_path = {outcome.path: outcome for outcome in outcomes}
    return {path: by_path[str(path.resolve())] for path in recipes}


class _Runner:
    """Calls Nix on a list of recipes."""

    def __init__(self, expression: Path, pins: Path, scratch: Path) -> None:
        self.expression, self.pins, self.scratch = expression, pins, scratch

    def batch(self, items: Sequence[Mapping[str, str]]) -> list[Evaluation]:
        done = self._call(items)
        if done.code == 0:
            return list(msgspec.json.decode(done.out, type=shaped(list[Evaluated])))
        if len(items) == 1:
            return [_failed(items[0]["path"], done.err)]
        culprits = _named(done.err, items)
        rest = [item for item in items if item["path"] not in culprits]
        if culprits and rest:
            alone = [outcome for item in items if item["path"] in culprits for outcome in self.batch([item])]
            return alone + self.batch(rest)
        middle = len(items) // 2
        return self.batch(items[:middle]) + self.batch(items[middle:])

    def _call(self, items: Sequence[Mapping[str, str]]) -> NixRun:
        with tempfile.NamedTemporaryFile("wb", dir=self.scratch, suffix=".json", delete=False) as listing:
            listing.write(msgspec.json.encode(items))
        arguments = [str(self.expression)]
        for name, file in (("recipes", listing.name), ("pins", self.pins)):
            arguments += ["--arg", name, f"builtins.readFile {file}"]
        return run_nix("nix-instantiate", [*EVALUATE, *arguments], timeout=_SECONDS)


def _pins_json(pins: Pins, scratch: Path, without_pin: str) -> Path:
    fields = (
        "torch",
        "cuda",
        "aliases",
        "pythons",
        "broken_cuda",
        "cudnn_refuses",
        "triton",
        "torchvision",
        "torchaudio",
    )
    rows = {row.rev: {name: getattr(row, name) for name in fields} for row in pins.file.nixpkgs}
    path = scratch / "pins.json"
    path.write_bytes(msgspec.json.encode({**rows, "": rows.get(without_pin) or list(rows.values())[-1]}))
    return path


def _named(error: str, items: Sequence[Mapping[str, str]]) -> set[str]:
    """The recipes of a batch that an error names."""
    mentioned = {match[1] for match in _AT.finditer(_COLOURS.sub("", error))}
    return {item["path"] for item in items if item["path"] in mentioned}


def _failed(path: str, error: str) -> Failed:
    text = _COLOURS.sub("", error)
    line = next((int(match[2]) for match in _AT.finditer(text) if match[1] == path), 1)
    first = next((part.strip() for part in text.splitlines() if part.strip().startswith("error:")), text.strip())
    return Failed(path, first.removeprefix("error:").strip() or "Nix gives no reason", line)


def check_syntax(path: Path) -> Failed | None:
    """The error of Nix's own parser on a file; None if it parses."""
    done = run_nix("nix-instantiate", ["--store", "dummy://", "--parse", str(path.resolve())], timeout=_SECONDS)
    return None if done.code == 0 else _failed(str(path.resolve()), done.err)

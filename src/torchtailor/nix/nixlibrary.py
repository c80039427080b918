"""The Nix library in a tree, which its recipes call: the files of the package, and the catalog's data for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from torchtailor.catalog.load import Catalog
from torchtailor.nix.nixtext import NixCode, nix_value
from torchtailor.nix.pins import UNKNOWN_HASH, NixpkgsRow, Pins
from torchtailor.nix.tree import LIBRARY, stamp

_FILES = ("default.nix", "tailor.nix", "overlay.nix", "bin.nix", "wheels.nix", "tool.nix")


def library_files(catalog: Catalog, pins: Pins) -> Mapping[str, str]:
    """The library's files, by their path under `.flox`."""
    folder = files("torchtailor.nix").joinpath("library")
    texts = {name: stamp(folder.joinpath(name).read_text("utf-8"), f"{name} of torchtailor.") for name in _FILES}
    data = nix_value(_data(catalog, pins)) + "\n"
    texts["catalog.nix"] = stamp(data, "What the library knows: toolkits, instruction sets, sources and their hashes.")
    return {f"{LIBRARY}/{name}": text for name, text in texts.items()}


def recipe_text(
    pins: Pins,
    pin: NixpkgsRow,
    function: str,
    row: Mapping[str, object],
    title: str,
    *,
    story: Sequence[str] = (),
    arguments: Sequence[str] = (),
    library: str = f"../{LIBRARY}",
) -> str:
    """A recipe: what it is and needs as comments, its pin, and the call of a library's function with its row."""
    known = pins.hash_of(pin)
    hash_line = f'sha256 = "{known}";' if known else "# sha256 is not known yet: `torchtailor recipes hash` fills it in"
    body = "\n".join(
        [
            *(f"# {line}" for line in (("", *story) if story else ())),
            "{",
            "  pkgs ? {",
            "    stdenv.hostPlatform.system = builtins.currentSystem;",
            "  },",
            "  nixpkgsSource ? builtins.fetchTarball {",
            f'    url = "{pin.url}";',
            f"    {hash_line}",
            "  },",
            f"  library ? import {library} {{",
            "    inherit (pkgs.stdenv.hostPlatform) system;",
            "    nixpkgs = import nixpkgsSource;",
            "  },",
            *(f"  {argument}," for argument in arguments),
            "}:",
            "",
            f"library.{function}{f' {nix_value(row)}' if row else ''}",
            "",
        ]
    )
    return stamp(body.replace("# \n", "#\n"), title)


def call_of(name: str) -> NixCode:
    """Another recipe of the same folder, with the same library."""
    return NixCode(f"import ./{name}.nix {{ inherit library; }}")


def library_from(recipe: Path) -> str:
    """The library as a recipe's file names it: beside the folder `pkgs`, or in a plain folder of recipes."""
    levels = 1 if recipe.name == "default.nix" else 0
    folder = recipe.parents[levels]
    up = "../" * (levels + (folder.name == "pkgs"))
    return f"{up or './'}{LIBRARY}"


def _data(catalog: Catalog, pins: Pins) -> Mapping[str, object]:
    file = pins.file
    releases = "https://github.com/pytorch/{}/releases/tag/{}"
    commits = "https://github.com/pytorch/{}/commits/{}"
    return {
        "toolkits": {
            str(version): [str(capability) for capability in sorted(toolkit.architectures)]
            for version, toolkit in catalog.toolkits.items()
        },
        "isas": {isa.name: {"arch": isa.arch, "flags": isa.compile_flags} for isa in catalog.isas.values()},
        "without": [
            {"isa": row.isa, "gpu": row.gpu, "exports": dict(row.exports), "cache": row.cache} for row in file.without
        ],
        "brokenCuda": sorted({str(major) for row in file.nixpkgs for major in row.broken_cuda}),
        "magma": {
            "name": file.magma.name,
            "url": file.magma.url,
            "hash": pins.hash_of(file.magma) or UNKNOWN_HASH,
            "cudaMajor": str(file.magma.cuda_major),
        },
        "sources": [
            {
                "version": row.version,
                "on": row.on,
                "rev": row.rev,
                "hash": pins.hash_of(row) or UNKNOWN_HASH,
                "changelog": (releases if row.rev.startswith("v") else commits).format("pytorch", row.rev),
            }
            for row in (*file.source, file.spark.nightly)
        ],
        "siblings": [
            {
                "package": row.name,
                "version": source.version,
                "repo": row.repo,
                "rev": source.rev,
                "hash": pins.lock.get(row.key(source), source.hash) or UNKNOWN_HASH,
                "changelog": releases.format(row.repo, source.rev),
            }
            for row in file.sibling
            for source in row.source
        ],
    }

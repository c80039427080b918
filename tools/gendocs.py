"""Writes the parts of README and docs that are made from the catalog; `--check` only says whether they are true."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from torchtailor.catalog import Catalog, Fit, Method, load_catalog
from torchtailor.catalog.releases import Build, Release
from torchtailor.catalog.tables import user_file_schema
from torchtailor.cli import COMMANDS
from torchtailor.errors import EXIT_MEANINGS
from torchtailor.host.tegra import tegra_table
from torchtailor.variants import Matrix, available_methods, coverage

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "src" / "torchtailor" / "catalog" / "data" / "torchtailor.schema.json"
_BLOCK = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def releases(catalog: Catalog) -> str:
    """One row per release: what it is, its builds, how many variants, with which build methods."""
    matrix = Matrix(catalog)
    rows = []
    for release in catalog.releases.values():
        variants = list(matrix.variants(release.name))
        methods = {method for variant in variants for method in available_methods(catalog, variant)}
        rows.append(
            [
                f"`{release.name}`",
                str(release.version),
                ", ".join(str(b.toolkit or b.cuda) for b in release.cuda_builds),
                ", ".join(release.pythons),
                str(len(variants)),
                ", ".join(method.value for method in Method if method in methods),
            ]
        )
    return table(["release", "PyTorch", "CUDA", "Python", "variants", "build methods"], rows)


def variants(catalog: Catalog) -> str:
    """Every release: GPUs down, ISAs across, and how the official wheel serves each."""
    return "\n".join(_release_section(catalog, release) for release in catalog.releases.values())


def _release_section(catalog: Catalog, release: Release) -> str:
    matrix = Matrix(catalog)
    count = len(list(matrix.variants(release.name)))
    text = f"## {release.name}: PyTorch {release.version}, {count} variants\n\n"
    if release.note:
        text += f"{release.note[0].upper()}{release.note[1:]}.\n\n"
    for build in release.builds:
        text += _build_table(catalog, matrix, release, build) + "\n"
    return text


def _build_table(catalog: Catalog, matrix: Matrix, release: Release, build: Build) -> str:
    isas = list(catalog.isas)
    cells: dict[str, dict[str, str]] = {}
    titles: dict[str, str] = {}
    for variant in matrix.variants(release.name):
        if variant.build is build:
            key = variant.gpu.sm if variant.gpu else "cpu"
            titles[key] = f"**{key.upper()}** {variant.gpu.describe()}" if variant.gpu else "CPU only"
            cells.setdefault(key, {})[variant.isa.name] = _cell(catalog, variant)
    rows = [[titles[key], *(cells[key].get(isa, "") for isa in isas)] for key in cells]
    pattern = (
        f"pytorch-python313-cuda{str(build.cuda).replace('.', '_')}-GPU-CPU"
        if build.cuda
        else "pytorch-python313-cpu-CPU"
    )
    note = f" {build.note[0].upper()}{build.note[1:]}." if build.note else ""
    return f"`{pattern}`.{note}\n\n" + table(["GPU", *(f"`{isa}`" for isa in isas)], rows)


def _cell(catalog: Catalog, variant: object) -> str:
    from torchtailor.variants import Variant

    assert isinstance(variant, Variant)
    wheel = coverage(catalog, variant, Method.WHEEL)
    if not wheel.available:
        return "source" if not variant.release.nixpkgs else "nix"
    if wheel.fit is Fit.COMPATIBLE:
        return f"wheel ({wheel.through})"
    return {Fit.NATIVE: "wheel", Fit.JIT: "wheel (JIT)"}[wheel.fit]


def gpus(catalog: Catalog) -> str:
    rows = []
    for gpu in sorted(catalog.gpus.values(), key=lambda g: g.capability, reverse=True):
        newest = gpu.last_cuda or "today's"
        driver = str(gpu.first_driver or ("L4T" if gpu.tegra else ""))
        if gpu.last_driver_branch:
            driver += f" to R{gpu.last_driver_branch}"
        rows.append(
            [
                f"**{gpu.capability}**",
                f"`{gpu.sm}`",
                gpu.family,
                ", ".join(gpu.all_products) or "",
                f"{gpu.first_cuda} to {newest}",
                driver,
                ", ".join(sorted(gpu.hosts)),
                gpu.note,
            ]
        )
    return table(["capability", "name", "family", "products", "CUDA", "driver", "hosts", "remarks"], rows)


def cpus(catalog: Catalog) -> str:
    rows = [
        [
            f"`{isa.name}`",
            isa.label,
            isa.arch,
            "; ".join(isa.first),
            isa.not_on,
            ", ".join(isa.workloads),
            " ".join(f"`{flag}`" for flag in sorted(isa.requires)),
            f"`{' '.join(isa.compile_flags)}`",
        ]
        for isa in catalog.isas.values()
    ]
    head = ["name", "instruction set", "machine", "first on", "not on", "for", "needs all of", "compiled with"]
    return table(head, rows)


def drivers(catalog: Catalog) -> str:
    rows = []
    for toolkit in catalog.toolkits.values():
        caps = sorted(toolkit.architectures)
        used = [r.name for r in catalog.releases.values() if any(b.cuda == toolkit.version for b in r.builds)]
        rows.append(
            [
                str(toolkit.version),
                str(toolkit.driver_minor),
                str(toolkit.driver_full),
                f"{caps[0]} to {caps[-1]}",
                str(toolkit.gcc_max),
                str(toolkit.clang_max),
                ", ".join(f"`{name}`" for name in used),
            ]
        )
    head = ["CUDA", "driver at least", "for PTX too", "capabilities", "GCC up to", "clang up to", "in releases"]
    return table(head, rows)


def decision(catalog: Catalog) -> str:
    """Which GPU means which name and which newest release, from the official wheel where there is one."""
    matrix = Matrix(catalog)
    rows = []
    for gpu in sorted(catalog.gpus.values(), key=lambda g: g.capability, reverse=True):
        isa = "avx2" if "x86_64" in gpu.hosts else "armv8_2"
        if not gpu.offered:
            continue
        try:
            chosen = matrix.resolve(f"{gpu.sm}-{isa}", via=Method.WHEEL).variant
        except Exception:
            try:
                chosen = matrix.resolve(f"{gpu.sm}-{isa}", via=Method.SOURCE).variant
            except Exception:
                rows.append(
                    [
                        gpu.describe(4),
                        str(gpu.capability),
                        f"`{gpu.sm}`",
                        "none",
                        "none",
                        _what_to_do(str(gpu.capability)),
                    ]
                )
                continue
        wheel = coverage(catalog, chosen, Method.WHEEL)
        how = wheel.text if wheel.available else "From source: " + coverage(catalog, chosen, Method.SOURCE).text
        assert chosen.build.cuda
        driver, _ = catalog.toolkit(chosen.build.cuda).drivers_for(gpu)
        rows.append(
            [
                gpu.describe(4),
                str(gpu.capability),
                f"`{gpu.sm}`",
                f"{chosen.release.version}, CUDA {chosen.build.cuda}",
                str(driver),
                how,
            ]
        )
    return table(["your GPU", "capability", "name", "newest PyTorch", "driver at least", "how"], rows)


def _what_to_do(capability: str) -> str:
    """What to do for a GPU that no release lists."""
    chip = tegra_table().chip_of(capability)
    last = tegra_table().jetpack_of(chip.last_l4t) if chip and chip.last_l4t else None
    if last is None:
        return "add a `[[row]]`, see [extending](extending.md)"
    return f"none: JetPack {last.jetpack} with CUDA {last.cuda} is its last, older than any release here"


def exit_codes(catalog: Catalog) -> str:
    return table(["code", "name", "meaning"], [[str(int(c)), c.name, text] for c, text in EXIT_MEANINGS.items()])


def commands(catalog: Catalog) -> str:
    return table(["command", "what it does"], [[f"`torchtailor {name}`", c.summary] for name, c in COMMANDS.items()])


def sources(catalog: Catalog) -> str:
    return table(["source", "what it is"], [[f"`{name}`", text] for name, text in sorted(catalog.sources.items())])


BLOCKS: dict[str, Callable[[Catalog], str]] = {
    "releases": releases,
    "variants": variants,
    "gpus": gpus,
    "cpus": cpus,
    "drivers": drivers,
    "decision": decision,
    "exit-codes": exit_codes,
    "commands": commands,
    "sources": sources,
}


def render(path: Path, catalog: Catalog) -> str:
    """The file with every generated block made anew."""
    return _BLOCK.sub(lambda m: m[1] + BLOCKS[m["name"]](catalog) + m[3], path.read_text("utf-8"))


def documents() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if "<!-- generated: " in path.read_text("utf-8")]


def generated() -> dict[Path, str]:
    """All files with generated parts, as they should be."""
    catalog = load_catalog(ROOT / "src")  # not the working directory's own torchtailor.toml
    schema = json.dumps(user_file_schema(), indent=2) + "\n"
    return {**{path: render(path, catalog) for path in documents()}, SCHEMA: schema}


def main() -> int:
    stale = {path: text for path, text in generated().items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)} differs from the catalog: run `make docs`.")
        else:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())

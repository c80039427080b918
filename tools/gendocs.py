"""Writes the generated parts of README and docs from the catalog; `--check` only reports whether they are current."""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torchtailor
from torchtailor.advise.host.tegra import tegra_table
from torchtailor.advise.recommendation import recommend
from torchtailor.advise.recommendation.result import Alternative
from torchtailor.catalog import DEFAULT_PYTHON, NIX, WHEEL, Catalog, Fit, Gpu, load_catalog
from torchtailor.catalog.releases import Build, Release
from torchtailor.catalog.tables import user_file_schema
from torchtailor.catalog.variants import Matrix, Variant, available_methods, coverage
from torchtailor.cli import COMMANDS
from torchtailor.cli._dispatch import load_command
from torchtailor.cli.ui.documents import DOCUMENTS, json_schema, schema_of
from torchtailor.core import version
from torchtailor.core.errors import EXIT_MEANINGS
from torchtailor.core.origin import SOMEWHERE
from torchtailor.core.progress import Progress

_WIDTH = 110
_ENUM = re.compile(r"<(\w+\.\w+): [^>]*>")
ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "src" / "torchtailor" / "catalog" / "data" / "torchtailor.schema.json"
_INSTALLED = re.compile(
    r"(?P<before>(?:\bpip install\b[^`\n&|;]*?|--from) )(?P<quote>'?)"
    r"torchtailor(?P<extras>\[[a-z,]+\])?(?: @ git\+URL@COMMIT)?(?P=quote)(?=[ `\n,;.)])"
)
_BLOCK = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def releases(catalog: Catalog) -> str:
    """One row per release: versions, number of variants, build methods."""
    matrix = Matrix(catalog)
    rows = []
    for release in sorted(catalog.releases.values(), key=lambda item: item.version, reverse=True):
        variants = list(matrix.variants(str(release.version)))
        methods = {method for variant in variants for method in available_methods(catalog, variant)}
        rows.append(
            [
                f"`{release.name}`",
                str(release.version),
                ", ".join(str(b.toolkit or b.cuda) for b in sorted(release.cuda_builds, key=lambda b: b.label)),
                ", ".join(release.pythons),
                str(len(variants)) + _with_recipe(catalog, variants),
                ", ".join(name for name in catalog.methods if name in methods),
            ]
        )
    return table(["release", "PyTorch", "CUDA", "Python", "variants", "build methods"], rows)


def _with_recipe(catalog: Catalog, variants: list[Variant]) -> str:
    """How many of the variants recipes are written for."""
    count = sum(coverage(catalog, variant, NIX).available for variant in variants)
    return f", {count} with recipes" if count else ""


def variants(catalog: Catalog) -> str:
    """Every release: one row per GPU, one column per ISA, and the build method of each variant."""
    return "\n".join(_release_section(catalog, release) for release in catalog.releases.values())


def _release_section(catalog: Catalog, release: Release) -> str:
    matrix = Matrix(catalog)
    count = len(list(matrix.variants(str(release.version))))
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
    for variant in matrix.variants(str(release.version)):
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


def _cell(catalog: Catalog, variant: Variant) -> str:
    wheel = coverage(catalog, variant, WHEEL)
    if not wheel.available:
        return "nix" if coverage(catalog, variant, NIX).available else "source"
    if wheel.fit is Fit.COMPATIBLE:
        return f"wheel ({wheel.through})"
    return {Fit.NATIVE: "wheel", Fit.JIT: "wheel (JIT)"}[wheel.fit]


def gpus(catalog: Catalog) -> str:
    rows = []
    for gpu in sorted(catalog.gpus.values(), key=lambda g: g.capability, reverse=True):
        newest = gpu.last_cuda or "current"
        driver = str(gpu.first_driver or ("L4T" if gpu.tegra else ""))
        if gpu.last_driver_branch:
            driver = f"{driver} to R{gpu.last_driver_branch}".strip()
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


def gpu_features(catalog: Catalog) -> str:
    """Per architecture what its hardware has, and the first driver for it."""
    shown = ("TF32", "BF16", "FP8", "FP4")
    rows = []
    for gpu in sorted(catalog.gpus.values(), key=lambda g: g.capability, reverse=True):
        if (has := gpu.features) is None:
            continue
        others = [name for name in has.formats if name not in shown]
        rows.append(
            [
                f"**{gpu.capability}** {gpu.family}",
                _ordinal(has.tensor_cores),
                *("yes" if name in has.formats else "" for name in shown),
                ", ".join(others),
                "not known" if has.mig is None else f"up to {has.mig}" if has.mig else "",
                ", ".join(has.memory),
                str(gpu.first_driver or ("L4T" if gpu.tegra else "")),
                has.remark,
            ]
        )
    return table(["GPU", "Tensor cores", *shown, "other formats", "MIG", "memory", "first driver", "remarks"], rows)


def _ordinal(generation: int) -> str:
    return {0: "none", 1: "1st", 2: "2nd", 3: "3rd"}.get(generation, f"{generation}th") + (" gen" if generation else "")


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
    head = [
        "name",
        "instruction set",
        "architecture",
        "first in",
        "not in",
        "workloads",
        "required flags",
        "compiler flags",
    ]
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
    head = [
        "CUDA",
        "minimum driver",
        "minimum driver for PTX",
        "capabilities",
        "newest GCC",
        "newest clang",
        "releases",
    ]
    return table(head, rows)


def decision(catalog: Catalog) -> str:
    """For each GPU what `torchtailor recommend` answers, given a driver that is new enough."""
    rows = []
    for gpu in sorted(catalog.gpus.values(), key=lambda g: g.capability, reverse=True):
        if not gpu.offered:
            continue
        cpu = "haswell" if "x86_64" in gpu.hosts else None if gpu.cpu else "neoverse_n1"
        answer = recommend(gpus=[str(gpu.capability)], cpu=cpu, catalog=catalog)
        newest, driver, how = "none", "none", _unlisted(catalog, gpu, answer.alternatives)
        best = answer.best
        if best is not None and best.cuda is not None and best.gpu is not None:
            newest = f"{best.pytorch}, CUDA {best.cuda}" + (
                "" if best.python == DEFAULT_PYTHON else f", Python {best.python}"
            )
            driver = str(catalog.toolkit(best.cuda).drivers_for(gpu)[0])
            how = best.reasons[1] if best.gpu == gpu.sm else f"As `{best.gpu}`. {best.reasons[1]} {best.reasons[2]}"
        rows.append([gpu.describe(4), str(gpu.capability), f"`{gpu.sm}`", newest, driver, how])
    return table(["GPU", "capability", "name", "newest PyTorch", "minimum driver", "how"], rows)


def _unlisted(catalog: Catalog, gpu: Gpu, alternatives: Sequence[Alternative]) -> str:
    """What `torchtailor recommend` says of a GPU that no release lists."""
    ways = [one.text for one in alternatives if one.kind == "jetpack" or (one.variant or "").startswith(gpu.sm)]
    if ways:
        row = " (`[[row]]` in [extending](extending.md))"
        texts = (re.sub(r": add this to .*| Run the command again .*", "", way).rstrip(".") for way in ways)
        return ". ".join(f"{text}{row if 'variant of your own' in text else ''}" for text in texts) + "."
    if gpu.last_cuda and gpu.last_cuda < min(catalog.toolkits):
        return f"not available: CUDA {gpu.last_cuda} was the last for it, older than every release"
    chip = tegra_table().chip_of(str(gpu.capability))
    last = tegra_table().jetpack_of(chip.last_l4t) if chip and chip.last_l4t else None
    if last is None:
        return "add a `[[row]]`, see [extending](extending.md)"
    return f"not available: its last JetPack is {last.jetpack} with CUDA {last.cuda}, older than every release"


def exit_codes(catalog: Catalog) -> str:
    return table(["code", "name", "meaning"], [[str(int(c)), c.name, text] for c, text in EXIT_MEANINGS.items()])


def commands(catalog: Catalog) -> str:
    return table(["command", "what it does"], [[f"`torchtailor {name}`", c.summary] for name, c in COMMANDS.items()])


def command_reference(catalog: Catalog) -> str:
    """What `--help` prints, of every command and every command in a group."""
    text = ""
    for name in COMMANDS:
        command = load_command(name)
        inner = getattr(command, "commands", {})
        text += f"## {name}\n\n{_help(command, f'torchtailor {name}')}\n"
        for one, inside in inner.items():
            text += f"### {name} {one}\n\n{_help(inside, f'torchtailor {name} {one}')}\n"
    return text


def _help(command: Any, path: str) -> str:
    context = command.make_context(
        path,
        [],
        resilient_parsing=True,
        terminal_width=100,
        max_content_width=100,
        help_option_names=["-h", "--help"],  # which commands of a group have from it
    )
    return f"```text\n{command.get_help(context).rstrip()}\n```\n"


def json_documents(catalog: Catalog) -> str:
    """Every document that `--json` prints: the command, and a row for each field."""
    text = ""
    for name, (command, _) in DOCUMENTS.items():
        schema = json_schema(name)
        about = _cell_text(schema.get("description", ""))
        text += f"## `{schema_of(name)}`\n\n{command}. {about}".rstrip() + "\n\n"
        text += table(["field", "type", "meaning"], list(_fields(schema, schema["$defs"], ""))) + "\n"
    return text


def _fields(schema: dict[str, Any], parts: dict[str, Any], before: str) -> Iterator[list[str]]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        if name == "schema":
            continue
        optional = "" if name in required or "default" in field else ", may be absent"
        yield [f"`{before}{name}`", f"{_json_type(field, parts)}{optional}", _meaning(field, parts)]
        inner, suffix = _inner(field, parts)
        if inner is not None:
            yield from _fields(inner, parts, f"{before}{name}{suffix}.")


def _inner(field: dict[str, Any], parts: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The object inside of a field, a list or an alternative, and how its path goes on."""
    for option in field.get("anyOf", [field]):
        if "$ref" in option and "properties" in (part := parts[option["$ref"].rpartition("/")[2]]):
            return part, ""
        if option.get("type") == "array" and (found := _inner(option.get("items", {}), parts))[0] is not None:
            return found[0], f"[]{found[1]}"
        if isinstance(values := option.get("additionalProperties"), dict) and (found := _inner(values, parts))[0]:
            return found[0], f".*{found[1]}"
    return None, ""


def _json_type(field: dict[str, Any], parts: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_json_type(option, parts) for option in field["anyOf"])
    if "$ref" in field:
        return _json_type(parts[field["$ref"].rpartition("/")[2]], parts)
    if "enum" in field:
        return ", ".join(f"`{value}`" if value else "empty" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_json_type(field['items'], parts)}" if field.get("items") else "list"
    return str(field.get("type", "any"))


def _meaning(field: dict[str, Any], parts: dict[str, Any]) -> str:
    inner, _ = _inner(field, parts)
    return _cell_text(field.get("description") or (inner or {}).get("description", ""))


def _cell_text(text: str) -> str:
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).replace("|", "\\|")


def sources(catalog: Catalog) -> str:
    return table(["source", "what it is"], [[f"`{name}`", text] for name, text in sorted(catalog.sources.items())])


def signature_of(name: str) -> str:
    """A function of the API as its source has it, wrapped."""
    function = getattr(torchtailor, name)
    shown = inspect.signature(function)
    parts, star = [], False
    for one in shown.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        parts.append(_ENUM.sub(r"\1", str(one).replace("'", "")))
    line = f"{name}({', '.join(parts)}) -> {shown.return_annotation}".replace("'", "")
    if len(line) > _WIDTH:
        unbroken = ",\n".join(part.replace(" ", "\0") for part in parts) + ","
        inside = textwrap.fill(unbroken, _WIDTH, initial_indent="    ", subsequent_indent="    ").replace("\0", " ")
        line = f"{name}(\n{inside}\n) -> {shown.return_annotation}"
    return f"```python\n{line}\n```\n"


def progress_methods(_: Catalog) -> str:
    rows = []
    for name, method in vars(Progress).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            told = ", ".join(str(one) for one in list(inspect.signature(method).parameters.values())[1:])
            rows.append([f"`{name}({told})`".replace("'", ""), (method.__doc__ or "").strip()])
    return table(["method", "what it is told"], rows)


_FUNCTIONS = tuple(name for name in torchtailor.__all__ if name[0].islower())
BLOCKS: dict[str, Callable[[Catalog], str]] = {
    "releases": releases,
    "variants": variants,
    "gpus": gpus,
    "gpu-features": gpu_features,
    "cpus": cpus,
    "drivers": drivers,
    "decision": decision,
    "exit-codes": exit_codes,
    "commands": commands,
    "sources": sources,
    "json-documents": json_documents,
    "command-reference": command_reference,
    "progress-methods": progress_methods,
    **{f"signature-{name.replace('_', '-')}": partial(lambda name, _: signature_of(name), name) for name in _FUNCTIONS},
}


def as_installed(text: str, *, published: bool | None = None) -> str:
    """A page whose commands install torchtailor as version.py says: by its name, or from its repository at a commit."""
    published = version.PUBLISHED if published is None else published

    def word(match: re.Match[str]) -> str:
        extras = match["extras"] or ""
        if published:
            return match["before"] + (f"'torchtailor{extras}'" if extras else "torchtailor")
        return f"{match['before']}'torchtailor{extras} @ {SOMEWHERE}'"

    return _INSTALLED.sub(word, text)


def render(path: Path, catalog: Catalog) -> str:
    """The file with every generated block up to date."""
    text = as_installed(path.read_text("utf-8"))
    return _BLOCK.sub(lambda m: m[1] + BLOCKS[m["name"]](catalog) + m[3], text)


def documents() -> list[Path]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        path for path in found if "<!-- generated: " in (text := path.read_text("utf-8")) or _INSTALLED.search(text)
    ]


def generated() -> dict[Path, str]:
    """All files with generated parts, as they should be."""
    catalog = load_catalog(ROOT / "src")  # not the working directory's own torchtailor.toml
    schema = json.dumps(user_file_schema(), indent=2) + "\n"
    return {**{path: render(path, catalog) for path in documents()}, SCHEMA: schema}


def main() -> int:
    stale = {path: text for path, text in generated().items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`.")
        else:
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())

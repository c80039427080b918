"""What the selector answers: the recommendation, the commands that carry it out, and sizes.

These functions run in Python and, compiled, in the page; nothing of them is written a second time.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from torchtailor.advise.recommendation.engine import recommend_for
from torchtailor.advise.recommendation.result import Pick, Recommendation
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.methods import NIX, SOURCE, WHEEL
from torchtailor.catalog.variants import Matrix
from torchtailor.core.errors import TorchtailorError
from torchtailor.core.tables import read_table
from torchtailor.site.hosts import USUAL_CPU, Query, has_own_cpu, query_host, read_query


@dataclass(frozen=True, slots=True)
class ShownCommand:
    """A command, or a file, that carries out the recommendation in one way."""

    key: str
    title: str
    text: str
    about: str


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """Installed libraries of one build, as shipped and cut, in bytes."""

    pytorch: str
    build: str
    gpu: str
    stock: int
    cut: int
    nvidia: int
    exact: bool  # whether it is the recommended build itself


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """Everything that the selector shows; or why there is no answer, and what to do."""

    recommendation: Recommendation | None
    commands: tuple[ShownCommand, ...]
    size: MeasuredSize | None
    line: str  # the command that gives the same answer in a terminal
    cpu: str = ""  # the CPU that was understood
    problem: str = ""
    hint: str = ""


class _SizeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pytorch: str
    build: str
    gpu: str
    arch: str
    stock: int
    cut: int
    nvidia: int


class _SizeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: tuple[_SizeRow, ...]


@cache
def _sizes() -> _SizeFile:
    return read_table("site", "sizes.toml", _SizeFile)


def page_answer(matrix: Matrix, document: Mapping[str, Any]) -> PageAnswer:
    """The answer to a query in JSON; what the command line would refuse is said, not raised."""
    line = "torchtailor recommend"
    try:
        query = read_query(document)
        line = command_line(matrix.catalog, query)
        host = query_host(matrix.catalog, query)
        found = recommend_for(matrix, host, query.request)
    except TorchtailorError as error:
        return PageAnswer(None, (), None, line, problem=error.message, hint=error.hint)
    best = found.best
    commands = tuple(_commands(matrix.catalog, found, best, host.cpu.arch)) if best else ()
    assumed = host.cpu.microarchitecture == USUAL_CPU and query.cpu is None and query.host is None
    cpu = "Not named: any x86-64 CPU with AVX2 is assumed." if assumed else f"{host.cpu.name}, {host.cpu.arch}"
    return PageAnswer(found, commands, _size(best, host.cpu.arch) if best else None, line, cpu)


def command_line(catalog: Catalog, query: Query) -> str:
    """`torchtailor recommend ...` for the same question."""
    if query.host is not None:
        return _line(["torchtailor", "recommend", "--from", "machine.json", *_choices(query)])
    described = query.system != "linux" or query.pasted_cpu is not None
    words = ["torchtailor", "recommend", *(["--from", "machine.json"] if described else [])]
    for name in query.gpus or ("none",):
        words += ["--gpu", name]
    cpu = query.cpu or ("" if described or _own_cpu_or_unknown(catalog, query.gpus) else USUAL_CPU)
    words += ["--cpu", cpu] if cpu else []
    words += ["--driver", query.driver] if query.driver else []
    words += ["--jetpack", query.jetpack] if query.jetpack else []
    return _line([*words, *_choices(query)])


def _own_cpu_or_unknown(catalog: Catalog, gpus: tuple[str, ...]) -> bool:
    try:
        return has_own_cpu(catalog, gpus)
    except TorchtailorError:
        return True


def _choices(query: Query) -> list[str]:
    words = ["--python", query.python] if query.python else []
    words += ["--cpu-work", query.workload] if query.workload != "general" else []
    words += ["--release", query.release] if query.release else []
    return [*words, *(["--via", query.method] if query.method else [])]


def _line(words: list[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def _commands(catalog: Catalog, found: Recommendation, best: Pick, arch: str) -> Iterator[ShownCommand]:
    """Every way to get the recommended variant, and those of the other build methods."""
    wheel = best.method == WHEEL
    yield ShownCommand(
        "torchtailor",
        "torchtailor",
        found.command or "",
        "Takes the official wheel, cuts it to this hardware, verifies and installs it." if wheel else "Takes hours.",
    )
    if wheel and found.stock_command:
        yield from _stock(catalog, best, found.stock_command, arch)
        if best.gpu is not None:
            yield _docker(catalog, best, arch)
    others = [best, *found.other_variants]
    if source := _first(others, SOURCE, gpu=best.gpu is not None):
        yield ShownCommand(
            "source",
            "Source",
            f"torchtailor build {source.variant} --via source",
            f"Compiles PyTorch {source.pytorch} for {source.short_name} alone; takes hours.",
        )
    if recipe := _first(others, NIX, gpu=best.gpu is not None):
        yield ShownCommand(
            "nix",
            "Nix flake",
            _flake(catalog, recipe, f"{arch}-linux"),
            f"A recipe for PyTorch {recipe.pytorch}, reproducible; takes hours to compile.",
        )
        yield ShownCommand(
            "flox",
            "Flox",
            f"torchtailor recipes write . --release {recipe.release}\ngit add .flox\nflox build {recipe.name}",
            "The same recipe with Flox, which builds what git tracks.",
        )


def _flake(catalog: Catalog, recipe: Pick, system: str) -> str:
    revision = catalog.release(recipe.release).nixpkgs
    return (
        f"# torchtailor recipes write . --release {recipe.release} && git add .flox\n"
        "# this is flake.nix; then: nix build\n"
        f'{{\n  inputs.nixpkgs = {{ url = "github:NixOS/nixpkgs/{revision}"; flake = false; }};\n'
        f"  outputs = {{ nixpkgs, ... }}: {{\n    packages.{system}.default =\n"
        f'      (import ./.flox {{ system = "{system}"; nixpkgsSource = nixpkgs; }}).{recipe.name};\n  }};\n}}'
    )


def _first(picks: list[Pick], method: str, *, gpu: bool) -> Pick | None:
    return next((pick for pick in picks if pick.method == method and (pick.gpu is not None) == gpu), None)


def _index(catalog: Catalog, best: Pick, arch: str) -> str:
    """The index that has the official wheel; empty where it is the default one."""
    release = catalog.release(best.release)
    return "" if release.default_index.get(arch) == best.build else catalog.wheel_index.format(label=best.build)


def _stock(catalog: Catalog, best: Pick, stock: str, arch: str) -> Iterator[ShownCommand]:
    uncut = "The official wheel, uncut."
    index = _index(catalog, best, arch)
    version = f"{best.pytorch}+{best.build}" if index else best.pytorch
    yield ShownCommand("pip", "pip", stock, uncut)
    more = f" --extra-index-url {index}" if index else ""
    yield ShownCommand("uv", "uv", f"uv pip install torch=={version}{more}", uncut)
    project = (
        f'[project]\nname = "my-project"\nversion = "0.1.0"\nrequires-python = "=={best.python.removesuffix("t")}.*"\n'
        f'dependencies = ["torch=={best.pytorch}"]\n'
    )
    if index:
        name = f"pytorch-{best.build}"
        project += (
            f'\n[tool.uv.sources]\ntorch = {{ index = "{name}" }}\n\n'
            f'[[tool.uv.index]]\nname = "{name}"\nurl = "{index}"\nexplicit = true\n'
        )
    yield ShownCommand("pyproject", "pyproject.toml", project.rstrip("\n"), f"{uncut} Then `uv sync`.")


def _docker(catalog: Catalog, best: Pick, arch: str) -> ShownCommand:
    index = _index(catalog, best, arch)
    version = f"{best.pytorch}+{best.build}" if index else best.pytorch
    more = f" --extra-index-url {index}" if index else ""
    numbers = (best.gpu or "").removeprefix("sm").split("_")
    capability = ",".join(f"{number[:-1]}.{number[-1:]}" for number in numbers)
    text = (
        "RUN --mount=from=astral/uv,source=/uv,target=/bin/uv --mount=type=cache,target=/root/.cache/uv \\\n"
        f"    uv pip install --system torch=={version}{more} && \\\n"
        f"    uv tool run torchtailor tailor --env /usr/local --gpu {capability}"
    )
    return ShownCommand("docker", "Dockerfile", text, f"After `FROM python:{best.python.removesuffix('t')}-slim`.")


def _size(best: Pick, arch: str) -> MeasuredSize | None:
    """The measured size of this build, or of the one that is nearest to it; None where nothing is cut."""
    if best.method != WHEEL or best.gpu is None or best.cuda is None:
        return None
    rows = [
        (one.pytorch == best.pytorch and one.build == best.build and one.gpu == best.gpu and one.arch == arch, one)
        for one in _sizes().size
    ]
    major = best.build[:4]
    exact, row = max(rows, key=lambda pair: (pair[0], pair[1].build[:4] == major, pair[1].build == best.build))
    return MeasuredSize(row.pytorch, row.build, row.gpu, row.stock, row.cut, row.nvidia, exact)

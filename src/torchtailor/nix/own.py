"""What a hand-written recipe does of its own: exports that a generated one can carry, and what it cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchtailor.nix.recipe import Recipe
from torchtailor.nix.syntax import unwrap

_PLAIN = re.compile(r"[\w.,:/+=;%@-]*")
# Set by nixpkgs or by the generated recipe itself, or without effect there.
_MANAGED = frozenset(
    {
        "MAX_JOBS",
        "NIX_BUILD_CORES",
        "CFLAGS",
        "CXXFLAGS",
        "CUDAFLAGS",
        "TORCH_CUDA_ARCH_LIST",
        "CMAKE_CUDA_ARCHITECTURES",
        "PYTORCH_BUILD_VERSION",
        "PYTORCH_BUILD_NUMBER",
        "CMAKE_PROJECT_TOP_LEVEL_INCLUDES",
        "TORCH_BUILD_VERSION",
        "CUDA_VERSION",
        "CMAKE_CUDA_FLAGS",
        "USE_MAGMA",
        "USE_CUDA",
    }
)
_FLAGS = ("CFLAGS", "CXXFLAGS", "CUDAFLAGS", "LDFLAGS", "NIX_CFLAGS_COMPILE")
_ATTRIBUTES = frozenset(
    {
        *("pname", "name", "version", "src", "meta", "passthru", "patches", "env", "cmakeFlags", "ninjaFlags"),
        *("prePatch", "postPatch", "preConfigure", "preBuild", "postConfigure", "configurePhase"),
        "requiredSystemFeatures",
    }
)
_OVERRIDES = frozenset({"cudaSupport", "gpuTargets", "cudaPackages"})
_OVERLAYS = re.compile(r"cudaPackages|magma|python\d+Packages")
_NO_PATCHES = re.compile(r"\[\s*\]|\(?\w+\.patches(?: or \[\s*\])?\)?")
_CONFIG = frozenset({"allowUnfree", "allowBroken", "cudaSupport", "cudaCapabilities", "cudaForwardCompat"})
_COMMANDS = frozenset({"export", "echo", "mkdir", "EOF"})


@dataclass(frozen=True, slots=True)
class Own:
    """Exports that can be carried over, and what cannot, each as it is written in the recipe."""

    exports: Mapping[str, str]
    other: tuple[str, ...]


def own_parts(recipe: Recipe, usual: Mapping[str, str]) -> Own:
    """What a recipe has and the generated one of its name, with these exports, has not."""
    exports, other = {}, []
    for name, (value, line) in recipe.exported.items():
        if name in _FLAGS:
            if extra := _extra_flags(recipe, value):
                other.append(f"line {line}: {name} has {' '.join(extra)}")
        elif name in _MANAGED or usual.get(name) == value:
            continue
        elif name in usual or not _PLAIN.fullmatch(value):
            other.append(f"line {line}: export {name}={value}")
        else:
            exports[name] = value
    other += _other(recipe).values()
    return Own(exports, tuple(dict.fromkeys(other)))


def _extra_flags(recipe: Recipe, value: str) -> list[str]:
    """Compiler flags beyond those of the CPU, earlier values and the links for CUTLASS."""
    flags = set(recipe.cpu_flags.text.split()) if recipe.cpu_flags else set()
    bare = re.sub(r"\$\{[^}]*\}|\$\w+", " ", value)
    return [word for word in bare.split() if word not in flags and "cccl" not in word and word.startswith("-")]


def _other(recipe: Recipe) -> dict[str, str]:
    """By what they are, parts that only their author can place, with their lines."""
    return {key: f"line {line}: {text}" for key, line, text in _parts(recipe)}


def _parts(recipe: Recipe) -> Iterator[tuple[str, int, str]]:
    yield from _arguments(recipe)
    yield from _attributes(recipe)
    yield from _of_nixpkgs(recipe)
    yield from _commands(recipe)


def _arguments(recipe: Recipe) -> Iterator[tuple[str, int, str]]:
    for binding in recipe.override:
        if binding.name not in _OVERRIDES:
            text = f"{binding.name} = {_short(recipe.source.raw(binding.node))}"
            yield f"override {text}", binding.line, f"{text} in torch.override"


def _attributes(recipe: Recipe) -> Iterator[tuple[str, int, str]]:
    for binding in recipe.attributes:
        text = recipe.source.raw(binding.node)
        if binding.name not in _ATTRIBUTES and not binding.name.isupper():
            yield f"attribute {binding.name}", binding.line, f"{binding.name} = {_short(text)}"
        elif binding.name == "cmakeFlags":
            for flag in re.findall(r"-D(\w+)(?::\w+)?=", text):
                if flag not in _MANAGED:
                    yield f"cmake {flag}", binding.line, f"-D{flag} in cmakeFlags, which has no effect"
        elif binding.name == "patches" and not _NO_PATCHES.fullmatch(text):
            yield f"patches {text}", binding.line, f"patches = {_short(text)}"


def _of_nixpkgs(recipe: Recipe) -> Iterator[tuple[str, int, str]]:
    """Overlays and settings of the pinned nixpkgs."""
    source = recipe.source
    for binding in source.named("overlays"):
        listed = unwrap(binding.node)
        for overlay in listed.named_children if listed is not None and listed.type == "list_expression" else ():
            for inner in source.inside(overlay):
                if not _OVERLAYS.fullmatch(inner.path[0]):
                    yield f"overlay {inner.path[0]}", inner.line, f"an overlay that sets {inner.path[0]}"
    for binding in source.named("config"):
        for inner in source.inside(binding.node):
            if inner.path[0] not in _CONFIG:
                text = f"config.{'.'.join(inner.path)} = {_short(source.raw(inner.node))}"
                yield f"config {inner.path[0]}", inner.line, text


def _commands(recipe: Recipe) -> Iterator[tuple[str, int, str]]:
    """Commands of the build that neither print, export nor make the folders and links that every recipe makes."""
    for command in recipe.shell:
        text = command.text
        if command.document or command.words[0] in _COMMANDS or "cccl" in text or "FindCUDAToolkit" in text:
            continue
        assigned = command.words[0].partition("=")[0].rstrip("+")
        if "=" in command.words[0] and assigned in (*_FLAGS, "cmakeFlags", "cmakeFlagsArray", "ninjaFlags"):
            continue
        yield f"command {text}", command.line, _short(text)


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."

"""One recipe: what its file name stands for, what its source contains, and what Nix evaluates it to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torchtailor.catalog.variants.matrix import ParsedName
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import NoMatchError
from torchtailor.nix.evaluate import Evaluated, Evaluation, Failed
from torchtailor.nix.sentences import Sentence, sentences
from torchtailor.nix.shell import ShellCommand, commands, exports
from torchtailor.nix.syntax import Binding, NixSource, TextLine
from torchtailor.nix.tree import FileOrigin, UnreadableFileError, origin, read_recipe

TORCH = "pytorch"
SIBLINGS = ("torchvision", "torchaudio")
_PACKAGE = rf"(?:{'|'.join((TORCH, *SIBLINGS))})\d*"
NAME = rf"{_PACKAGE}-python\d{{3}}-(?:cuda\d+_\d+-)?(?:sm\d{{2,3}}|cpu)-[a-z0-9_]+"
_NAME = re.compile(rf"({NAME})(?:-(.+))?")
ARCHIVE = re.compile(r"nixpkgs/archive/([0-9a-f]{7,40})")
_CUDA_SET = re.compile(r"\bcudaPackages_\d")
_BUILDERS = (".overrideAttrs", "mkDerivation", "buildPythonPackage")
_REVISION = re.compile(r"[0-9a-f]{40}")
_IN_OVERLAYS = ("prev.", "pprev.", "super.", "final.", "pfinal.", "self.")
_OVERRIDES_TORCH = re.compile(r"(?:^|\.)(?:py)?torch(?:\.override\(\))?\.overrideAttrs$")
_PHASES = ("prePatch", "postPatch", "preConfigure", "configurePhase", "preBuild", "postConfigure")


@dataclass(frozen=True, slots=True)
class RecipeName:
    """A recipe's file name: package, the variant's name (as `pytorch-...`) and a suffix (`-magma`, `-nightly`)."""

    package: str
    base: str
    suffix: str
    parsed: ParsedName

    @classmethod
    def parse(cls, name: str) -> RecipeName | None:
        match = _NAME.fullmatch(name)
        if not match:
            return None
        package, _, rest = match[1].partition("-")
        package = package.rstrip("0123456789")  # torchvision025
        sibling = package in SIBLINGS
        base = f"{TORCH}-{rest}" if sibling else match[1]
        try:
            return cls(package if sibling else TORCH, base, match[2] or "", ParsedName.parse(base))
        except NoMatchError:
            return None


@dataclass(frozen=True, slots=True)
class PinUse:
    """A nixpkgs revision that a recipe fetches."""

    rev: str
    hash: str
    line: int


@dataclass(frozen=True)
class Recipe:
    """A recipe file."""

    name: str
    path: Path
    text: str
    variant: Variant | None = None
    evaluation: Evaluation | None = None
    unread: UnreadableFileError | None = None  # then its text is empty
    builder: Recipe | None = None  # the file beside it that it only calls
    is_builder: bool = False  # it is such a file itself

    @classmethod
    def read(cls, name: str, path: Path) -> Recipe:
        """A file that cannot be read is a recipe too, of which nothing but its name is known."""
        try:
            return cls(name, path, read_recipe(path))
        except UnreadableFileError as error:
            return cls(name, path, "", unread=error)

    @cached_property
    def source(self) -> NixSource:
        return NixSource(self.text)

    @property
    def origin(self) -> FileOrigin:
        return origin(self.text)

    @property
    def evaluated(self) -> Evaluated | None:
        return self.evaluation if isinstance(self.evaluation, Evaluated) else None

    @property
    def failed(self) -> Failed | None:
        return self.evaluation if isinstance(self.evaluation, Failed) else None

    @cached_property
    def recipe_name(self) -> RecipeName | None:
        return RecipeName.parse(self.name)

    @property
    def nightly(self) -> bool:
        return bool(self.recipe_name and self.recipe_name.suffix.startswith("nightly"))

    @property
    def readable(self) -> bool:
        return self.source.error_line is None

    @cached_property
    def is_torch(self) -> bool:
        """Whether it is a recipe of PyTorch, to which the matrix's rules apply."""
        if self.is_builder:
            return self.overrides_torch
        named = self.recipe_name is not None and self.recipe_name.package == TORCH and not self.is_wheel
        return named and self.readable and not self.name.endswith("-wrapper")

    @cached_property
    def is_wheel(self) -> bool:
        """Whether it makes torch from official wheels."""
        return self.recipe_name is not None and bool(self.source.named("officialWheels"))

    @property
    def is_torch_like(self) -> bool:
        """Whether it makes torch, from source or from wheels."""
        return self.is_torch or self.is_wheel

    @cached_property
    def is_sibling(self) -> bool:
        """Whether it is a recipe of what is built on torch, under the name of a variant."""
        return self.recipe_name is not None and self.recipe_name.package in SIBLINGS and self.readable

    # What it builds

    @cached_property
    def row_bindings(self) -> Mapping[str, Binding]:
        """What it calls a function of the library with; empty if it does not."""
        for name, _, argument in self.source.calls:
            if name.startswith("library."):
                return {binding.name: binding for binding in self.source.inside(argument)}
        return {}

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """The values of that row."""
        return {name: self.source.value(binding.node) for name, binding in self.row_bindings.items()}

    @cached_property
    def called(self) -> Path | None:
        """The file that all of it is a call of: `import ./lib/torch.nix { gpu = "9.0"; }`."""
        call = self.source.returned_call
        if call is None or self.row or call[1].type != "path_expression":
            return None
        path = self.path.parent / self.source.raw(call[1])
        return path if call[0].endswith(("import", "callPackage")) and path.is_file() else None

    @property
    def opaque(self) -> bool:
        """Whether its text says nothing of what it builds, and Nix has not evaluated it either."""
        return self.builder is not None and self.evaluated is None

    @cached_property
    def attributes(self) -> tuple[Binding, ...]:
        """What the outermost `overrideAttrs` (or builder) sets."""
        found = [
            argument
            for name, _, argument in self.source.calls
            if name.endswith(_BUILDERS) and not name.startswith(_IN_OVERLAYS) and ".magma" not in name
        ]
        # What the file evaluates to comes before what it only defines, such as the torch of a torchvision.
        returned = [argument for argument in found if self.source.returns(argument)]
        return self.source.inside((returned or found)[0]) if found else ()

    @cached_property
    def override(self) -> tuple[Binding, ...]:
        """What `torch.override { ... }` sets."""
        for name, _, argument in self.source.calls:
            if name.endswith(("torch.override", "pytorch.override")):
                return self.source.inside(argument)
        return ()

    @property
    def overrides_torch(self) -> bool:
        calls = (".torch.override", ".torch.overrideAttrs", ".pytorch.override", ".pytorch.overrideAttrs")
        return any(name.endswith(calls) and not name.startswith(_IN_OVERLAYS) for name, _, _ in self.source.calls)

    @property
    def returns_torch(self) -> bool:
        """Whether it is an overridden torch, and not something that is built on one."""
        call = self.source.returned_call
        return call is not None and bool(re.search(r"(?:^|\.)(?:py)?torch\.override", call[0]))

    def attribute(self, name: str) -> Binding | None:
        return next((binding for binding in self.attributes if binding.name == name), None)

    @cached_property
    def pname(self) -> TextLine | None:
        binding = self.row_bindings.get("name") or self.attribute("pname") or self.source.last("pname")
        if self.evaluated:
            return TextLine(binding.line if binding else 1, self.evaluated.pname)
        value = self.source.value(binding.node) if binding else None
        return TextLine(binding.line, value) if binding and isinstance(value, str) else None

    @cached_property
    def architecture(self) -> TextLine | None:
        """The value of `gpuArchSM`, else of `gpuTargets`."""
        for name in ("gpuArchSM", "gpuTargets"):
            binding = self.source.last(name)
            value = self.source.value(binding.node) if binding else None
            if isinstance(value, tuple):
                value = ";".join(value)
            if binding and isinstance(value, str):
                return TextLine(binding.line, value)
        return None

    @cached_property
    def targets(self) -> TextLine | None:
        """The value of TORCH_CUDA_ARCH_LIST."""
        binding = next((item for item in self.override if item.name == "gpuTargets"), None)
        if self.evaluated and self.evaluated.arch_list is not None:
            return TextLine(binding.line if binding else 1, self.evaluated.arch_list)
        value = self.source.value(binding.node) if binding else None
        return TextLine(binding.line, ";".join(value)) if binding and isinstance(value, tuple) else None

    @cached_property
    def gpu_targets(self) -> tuple[TextLine, ...]:
        """What each override of a torch for CUDA in the file compiles for; AMD's architectures have other names."""
        found = []
        for name, _, argument in self.source.calls:
            given = {binding.name: binding for binding in self.source.inside(argument)}
            targets = given.get("gpuTargets")
            rocm = given.get("rocmSupport")
            if targets is None or not name.endswith("torch.override") or (rocm and self.source.value(rocm.node)):
                continue
            if isinstance(value := self.source.value(targets.node), tuple):
                found.append(TextLine(targets.line, ";".join(value)))
        return tuple(found)

    @cached_property
    def cpu_flags(self) -> TextLine | None:
        binding = self.source.last("cpuFlags")
        value = self.source.value(binding.node) if binding else None
        return TextLine(binding.line, " ".join(value)) if binding and isinstance(value, tuple) else None

    @cached_property
    def platforms(self) -> tuple[tuple[str, ...], int] | None:
        binding = self.source.last("platforms")
        if self.evaluated:
            return self.evaluated.platforms, binding.line if binding else 1
        value = self.source.value(binding.node) if binding else None
        return (value, binding.line) if binding and isinstance(value, tuple) else None

    @cached_property
    def pins(self) -> tuple[PinUse, ...]:
        found = []
        for name, line, argument in self.source.calls:
            if name.endswith(("fetchGit", "fetchTree")):
                found += self._git_pin(argument)
            if not name.endswith("fetchTarball"):
                continue
            fields = {binding.name: self.source.value(binding.node) for binding in self.source.inside(argument)}
            url = fields.get("url") if fields else self.source.value(argument)
            match = ARCHIVE.search(url) if isinstance(url, str) else None
            if match:
                where = next((b.line for b in self.source.inside(argument) if b.name == "url"), line)
                found.append(PinUse(match[1], str(fields.get("sha256") or ""), where))
        return tuple(found)

    @property
    def all_pins(self) -> tuple[PinUse, ...]:
        """What it fetches, or the file that it calls."""
        return self.pins or (self.builder.pins if self.builder else ())

    def _git_pin(self, argument: Any) -> list[PinUse]:
        """nixpkgs by a Git revision, which is as good as a hash."""
        fields = {binding.name: binding for binding in self.source.inside(argument)}
        values = {name: self.source.value(binding.node) for name, binding in fields.items()}
        rev = values.get("rev")
        where = str(values.get("url") or values.get("repo") or "").rstrip("/").removesuffix(".git")
        if not isinstance(rev, str) or not _REVISION.fullmatch(rev) or where.rpartition("/")[2] != "nixpkgs":
            return []
        return [PinUse(rev, rev, fields["rev"].line)]

    @property
    def is_recipe(self) -> bool:
        """Whether it is one by its name, or fetches a nixpkgs; other packages and data may be in the same folder."""
        return self.recipe_name is not None or bool(self.all_pins)

    @cached_property
    def is_package(self) -> bool:
        """Whether it is the package torch itself, as nixpkgs has it, and no recipe that overrides it."""
        return any(
            binding.name == "pname" and self.source.value(binding.node) == "torch"
            for name, _, argument in self.source.calls
            if self.recipe_name is None and name.removesuffix(".override()").endswith("buildPythonPackage")
            for binding in self.source.inside(argument)
        )

    @property
    def concerns_torch(self) -> bool:
        """Whether the rules have anything to say of it; nothing is known of a file that cannot be read."""
        return self.is_recipe or self.overrides_torch or bool(self.gpu_targets) or not self.readable

    @cached_property
    def sets_cuda(self) -> bool:
        """Whether cudaPackages is set to the package set of one CUDA version."""
        return any(_CUDA_SET.search(self.source.code(binding.node)) for binding in self.source.named("cudaPackages"))

    @cached_property
    def upgrade(self) -> TextLine | None:
        """The version that its row, an overlay, or the recipe's own override sets for torch."""
        if isinstance(version := self.row.get("version"), str) and not self.is_sibling:
            return TextLine(self.row_bindings["version"].line, version)
        for name, _, argument in self.source.calls:
            if _OVERRIDES_TORCH.search(name):
                for binding in self.source.inside(argument):
                    value = self.source.value(binding.node)
                    if binding.name == "version" and isinstance(value, str):
                        return TextLine(binding.line, value)
        return None

    @cached_property
    def cleared_patches(self) -> tuple[int, ...]:
        """Lines that set torch's patches to an empty list."""
        calls = [(name, argument) for name, _, argument in self.source.calls if name.endswith(".overrideAttrs")]
        arguments = [argument for name, argument in calls if "magma" not in name]
        return tuple(
            binding.line
            for argument in arguments
            for binding in self.source.inside(argument)
            if binding.name == "patches"
            and binding.node.type == "list_expression"
            and not any(child.type != "comment" for child in binding.node.named_children)
        )

    # What its build does

    @cached_property
    def phases(self) -> dict[str, tuple[TextLine, ...]]:
        """The shell code of each phase, of every overrideAttrs."""
        found: dict[str, tuple[TextLine, ...]] = {}
        for binding in self.source.named(*_PHASES):
            found[binding.name] = found.get(binding.name, ()) + self.source.lines(binding.node)
        return found

    @cached_property
    def shell(self) -> tuple[ShellCommand, ...]:
        return tuple(command for lines in self.phases.values() for command in commands(lines))

    @cached_property
    def exported(self) -> dict[str, tuple[str, int]]:
        """Environment variables of the build: exported in a phase, or attributes of the derivation or its `env`."""
        env = [inner for binding in self.attributes if binding.name == "env" for inner in self.source.below(binding)]
        found = {
            binding.name: (str(value), binding.line)
            for binding in (*self.attributes, *env, *self._row_exports)
            if binding.name.isupper() and (value := self.source.value(binding.node)) is not None
        }
        return found | exports(self.shell)

    @property
    def _row_exports(self) -> tuple[Binding, ...]:
        binding = self.row_bindings.get("exports")
        return self.source.inside(binding.node) if binding else ()

    # What it claims

    @cached_property
    def claims(self) -> tuple[TextLine, ...]:
        """Text for readers: comments, descriptions, and what the build echoes."""
        found = list(self.source.comments)
        for binding in self.source.named("description", "longDescription"):
            found += self.source.lines(binding.node)
        for command in self.shell:
            if not command.document and command.words[0] == "echo":
                found.append(TextLine(command.line, command.text))
        return tuple(sorted(found, key=lambda line: line.number))

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """The same, as sentences."""
        return tuple(sentences(self.claims))

    def assigned(self, *names: str) -> Iterator[tuple[str, int]]:
        """Shell variables of these names that a phase sets or adds to, with their lines."""
        for command in self.shell:
            for word in () if command.document else command.words:
                name = word.partition("=")[0].rstrip("+")
                if "=" in word and name in names:
                    yield name, command.line

    def commands_with(self, *words: str) -> Iterator[ShellCommand]:
        """Commands (and lines of here-documents) that contain every word."""
        return (command for command in self.shell if all(word in command.text for word in words))

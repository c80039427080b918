"""The configuration of one build: every switch, flag and CMake cache variable."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchtailor.backends.source.tables import BlasLibrary, SwitchRule, Tables
from torchtailor.catalog import Capability
from torchtailor.errors import UsageError
from torchtailor.variants.variant import Variant

_NAME = re.compile(r"[A-Za-z_]\w*")
# CMake cache variables are recognised by their name: only the tests of CMake's own modules end like this.
_CACHE_NAME = re.compile(r"C(?:XX)?_\w+_FOUND")
# Names that torchtailor sets itself.
_OURS = frozenset({"CMAKE_INSTALL_PREFIX", "CMAKE_TOOLCHAIN_FILE", "PYTORCH_BUILD_VERSION", "MAX_JOBS"})
_OFF = frozenset({"0", "OFF", "NO", "FALSE", "N"})


@dataclass(frozen=True)
class Configuration:
    """The settings of PyTorch's build."""

    profile: str
    switches: Mapping[str, str]
    cache: Mapping[str, str]
    flags: tuple[str, ...]
    gpus: tuple[Capability, ...]
    rules: tuple[SwitchRule, ...] = field(default=(), compare=False, repr=False)
    extra_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def arch_list(self) -> str:
        """TORCH_CUDA_ARCH_LIST in PyTorch's spelling: `8.0;9.0`."""
        return ";".join(str(gpu) for gpu in self.gpus)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables: switches, the ISA's flags and the GPUs."""
        flags = " ".join(self.flags)
        extra = dict(self.extra_environment)
        more = extra.pop("CXXFLAGS_EXTRA", "")
        values = {**self.switches, "CFLAGS": flags, "CXXFLAGS": f"{flags} {more}".strip(), **extra}
        if self.gpus:
            values["TORCH_CUDA_ARCH_LIST"] = self.arch_list
        return values

    @property
    def digest(self) -> str:
        """Changes when the build must be configured again."""
        document = [self.environment, dict(self.cache)]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]

    def off(self, switch: str) -> bool:
        return self.switches.get(switch, "").upper() in _OFF

    def on(self, switch: str) -> bool:
        return switch in self.switches and not self.off(switch)

    def fixed(self, switches: Mapping[str, str], environment: Mapping[str, str]) -> Configuration:
        """The same with a fix applied."""
        return replace(
            self,
            switches={**self.switches, **switches},
            extra_environment={**self.extra_environment, **environment},
        )

    def cmake_text(self) -> str:
        """A file for CMAKE_TOOLCHAIN_FILE: CMake's own tests do not change what is in its cache before them.

        CMake reads that variable before anything else; PyTorch since 2.12 reads its environment only after
        `project()`, too late for CMAKE_PROJECT_INCLUDE_BEFORE.
        """
        lines = ["# Written by torchtailor: cache variables that no environment variable reaches."]
        lines += [f'set({name} {value} CACHE BOOL "set by torchtailor")' for name, value in sorted(self.cache.items())]
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, object]:
        """The row of the configuration matrix: one column for each switch."""
        row: dict[str, object] = {"profile": self.profile, "flags": " ".join(self.flags)}
        if self.gpus:
            row["TORCH_CUDA_ARCH_LIST"] = self.arch_list
        return {**row, **self.switches, **self.cache, **self.extra_environment}


def configure(
    tables: Tables,
    variant: Variant,
    *,
    profile: str = "full",
    overrides: Sequence[str] = (),
    gpus: Sequence[Capability] = (),
    ccache: bool = False,
    blas: BlasLibrary | None = None,
) -> Configuration:
    """The configuration of a variant: the profile, then the rules in their order, then the user's --set."""
    switches: dict[str, str] = {"BLAS": blas.name, **blas.switches} if blas else {}
    switches |= tables.profile(profile).switches
    cache: dict[str, str] = {}
    rules = tuple(rule for rule in tables.rules if rule.when.holds(variant, ccache=ccache))
    for rule in rules:
        switches |= rule.switches
        cache |= rule.cache
    for name, value in map(parse_override, overrides):
        (cache if _CACHE_NAME.fullmatch(name) else switches)[name] = value
    own = (variant.gpu.capability,) if variant.gpu else ()
    flags = (*variant.isa.compile_flags, *(flag for rule in rules for flag in rule.flags))
    return Configuration(profile, switches, cache, flags, tuple(sorted({*own, *gpus})) if own else (), rules)


def parse_override(text: str) -> tuple[str, str]:
    """`USE_X=0` -> (`USE_X`, `0`)."""
    name, equals, value = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(f"--set {text!r} is not NAME=VALUE.", "Write --set USE_XNNPACK=0.")
    if name in _OURS:
        raise UsageError(f"--set cannot change {name}: torchtailor sets it.", "Leave it out.")
    if name == "TORCH_CUDA_ARCH_LIST":
        raise UsageError("The variant's name decides the GPU.", "Give another variant, such as sm90-avx512.")
    return name, value

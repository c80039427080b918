"""The configuration of one build: every switch, flag and CMake cache variable."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from torchtailor.building.source.tables import BlasLibrary, PrecompiledHeaders, Tables
from torchtailor.catalog import Capability
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import UsageError

_NAME = re.compile(r"[A-Za-z_]\w*")
# CMake cache variables are recognised by their name: only the tests of CMake's own modules end like this.
_CACHE_NAME = re.compile(r"C(?:XX)?_\w+_FOUND")
# Names that torchtailor sets itself.
_OURS = frozenset(
    {
        "CMAKE_GENERATOR",
        "CMAKE_INSTALL_PREFIX",
        "CMAKE_TOOLCHAIN_FILE",
        "MAX_JOBS",
        "NINJA_STATUS",
        "PATH",
        "PYTORCH_BUILD_VERSION",
    }
)
_COMPILERS = frozenset(
    {"CC", "CXX", "CUDAHOSTCXX", "CMAKE_C_COMPILER", "CMAKE_CXX_COMPILER", "CMAKE_CUDA_HOST_COMPILER"}
)
# Would replace the flags of the variant.
_INSTEAD = {"CMAKE_C_FLAGS": "CFLAGS", "CMAKE_CXX_FLAGS": "CXXFLAGS"}
# Added to the flags of the variant.
_FLAGS = frozenset({"CFLAGS", "CXXFLAGS"})
_ISA_FLAG = re.compile(r"(?<!\S)-m(?:arch|cpu)=\S*")
_OFF = frozenset({"0", "OFF", "NO", "FALSE", "N"})
# The targets exist only at the end of PyTorch's CMakeLists.txt, and CMake may read a toolchain file more than once.
_PRECOMPILE = """
function(torchtailor_precompile target)
  if(USE_PRECOMPILED_HEADERS AND TARGET ${target} AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    cmake_parse_arguments(PARSE_ARGV 1 with "" "" "HEADERS;EXCEPT")
    foreach(header ${with_HEADERS})
      if(EXISTS "${CMAKE_SOURCE_DIR}/${header}")
        target_precompile_headers(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${header}>")
      endif()
    endforeach()
    foreach(file ${with_EXCEPT})
      set_source_files_properties("${CMAKE_SOURCE_DIR}/${file}" TARGET_DIRECTORY ${target}
                                  PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endforeach()
  endif()
endfunction()
get_property(seen GLOBAL PROPERTY torchtailor_precompile)
if(NOT seen)
  set_property(GLOBAL PROPERTY torchtailor_precompile TRUE)
%s
endif()
"""


@dataclass(frozen=True)
class SettingGroup:
    """Settings that belong together, and why they are as they are."""

    why: str
    settings: Mapping[str, str]
    flags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """`BUILD_TEST=0 USE_ROCM=0`."""
        return " ".join([*self.flags, *(f"{name}={value}" for name, value in sorted(self.settings.items()))])

    def without(self, names: Collection[str]) -> SettingGroup:
        return replace(self, settings={name: value for name, value in self.settings.items() if name not in names})


@dataclass(frozen=True)
class Configuration:
    """The settings of PyTorch's build."""

    profile: str
    switches: Mapping[str, str]
    cache: Mapping[str, str]
    flags: tuple[str, ...]
    gpus: tuple[Capability, ...]
    reasons: tuple[SettingGroup, ...] = field(default=(), compare=False, repr=False)
    extra_environment: Mapping[str, str] = field(default_factory=dict)
    precompiled: tuple[PrecompiledHeaders, ...] = ()

    @property
    def arch_list(self) -> str:
        """TORCH_CUDA_ARCH_LIST in PyTorch's spelling: `8.0;9.0`."""
        return ";".join(str(gpu) for gpu in self.gpus)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables: switches, the ISA's flags and the GPUs."""
        extra = dict(self.extra_environment)
        last = {"CXXFLAGS": extra.pop("CXXFLAGS_EXTRA", "")}
        values = {**self.switches, **extra}
        for name in _FLAGS:
            values[name] = " ".join(filter(None, (*self.flags, self.switches.get(name), last.get(name))))
        if self.gpus:
            values["TORCH_CUDA_ARCH_LIST"] = self.arch_list
        return values

    @property
    def digest(self) -> str:
        """Changes when the build must be configured again."""
        document = [self.environment, self.cmake_text()]
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
        call = '  cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL torchtailor_precompile'
        calls = [f"{call} {' '.join(row.cmake_arguments)})" for row in self.precompiled]
        return "\n".join(lines) + "\n" + (_PRECOMPILE % "\n".join(calls) if calls else "")

    @property
    def columns(self) -> dict[str, object]:
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
    kind = tables.profile(profile)
    rules = [rule for rule in tables.rules if rule.when.holds(variant, ccache=ccache)]
    reasons = [SettingGroup(f"{variant.isa.label}, the variant's instruction set.", {}, variant.isa.compile_flags)]
    if blas:
        reasons.append(SettingGroup(f"{blas.name} was found here.", {"BLAS": blas.name, **blas.switches}))
    reasons.append(SettingGroup(f"The profile {kind.name}: {kind.label}.", kind.switches))
    reasons += [SettingGroup(rule.why, {**rule.switches, **rule.cache}, rule.flags) for rule in rules]
    reasons.append(SettingGroup("From --set.", dict(map(parse_override, overrides))))
    switches: dict[str, str] = {}
    cache: dict[str, str] = {}
    ours = {name for rule in rules for name in rule.cache}
    for reason in reasons:
        for name, value in reason.settings.items():
            (cache if name in ours or _CACHE_NAME.fullmatch(name) else switches)[name] = value
    own = (variant.gpu.capability,) if variant.gpu else ()
    flags = tuple(flag for reason in reasons for flag in reason.flags)
    gpus = tuple(sorted({*own, *gpus})) if own else ()
    plain = Configuration(kind.name, switches, cache, flags, gpus, _in_effect(reasons))
    return replace(plain, precompiled=tables.precompiled) if plain.on("USE_PRECOMPILED_HEADERS") else plain


def _in_effect(reasons: Sequence[SettingGroup]) -> tuple[SettingGroup, ...]:
    """Each setting with the last reason that sets it; reasons that set nothing are left out."""
    found: list[SettingGroup] = []
    later: set[str] = set()
    for reason in reversed(reasons):
        found.append(reason.without(later))
        later.update(reason.settings)
    return tuple(reason for reason in reversed(found) if reason.settings or reason.flags)


def misspelt(tables: Tables, overrides: Sequence[str]) -> dict[str, str]:
    """Switches of --set that look like another: `USE_XNNPAK` -> `USE_XNNPACK`."""
    found = {}
    for name, _ in map(parse_override, overrides):
        near = get_close_matches(name, tables.switch_names, 1, 0.9)
        if near and near[0] != name:
            found[name] = near[0]
    return found


def parse_override(text: str) -> tuple[str, str]:
    """`USE_X=0` -> (`USE_X`, `0`)."""
    name, equals, value = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(f"--set {text!r} is not NAME=VALUE.", "Write --set USE_XNNPACK=0.")
    if name in _OURS:
        raise UsageError(f"--set cannot change {name}: torchtailor sets it.", "Leave it out.")
    if name in _COMPILERS:
        raise UsageError(
            f"--set cannot change {name}: the compiler is checked before the build.",
            "Set it in the environment: CXX=clang++-19 torchtailor build ...",
        )
    if name in _INSTEAD:
        raise UsageError(
            f"--set cannot change {name}: it replaces the flags of the variant.",
            f"Add to them with --set {_INSTEAD[name]}=...",
        )
    if name == "TORCH_CUDA_ARCH_LIST":
        raise UsageError("The variant's name decides the GPU.", "Give another variant, such as sm90-avx512.")
    if name in _FLAGS and (found := _ISA_FLAG.search(value)):
        raise UsageError(
            f"--set cannot add {found[0]}: the variant's name decides the instruction set.",
            "Give another variant, such as cpu-avx512.",
        )
    return name, value

"""The build environment: pinned tools in a virtual environment, and a clean process environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtailor.building.source.configuration import Configuration
from torchtailor.building.source.folders import Folders, key_of
from torchtailor.building.source.ninja import STATUS
from torchtailor.building.source.tables import Tables
from torchtailor.building.source.toolchain import SYSTEM_PATH, Cuda, HostCompiler
from torchtailor.core.disk import locked
from torchtailor.core.errors import EnvironmentProblem, NetworkError
from torchtailor.core.pythons import find_uv

_READY = ".ready"


@dataclass(frozen=True, slots=True)
class BuildEnvironment:
    """A virtual environment with the tools of a build."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def ninja(self) -> Path:
        return self.path / "bin" / "ninja"


def make_environment(folders: Folders, tables: Tables, python: Path) -> BuildEnvironment:
    """The environment with the pinned tools, created once and shared by all builds."""
    return make_tools(folders, tables.environment.packages, python)


def make_tools(folders: Folders, packages: tuple[str, ...], python: Path) -> BuildEnvironment:
    """An environment with these packages, created once."""
    path = folders.environment(key_of(str(python), *packages))
    with locked(path.with_name(path.name + ".lock"), "The build environment"):
        if not (path / _READY).is_file():
            shutil.rmtree(path, ignore_errors=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            uv = find_uv()
            _run([str(python), "-m", "venv", *(["--without-pip"] if uv else []), str(path)], "create an environment")
            install(path, packages)
            (path / _READY).touch()
    return BuildEnvironment(path)


def install(environment: Path, packages: tuple[str, ...], *, target: Path | None = None) -> None:
    """Install with uv where it is installed, else with the environment's own pip; from the configured indexes."""
    python = environment / "bin" / "python"
    uv = find_uv()
    line = [uv, "pip", "install", "-q", "--python", str(python)] if uv else [str(python), "-m", "pip", "install", "-q"]
    try:
        _run([*line, *(["--target", str(target)] if target else []), *packages], "install")
    except EnvironmentProblem as error:
        raise NetworkError(
            f"The build tools cannot be installed: {error.message}", "Check pip's or uv's index and the network."
        ) from error


def process_environment(
    tables: Tables,
    environment: BuildEnvironment,
    configuration: Configuration,
    *,
    version: str,
    include: Path,
    compiler: HostCompiler | None,
    cuda: Cuda | None,
    cuda_paths: Mapping[str, str] | None = None,
    ccache: Mapping[str, str] | None = None,
    outer: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment variables of a build: a few of the user's shell, and those set here.

    LD_LIBRARY_PATH and PYTHONPATH are set to empty strings, for scripts that run with `set -u`.
    """
    shell = os.environ if outer is None else outer
    values = {name: shell[name] for name in tables.environment.passed if name in shell}
    path = [str(environment.path / "bin"), *([f"{cuda.home}/bin"] if cuda else []), *SYSTEM_PATH]
    values |= {
        "PATH": ":".join(path),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "SHELL": "/bin/sh",
        "LD_LIBRARY_PATH": "",
        "PYTHONPATH": "",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "VIRTUAL_ENV": str(environment.path),
        "NINJA_STATUS": STATUS,
        "PYTORCH_BUILD_VERSION": version,
        "PYTORCH_BUILD_NUMBER": "1",
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_TOOLCHAIN_FILE": str(include),
        "CMAKE_PREFIX_PATH": str(environment.path),
    }
    if compiler:
        values |= {"CC": compiler.cc, "CXX": compiler.cxx}
        if compiler.openmp:
            values["CMAKE_LIBRARY_PATH"] = compiler.openmp
    if cuda:
        values |= {"CUDA_HOME": cuda.home, "CUDACXX": cuda.nvcc, "CUDA_NVCC_EXECUTABLE": cuda.nvcc}
        values["CMAKE_PREFIX_PATH"] = f"{environment.path};{cuda.home}"
        if compiler:
            values |= {"CUDAHOSTCXX": compiler.cxx, "CMAKE_CUDA_HOST_COMPILER": compiler.cxx}
    return {**values, **(cuda_paths or {}), **(ccache or {}), **configuration.environment}


def _run(line: list[str], what: str) -> None:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [text for text in done.stderr.strip().splitlines() if text.strip()] or ["no message"]
        raise EnvironmentProblem(f"{Path(line[0]).name} could not {what}: {lines[-1].strip()}", "Run it by hand.")

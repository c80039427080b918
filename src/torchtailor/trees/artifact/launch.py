"""How the Python of an artifact is started: an environment's own, or one with folders put before its path."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import msgspec

from torchtailor.core.disk import disk_errors
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NoMatchError, TorchtailorError, UsageError
from torchtailor.core.pythons import find_python
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind, open_artifact
from torchtailor.trees.artifact.libraries import is_shared_name
from torchtailor.trees.artifact.roots import SystemRoot
from torchtailor.trees.artifact.sites import find_sites, own_python
from torchtailor.trees.wheels.archive import WheelArchive

_EXTENSION = re.compile(r"_C\.cpython-(\d)(\d+t?)-(\w+)-linux-gnu\.so")
# What is installed has its .pth files run; a folder of PYTHONPATH has not.
_AS_SITES = """import os, site
for folder in os.environ["PYTHONPATH"].split(os.pathsep)[1:]:
    site.addsitedir(folder)
"""
_NIX_INPUTS = Path("nix-support", "propagated-build-inputs")


class NotHereError(TorchtailorError):
    """The target is sound, but this machine cannot start it: another architecture, no such Python."""


class NotFinishedError(EnvironmentProblem):
    """A process was started and took longer than it may."""


@dataclass(frozen=True, slots=True)
class FinishedProcess:
    """A process that has ended."""

    code: int
    output: str
    errors: str
    seconds: float

    @property
    def signal(self) -> int | None:
        """The signal that ended it, where one did."""
        return -self.code if self.code < 0 else None

    @property
    def last_words(self) -> str:
        """The last line of its stderr."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return (lines[-1] if lines else "no output")[:500]

    @property
    def answer(self) -> dict[str, Any] | None:
        """The JSON object that it printed as a line, whatever torch printed around it; None where it ended badly."""
        for line in reversed([] if self.code else self.output.splitlines()):
            with suppress(msgspec.DecodeError):
                found = msgspec.json.decode(line)
                if isinstance(found, dict):
                    return found
        return None


@dataclass(frozen=True, slots=True)
class Launch:
    """A Python interpreter and the folders that come first on its path."""

    python: Path
    folders: tuple[Path, ...] = ()
    whole: bool = True  # False for loose packages, whose dependencies may be elsewhere
    root: SystemRoot | None = None  # the system that it runs in, where that is another

    def run(self, arguments: Sequence[str | Path], *, timeout: float = 600) -> FinishedProcess:
        """Run the interpreter with arguments in an otherwise clean environment, away from the current folder."""
        inherited = os.environ if self.root is None else self.root.environment
        environment = {name: value for name, value in inherited.items() if not name.startswith("PYTHON")}
        environment["PYTHONNOUSERSITE"] = "1"
        if self.root is not None:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"  # the other system stays as it is
        command = [str(self.python), "-W", "ignore", *map(str, arguments)]
        if self.root is not None:
            command = self.root.command(command)
        started = time.perf_counter()
        try:
            shared = self.root.shared if self.root else None
            with tempfile.TemporaryDirectory(prefix="torchtailor-", dir=shared) as folder:
                if self.folders:
                    Path(folder, "sitecustomize.py").write_text(_AS_SITES, "utf-8")
                    environment["PYTHONPATH"] = os.pathsep.join([folder, *map(str, self.folders)])
                code, output, errors = _finish(command, environment, folder, timeout)
        except subprocess.TimeoutExpired as error:
            raise NotFinishedError(
                f"{self.python} did not finish within {timeout:.0f} s.", "Is the machine busy, or the GPU hung?"
            ) from error
        except OSError as error:
            raise EnvironmentProblem(
                f"{self.python} cannot be started: {error.strerror}.", "Name another with --python."
            ) from error
        seconds = time.perf_counter() - started
        return FinishedProcess(code, _text(output), _text(errors), seconds)

    def torch_folder(self) -> Path | None:
        """Where it would import torch from, found without importing it."""
        script = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s and s.origin else '')"
        lines = self.run(["-c", script], timeout=60).output.splitlines()  # a .pth file may print lines of its own
        return Path(lines[-1]).parent if lines and lines[-1] else None


def _finish(command: list[str], environment: dict[str, str], folder: str, timeout: float) -> tuple[int, bytes, bytes]:
    """Run a command to its end; where that is not waited for, the processes that it started end with it."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=folder,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output, errors


@contextmanager
def open_target(path: Path, python: Path | None = None) -> Iterator[Launch]:
    """Make a path startable: an artifact, or a Python interpreter itself."""
    if path.is_file() and path.suffix != ".whl" and os.access(path, os.X_OK) and not is_shared_name(path.name):
        yield Launch(path.absolute())
        return
    with start(open_artifact(path), python) as launch:
        yield launch


@contextmanager
def start(artifact: Artifact, python: Path | None = None, root: SystemRoot | None = None) -> Iterator[Launch]:
    """Make an artifact startable; wheels are unpacked into a temporary folder for as long.

    In another system (`root`), `python` is a path inside of it.
    """
    if root is not None and not artifact.wheels:
        raise UsageError(f"{artifact.shown} holds no wheels to run in another system.", "Give wheels or a wheelhouse.")
    if not artifact.wheels:
        yield _installed(artifact, python)
        return
    with tempfile.TemporaryDirectory(prefix="torchtailor-unpacked-", dir=root.shared if root else None) as name:
        folder = Path(name)
        with disk_errors(folder, unchanged="Set TMPDIR to a folder on a disk with more room."):
            for wheel in artifact.wheels:
                with WheelArchive(wheel) as archive:
                    archive.extract(folder)
        yield _loose(folder, python) if root is None else _in_root(folder, python, root, whole=artifact.complete)


@contextmanager
def op_suite(root: SystemRoot | None = None) -> Iterator[Path]:
    """The folder of the op suite as real files; for another system, where that sees them."""
    with as_file(files("torchtailor") / "opsuite") as folder:
        if root is None:
            yield folder
            return
        with tempfile.TemporaryDirectory(prefix="torchtailor-", dir=root.shared) as name:
            yield Path(shutil.copytree(folder, Path(name, "opsuite")))


def _in_root(folder: Path, python: Path | None, root: SystemRoot, *, whole: bool) -> Launch:
    """Unpacked wheels in another system, which must be able to start a Python for them."""
    version, arch = _built_for(folder) or ("3", platform.machine())
    if arch != platform.machine():
        raise NotHereError(f"It is made for {arch}, and this machine is {platform.machine()}.")
    found = python or root.find_python(version)
    if found is None:
        raise NotHereError(
            f"It is made for Python {version}, and {root.folder} ({root.name}) has none.", "Install it there."
        )
    launch = Launch(found, (folder,), whole=whole, root=root)
    tried = launch.run(["-c", ""], timeout=60)
    if tried.code:
        raise EnvironmentProblem(
            f"{found} cannot be started in {root.folder}: {tried.last_words}.",
            "Run as root, or where user namespaces are allowed; the system must be for this machine.",
        )
    return launch


def _installed(artifact: Artifact, python: Path | None) -> Launch:
    if artifact.kind is ArtifactKind.LIBRARY:
        raise BadInputError(f"{artifact.path} is a library; Python cannot be started on it.", "Give an environment.")
    own = own_python(artifact.path)
    return Launch(own) if own else _loose(artifact.path, python)


def _loose(path: Path, python: Path | None) -> Launch:
    """A folder that holds packages: directly, or as the output of a Nix build does."""
    root = next((root for root in (path, *find_sites(path)) if (root / "torch" / "version.py").is_file()), None)
    if root is None:
        raise NoMatchError(f"{path} holds no torch.", "Give the folder that `import torch` would find it in.")
    folders = (root.absolute(), *_nix_dependencies(path))
    return Launch(python or _fitting_python(root), folders, whole=False)


def _fitting_python(root: Path) -> Path:
    """An interpreter of the version and architecture that torch's extension was built for."""
    built = _built_for(root)
    if built is None:
        return Path(sys.executable)
    version, arch = built
    if arch != platform.machine():
        raise NotHereError(f"It is made for {arch}, and this machine is {platform.machine()}.")
    if python := find_python(version):
        return python
    raise NotHereError(f"It is made for Python {version}, and there is no python{version} here.", "Use --python.")


def _built_for(root: Path) -> tuple[str, str] | None:
    """The Python and the architecture that torch's extension was built for; None where it has none."""
    found = [match for file in (root / "torch").glob("_C.*.so") if (match := _EXTENSION.fullmatch(file.name))]
    return (f"{found[0][1]}.{found[0][2]}", found[0][3]) if found else None


def _nix_dependencies(path: Path) -> Iterator[Path]:
    """The package folders of what a Nix output propagates, each once."""
    waiting, seen = [path], {path}
    while waiting:
        inputs = waiting.pop() / _NIX_INPUTS
        if not inputs.is_file():
            continue
        for word in inputs.read_text("utf-8").split():
            item = Path(word)
            if item not in seen:
                seen.add(item)
                waiting.append(item)
                yield from find_sites(item)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")

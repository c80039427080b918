"""Collects the facts: of this machine and an environment on it, or of a machine described in a file."""

from __future__ import annotations

import errno
import io
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

import msgspec

from torchtailor.advise.host.model import Host, InstalledTorch
from torchtailor.catalog import Capability, Catalog
from torchtailor.catalog.gpus import NO_GPU_LABEL
from torchtailor.core.errors import BadInputError, NoMatchError, UsageError
from torchtailor.core.pythons import find_uv
from torchtailor.core.trust import Limit, read_limited
from torchtailor.trees.artifact.launch import Launch, open_target
from torchtailor.trees.artifact.sites import active_environment, project_environment
from torchtailor.verification.doctor.examine import TorchEnvironment
from torchtailor.verification.doctor.fixes import Interpreter
from torchtailor.verification.doctor.symptoms import ProblemKind, Symptom, read_symptoms
from torchtailor.verification.failures import Diagnosis, diagnose
from torchtailor.verification.failures.process import message_of

# The smallest thing that needs everything: libraries, driver, GPU, code for it; on the CPU where torch is for that.
_TRIAL = (
    "import sys, torch; a = torch.ones(8) @ torch.ones(8); "
    "print((torch.ones(8, device='cuda') + 1).sum().item() if sys.argv[1] == 'cuda' else a.item())"
)
# What is meant as the path of a log: one word with a folder or an ending such as logs have.
_PATH = re.compile(r"[^\s:'\"]*/[^\s:'\"]+|[^\s:'\"/]+\.(?:log|txt|out|err|stderr)", re.IGNORECASE)
_PYTHON = "import sys; print('%d.%d' % sys.version_info[:2])"


def open_message(message: str) -> tuple[IO[bytes], bool]:
    """The message itself or the file that it names, and whether it is such a log."""
    try:
        path = Path(message)
        if path.is_file():
            return path.open("rb"), True
        if path.is_dir():
            raise UsageError(
                f"{message} is a folder, not a message or a log.", f"Examine an environment with --env {message}."
            )
        if _PATH.fullmatch(message) and not path.exists():
            raise NoMatchError(f"{message} does not exist.", "Check the path, or paste the message itself.")
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # which a pasted message is
            raise BadInputError(f"{message} cannot be read: {error.strerror}.", "Paste the message itself.") from error
    except ValueError:  # a NUL in it
        pass
    return io.BytesIO(message.encode("utf-8", "replace")), False


def described_environment(
    description: Path, catalog: Catalog, place: Path | None, seen: Diagnosis | None
) -> TorchEnvironment:
    """A machine that was described by `torchtailor detect --json`: with an environment of this machine, else with the
    torch found there."""
    from torchtailor.advise.host.store import load

    host = load(description)
    given_as = f" --from {shlex.quote(str(description))}"
    if place is not None:
        return replace(_examined(host, catalog, place, seen, run=False), given_as=given_as)
    torch = host.torches[0] if host.torches else None
    return TorchEnvironment(host, torch, seen=seen, given_as=given_as)


def local_environment(catalog: Catalog, place: Path | None, seen: Diagnosis | None, *, run: bool) -> TorchEnvironment:
    """This machine with one of its environments: the one named, else the active one, else the project's `.venv`, else
    python3's."""
    from torchtailor.advise.host.detect import detect

    return replace(_examined(detect(catalog=catalog), catalog, place, seen, run=run), here=True)


def _examined(
    host: Host, catalog: Catalog, place: Path | None, seen: Diagnosis | None, *, run: bool
) -> TorchEnvironment:
    """An environment, as if it were on a machine; only on this one torch can be run."""
    launch, shown = _environment(place, host)
    torch, damage = _installed(launch)
    interpreter = _interpreter(launch, shown)
    if torch is None:
        return TorchEnvironment(host, None, shown, seen, interpreter=interpreter)
    if run:
        said = message_of(launch.run(["-c", _TRIAL, "cuda" if torch.cuda else "cpu"], timeout=180))
        seen = diagnose(io.BytesIO(said.encode("utf-8", "replace"))) if said else None
    symptoms = {symptom.kind: symptom for symptom in read_symptoms(seen)}
    others = _without_code(torch, host, catalog) if ProblemKind.NO_CODE in symptoms and not damage else ()
    mixed = symptoms.get(ProblemKind.MIXED_LIBRARIES)
    asked_of = _asked_of(Path(torch.path).parent, mixed) if mixed else ""
    found = TorchEnvironment(
        host, torch, shown, seen, others=others, interpreter=interpreter, asked_of=asked_of, damage=damage
    )
    return _with_cut(found, Path(torch.path))


def _interpreter(launch: Launch, shown: str | None) -> Interpreter:
    """How its Python is called by somebody who names the environment like this."""
    python = Path(shown, "bin", "python") if shown and Path(shown, "bin", "python").exists() else launch.python
    has_pip = launch.run(["-c", "import pip"], timeout=60).code == 0
    return Interpreter.of(python, pip=has_pip, uv=find_uv() is not None)


def _asked_of(site: Path, symptom: Symptom) -> str:
    """The library that should have a missing symbol: of those that its user needs, the one it is named after."""
    from torchtailor.code.binary.elf import ElfFile
    from torchtailor.code.binary.source import open_source
    from torchtailor.verification.static.elf_facts import read_elf

    if symptom.library or not symptom.user or not symptom.symbol:
        return ""
    symbol = symptom.symbol.lstrip("_").lower()
    needed: list[str] = []
    for path in sorted(site.glob(f"nvidia/**/{symptom.user}")) + sorted(site.glob(f"torch/lib/{symptom.user}")):
        with suppress(BadInputError, OSError), open_source(path) as source:
            needed += read_elf(ElfFile(source)).needed
    stems = {name: name.removeprefix("lib").partition(".so")[0].lower() for name in needed}
    fitting = [name for name, stem in stems.items() if symbol.startswith("cuda" if stem == "cudart" else stem)]
    return max(fitting, key=lambda name: len(stems[name]), default="")


def _environment(place: Path | None, host: Host) -> tuple[Launch, str | None]:
    if place is not None:
        with open_target(place) as launch:
            return launch, str(place)
    if prefix := active_environment() or project_environment(Path.cwd()):
        with open_target(prefix) as launch:
            return launch, str(prefix)
    if host.torches:
        torch = host.torches[0]
        return Launch(Path(torch.interpreter or sys.executable), (Path(torch.path).parent,)), None
    return Launch(Path(sys.executable)), None


def _installed(launch: Launch) -> tuple[InstalledTorch | None, str]:
    """The torch of an environment, read and not imported, and what is damaged of it, as a sentence."""
    from torchtailor.advise.host.probe import LiveProbe
    from torchtailor.advise.host.torches import parse_version, with_architectures

    folder = launch.torch_folder()
    if folder is None or not (folder / "version.py").is_file():
        return None, ""
    built = parse_version(LiveProbe().read(str(folder / "version.py")) or "")
    damage = "" if built.version else f"{folder / 'version.py'} cannot be read, or has no version."
    version = built.version or _version_by_name(folder)
    if version is None:
        raise NoMatchError(f"{folder} has no version.", "Is this an installed torch?")
    python = launch.run(["-c", _PYTHON], timeout=30).output.strip() or None
    installed_as, cuda = _version_by_name(folder) or "", built.cuda
    if installed_as.endswith(f".{NO_GPU_LABEL}"):  # cut with --gpu none: a build for the CPU, whatever version.py says
        version, cuda = installed_as, None
    torch = InstalledTorch(version=version, path=str(folder), python=python, cuda=cuda, other=built.other)
    try:
        return with_architectures(LiveProbe(), torch) if torch.cuda else torch, damage
    except BadInputError as error:
        return torch, error.message
    except OSError as error:
        return torch, f"{folder / 'lib'} cannot be read: {error.strerror}."


def _version_by_name(torch: Path) -> str | None:
    """The version that an installer wrote into the name of torch's metadata."""
    names = sorted(path.name for path in torch.parent.glob("torch-*.dist-info"))
    return names[0].removeprefix("torch-").removesuffix(".dist-info") if names else None


def _without_code(torch: InstalledTorch, host: Host, catalog: Catalog) -> tuple[tuple[str, str], ...]:
    """Libraries beside torch that hold GPU code, and none that a GPU of this machine runs."""
    from torchtailor.code.gpucode.fitness import gpu_fit
    from torchtailor.verification.inspection.inspect import inspect

    devices: list[Capability] = [gpu.compute for gpu in host.visible_gpus if gpu.compute is not None]
    found = []
    for library in inspect(Path(torch.path).parent, catalog=catalog).libraries if devices else ():
        fits = [gpu_fit(library, device, catalog.rules) for device in devices]
        ours = library.name.startswith(("torch/", "nvidia/"))
        if library.has_code and not ours and not all(fit.fit.runs or fit.linked_at_run_time for fit in fits):
            found.append((library.name, ", ".join(group.label for group in library.architectures)))
    return tuple(found)


def _with_cut(environment: TorchEnvironment, torch: Path) -> TorchEnvironment:
    """With what torchtailor did to an installed torch, from the manifest it left."""
    from torchtailor.trees.wheels.distribution import MANIFEST

    packs = torch.parent.glob(f"torch_gpu_*.dist-info/{MANIFEST}")  # of a torch that was split
    found: list[Capability] = []
    cut = traced = False
    for place in (*torch.parent.glob(f"torch-*.dist-info/{MANIFEST}"), *packs, torch.parent / MANIFEST):
        try:
            document = msgspec.json.decode(read_limited(place, Limit.MANIFEST))
            found += [Capability.parse(gpu) for gpu in document["target"]["gpus"]]
            cut, traced = True, traced or "workload" in document["policy"]
        except (OSError, BadInputError, KeyError, TypeError, ValueError, RecursionError):
            continue
    return replace(environment, cut=cut, cut_for=tuple(str(gpu) for gpu in sorted(set(found))), traced=traced)

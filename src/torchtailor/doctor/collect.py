"""Collects the facts: of this machine and an environment on it, or of a machine described in a file."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import msgspec

from torchtailor.artifact.launch import Launch, open_target
from torchtailor.catalog import Capability, Catalog
from torchtailor.doctor.examine import TorchEnvironment
from torchtailor.doctor.symptoms import ProblemKind, read_symptoms
from torchtailor.errors import BadInputError, NoMatchError
from torchtailor.failures.process import message_of
from torchtailor.host.model import Host, InstalledTorch
from torchtailor.trust import Limit, read_limited

_LOG_LIMIT = 8 << 20  # the end of a log holds the error
# The smallest thing that needs everything: libraries, driver, GPU, code for it.
_TRIAL = (
    "import torch; a = torch.ones(8) @ torch.ones(8); "
    "print((torch.ones(8, device='cuda') + 1).sum().item() if torch.version.cuda else a.item())"
)
_PYTHON = "import sys; print('%d.%d' % sys.version_info[:2])"


def read_message(message: str) -> str:
    """The message itself, or the end of the file that it names."""
    try:
        path = Path(message)
        if not message or not path.is_file():
            return message
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_LIMIT))
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return message  # a pasted message, not a path
        raise BadInputError(f"{message} cannot be read: {error.strerror}.", "Paste the message itself.") from error
    except ValueError:  # a NUL in it
        return message


def described_environment(description: Path, message: str) -> TorchEnvironment:
    """A machine that was described by `torchtailor detect --json`, with the torch found there."""
    from torchtailor.host.store import load

    host = load(description)
    return TorchEnvironment(host, host.torches[0] if host.torches else None, message=message)


def local_environment(catalog: Catalog, place: Path | None, message: str, *, run: bool) -> TorchEnvironment:
    """This machine with one of its environments: the one named, else the active one, else python3's."""
    from torchtailor.host.detect import detect

    host = detect(catalog=catalog)
    launch, shown = _environment(place, host)
    torch = _installed(launch)
    if torch is None:
        return TorchEnvironment(host, None, shown, message)
    if run:
        message = message_of(launch.run(["-c", _TRIAL], timeout=180))
    missing_code = ProblemKind.NO_CODE in {symptom.kind for symptom in read_symptoms(message)}
    others = _without_code(torch, host, catalog) if missing_code else ()
    return TorchEnvironment(host, torch, shown, message, cut_for(Path(torch.path)), others)


def _environment(place: Path | None, host: Host) -> tuple[Launch, str | None]:
    if place is not None:
        with open_target(place) as launch:
            return launch, str(place)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if prefix := os.environ.get(variable):
            with open_target(Path(prefix)) as launch:
                return launch, prefix
    if host.torches:
        return Launch(Path(sys.executable), (Path(host.torches[0].path).parent,)), None
    return Launch(Path(sys.executable)), None


def _installed(launch: Launch) -> InstalledTorch | None:
    """The torch of an environment, read and not imported."""
    from torchtailor.host.probe import LiveProbe
    from torchtailor.host.torches import parse_version, with_architectures

    folder = launch.torch_folder()
    if folder is None or not (folder / "version.py").is_file():
        return None
    version, cuda = parse_version((folder / "version.py").read_text("utf-8"))
    if version is None:
        raise NoMatchError(f"{folder} has no version.", "Is this an installed torch?")
    python = launch.run(["-c", _PYTHON], timeout=30).output.strip() or None
    torch = InstalledTorch(version=version, path=str(folder), python=python, cuda=cuda)
    return with_architectures(LiveProbe(), torch) if cuda else torch


def _without_code(torch: InstalledTorch, host: Host, catalog: Catalog) -> tuple[tuple[str, str], ...]:
    """Libraries beside torch that hold GPU code, and none that a GPU of this machine runs."""
    from torchtailor.gpucode.fitness import gpu_fit
    from torchtailor.inspection.inspect import inspect

    devices: list[Capability] = [gpu.compute for gpu in host.visible_gpus if gpu.compute is not None]
    found = []
    for library in inspect(Path(torch.path).parent, catalog=catalog).libraries if devices else ():
        fits = [gpu_fit(library, device, catalog.rules) for device in devices]
        ours = library.name.startswith(("torch/", "nvidia/"))
        if library.has_code and not ours and not all(fit.fit.runs or fit.linked_at_run_time for fit in fits):
            found.append((library.name, ", ".join(group.label for group in library.architectures)))
    return tuple(found)


def cut_for(torch: Path) -> tuple[str, ...]:
    """The GPUs that torchtailor cut an installed torch for, from the manifest it left."""
    from torchtailor.wheels.distribution import MANIFEST

    for place in (*torch.parent.glob(f"torch-*.dist-info/{MANIFEST}"), torch.parent / MANIFEST):
        try:
            document = msgspec.json.decode(read_limited(place, Limit.MANIFEST))
            return tuple(str(Capability.parse(gpu)) for gpu in document["target"]["gpus"])
        except (OSError, BadInputError, KeyError, TypeError, ValueError, RecursionError):
            continue
    return ()

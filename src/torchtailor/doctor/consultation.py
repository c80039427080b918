"""Finds the patient: this machine and an environment on it, or a machine described in a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torchtailor.artifact.launch import Launch, open_target
from torchtailor.catalog import Capability, Catalog
from torchtailor.doctor.doctor import Patient, cut_for
from torchtailor.doctor.symptoms import Trouble, read_symptoms
from torchtailor.errors import NoMatchError
from torchtailor.host.model import Host, InstalledTorch

# The smallest thing that needs everything: libraries, driver, GPU, code for it.
_TRIAL = (
    "import torch; a = torch.ones(8) @ torch.ones(8); "
    "print((torch.ones(8, device='cuda') + 1).sum().item() if torch.version.cuda else a.item())"
)
_PYTHON = "import sys; print('%d.%d' % sys.version_info[:2])"


def elsewhere(description: Path, message: str) -> Patient:
    """A machine that was described by `torchtailor detect --json`, with the torch found there."""
    from torchtailor.host.store import load

    host = load(description)
    return Patient(host, host.torches[0] if host.torches else None, message=message)


def here(catalog: Catalog, env: Path | None, message: str, *, run: bool) -> Patient:
    """This machine with one of its environments: the one named, else the active one, else python3's."""
    from torchtailor.host.detect import detect

    host = detect(catalog=catalog)
    launch, shown = _environment(env, host)
    torch = _installed(launch) if launch is not None else None
    if torch is None:
        return Patient(host, None, shown, message)
    if run and launch is not None:
        message = _try(launch)
    patient = Patient(host, torch, shown, message, cut_for(Path(torch.path)))
    told = {symptom.trouble for symptom in read_symptoms(message)}
    if Trouble.NO_CODE in told:
        return Patient(host, torch, shown, message, patient.cut_for, _without_code(torch, host, catalog))
    return patient


def _environment(env: Path | None, host: Host) -> tuple[Launch | None, str | None]:
    if env is not None:
        with open_target(env) as launch:
            return launch, str(env)
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
        raise NoMatchError(f"{folder} says no version.", "Is this an installed torch?")
    python = launch.run(["-c", _PYTHON], timeout=30).output.strip() or None
    torch = InstalledTorch(version=version, path=str(folder), python=python, cuda=cuda)
    return with_architectures(LiveProbe(), torch) if cuda else torch


def _try(launch: Launch) -> str:
    """What torch says when it is used; nothing where all goes well."""
    ran = launch.run(["-c", _TRIAL], timeout=180)
    if ran.signal is not None:
        return {4: "Illegal instruction (SIGILL)", 7: "Bus error", 11: "Segmentation fault"}.get(
            ran.signal, f"ended by signal {ran.signal}"
        )
    return ran.errors if ran.code else ""


def _without_code(torch: InstalledTorch, host: Host, catalog: Catalog) -> tuple[tuple[str, str], ...]:
    """Libraries beside torch that hold GPU code, and none that a GPU of this machine runs."""
    from torchtailor.gpucode.fitness import gpu_fit
    from torchtailor.gpucode.inspect import inspect

    devices: list[Capability] = [gpu.compute for gpu in host.visible_gpus if gpu.compute is not None]
    found = []
    for library in inspect(Path(torch.path).parent, catalog=catalog).libraries if devices else ():
        fits = [gpu_fit(library, device, catalog.rules) for device in devices]
        ours = library.name.startswith(("torch/", "nvidia/"))
        if library.has_code and not ours and not all(fit.fit.runs or fit.linked_at_run_time for fit in fits):
            found.append((library.name, ", ".join(group.label for group in library.architectures)))
    return tuple(found)

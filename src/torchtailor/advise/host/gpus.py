"""GPUs and their driver: from NVML, nvidia-smi, /proc or (on Tegra) the device tree; and what went wrong."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from torchtailor.advise.host.model import Driver, GpuDevice, MigInstance, Note, System, Tegra, VersionText
from torchtailor.advise.host.probe import CommandOutcome, Probe
from torchtailor.advise.host.tegra import tegra_table, tegra_with_gpus
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.products import other_accelerator, pci_gpu
from torchtailor.catalog.schema import Dotted
from torchtailor.core.errors import TorchtailorError
from torchtailor.core.format import counted
from torchtailor.core.shapes import shaped

NVML_TIMEOUT = 8.0
SMI_TIMEOUT = 8.0
_FIELDS = ("index", "name", "uuid", "memory.total", "driver_version", "mig.mode.current", "compute_cap")
_OLD_FIELDS = ("index", "name", "uuid", "memory.total", "driver_version")  # before compute_cap could be asked (R510)
_NVIDIA = "10de"
_PCI_ROOT = "/sys/bus/pci/devices"
# display, 3D and other display controllers; processing accelerators (as data-centre GPUs of AMD and Intel)
_PCI_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")


@dataclass(frozen=True, slots=True)
class DetectedGpus:
    """The GPUs and the driver that one source reported, or why it reported none; the Tegra system around them."""

    gpus: tuple[GpuDevice, ...] = ()
    driver: Driver | None = None
    notes: tuple[Note, ...] = ()
    answered: bool = False
    tegra: Tegra | None = None


class _NvmlReport(msgspec.Struct, frozen=True):
    driver: str
    cuda: VersionText | None = None
    gpus: tuple[GpuDevice, ...] = ()


def detect_gpus(probe: Probe, catalog: Catalog, system: System, tegra: Tegra | None) -> DetectedGpus:
    """The GPUs of a machine by the best source that answers, with notes on those that did not."""
    notes: tuple[Note, ...] = ()
    sources: tuple[Callable[[Probe], DetectedGpus], ...] = (_by_nvml, _by_smi, partial(_by_proc, system=system))
    found = DetectedGpus()
    for source in sources:
        if source is _by_smi and any(note.topic == "nvml-hangs" for note in notes):
            continue  # nvidia-smi asks NVML too, and would hang as well
        found = source(probe)
        notes += found.notes
        if found.answered:
            break
    number = found.driver.number if found.driver and not system.wsl else None
    gpus = tuple(_with_capability(gpu, catalog, tegra, number) for gpu in found.gpus)
    notes += tuple(_doubts(found.gpus, gpus, catalog, number))
    tegra = tegra_with_gpus(tegra, gpus, found.driver)
    if tegra is not None:
        gpus = _with_tegra(gpus, tegra)
    if not gpus:
        notes += _why_none(probe, catalog, found.driver, system)
    driver = found.driver and _with_cuda(found.driver, catalog, system)
    return DetectedGpus(gpus, driver, notes + _gpu_notes(gpus), answered=True, tegra=tegra)


def _by_nvml(probe: Probe) -> DetectedGpus:
    ran = probe.nvml(NVML_TIMEOUT)
    if ran.outcome is CommandOutcome.MISSING:
        return DetectedGpus()
    if ran.outcome is CommandOutcome.TIMED_OUT:
        return _failed("nvml-hangs", f"NVML did not answer within {NVML_TIMEOUT:.0f} s: the driver or a GPU hangs.")
    try:
        if not ran.done:
            problem = msgspec.json.decode(ran.output, type=shaped(dict[str, str]))["problem"]
            return _failed("nvml-failed", f"NVML failed: {problem}.{_advice(problem)}")
        report = msgspec.json.decode(ran.output, type=shaped(_NvmlReport))
        driver = Driver(version=_driver_number(report.driver), cuda=report.cuda, source="NVML")
    except (msgspec.MsgspecError, KeyError, ValueError):
        return _failed("nvml-failed", "NVML crashed or returned malformed output.")
    return DetectedGpus(report.gpus, driver, answered=bool(report.gpus))


def _by_smi(probe: Probe) -> DetectedGpus:
    path = probe.which("nvidia-smi")
    if path is None:
        return DetectedGpus()
    ran = probe.run((path, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"), SMI_TIMEOUT)
    fields: tuple[str, ...] = _FIELDS
    if ran.outcome is CommandOutcome.FAILED and "is not a valid field" in ran.output:
        fields = _OLD_FIELDS
        ran = probe.run((path, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"), SMI_TIMEOUT)
    if ran.outcome is CommandOutcome.TIMED_OUT:
        text = f"nvidia-smi did not answer within {SMI_TIMEOUT:.0f} s: the driver or a GPU hangs."
        return _failed("nvidia-smi-hangs", text)
    output = ran.output.strip()
    if not ran.done:
        first = output.splitlines()[0].rstrip(".") if output else "no message"
        return _failed("nvidia-smi-failed", f"nvidia-smi failed: {first}.{_advice(output)}")
    if output == "No devices were found":
        return _failed("nvidia-smi-failed", "nvidia-smi runs, but the driver finds no GPU.")
    try:
        cells = [[cell.strip() for cell in row] for row in csv.reader(output.splitlines())]
        rows = [dict(zip(fields, row, strict=True)) for row in cells]
        gpus = tuple(_smi_gpu(row) for row in rows)
        driver = Driver(version=_driver_number(rows[0]["driver_version"]), source="nvidia-smi")
    except (ValueError, IndexError, msgspec.MsgspecError):
        return _failed("nvidia-smi-failed", "nvidia-smi returned malformed output, which is ignored.")
    if any(row.get("mig.mode.current") == "Enabled" for row in rows):
        gpus = _with_mig(probe, path, gpus)
    header = probe.run((path, "--version"), SMI_TIMEOUT)
    cuda = re.search(r"CUDA Version\s*:\s*(\d+\.\d+)", header.output) if header.done else None
    return DetectedGpus(gpus, msgspec.structs.replace(driver, cuda=cuda[1] if cuda else None), answered=bool(gpus))


def _smi_gpu(row: dict[str, str]) -> GpuDevice:
    capability = row.get("compute_cap", "")
    memory = row["memory.total"]
    if not row["name"]:
        raise ValueError("a GPU without a name")
    values = {
        "index": int(row["index"]),
        "name": row["name"],
        "uuid": row["uuid"] if row["uuid"].startswith("GPU-") else None,
        "capability": capability if re.fullmatch(r"\d{1,2}\.\d", capability) else None,
        "memory": int(memory) << 20 if memory.isdecimal() else None,
    }
    return msgspec.convert(values, shaped(GpuDevice))  # checked, so that the description can be loaded again


def _with_mig(probe: Probe, path: str, gpus: tuple[GpuDevice, ...]) -> tuple[GpuDevice, ...]:
    """The instances that `nvidia-smi -L` lists below each GPU."""
    instances: dict[int, list[MigInstance]] = {}
    current = -1
    for line in probe.run((path, "-L"), SMI_TIMEOUT).output.splitlines():
        if gpu := re.match(r"GPU (\d+):", line):
            current = int(gpu[1])
        elif mig := re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)", line):
            instances.setdefault(current, []).append(MigInstance(uuid=mig[2], name=f"MIG {mig[1]}"))
    return tuple(msgspec.structs.replace(gpu, mig=tuple(instances.get(gpu.index, ()))) for gpu in gpus)


def _by_proc(probe: Probe, system: System) -> DetectedGpus:
    version = probe.read("/proc/driver/nvidia/version")
    if version is None:
        return DetectedGpus()
    number = re.search(r"(?:Kernel Module|Kernel Module for \w+)\s+(\d+(?:\.\d+)+)\s", version)
    driver = Driver(version=number[1], source="/proc/driver/nvidia") if number else None
    gpus = []
    # a container sees the host's /proc/driver/nvidia, whether it was given the GPUs or not
    given = not system.container or "nvidiactl" in probe.list("/dev")
    for index, folder in enumerate(probe.list("/proc/driver/nvidia/gpus") if given else ()):
        text = probe.read(f"/proc/driver/nvidia/gpus/{folder}/information") or ""
        values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
        uuid = values.get("GPU UUID", "")
        known = uuid if uuid.startswith("GPU-") and "?" not in uuid else None
        # the folder is the GPU's PCI address, whose number tells chips of one name apart
        listed = pci_gpu((probe.read(f"{_PCI_ROOT}/{folder}/device") or "").strip())
        capability = str(listed.capability) if listed and listed.capability else None
        name = values.get("Model") or (listed.name if listed else "unknown NVIDIA GPU")
        gpus.append(GpuDevice(index=index, name=name, uuid=known, capability=capability))
    notes: tuple[Note, ...] = ()
    if gpus:
        text = "Neither NVML nor nvidia-smi answered; the GPUs are those in /proc/driver/nvidia."
        notes = (Note(topic="by-proc", text=text),)
    return DetectedGpus(tuple(gpus), driver, notes, answered=bool(gpus))


def _failed(topic: str, text: str) -> DetectedGpus:
    return DetectedGpus(notes=(Note(topic=topic, text=text),))


def _advice(problem: str) -> str:
    if "mismatch" in problem:
        return " The driver was updated without a restart: reboot, or reload the kernel module."
    if "couldn't communicate" in problem or "Driver Not Loaded" in problem:
        return " The kernel module is not loaded: reinstall the driver, or `modprobe nvidia`."
    return ""


def _driver_number(text: str) -> str:
    match = re.match(r"\d+(?:\.\d+)+", text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a driver's version")
    return match[0]


def _with_capability(gpu: GpuDevice, catalog: Catalog, tegra: Tegra | None, driver: Dotted | None) -> GpuDevice:
    """A GPU whose source gave no capability gets that of its product; an integrated one, that of the chip."""
    if gpu.capability is not None:
        return gpu
    if tegra is not None and (chip := tegra_table().find_chip(tegra.chip)) and "nvgpu" in gpu.name:
        return msgspec.structs.replace(gpu, capability=chip.capability, integrated=True)
    try:
        return msgspec.structs.replace(gpu, capability=str(catalog.find_gpu(gpu.name, driver).gpu.capability))
    except TorchtailorError:
        return gpu


def _doubts(
    reported: tuple[GpuDevice, ...], resolved: tuple[GpuDevice, ...], catalog: Catalog, driver: Dotted | None
) -> Iterator[Note]:
    """What is unsure about the capabilities that were found by name."""
    for before, after in zip(reported, resolved, strict=True):
        by_name = before.capability is None and after.capability is not None and not after.integrated
        if by_name and (doubt := catalog.find_gpu(after.name, driver).doubt):
            yield Note(topic="ambiguous-gpu", text=f"{after.label} {doubt}")


def _with_tegra(gpus: tuple[GpuDevice, ...], tegra: Tegra) -> tuple[GpuDevice, ...]:
    """The chip's own GPU, marked; added where no driver's answer has it."""
    chip = tegra_table().find_chip(tegra.chip)
    if chip is None:
        return gpus
    marked = tuple(
        msgspec.structs.replace(gpu, integrated=True) if gpu.capability == chip.capability else gpu for gpu in gpus
    )
    if any(gpu.integrated for gpu in marked):
        return marked
    own = GpuDevice(index=len(gpus), name=tegra.model, capability=chip.capability, integrated=True)
    return (*marked, own)


def _with_cuda(driver: Driver, catalog: Catalog, system: System) -> Driver:
    """The newest CUDA that the driver runs in full: as it reports itself, else by the catalog."""
    cuda = driver.cuda or (None if system.wsl else _cuda_by_number(driver.number, catalog))
    return msgspec.structs.replace(driver, cuda=cuda, windows=system.wsl)


def _cuda_by_number(driver: Dotted, catalog: Catalog) -> str | None:
    """The CUDA of the driver's branch; for a branch that is not known, the newest toolkit that asks for no more."""
    branch = catalog.drivers.get(driver.major)
    if branch is not None and branch.cuda is not None:
        return str(branch.cuda)
    known = [toolkit.version for toolkit in catalog.toolkits.values() if toolkit.driver_full <= driver]
    return str(max(known)) if known else None


def _why_none(probe: Probe, catalog: Catalog, driver: Driver | None, system: System) -> tuple[Note, ...]:
    """Why no GPU can be used."""
    on_bus = [_nvidia_label(gpu.device) for gpu in _pci_gpus(probe) if gpu.vendor == _NVIDIA]
    if driver is not None and system.container:
        text = (
            f"The host has NVIDIA driver {driver.version}, but this {system.container} container has no GPU: start the "
            "container with --gpus all (NVIDIA Container Toolkit)."
        )
        return (Note(topic="container-without-gpu", text=text),)
    which = ",".join(on_bus)
    if on_bus and driver is not None:
        text = f"Driver {driver.version} does not support the NVIDIA GPU on the PCI bus{which}."
        return (Note(topic="unsupported-gpu", text=f"{text} {_dropped(catalog, driver)}".strip()),)
    if on_bus:
        nouveau = "nouveau" in (probe.read("/proc/modules") or "")
        reason = "it is bound to the nouveau driver" if nouveau else "no NVIDIA driver is loaded"
        text = f"An NVIDIA GPU is on the PCI bus{which}, but {reason}: install the NVIDIA driver."
        return (Note(topic="no-driver", text=text),)
    if driver is not None:
        return (Note(topic="no-gpu", text=f"NVIDIA driver {driver.version} is loaded, but it finds no GPU."),)
    others = dict.fromkeys(other_accelerator(vendor=gpu.vendor) for gpu in _pci_gpus(probe))
    texts = [f" PCI bus: {other.name}. {other.text}" for other in others if other is not None]
    return (Note(topic="no-gpu", text=f"No NVIDIA GPU was found.{''.join(texts)}"),)


def _dropped(catalog: Catalog, driver: Driver) -> str:
    """Which GPUs a driver is too new for."""
    families: dict[int, dict[str, None]] = {}
    for gpu in catalog.gpus.values():
        if gpu.last_driver_branch and driver.number.major > gpu.last_driver_branch:
            families.setdefault(gpu.last_driver_branch, {})[gpu.family] = None
    return " ".join(f"R{branch} was the last branch for {', '.join(names)}." for branch, names in families.items())


@dataclass(frozen=True, slots=True)
class _PciDevice:
    vendor: str
    device: str


def _pci_gpus(probe: Probe) -> tuple[_PciDevice, ...]:
    """The graphics controllers and accelerators on the PCI bus."""
    found = []
    for name in probe.list(_PCI_ROOT):
        if (probe.read(f"{_PCI_ROOT}/{name}/class") or "").startswith(_PCI_CLASSES):
            numbers = [(probe.read(f"{_PCI_ROOT}/{name}/{key}") or "").strip() for key in ("vendor", "device")]
            found.append(_PciDevice(*(number.removeprefix("0x") for number in numbers)))
    return tuple(found)


def _nvidia_label(device: str) -> str:
    """`, A10G (10de:2237)`, to stand behind other words."""
    known = pci_gpu(device)
    name = known.name if known else ""
    return f"{', ' if name else ''}{name} ({_NVIDIA}:{device})"


def _gpu_notes(gpus: tuple[GpuDevice, ...]) -> tuple[Note, ...]:
    notes = []
    if len(capabilities := {gpu.capability for gpu in gpus if gpu.capability}) > 1:
        text = f"The GPUs are of different compute capabilities: {', '.join(sorted(capabilities, key=Dotted))}."
        notes.append(Note(topic="mixed-gpus", text=text))
    for gpu in gpus:
        if gpu.capability is None:
            text = f"The compute capability of {gpu.label} is unknown, so recommendations ignore it."
            notes.append(Note(topic="unknown-gpu", text=text))
        if gpu.mig:
            text = (
                f"{gpu.label} is split into {counted(len(gpu.mig), 'MIG instance')}; a CUDA program sees one at a time."
            )
            notes.append(Note(topic="mig", text=text))
    return tuple(notes)

"""A machine that is only named: its GPUs, CPU and driver as given on a command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from torchtailor.catalog.cpus import Microarchitecture
from torchtailor.catalog.gpus import Capability, Gpu
from torchtailor.catalog.load import Catalog
from torchtailor.errors import ImpossibleError, NoMatchError, UsageError
from torchtailor.host.model import Cpu, Driver, GpuDevice, Host, Note, Room, System
from torchtailor.host.tegra import describe_tegra, tegra_table

_NONE = ("none", "no", "cpu")
_NOT_TOLD = "not told"


@dataclass(frozen=True, slots=True)
class Named:
    """The parts of a machine that were named; None where nothing was said."""

    gpus: Sequence[str] = ()
    cpu: str | None = None
    driver: str | None = None
    jetpack: str | None = None

    @property
    def whole_machine(self) -> bool:
        """Whether it describes a machine of its own, rather than a change to another."""
        return bool(self.gpus) or self.cpu is not None


def plan(catalog: Catalog, named: Named, base: Host | None, here: Callable[[], Cpu]) -> Host:
    """The machine that was named, or another one (`base`) with those parts changed; what had to be guessed is said.

    `here` tells this machine's CPU, the last resort where none was named. The base's driver does not count for GPUs
    that are named.
    """
    notes: list[str] = []
    gpus = [] if [text.lower() for text in named.gpus] in ([name] for name in _NONE) else _gpus(catalog, named.gpus)
    cpu = _cpu(catalog, named, gpus, base, here, notes)
    _check_together(gpus, cpu)
    host = base or _empty(cpu)
    if named.gpus:
        devices = tuple(_device(catalog, index, text, gpu) for index, (text, gpu) in enumerate(gpus))
        host = replace(host, gpus=devices, driver=None, tegra=None, cuda_visible_devices=None)
    host = replace(host, cpu=cpu, tools=(), torches=())
    host = _with_tegra(host, gpus, named)
    if named.driver is not None:
        host = replace(host, driver=Driver(version=_driver(named.driver), source="named"))
    elif host.tegra is not None and host.tegra.jetpack is None:
        notes.append("No JetPack was named (--jetpack): much depends on it.")
    elif host.gpus and host.driver is None and host.tegra is None:
        notes.append("No driver was named (--driver): it is taken to be new enough.")
    kept = () if named.gpus else host.notes
    return replace(host, notes=(*kept, *(Note(topic="planned", text=text) for text in notes)))


def _driver(text: str) -> str:
    if not re.fullmatch(r"\d{3,}(\.\d+)*", text.strip()):
        raise UsageError(f"{text!r} is not a driver's version.", "Write it as nvidia-smi shows it: 570.26, 580.95.05.")
    return text.strip()


def _gpus(catalog: Catalog, texts: Sequence[str]) -> list[tuple[str, Gpu]]:
    return [(text, catalog.gpu(text)) for text in texts]


def _device(catalog: Catalog, index: int, text: str, gpu: Gpu) -> GpuDevice:
    try:
        Capability.parse(text)
        name = gpu.describe(2)
    except ValueError:
        name = text  # a product, which may be a bare number: 4090
    integrated = tegra_table().chip_of(str(gpu.capability)) is not None
    return GpuDevice(index=index, name=name, capability=str(gpu.capability), integrated=integrated)


def _cpu(
    catalog: Catalog,
    named: Named,
    gpus: Sequence[tuple[str, Gpu]],
    base: Host | None,
    here: Callable[[], Cpu],
    notes: list[str],
) -> Cpu:
    if named.cpu is not None:
        core, label = catalog.microarchitecture(named.cpu)
        if not gpus and not named.gpus and (base is None or not base.gpus):
            notes.append("No GPU was named (--gpu): the recommendation is for the CPU alone.")
        return _planned_cpu(core, label)
    if base is not None:
        return base.cpu
    for text, _ in gpus:  # a system such as DGX Spark names both
        try:
            core, label = catalog.microarchitecture(text)
        except NoMatchError:
            continue
        notes.append(f"{text} comes with its own CPU, {core.name}.")
        return _planned_cpu(core, label)
    cpu = here()
    notes.append(f"No CPU was named (--cpu): this machine's is taken, {cpu.name}.")
    return cpu


def _check_together(gpus: Sequence[tuple[str, Gpu]], cpu: Cpu) -> None:
    for text, gpu in gpus:
        if cpu.arch not in gpu.hosts:
            hosts = " and ".join(sorted(gpu.hosts))
            raise ImpossibleError(
                f"{text} exists only with {hosts} hosts, and the CPU {cpu.name} is {cpu.arch}.",
                "Name that machine's own CPU with --cpu.",
            )


def _planned_cpu(core: Microarchitecture, label: str) -> Cpu:
    return Cpu(
        arch=core.arch,
        vendor=_NOT_TOLD,
        name=label,
        microarchitecture=core.name,
        flags=tuple(sorted(core.flags)),
        threads=1,
        cores=1,
        sockets=1,
        usable=1,
    )


def _with_tegra(host: Host, gpus: Sequence[tuple[str, Gpu]], named: Named) -> Host:
    for text, gpu in gpus:
        if chip := tegra_table().chip_of(str(gpu.capability)):
            l4t = _l4t(named.jetpack) if named.jetpack else None
            return replace(host, tegra=describe_tegra(text, chip.name, l4t))
    if named.jetpack is not None and host.tegra is None:
        raise UsageError("--jetpack is for Jetson and DRIVE systems.", "Leave it out, or name such a GPU with --gpu.")
    if named.jetpack is not None and host.tegra is not None:
        changed = describe_tegra(host.tegra.model, host.tegra.chip, _l4t(named.jetpack))
        return replace(host, tegra=changed)
    return host


def _l4t(jetpack: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)*", jetpack):
        raise UsageError(f"{jetpack!r} is not a JetPack's version.", "Write it as 6.2 or 7.2.")
    row = tegra_table().by_jetpack(jetpack)
    if row is None:
        raise UsageError(f"JetPack {jetpack} is not known.", "Known are 4 to 7.2.")
    return row.l4t


def _empty(cpu: Cpu) -> Host:
    return Host(
        cpu=cpu,
        system=System(os=_NOT_TOLD, os_id="", os_version="", kernel="", libc=None, libc_version=None),
        room=Room(memory_total=0, memory_available=0, memory_limit=None, disk_free=0, disk_path=""),
    )

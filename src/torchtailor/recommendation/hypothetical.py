"""Machines that are only given by their parts: GPUs, CPU, driver or JetPack by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from torchtailor.catalog.cpus import Microarchitecture
from torchtailor.catalog.gpus import Capability, Gpu
from torchtailor.catalog.load import Catalog
from torchtailor.errors import ImpossibleError, UsageError
from torchtailor.host.cpu import detect_cpu
from torchtailor.host.detect import detect
from torchtailor.host.model import Cpu, Driver, GpuDevice, Host, Note, Room, System
from torchtailor.host.probe import LiveProbe
from torchtailor.host.tegra import describe_tegra, tegra_notes, tegra_table

_NONE = ("none", "no", "cpu")
_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GivenParts:
    """The parts of a machine that were given by name or version; None where nothing was given."""

    gpus: Sequence[str] = ()
    cpu: str | None = None
    driver: str | None = None
    jetpack: str | None = None

    @property
    def whole_machine(self) -> bool:
        """Whether they describe a machine of its own, rather than a change to another."""
        return bool(self.gpus) or self.cpu is not None


def resolve_host(catalog: Catalog, host: Host | None, given: GivenParts) -> Host:
    """The machine that is meant: the described one or this one, with the given parts changed, or a hypothetical one."""
    if host is None and not given.whole_machine:
        host = detect(catalog=catalog)
    if given == GivenParts() and host is not None:
        return host
    return hypothetical_host(catalog, given, host, lambda: detect_cpu(LiveProbe()))


def hypothetical_host(catalog: Catalog, given: GivenParts, base: Host | None, this_cpu: Callable[[], Cpu]) -> Host:
    """A machine of the given parts, or another one (`base`) with those parts changed; what is assumed is noted.

    `this_cpu` describes this machine's CPU, which is used where none is given. The base's driver does not count for
    GPUs that are given.
    """
    notes: list[str] = []
    no_gpu = [text.lower() for text in given.gpus] in ([name] for name in _NONE)
    gpus = [] if no_gpu else _gpus(catalog, given.gpus, notes)
    cpu = _cpu(catalog, given, gpus, base, this_cpu, notes)
    _check_together(catalog, gpus, cpu)
    host = base or _empty(cpu)
    if given.gpus:
        devices = tuple(_device(index, text, gpu) for index, (text, gpu) in enumerate(gpus))
        host = replace(host, gpus=devices, driver=None, tegra=None, cuda_visible_devices=None)
    host = replace(host, cpu=cpu, tools=(), torches=())
    host = _with_tegra(host, gpus, given)
    if host.tegra is not None and given.whole_machine:
        notes.extend(note.text for note in tegra_notes(host.tegra))
    if given.driver is not None:
        host = replace(host, driver=Driver(version=_driver(catalog, given.driver, notes), source="the request"))
    elif host.tegra is not None and host.tegra.jetpack is None:
        notes.append("No JetPack version was given (--jetpack), and support depends on it.")
    elif host.gpus and host.driver is None and host.tegra is None:
        notes.append("No driver version was given (--driver): assuming one that is new enough.")
    kept = () if given.gpus else host.notes
    return replace(host, notes=(*kept, *(Note(topic="assumed", text=text) for text in notes)))


def _driver(catalog: Catalog, text: str, notes: list[str]) -> str:
    """The version of a driver; a bare branch stands for its newest driver, and a note says so."""
    if not re.fullmatch(r"\d{3,}(\.\d+)*", text.strip()):
        raise UsageError(f"{text!r} is not a driver version.", "Write it as nvidia-smi shows it: 570.26, 580.95.05.")
    version = text.strip()
    known = catalog.drivers.get(int(version)) if version.isdecimal() else None
    if known is None:
        return version
    notes.append(
        f"{version} is a driver branch: taken as its newest known driver, {known.newest} (its first was {known.first})."
        " `nvidia-smi` shows the exact version; give that one if it is older."
    )
    return str(known.newest)


def _gpus(catalog: Catalog, texts: Sequence[str], notes: list[str]) -> list[tuple[str, Gpu]]:
    found = [(text, catalog.find_gpu(text)) for text in texts]
    notes.extend(f"{text} {match.doubt}" for text, match in found if match.doubt)
    return [(text, match.gpu) for text, match in found]


def _device(index: int, text: str, gpu: Gpu) -> GpuDevice:
    try:
        Capability.parse(text)
        name = gpu.describe(2)
    except ValueError:
        name = text  # a product, which may be a bare number: 4090
    integrated = tegra_table().chip_of(str(gpu.capability)) is not None
    return GpuDevice(index=index, name=name, capability=str(gpu.capability), integrated=integrated)


def _cpu(
    catalog: Catalog,
    given: GivenParts,
    gpus: Sequence[tuple[str, Gpu]],
    base: Host | None,
    this_cpu: Callable[[], Cpu],
    notes: list[str],
) -> Cpu:
    if given.cpu is not None:
        core, label = catalog.microarchitecture(given.cpu)
        if not gpus and not given.gpus and (base is None or not base.gpus):
            notes.append("No GPU was given (--gpu): the recommendation is for the CPU alone.")
        return _hypothetical_cpu(core, label)
    if base is not None:
        return base.cpu
    for text, gpu in gpus:  # a system such as DGX Spark names both
        if own := catalog.cpu_with(text, gpu):
            core, label = own
            notes.append(f"{text} comes with its own CPU, {core.name}.")
            return _hypothetical_cpu(core, label)
    cpu = this_cpu()
    notes.append(f"No CPU was given (--cpu): using the one of this machine, {cpu.name}.")
    return cpu


def _check_together(catalog: Catalog, gpus: Sequence[tuple[str, Gpu]], cpu: Cpu) -> None:
    platforms = sorted({isa.arch for isa in catalog.isas.values()})
    for text, gpu in gpus:
        if cpu.arch not in platforms:
            raise ImpossibleError(
                f"PyTorch is available for {' and '.join(platforms)}, and the CPU {cpu.name} is {cpu.arch}.",
                "Use another machine, or a build of the platform's own (for POWER: conda-forge, Open-CE).",
            )
        own = catalog.cpu_with(text, gpu)
        archs = {own[0].arch} if own else gpu.hosts
        if cpu.arch not in archs:
            hosts = " and ".join(sorted(archs))
            raise ImpossibleError(
                f"{text} exists only with {hosts} hosts, and the CPU {cpu.name} is {cpu.arch}.",
                "Give the CPU of that machine with --cpu.",
            )


def _hypothetical_cpu(core: Microarchitecture, label: str) -> Cpu:
    return Cpu(
        arch=core.arch,
        vendor=_UNKNOWN,
        name=label,
        microarchitecture=core.name,
        flags=tuple(sorted(core.flags)),
        threads=1,
        cores=1,
        sockets=1,
        usable=1,
    )


def _with_tegra(host: Host, gpus: Sequence[tuple[str, Gpu]], given: GivenParts) -> Host:
    for text, gpu in gpus:
        if chip := tegra_table().chip_of(str(gpu.capability)):
            l4t = _l4t(given.jetpack) if given.jetpack else None
            tegra = describe_tegra(text, chip.name, l4t)
            row = tegra_table().by_jetpack(tegra.jetpack) if tegra.jetpack else None
            system = replace(host.system, libc="glibc", libc_version=row.glibc) if row else host.system
            return replace(host, tegra=tegra, system=system)
    if given.jetpack is not None and host.tegra is None:
        raise UsageError("--jetpack is for Jetson and DRIVE systems.", "Omit it, or give such a GPU with --gpu.")
    if given.jetpack is not None and host.tegra is not None:
        changed = describe_tegra(host.tegra.model, host.tegra.chip, _l4t(given.jetpack))
        return replace(host, tegra=changed)
    return host


def _l4t(jetpack: str) -> str:
    if not re.fullmatch(r"\d+(\.\d+)*", jetpack):
        raise UsageError(f"{jetpack!r} is not a JetPack version.", "Write it as 6.2 or 7.2.")
    row = tegra_table().by_jetpack(jetpack)
    if row is None:
        known = ", ".join(row.jetpack for row in tegra_table().jetpack)
        raise UsageError(f"JetPack {jetpack} is not known.", f"Known are {known}.")
    return row.l4t


def _empty(cpu: Cpu) -> Host:
    return Host(
        cpu=cpu,
        system=System(os=_UNKNOWN, os_id="", os_version="", kernel="", libc=None, libc_version=None),
        room=Room(memory_total=0, memory_available=0, memory_limit=None, disk_free=0, disk_path=""),
    )

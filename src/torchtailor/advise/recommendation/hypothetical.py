"""Machines that are only given by their parts: GPUs, CPU, driver or JetPack by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from torchtailor.advise.host.cpu import detect_cpu
from torchtailor.advise.host.detect import detect
from torchtailor.advise.host.model import Cpu, Driver, GpuDevice, Host, Note, Room, System
from torchtailor.advise.host.probe import LiveProbe
from torchtailor.advise.host.tegra import Chip, JetPack, describe_tegra, tegra_notes, tegra_table
from torchtailor.catalog.cpus import Microarchitecture
from torchtailor.catalog.gpus import Capability, Gpu
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.schema import Dotted
from torchtailor.core.errors import ImpossibleError, UsageError

NO_GPU = ("none", "no", "no gpu", "cpu")
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
    driver = _driver(catalog, given.driver) if given.driver is not None else None
    gpus = _gpus(catalog, _named(given.gpus), Dotted(driver.version) if driver else None, notes)
    cpu = _cpu(catalog, given, gpus, base, this_cpu, notes)
    _check_together(catalog, gpus, cpu)
    host = base or _empty(cpu)
    if given.gpus:
        devices = tuple(_device(index, text, gpu) for index, (text, gpu) in enumerate(gpus))
        host = replace(host, gpus=devices, driver=None, tegra=None, cuda_visible_devices=None)
    host = replace(host, cpu=cpu, tools=(), torches=())
    host = _with_tegra(host, gpus, given, notes)
    if host.tegra is not None and given.whole_machine:
        notes.extend(note.text for note in tegra_notes(host.tegra))
    if driver is not None:
        host = replace(host, driver=Driver(version=driver.version, source="the request"))
        notes.extend(_driver_notes(host, gpus, given, driver))
    elif host.tegra is not None and host.tegra.jetpack is None:
        notes.append("No JetPack version was given (--jetpack), and support depends on it.")
    elif host.gpus and host.driver is None and host.tegra is None:
        notes.append("No driver version was given (--driver): assuming one that is new enough.")
    kept = () if given.gpus else host.notes
    return replace(host, notes=(*kept, *(Note(topic="assumed", text=text) for text in notes)))


@dataclass(frozen=True, slots=True)
class _GivenDriver:
    """The driver that was given, and what was made of its number."""

    version: str
    note: str = ""


def _driver(catalog: Catalog, text: str) -> _GivenDriver:
    """The version of a driver; a bare branch stands for its newest driver, and a note says so."""
    version = re.sub(r"^[rv](?=\d)", "", text.strip(), flags=re.IGNORECASE)
    if not re.fullmatch(r"[0-9]{3,9}(\.[0-9]{1,9})*", version):
        cuda = "That is a version of CUDA. " if re.fullmatch(r"1\d\.\d", version) else ""
        hint = f"{cuda}Write it as nvidia-smi shows it: 570.26, 580.95.05."
        raise UsageError(f"{text!r} is not a driver version.", hint)
    branch, newest = Dotted(version).major, max(catalog.drivers)
    known = catalog.drivers.get(branch)
    if branch > newest:
        note = f"Driver {version} is newer than every branch that is known, R{newest} at most: it is taken to support "
        return _GivenDriver(version, f"{note}what R{newest} does.")
    if known is None and branch > min(catalog.drivers):
        same = max(driver for driver in catalog.drivers if driver < branch)
        note = (
            f"No Linux driver of branch R{branch} is known; drivers for Windows, which WSL 2 uses, have such numbers: "
            f"{version} is taken to support what R{same} does."
        )
        return _GivenDriver(version, note)
    if known is None or not version.isdecimal():
        return _GivenDriver(version)
    note = (
        f"{version} is a driver branch: taken as its newest known driver, {known.newest} (its first was {known.first})."
        " `nvidia-smi` shows the exact version; give that one if it is older."
    )
    return _GivenDriver(str(known.newest), note)


def _driver_notes(
    host: Host, gpus: Sequence[tuple[str, Gpu]], given: GivenParts, driver: _GivenDriver
) -> Iterator[str]:
    """What was made of the driver; on a Jetson it says which JetPack there is, and counts no further."""
    if host.tegra is None:
        if driver.note:
            yield driver.note
    elif given.jetpack is not None:
        yield "The driver of a Jetson comes with its JetPack: --driver is ignored when --jetpack is given."
    elif row := _jetpack_by_driver(gpus, given):
        yield (
            f"Driver {given.driver} comes with JetPack {Dotted(row.jetpack).major}: taken as JetPack {row.jetpack}; "
            "give another with --jetpack."
        )
    elif host.tegra.jetpack is None:
        yield (
            f"Driver {given.driver} belongs to no known JetPack: give the JetPack (--jetpack), since support "
            "depends on it."
        )


def _jetpack_by_driver(gpus: Sequence[tuple[str, Gpu]], given: GivenParts) -> JetPack | None:
    if given.driver is None or given.jetpack is not None:
        return None
    chips = (tegra_table().chip_of(str(gpu.capability)) for _, gpu in gpus)
    rows = (tegra_table().by_driver(given.driver.strip(), chip) for chip in chips if chip)
    return next((row for row in rows if row), None)


def _named(texts: Sequence[str]) -> tuple[str, ...]:
    """The GPUs that are named: each line of `nvidia-smi -L` is one, without the MIG instances below it."""
    lines = [line for text in texts for line in text.splitlines() or [text]]
    alone = [line.strip() for line in lines if not re.match(r"\s+MIG ", line) or len(lines) == 1]
    named = tuple(one for line in alone for one in _counted(line))
    without = [text for text in named if text.lower() in NO_GPU]
    if without and len(named) > 1:
        raise UsageError(
            f"--gpu {without[0]} means a machine without a GPU, and other GPUs are given too.",
            "Give --gpu none alone, or leave it out.",
        )
    return () if without else named


def _counted(text: str) -> tuple[str, ...]:
    """As many GPUs as a text names: `2x RTX 3090`, `8 x H100`, `A100 x4`."""
    several = re.fullmatch(r"(?P<count>[1-9]\d?) ?[x×*] ?(?P<name>\S.*)|(?P<named>.*\S) [x×*](?P<times>[1-9]\d?)", text)
    if several is None:
        return (text,)
    return (several["name"] or several["named"],) * int(several["count"] or several["times"])


def _gpus(catalog: Catalog, texts: Sequence[str], driver: Dotted | None, notes: list[str]) -> list[tuple[str, Gpu]]:
    found = [(text, catalog.find_gpu(text, driver)) for text in texts]
    notes.extend(f"{text} {match.doubt}" for text, match in found if match.doubt)
    return [(_product(text), match.gpu) for text, match in found]


def _product(text: str) -> str:
    """The name alone out of a line of `nvidia-smi -L`."""
    return re.sub(r"^GPU \d+: | \(UUID: [^)]*\)$", "", text)


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
        if base is None and not gpus and core.name.startswith("apple_"):
            notes.append(
                f"{given.cpu} is taken to run Linux (Asahi, a virtual machine, a container). On macOS `pip install "
                "torch` is all there is to do: its wheel uses the GPU through MPS."
            )
        row = catalog.cpu_name(given.cpu)
        if row is None or not row.at_least:
            return hypothetical_cpu(core, label)
        notes.append(
            f"{given.cpu} does not say which CPU it is: the least that it can be is assumed. `torchtailor detect` on "
            "the machine knows; for the official wheel it makes no difference."
        )
        return replace(hypothetical_cpu(core, label), at_least=True)
    if base is not None:
        return base.cpu
    for text, gpu in gpus:  # a system such as DGX Spark names both
        if own := catalog.cpu_with(text, gpu):
            core, label = own
            notes.append(f"{text} comes with its own CPU, {core.name}.")
            return hypothetical_cpu(core, label)
    cpu = this_cpu()
    notes.append(f"No CPU was given (--cpu): using the one of this machine, {cpu.name}.")
    return cpu


def _check_together(catalog: Catalog, gpus: Sequence[tuple[str, Gpu]], cpu: Cpu) -> None:
    platforms = {isa.arch for isa in catalog.isas.values()}
    for text, gpu in gpus:
        if cpu.arch not in platforms:
            return  # POWER9 machines have V100s, and get their answer
        own = catalog.cpu_with(text, gpu)
        archs = {own[0].arch} if own else gpu.hosts
        if cpu.arch not in archs:
            hosts = " and ".join(sorted(archs))
            raise ImpossibleError(
                f"{text} exists only with {hosts} hosts, and the CPU {cpu.name} is {cpu.arch}.",
                "Give the CPU of that machine with --cpu.",
            )


def hypothetical_cpu(core: Microarchitecture, label: str) -> Cpu:
    """A CPU of which only the microarchitecture is known."""
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


def _with_tegra(host: Host, gpus: Sequence[tuple[str, Gpu]], given: GivenParts, notes: list[str]) -> Host:
    for text, gpu in gpus:
        if chip := tegra_table().chip_of(str(gpu.capability)):
            by_driver = _jetpack_by_driver(gpus, given)
            l4t = _l4t(text, chip, given.jetpack, notes) if given.jetpack else by_driver.l4t if by_driver else None
            tegra = describe_tegra(text, chip.name, l4t)
            row = tegra_table().by_jetpack(tegra.jetpack) if tegra.jetpack else None
            system = replace(host.system, libc="glibc", libc_version=row.glibc) if row else host.system
            return replace(host, tegra=tegra, system=system)
    if given.jetpack is not None and host.tegra is None:
        raise UsageError("--jetpack is for Jetson and DRIVE systems.", "Omit it, or give such a GPU with --gpu.")
    if given.jetpack is not None and host.tegra is not None:
        known = tegra_table().find_chip(host.tegra.chip)
        l4t = _l4t(host.tegra.model, known, given.jetpack, notes)
        changed = describe_tegra(host.tegra.model, host.tegra.chip, l4t)
        return replace(host, tegra=changed)
    return host


def _l4t(name: str, chip: Chip | None, jetpack: str, notes: list[str]) -> str:
    """The L4T release of a JetPack; a bare major number stands for the newest one of it, and a note says so."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})*", jetpack):
        raise UsageError(f"{jetpack!r} is not a JetPack version.", "Write it as 6.2 or 7.2.")
    rows = tegra_table().jetpack
    wanted = Dotted(jetpack)
    if wanted.major not in {Dotted(row.jetpack).major for row in rows}:
        raise UsageError(f"JetPack {jetpack} is not known.", f"Known: {', '.join(row.jetpack for row in rows)}.")
    there = tegra_table().jetpacks_of(chip) if chip else rows
    of_major = [row for row in there if Dotted(row.jetpack).major == wanted.major]
    if jetpack.isdecimal() and of_major:
        newest = of_major[-1]
        if len(of_major) > 1:
            notes.append(f"JetPack {jetpack} is taken as its newest known version, {newest.jetpack}.")
        return newest.l4t
    row = tegra_table().by_jetpack(jetpack)
    if row is None or row not in there:
        raise ImpossibleError(
            f"There is no JetPack {jetpack} for {name}.",
            f"For it there is JetPack {' or '.join(row.jetpack for row in there)}: give that with --jetpack.",
        )
    return row.l4t


def _empty(cpu: Cpu) -> Host:
    return Host(
        cpu=cpu,
        system=System(os=_UNKNOWN, os_id="", os_version="", kernel="", libc=None, libc_version=None),
        room=Room(memory_total=0, memory_available=0, memory_limit=None, disk_free=0, disk_path=""),
    )

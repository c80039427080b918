"""What a machine is: its CPU, GPUs, driver, system and tools, as one frozen description that travels as JSON."""

from __future__ import annotations

from functools import cache
from typing import Annotated

import msgspec

from torchtailor.catalog.gpus import Capability
from torchtailor.catalog.schema import Dotted

SCHEMA = "torchtailor-host/1"

CapabilityText = Annotated[str, msgspec.Meta(pattern=r"^\d{1,2}\.\d$")]
VersionText = Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)*$")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


_capability = cache(Capability.parse)  # asked for thousands of times in one recommendation


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a description; a key that is not known is an error."""


class Cpu(Described, frozen=True, kw_only=True):
    """The processor, with the words of /proc/cpuinfo that every one of its cores has."""

    arch: str
    vendor: str
    name: str
    microarchitecture: str
    flags: tuple[str, ...]
    threads: Positive
    cores: Positive
    sockets: Positive
    usable: Positive  # what affinity and control groups leave of the threads
    at_least: bool = False  # known by a name that hides the model: it has these flags, and may have more


class MigInstance(Described, frozen=True, kw_only=True):
    """A slice of a GPU that CUDA shows as a device of its own."""

    uuid: str
    name: str


class GpuDevice(Described, frozen=True, kw_only=True):
    """One GPU."""

    index: Count
    name: str
    capability: CapabilityText | None = None
    memory: Count | None = None  # bytes; None where it is shared with the system or unknown
    uuid: str | None = None
    visible: bool = True  # to CUDA programs, by CUDA_VISIBLE_DEVICES
    integrated: bool = False
    mig: tuple[MigInstance, ...] = ()

    @property
    def compute(self) -> Capability | None:
        return _capability(self.capability) if self.capability else None

    @property
    def label(self) -> str:
        """`GPU 0, NVIDIA H200`."""
        return f"GPU {self.index}, {self.name}"


class Driver(Described, frozen=True, kw_only=True):
    """The NVIDIA driver and the newest CUDA it runs in full."""

    version: VersionText
    cuda: VersionText | None = None
    source: str = ""
    windows: bool = False  # under WSL the number is that of the Windows driver

    @property
    def number(self) -> Dotted:
        return Dotted(self.version)


class Tegra(Described, frozen=True, kw_only=True):
    """A Jetson or DRIVE system, by its L4T release."""

    model: str
    chip: str | None = None
    l4t: VersionText | None = None
    jetpack: str | None = None
    cuda: VersionText | None = None  # what this JetPack was made for
    unified: bool = False  # its driver stack is the servers' (SBSA), so it takes the wheels made for servers


class System(Described, frozen=True, kw_only=True):
    """Operating system and what surrounds it."""

    os: str
    os_id: str
    os_version: str
    kernel: str
    libc: str | None
    libc_version: VersionText | None
    container: str | None = None
    wsl: bool = False

    @property
    def linux(self) -> bool:
        return self.os_id not in ("macos", "windows", "freebsd", "openbsd", "netbsd", "sunos")

    def lacks_glibc(self, needed: Dotted) -> bool:
        """Whether what needs this glibc or a newer one does not run here, as far as is known."""
        if self.libc == "glibc" and self.libc_version is not None:
            return Dotted(self.libc_version) < needed
        return self.libc == "musl"


class Room(Described, frozen=True, kw_only=True):
    """Memory and disk, in bytes; limits of control groups are taken into account."""

    memory_total: Count
    memory_available: Count
    memory_limit: Count | None
    disk_free: Count
    disk_path: str


class Tool(Described, frozen=True, kw_only=True):
    """A program that building needs or can use."""

    name: str
    path: str
    version: str | None = None


class InstalledTorch(Described, frozen=True, kw_only=True):
    """A PyTorch that is already there, and the GPU code in its binaries."""

    version: str
    path: str
    python: str | None
    interpreter: str | None = None  # the Python that imports it
    cuda: str | None
    other: str | None = None  # the accelerators of others that it was built for: ROCm 6.4, XPU 20250101
    architectures: tuple[str, ...] = ()


class Note(Described, frozen=True, kw_only=True):
    """Something a reader of the description must know; `topic` is for programs."""

    topic: str
    text: str


class Host(Described, frozen=True, kw_only=True):
    """A machine."""

    schema: str = SCHEMA
    taken: str = ""
    cpu: Cpu
    gpus: tuple[GpuDevice, ...] = ()
    driver: Driver | None = None
    cuda_visible_devices: str | None = None
    tegra: Tegra | None = None
    system: System
    room: Room
    tools: tuple[Tool, ...] = ()
    torches: tuple[InstalledTorch, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def visible_gpus(self) -> tuple[GpuDevice, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.visible)

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

"""Machines as a page describes them: by the form's fields, or by what `torchtailor detect --json` printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from torchtailor.advise.host.model import SCHEMA, Cpu, Driver, GpuDevice, Host, MigInstance, Note, Room, System, Tegra
from torchtailor.advise.host.system import system_notes
from torchtailor.advise.recommendation.hypothetical import NO_GPU, GivenParts, hypothetical_cpu, hypothetical_host
from torchtailor.advise.recommendation.request import USUAL_ENVIRONMENT, Request, Workload
from torchtailor.catalog.load import Catalog
from torchtailor.core.errors import BadInputError, UsageError

_MOST_GPUS = 16  # of one kind
USUAL_CPU = "x86_64_v3"  # what every server and desktop of the last ten years is at least


@dataclass(frozen=True, slots=True)
class SystemChoice:
    """An operating system that the form offers."""

    key: str
    label: str
    system: System | None  # None: a Linux that takes the official wheels


def _system(os: str, os_id: str, libc: str | None, version: str | None, *, wsl: bool = False) -> System:
    return System(os=os, os_id=os_id, os_version="", kernel="", libc=libc, libc_version=version, wsl=wsl)


SYSTEMS = (
    SystemChoice("linux", "Linux", None),
    SystemChoice("wsl", "Windows with WSL 2", _system("Linux under WSL", "linux", "glibc", "2.39", wsl=True)),
    SystemChoice("old", "Old Linux (glibc 2.17)", _system("CentOS Linux 7", "centos", "glibc", "2.17")),
    SystemChoice("musl", "Alpine (musl)", _system("Alpine Linux", "alpine", "musl", None)),
    SystemChoice("windows", "Windows", _system("Windows", "windows", None, None)),
    SystemChoice("macos", "macOS", _system("macOS", "macos", None, None)),
)


@dataclass(frozen=True, slots=True)
class Query:
    """All that a page asks: a machine by its parts or described, and the user's choices. None leaves one open."""

    gpus: tuple[str, ...] = ()  # one name each; two of one kind are named twice
    cpu: str | None = None
    driver: str | None = None
    cuda: str | None = None  # what nvidia-smi shows as CUDA Version; it counts under WSL alone
    jetpack: str | None = None
    system: str = "linux"
    python: str | None = None
    workload: str = "general"
    release: str | None = None
    method: str | None = None
    host: Host | None = None
    pasted_cpu: Cpu | None = None

    @property
    def request(self) -> Request:
        workload = next((one for one in Workload if one.value == self.workload), None)
        if workload is None:
            raise UsageError(f"{self.workload!r} is not a workload of the form.", "Choose one of the list.")
        return Request(workload, self.python, self.release, self.method, USUAL_ENVIRONMENT)


def read_query(document: Mapping[str, Any]) -> Query:
    """A query from JSON; what is empty or missing is left open."""
    host, cpu = document.get("host"), document.get("pasted_cpu")
    return Query(
        gpus=tuple(_each_gpu(document.get("gpus") or ())),
        cpu=document.get("cpu") or None,
        driver=document.get("driver") or None,
        cuda=document.get("cuda") or None,
        jetpack=document.get("jetpack") or None,
        system=document.get("system") or "linux",
        python=document.get("python") or None,
        workload=document.get("workload") or "general",
        release=document.get("release") or None,
        method=document.get("method") or None,
        host=read_host(host) if host else None,
        pasted_cpu=_cpu(cpu) if cpu else None,
    )


def _each_gpu(names: Iterable[str]) -> Iterator[str]:
    """The GPUs that are named, `2x RTX 4090` twice; `none` is none."""
    for name in names:
        several = re.fullmatch(r"(\d{1,2}) ?[x\u00d7] ?(.*\S.*)", name.strip())
        for _ in range(max(1, min(int(several[1]), _MOST_GPUS)) if several else 1):
            if name.strip().lower() not in NO_GPU:
                yield several[2].strip() if several else name


def query_host(catalog: Catalog, query: Query) -> Host:
    """The machine that is asked about."""
    if query.host is not None:
        return query.host
    choice = next((one for one in SYSTEMS if one.key == query.system), None)
    if choice is None:
        raise UsageError(f"{query.system!r} is not a system of the form.", "Choose one of the list.")
    cpu = query.cpu or (None if query.pasted_cpu or has_own_cpu(catalog, query.gpus) else USUAL_CPU)
    gpus = query.gpus or ("none",)
    tegra = choice.system is None and query.jetpack is not None
    base = _base(catalog, query, choice.system)
    driver = None if tegra else query.driver
    host = hypothetical_host(
        catalog, GivenParts(gpus, cpu, driver, query.jetpack), base, lambda: _named_cpu(catalog, USUAL_CPU)
    )
    if choice.system is not None and choice.system.wsl and host.driver is not None:
        known = replace(host.driver, windows=True, cuda=query.cuda)
        host = replace(host, driver=known)
    return host


def has_own_cpu(catalog: Catalog, gpus: tuple[str, ...]) -> bool:
    """Whether a GPU is part of a system whose CPU is known, as a Jetson or a GH200."""
    return any(catalog.cpu_with(name, catalog.find_gpu(name).gpu) is not None for name in gpus)


def _base(catalog: Catalog, query: Query, system: System | None) -> Host | None:
    """The machine whose parts are changed; None for one of named parts alone."""
    if system is None and query.pasted_cpu is None:
        return None
    own = next((known for name in query.gpus if (known := catalog.cpu_with(name, catalog.find_gpu(name).gpu))), None)
    cpu = query.pasted_cpu or _named_cpu(catalog, own[0].name if own else USUAL_CPU)
    some = system or System(os="unknown", os_id="", os_version="", kernel="", libc=None, libc_version=None)
    return Host(
        cpu=cpu,
        system=some,
        room=Room(memory_total=0, memory_available=0, memory_limit=None, disk_free=0, disk_path=""),
        notes=system_notes(some),
    )


def _named_cpu(catalog: Catalog, name: str) -> Cpu:
    core, label = catalog.microarchitecture(name)
    return hypothetical_cpu(core, label)


def read_host(document: Mapping[str, Any]) -> Host:
    """A description of `torchtailor detect --json`; tools and installed packages do not matter here."""
    if document.get("schema") != SCHEMA or "cpu" not in document or "system" not in document:
        raise BadInputError("This is JSON, but not the description of a machine.", "Paste `torchtailor detect --json`.")
    try:
        return _host(document)
    except (LookupError, TypeError, ValueError):
        raise BadInputError(
            "The description of the machine is not complete.", "Paste all that `torchtailor detect --json` prints."
        ) from None


def _host(document: Mapping[str, Any]) -> Host:
    driver, tegra, room = document.get("driver"), document.get("tegra"), document["room"]
    return Host(
        schema=document["schema"],
        taken=document.get("taken", ""),
        cpu=_cpu(document["cpu"]),
        gpus=tuple(_gpu(row) for row in document.get("gpus", ())),
        driver=_driver(driver) if driver else None,
        cuda_visible_devices=document.get("cuda_visible_devices"),
        tegra=_tegra(tegra) if tegra else None,
        system=_read_system(document["system"]),
        room=Room(
            memory_total=room["memory_total"],
            memory_available=room["memory_available"],
            memory_limit=room["memory_limit"],
            disk_free=room["disk_free"],
            disk_path=room["disk_path"],
        ),
        notes=tuple(Note(topic=row["topic"], text=row["text"]) for row in document.get("notes", ())),
    )


def _cpu(row: Mapping[str, Any]) -> Cpu:
    return Cpu(
        arch=row["arch"],
        vendor=row["vendor"],
        name=row["name"],
        microarchitecture=row["microarchitecture"],
        flags=tuple(row["flags"]),
        threads=row["threads"],
        cores=row["cores"],
        sockets=row["sockets"],
        usable=row["usable"],
    )


def _gpu(row: Mapping[str, Any]) -> GpuDevice:
    return GpuDevice(
        index=row["index"],
        name=row["name"],
        capability=row.get("capability"),
        memory=row.get("memory"),
        uuid=row.get("uuid"),
        visible=row.get("visible", True),
        integrated=row.get("integrated", False),
        mig=tuple(MigInstance(uuid=one["uuid"], name=one["name"]) for one in row.get("mig", ())),
    )


def _driver(row: Mapping[str, Any]) -> Driver:
    return Driver(
        version=row["version"], cuda=row.get("cuda"), source=row.get("source", ""), windows=row.get("windows", False)
    )


def _tegra(row: Mapping[str, Any]) -> Tegra:
    return Tegra(
        model=row["model"],
        chip=row.get("chip"),
        l4t=row.get("l4t"),
        jetpack=row.get("jetpack"),
        cuda=row.get("cuda"),
        unified=row.get("unified", False),
    )


def _read_system(row: Mapping[str, Any]) -> System:
    return System(
        os=row["os"],
        os_id=row["os_id"],
        os_version=row["os_version"],
        kernel=row["kernel"],
        libc=row["libc"],
        libc_version=row["libc_version"],
        container=row.get("container"),
        wsl=row.get("wsl", False),
    )

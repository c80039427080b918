"""Describes a machine. Detection never raises: what fails becomes a note."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from torchtailor.advise.host.cpu import detect_cpu
from torchtailor.advise.host.gpus import DetectedGpus, detect_gpus
from torchtailor.advise.host.model import Cpu, Host, InstalledTorch, Note, Room, System, Tool
from torchtailor.advise.host.probe import LiveProbe, Probe, RecordingProbe
from torchtailor.advise.host.store import write
from torchtailor.advise.host.system import detect_room, detect_system, system_notes
from torchtailor.advise.host.tegra import detect_tegra, tegra_notes
from torchtailor.advise.host.tools import tool_questions
from torchtailor.advise.host.torches import distinct, torch_questions, with_architectures
from torchtailor.advise.host.visibility import apply_visibility
from torchtailor.catalog.load import Catalog, load_catalog
from torchtailor.core.errors import TorchtailorError

T = TypeVar("T")

_NO_CPU = Cpu(
    arch="unknown", vendor="unknown", name="unknown", microarchitecture="unknown", flags=(), threads=1, cores=1,
    sockets=1, usable=1,
)  # fmt: skip
_NO_SYSTEM = System(os="unknown", os_id="unknown", os_version="", kernel="", libc=None, libc_version=None)
_NO_ROOM = Room(memory_total=0, memory_available=0, memory_limit=None, disk_free=0, disk_path="")


class _Guard:
    """Asks, and keeps a note instead of raising."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def ask(self, what: str, question: Callable[[], T], otherwise: T) -> T:
        try:
            return question()
        except Exception as error:  # a strange machine must not stop the rest from being described
            reason = error.message if isinstance(error, TorchtailorError) else f"{type(error).__name__}: {error}"
            self.notes.append(Note(topic="failed", text=f"{what} could not be detected ({reason})."))
            return otherwise


def detect(probe: Probe | None = None, catalog: Catalog | None = None) -> Host:
    """Describe this machine, or the one behind a probe."""
    source = probe or LiveProbe()
    guard = _Guard()
    with ThreadPoolExecutor(max_workers=8) as pool:
        tools = [pool.submit(guard.ask, "A tool", ask, None) for ask in tool_questions(source)]
        torches = [pool.submit(guard.ask, "PyTorch", ask, None) for ask in torch_questions(source)]
        known = catalog or load_catalog()
        system = guard.ask("The system", lambda: detect_system(source), _NO_SYSTEM)
        seen = guard.ask("The Tegra release", lambda: detect_tegra(source), None)
        gpus = pool.submit(guard.ask, "The GPUs", lambda: detect_gpus(source, known, system, seen), DetectedGpus())
        cpu = guard.ask("The CPU", lambda: detect_cpu(source), _NO_CPU)
        room = guard.ask("Memory and disk", lambda: detect_room(source), _NO_ROOM)
        installed = distinct([torch for asked in torches if (torch := asked.result()) is not None])
        installed = tuple(_with_code(guard, source, torch) for torch in installed)
        found = gpus.result()
        tegra = found.tegra or seen
        present = tuple(tool for asked in tools if (tool := asked.result()) is not None)
    visible = source.env("CUDA_VISIBLE_DEVICES")
    devices, visibility_notes = apply_visibility(found.gpus, visible, source.env("CUDA_DEVICE_ORDER"))
    return Host(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu=cpu,
        gpus=devices,
        driver=found.driver,
        cuda_visible_devices=visible,
        tegra=tegra,
        system=system,
        room=room,
        tools=_sorted_tools(present),
        torches=installed,
        notes=(
            *found.notes,
            *visibility_notes,
            *_cpu_notes(cpu),
            *system_notes(system),
            *(tegra_notes(tegra) if tegra else ()),
            *guard.notes,
        ),
    )


def detect_recorded(path: Path, catalog: Catalog | None = None) -> Host:
    """Describe this machine and write all that was read to a file, from which `ReplayProbe` repeats the detection."""
    probe = RecordingProbe(LiveProbe())
    host = detect(probe, catalog)
    recording = probe.recording(f"recorded {host.taken}")
    write(msgspec.json.format(msgspec.json.encode(recording), indent=1) + b"\n", path)
    return host


def _with_code(guard: _Guard, probe: Probe, torch: InstalledTorch) -> InstalledTorch:
    if torch.cuda is None:
        return torch
    return guard.ask(f"The GPU code of {torch.path}", lambda: with_architectures(probe, torch), torch)


def _sorted_tools(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    return tuple(sorted(tools, key=lambda tool: tool.name))


def _cpu_notes(cpu: Cpu) -> tuple[Note, ...]:
    if cpu.usable < cpu.threads:
        text = f"Only {cpu.usable} of {cpu.threads} CPUs are usable (CPU affinity or a container limit)."
        return (Note(topic="cpu-limit", text=text),)
    return ()

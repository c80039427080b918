"""CUDA_VISIBLE_DEVICES: which GPUs a CUDA program would see."""

from __future__ import annotations

import re

from msgspec.structs import replace

from torchtailor.advise.host.model import GpuDevice, Note

_VARIABLE = "CUDA_VISIBLE_DEVICES"
# CUDA reads a number as C's strtoul does: whatever follows it is ignored.
_NUMBER = re.compile(r"\+?(\d+)", re.ASCII)


def apply_visibility(
    gpus: tuple[GpuDevice, ...], value: str | None, order: str | None
) -> tuple[tuple[GpuDevice, ...], tuple[Note, ...]]:
    """The GPUs with `visible` set as CUDA would, and what a person should know of it.

    CUDA takes indices or the beginnings of UUIDs, stops at the first entry that names no device, and shows none where
    one is named twice.
    """
    if value is None or not gpus:
        return gpus, ()
    entries = [entry.strip() for entry in value.split(",")]
    chosen: set[int] = set()
    named: set[int | str] = set()
    notes = []
    for entry in entries:
        found = _find(gpus, entry)
        if found is None:
            if value.strip() not in ("", "-1", "NoDevFiles"):
                text = f"{_VARIABLE}={value}: {entry!r} matches no device; CUDA ignores it and every entry after it."
                notes.append(Note(topic="visible-devices", text=text))
            break
        name = entry if entry.startswith("MIG-") else found.index  # a GPU has several instances
        if name in named:
            notes.append(Note(topic="visible-devices", text=f"{_VARIABLE}={value} names {found.label} twice."))
            chosen.clear()
            break
        named.add(name)
        chosen.add(found.index)
    if not chosen:
        text = f"{_VARIABLE}={value!r} hides every GPU from CUDA programs."
        notes.append(Note(topic="visible-devices", text=text))
    elif len(chosen) < len(gpus):
        shown = ", ".join(str(index) for index in sorted(chosen))
        notes.append(Note(topic="visible-devices", text=f"{_VARIABLE}={value} leaves only GPU {shown} visible."))
    by_index = any(_NUMBER.match(entry) for entry in entries)
    if by_index and chosen and _mixed(gpus) and order != "PCI_BUS_ID":
        text = (
            f"{_VARIABLE} uses numbers, and CUDA counts from the fastest GPU unless CUDA_DEVICE_ORDER=PCI_BUS_ID: on "
            "a machine with different GPUs its numbers may differ from those of nvidia-smi."
        )
        notes.append(Note(topic="device-order", text=text))
    return tuple(replace(gpu, visible=gpu.index in chosen) for gpu in gpus), tuple(notes)


def _find(gpus: tuple[GpuDevice, ...], entry: str) -> GpuDevice | None:
    if number := _NUMBER.match(entry):
        return next((gpu for gpu in gpus if str(gpu.index) == (number[1].lstrip("0") or "0")), None)
    if entry.startswith("GPU-"):
        found = [gpu for gpu in gpus if gpu.uuid and gpu.uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None
    if entry.startswith("MIG-"):
        found = [gpu for gpu in gpus if any(instance.uuid.startswith(entry) for instance in gpu.mig)]
        # older drivers write MIG-GPU-<uuid of the GPU>/<instance>/<instance>
        found = found or [gpu for gpu in gpus if gpu.uuid and entry.startswith(f"MIG-{gpu.uuid}")]
        return found[0] if len(found) == 1 else None
    return None


def _mixed(gpus: tuple[GpuDevice, ...]) -> bool:
    return len({(gpu.name, gpu.capability) for gpu in gpus}) > 1

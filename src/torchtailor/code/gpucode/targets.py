"""The GPUs that code is kept for."""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.catalog import Capability, TorchArch
from torchtailor.catalog.gpus import NO_GPU_LABEL

NO_GPU = "none"  # `--gpu none`: for machines without a GPU


@dataclass(frozen=True, slots=True)
class Targets:
    """The GPUs to keep code for, whether PTX stays too, and where that was read."""

    archs: tuple[TorchArch, ...]
    keep_ptx: bool = False
    source: str = ""
    cpu: bool = False  # for programs that use no GPU code: what has some is left as it is

    @property
    def devices(self) -> tuple[Capability, ...]:
        return tuple(sorted({arch.capability for arch in self.archs}))

    @property
    def none(self) -> bool:
        """Whether no GPU code is kept at all."""
        return not self.archs and not self.keep_ptx and not self.cpu

    @property
    def label(self) -> str:
        """The part of a local version that names the targets: `sm80.sm90`, with `.ptx` where PTX is kept too."""
        if self.none:
            return NO_GPU_LABEL
        return ".".join([*(device.sm for device in self.devices), *(["ptx"] if self.keep_ptx else [])])

    def __str__(self) -> str:
        if self.none:
            return "machines without a GPU"
        if self.cpu:
            return "the CPU"
        return ", ".join(str(device) for device in self.devices) + (" and PTX" if self.keep_ptx else "")

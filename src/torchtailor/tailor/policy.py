"""What to keep: the images of a container that the targets need."""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.catalog.gpus import GpuRules, TorchArch


@dataclass(frozen=True)
class Policy:
    """For which GPUs to keep code, and how careful to be.

    `keep_all_minors` is NVIDIA's rule for its own libraries, which look kernels up by exact architecture: every image of the same
    major that the target could run stays. Without it the best image per kernel is enough, which is how the driver picks.
    """

    targets: tuple[TorchArch, ...]
    rules: GpuRules
    keep_ptx: bool = False
    keep_lto: bool = True
    keep_all_minors: bool = False
    unified_tegra: bool = False

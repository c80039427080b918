"""What mends a trouble: sentences, and the commands to run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec

from torchtailor.catalog import Catalog
from torchtailor.errors import TorchtailorError
from torchtailor.host.model import GpuDevice, Host, InstalledTorch
from torchtailor.recommend import Recommendation, recommend
from torchtailor.recommend.drivers import DriverVerdict


@dataclass(frozen=True, slots=True)
class Mend:
    """One way to mend it."""

    text: str
    command: str | None = None


class Mends:
    """The mends that fit one machine and its environment."""

    def __init__(self, catalog: Catalog, host: Host, torch: InstalledTorch | None, environment: str | None) -> None:
        self._catalog = catalog
        self._host = host
        self._torch = torch
        self._into = f" --into {environment}" if environment else ""
        self._env = f" --env {environment}" if environment else ""

    def install(self, device: GpuDevice | None = None) -> tuple[Mend, ...]:
        """The variant that fits, or what would make one fit."""
        answer = self._recommended
        if answer is None:
            return (Mend("See what fits this machine.", "torchtailor recommend"),)
        mends: list[Mend] = []
        if (best := answer.best) is not None:
            what = f"PyTorch {best.pytorch} ({best.build}) for {best.gpu or 'the CPU'}"
            if best.method == "wheel":
                mends.append(Mend(f"Install {what}.", f"torchtailor install {best.variant}{self._into}"))
            else:
                mends.append(Mend(f"Build {what}.", f"torchtailor build {best.variant} --via {best.method}"))
        mends += [Mend(unlock.text) for unlock in answer.upgrades if best is None]
        mends += [Mend(way.text) for way in answer.alternatives if best is None][:3]
        return tuple(mends) or (Mend("See what fits this machine, and why not the rest.", "torchtailor recommend"),)

    def other_isa(self) -> tuple[Mend, ...]:
        name_it = Mend(
            "Have it named which function uses the instructions.", f"torchtailor verify {self._place} --level static"
        )
        quick = Mend(
            "See whether torch's own kernels are the cause: with this they use the plainest instructions.",
            'ATEN_CPU_CAPABILITY=default python -c "import torch; torch.ones(9) @ torch.ones(9)"',
        )
        return (*self.install(), quick, name_it)

    def driver(self, verdict: DriverVerdict | None) -> tuple[Mend, ...]:
        """A newer driver, or a torch that the driver at hand runs."""
        mends = []
        if verdict is not None and verdict.needs is not None:
            full = f" ({verdict.full} for everything)" if verdict.full and verdict.full > verdict.needs else ""
            mends.append(Mend(f"Install NVIDIA driver {verdict.needs} or newer{full}, then start the machine anew."))
        else:
            mends.append(Mend("Install a newer NVIDIA driver, then start the machine anew."))
        answer = self._recommended
        if answer is not None and answer.best is not None and answer.best.gpu:
            kept = self.install()[0]
            mends.append(Mend(f"Or keep the driver: {kept.text[0].lower()}{kept.text[1:]}", kept.command))
        return tuple(mends)

    def no_driver(self) -> tuple[Mend, ...]:
        if self._host.system.container:
            text = f"In {self._host.system.container} the host must hand the GPU in."
            return (
                Mend(text, "docker run --gpus all ..."),
                Mend("See that the host itself has a driver.", "nvidia-smi"),
            )
        return (Mend("Install the NVIDIA driver and see that it answers.", "nvidia-smi"),)

    def unhide(self) -> tuple[Mend, ...]:
        return (Mend("Let CUDA see the GPUs.", "unset CUDA_VISIBLE_DEVICES"),)

    def reinstall(self) -> tuple[Mend, ...]:
        assert self._torch is not None
        version = self._torch.version
        again = Mend(
            f"Install torch {version} again, with what it depends on.",
            f"python -m pip install --force-reinstall torch=={version.split('+')[0]}",
        )
        return (again, *self.install())

    def clean_path(self) -> tuple[Mend, ...]:
        unset = Mend("Take other CUDA installations off the loader's path.", "unset LD_LIBRARY_PATH")
        return (unset, *self.reinstall()[:1])

    def newer_system(self) -> tuple[Mend, ...]:
        container = Mend("Run it in a container of a newer system, such as Debian 12 or Ubuntu 24.04.")
        return (container, Mend("Or compile it here.", "torchtailor recommend --via source"))

    def restore(self) -> Mend:
        return Mend("Put back what was cut out.", f"torchtailor restore{self._env}")

    def extension(self, device: GpuDevice) -> tuple[Mend, ...]:
        look = Mend(
            "See which libraries have nothing for this GPU.",
            f"torchtailor inspect {self._place} --gpu {device.compute}",
        )
        again = Mend(
            "Install or compile the extension again for this GPU.",
            f'TORCH_CUDA_ARCH_LIST="{device.compute}" python -m pip install --no-build-isolation --no-binary NAME NAME',
        )
        return (look, again)

    @property
    def _place(self) -> str:
        return self._env.removeprefix(" --env ") or (self._torch.path if self._torch else ".")

    @cached_property
    def _recommended(self) -> Recommendation | None:
        """What fits the machine for the environment's Python; None where nothing can be said."""
        python = self._torch.python if self._torch else None
        for wanted in dict.fromkeys((python, None)):
            try:
                answer = recommend(_planable(self._host), python=wanted, catalog=self._catalog)
            except (TorchtailorError, ValueError):
                continue
            if answer.best is not None or wanted is None:
                return answer
        return None


def _planable(host: Host) -> Host:
    """Without what other Pythons hold, which says nothing about what to install."""
    return msgspec.structs.replace(host, torches=())

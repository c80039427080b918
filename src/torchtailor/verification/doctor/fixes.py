"""What fixes a problem: sentences, and the commands to run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from torchtailor.advise.host.model import GpuDevice, Host, InstalledTorch
from torchtailor.advise.recommendation import Recommendation, recommend
from torchtailor.advise.recommendation.drivers import DriverVerdict
from torchtailor.advise.recommendation.result import Alternative
from torchtailor.catalog import Catalog
from torchtailor.core.errors import TorchtailorError
from torchtailor.core.pythons import python_of_environment, running_python

NEW_ENVIRONMENT = ".venv"
# The builds that PyTorch keeps an index for.
_OFFICIAL_LABEL = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")


@dataclass(frozen=True, slots=True)
class Fix:
    """One way to fix a problem."""

    text: str
    command: str | None = None
    toml: str | None = None  # rows to add to torchtailor.toml first


@dataclass(frozen=True, slots=True)
class Interpreter:
    """How the Python of an environment is called in a command, and how packages are installed again for it."""

    python: str = "python"
    pip: str = "python -m pip install --force-reinstall"

    @classmethod
    def of(cls, python: Path, *, pip: bool, uv: bool) -> Interpreter:
        """The commands for an interpreter that has pip or not, on a machine that has uv or not."""
        called = shlex.quote(str(python))
        if pip:
            return cls(called, f"{called} -m pip install --force-reinstall")
        if uv:
            return cls(called, f"uv pip install --python {called} --reinstall")
        return cls(called, f"{called} -m ensurepip && {called} -m pip install --force-reinstall")


class Fixes:
    """The fixes for one machine and its environment."""

    def __init__(
        self,
        catalog: Catalog,
        host: Host,
        torch: InstalledTorch | None,
        environment: str | None,
        interpreter: Interpreter | None = None,
        *,
        here: bool = False,
        given_as: str = "",
    ) -> None:
        self._catalog = catalog
        self._host = host
        self._torch = torch
        self._environment = environment
        self._interpreter = interpreter or Interpreter()
        self._here = here
        self._recommend = f"torchtailor recommend{given_as}"
        self._into = f" --into {shlex.quote(environment or NEW_ENVIRONMENT)}"
        self._env = f" --env {shlex.quote(environment)}" if environment else ""

    def install(self, device: GpuDevice | None = None) -> tuple[Fix, ...]:
        """The variant that fits, or what would make one fit."""
        answer = self._recommended
        if answer is None:
            return (Fix("List what fits this machine.", self._recommend),)
        fixes: list[Fix] = []
        if (best := answer.best) is not None:
            what = f"PyTorch {best.pytorch} ({best.build}) for {best.gpu or 'the CPU'}"
            if best.method == "wheel":
                where = "" if self._environment else f" into a new environment, {NEW_ENVIRONMENT}"
                name = "" if self._here else f" {best.variant}"  # without one it takes what the indexes have
                fixes.append(Fix(f"Install {what}{where}.", f"torchtailor install{name}{self._into}"))
            else:
                fixes.append(Fix(f"Build {what}.", f"torchtailor build {best.variant} --via {best.method}"))
        fixes += [Fix(upgrade.text) for upgrade in answer.upgrades if best is None]
        fixes += [self._alternative(other) for other in answer.alternatives if best is None][:3]
        return tuple(fixes) or (Fix("List what fits this machine, and why the rest does not.", self._recommend),)

    def _alternative(self, other: Alternative) -> Fix:
        if other.toml is None:
            return Fix(other.text)
        return Fix(other.text, f"torchtailor build {other.variant} --via {other.kind}", other.toml)

    def other_isa(self) -> tuple[Fix, ...]:
        name_it = Fix("Show which function uses the instructions.", f"torchtailor verify {self._place} --level static")
        quick = Fix(
            "Check whether torch's own kernels are the cause: this makes them use the baseline instructions.",
            f'ATEN_CPU_CAPABILITY=default {self._interpreter.python} -c "import torch; torch.ones(9) @ torch.ones(9)"',
        )
        return (quick, name_it, *self.install())

    def on_the_cpu(self) -> tuple[Fix, ...]:
        """For a program that asks for a GPU on a machine that has none."""
        run = Fix("Run the program on the CPU: device='cpu', `--device cpu`, map_location='cpu' for checkpoints.")
        return (run, Fix("See what a machine with a GPU needs.", "torchtailor recommend --gpu NAME"))

    def driver(self, verdict: DriverVerdict | None) -> tuple[Fix, ...]:
        """A newer driver, or a torch that runs with the installed one."""
        fixes = []
        if verdict is not None and verdict.needs is not None:
            full = f" ({verdict.full} for everything)" if verdict.full and verdict.full > verdict.needs else ""
            fixes.append(Fix(f"Install NVIDIA driver {verdict.needs} or newer{full}, then reboot."))
        else:
            fixes.append(Fix("Install a newer NVIDIA driver, then reboot."))
        answer = self._recommended
        if answer is not None and answer.best is not None and answer.best.gpu:
            kept = self.install()[0]
            fixes.append(Fix(f"Keep the driver: {kept.text[0].lower()}{kept.text[1:]}", kept.command))
        return tuple(fixes)

    def no_driver(self) -> tuple[Fix, ...]:
        if self._host.system.container:
            text = f"Start the {self._host.system.container} container with --gpus all."
            return (
                Fix(text, "docker run --gpus all IMAGE"),
                Fix("Check that the host has a driver.", "nvidia-smi"),
            )
        return (Fix("Install the NVIDIA driver, then check that it answers.", "nvidia-smi"),)

    def unhide(self) -> tuple[Fix, ...]:
        return (Fix("Make the GPUs visible to CUDA.", "unset CUDA_VISIBLE_DEVICES"),)

    def reinstall(self) -> tuple[Fix, ...]:
        assert self._torch is not None
        version = self._torch.version
        what = f"Reinstall torch {version} with its dependencies."
        return (Fix(what, f"{self._interpreter.pip} {self._same_build(version)}"), *self.install())

    def _same_build(self, version: str) -> str:
        """What pip is asked for to get this very build: the default index serves one build of each release."""
        number, _, label = version.partition("+")
        if not _OFFICIAL_LABEL.fullmatch(label) or self._default_label(number) == label:
            return f"torch=={number}"
        return f"torch=={version} --extra-index-url {self._catalog.wheel_index.format(label=label)}"

    def _default_label(self, number: str) -> str | None:
        """The build of a release that the default index serves for this machine."""
        for release in self._catalog.releases.values():
            if number in map(str, (release.version, *(patch.version for patch in release.patches))):
                return release.default_index.get(self._host.cpu.arch)
        return None

    def clean_path(self) -> tuple[Fix, ...]:
        unset = Fix("Remove other CUDA installations from the loader's path.", "unset LD_LIBRARY_PATH")
        return (unset, *self.reinstall()[:1])

    def newer_system(self) -> tuple[Fix, ...]:
        container = Fix("Run it in a container with a newer system, such as Debian 12 or Ubuntu 24.04.")
        return (container, Fix("Build it from source.", f"{self._recommend} --via source"))

    def restore(self) -> Fix:
        return Fix("Restore what was cut.", f"torchtailor restore{self._env}")

    def extension(self, device: GpuDevice) -> tuple[Fix, ...]:
        look = Fix(
            "List the libraries without code for this GPU.",
            f"torchtailor inspect {self._place} --gpu {device.compute}",
        )
        again = Fix(
            "Reinstall or rebuild the extension for this GPU.",
            f'TORCH_CUDA_ARCH_LIST="{device.compute}" {self._interpreter.pip} '
            "--no-deps --no-build-isolation --no-binary NAME NAME",
        )
        return (look, again)

    @property
    def _place(self) -> str:
        return self._env.removeprefix(" --env ") or (self._torch.path if self._torch else ".")

    @cached_property
    def _recommended(self) -> Recommendation | None:
        """What fits the machine for the environment's Python; None where that is not known."""
        there = python_of_environment(Path(self._environment)) if self._environment else None
        python = self._torch.python if self._torch else there or (running_python() if self._here else None)
        for wanted in dict.fromkeys((python, None)):
            try:
                into = self._environment or NEW_ENVIRONMENT
                answer = recommend(_without_torches(self._host), python=wanted, into=into, catalog=self._catalog)
            except (TorchtailorError, ValueError):
                continue
            if answer.best is not None or wanted is None:
                return answer
        return None


def _without_torches(host: Host) -> Host:
    """The machine without the torches of other Pythons, which do not matter for what to install."""
    return msgspec.structs.replace(host, torches=())

"""PyTorch that is already installed: found without importing it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from torchtailor.advise.host.model import InstalledTorch
from torchtailor.advise.host.probe import Probe

_TIMEOUT = 4.0
# Prints where torch would be imported from. The current folder is left out: it may be a checkout of PyTorch.
_SCRIPT = (
    "import sys; sys.path = [p for p in sys.path if p]; import importlib.util as u; s = u.find_spec('torch'); "
    "print('%d.%d' % sys.version_info[:2], sys.prefix, s.origin if s and s.origin else '', sep='\\n')"
)


def torch_questions(probe: Probe) -> list[Callable[[], InstalledTorch | None]]:
    """One question per Python: the active environment's, and the one on the search path."""
    prefixes = [probe.env("VIRTUAL_ENV"), probe.env("CONDA_PREFIX")]
    pythons = [f"{prefix}/bin/python" for prefix in prefixes if prefix]
    pythons += [path for name in ("python3", "python") if (path := probe.which(name))]
    return [lambda python=python: _ask(probe, python) for python in dict.fromkeys(pythons)]  # type: ignore[misc]


def distinct(found: list[InstalledTorch]) -> tuple[InstalledTorch, ...]:
    """Each installation once, however many Pythons lead to it."""
    return tuple({torch.path: torch for torch in reversed(found)}.values())[::-1]


def _ask(probe: Probe, python: str) -> InstalledTorch | None:
    ran = probe.run((python, "-c", _SCRIPT), _TIMEOUT)
    lines = ran.output.strip("\n").split("\n")
    if not ran.done or len(lines) != 3 or not lines[2].endswith("/__init__.py"):
        return None
    folder = lines[2].removesuffix("/__init__.py")
    built = parse_version(probe.read(f"{folder}/version.py") or "")
    if built.version is None:
        return None
    return InstalledTorch(
        version=built.version, path=folder, python=lines[0], interpreter=python, cuda=built.cuda, other=built.other
    )


@dataclass(frozen=True, slots=True)
class BuiltTorch:
    """What version.py says: the version, and the CUDA or other accelerators that it was built for."""

    version: str | None = None
    cuda: str | None = None
    other: str | None = None


def parse_version(text: str) -> BuiltTorch:
    """PyTorch's version and accelerator out of its version.py."""
    values = assigned_texts(text)
    hip, xpu = values.get("hip"), values.get("xpu")
    other = f"ROCm {hip.split('-')[0]}" if hip else f"XPU {xpu}" if xpu else None
    return BuiltTorch(values.get("__version__"), values.get("cuda"), other)


def assigned_texts(text: str) -> dict[str, str]:
    """The texts that a version.py assigns to names; it is not run."""
    return dict(re.findall(r"^(\w+)(?:: [^=\n]+)? = ['\"]([^'\"\n]+)['\"]", text, re.MULTILINE))


def with_architectures(probe: Probe, torch: InstalledTorch) -> InstalledTorch:
    """The same, with the GPU code that its main library holds."""
    return msgspec.structs.replace(torch, architectures=probe.gpu_code(f"{torch.path}/lib/libtorch_cuda.so"))

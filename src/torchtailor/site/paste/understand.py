"""Reads nvidia-smi, lspci, /proc/cpuinfo, lscpu, torch's reports and tracebacks, or a sentence that names products.

Everything found is given in words, so that the user sees what was understood and can correct it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.advise.host.model import Cpu
from torchtailor.catalog.load import Catalog
from torchtailor.site.paste.cpus import described_cpu, mentioned_cpu
from torchtailor.site.paste.gpus import listed_gpus, mentioned_gpus, other_gpu
from torchtailor.site.paste.lines import text_lines
from torchtailor.site.paste.software import (
    explained,
    read_cuda,
    read_driver,
    read_jetpack,
    read_python,
    read_system,
)


@dataclass(frozen=True, slots=True)
class Understood:
    """The parts of a machine that a text names, and sentences about them; None and empty where it says nothing."""

    gpus: tuple[str, ...] = ()  # `none` alone: the text lists the graphics of a machine, and none of them computes
    cpu: str | None = None
    pasted_cpu: Cpu | None = None
    driver: str | None = None
    cuda: str | None = None
    jetpack: str | None = None
    system: str | None = None
    python: str | None = None
    notes: tuple[str, ...] = ()


def understand(catalog: Catalog, pasted: str) -> Understood:
    """Read a text of any of these kinds, or several after each other."""
    lines = text_lines(pasted)
    doubts: list[str] = []
    notes: list[str] = []
    names = listed_gpus(catalog, lines, doubts) or mentioned_gpus(catalog, lines)
    described = described_cpu(lines)
    cpu = None if described else mentioned_cpu(catalog, lines)
    if not names and not doubts and described is None and (other := other_gpu(catalog, lines)):
        names = [other]
    driver = read_driver(catalog, lines, notes)
    notes += explained(lines)
    found = Understood(
        gpus=tuple(names),
        cpu=cpu,
        pasted_cpu=described,
        driver=driver,
        cuda=read_cuda(lines),
        jetpack=read_jetpack(lines),
        system=read_system(lines),
        python=read_python(lines),
        notes=(*(() if names else doubts), *notes),
    )
    if found == Understood():
        return Understood(notes=("Nothing about a machine was found in this text.",))
    return found

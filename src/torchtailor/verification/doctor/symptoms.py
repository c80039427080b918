"""What people paste: messages of torch, CUDA, the loader and the shell, and the kind of problem behind each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchtailor.catalog import Capability
from torchtailor.verification.failures import Diagnosis, FailureTable, FoundFailure

_SHOWN = 300


class ProblemKind(StrEnum):
    """The failures of runtime.toml that facts about the machine and its torch confirm, refute or make more precise."""

    NO_TORCH = "no-torch"
    NO_CODE = "no-kernel-image"
    NOT_LISTED = "capability-warning"  # a warning, from names compiled into torch rather than from its code
    DRIVER = "driver-insufficient"
    PTX_REFUSED = "ptx-too-new"
    NO_DRIVER = "no-driver"
    NO_GPU = "no-gpu"
    CPU_BUILD = "cpu-build"
    INSTRUCTION = "illegal-instruction"
    LIBRARY = "missing-shared-library"
    MIXED_LIBRARIES = "mixed-libraries"
    LIBC = "libc-too-old"
    OTHER_ARCH = "wrong-elf"
    DAMAGED = "damaged-library"


@dataclass(frozen=True, slots=True)
class Symptom:
    """A message that was recognised, and what it names."""

    kind: str  # the failure's id
    text: str
    capability: Capability | None = None  # of the GPU that the message is about
    gpu: str | None = None  # its name
    library: str | None = None
    symbol: str | None = None  # that a library lacks
    user: str | None = None  # the library that needs the symbol
    cause: str = ""  # what the message means by itself, whatever the machine
    fix: str = ""
    driver_cuda: str | None = None  # the CUDA of the driver, where the message has it


def read_symptoms(diagnosis: Diagnosis | None) -> tuple[Symptom, ...]:
    """What a message says of a torch that does not run, the cause first."""
    if diagnosis is None or diagnosis.finding is None:
        return ()
    found = (diagnosis.finding, *diagnosis.other_causes)
    return tuple(_symptom(failure) for failure in found if failure.table is FailureTable.RUNTIME)


def _symptom(found: FoundFailure) -> Symptom:
    kind, names = found.failure, found.names
    capability = None
    if "sm" in names:
        capability = Capability.from_number(int(names["sm"]))
    elif "capability" in names:
        capability = Capability.parse(names["capability"])
    version = int(names.get("version", 0)) if kind == ProblemKind.DRIVER else 0
    driver_cuda = f"{version // 1000}.{version % 1000 // 10}" if version else None
    return Symptom(
        kind=kind,
        text=found.text[:_SHOWN],
        capability=capability,
        gpu=names.get("gpu"),
        library=names.get("library"),
        symbol=names.get("symbol"),
        user=names.get("user"),
        cause=found.cause,
        fix=found.fix,
        driver_cuda=driver_cuda,
    )

"""What people paste: messages of torch, CUDA, the loader and the shell, and the kind of trouble behind each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from torchtailor.catalog import Capability


class Trouble(Enum):
    """The kinds of trouble that torch on a machine can have."""

    NO_TORCH = "no torch"
    NO_CODE = "no GPU code"
    NOT_LISTED = "not in torch's list"  # a warning, from names compiled into torch rather than from its code
    DRIVER = "driver"
    PTX_REFUSED = "PTX refused"
    NO_DRIVER = "no driver"
    NO_GPU = "no GPU"
    CPU_BUILD = "built without CUDA"
    INSTRUCTION = "illegal instruction"
    LIBRARY = "library missing"
    MIXED_LIBRARIES = "libraries mixed"
    LIBC = "C library"
    OTHER_ARCH = "other architecture"
    BAD_VERSION = "damaged"


@dataclass(frozen=True, slots=True)
class Symptom:
    """A message that was recognised, and what it names."""

    trouble: Trouble
    text: str
    capability: Capability | None = None  # of the GPU that the message is about
    gpu: str | None = None  # its name
    library: str | None = None
    driver_cuda: str | None = None  # the CUDA of the driver, where the message tells it


# The first pattern that matches a line decides; named groups are what the message names.
_PATTERNS: tuple[tuple[Trouble, str], ...] = (
    (
        Trouble.NOT_LISTED,
        r"(?P<gpu>(?:NVIDIA|GeForce|Tesla|Quadro)[\w -]*) with CUDA capability sm_(?P<sm>\d{2,3}) is not compatible",
    ),
    (Trouble.NOT_LISTED, r"\bsm_(?P<sm>\d{2,3})\b.{0,40}is not compatible"),
    (Trouble.NOT_LISTED, r"cuda capability (?P<capability>\d{1,2}\.\d)\..{0,80}no longer supports this GPU"),
    (Trouble.NOT_LISTED, r"Minimum and Maximum cuda capability supported by this version of PyTorch"),
    (Trouble.NO_CODE, r"no kernel image is available|NoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"),
    (Trouble.NO_CODE, r"CUBLAS_STATUS_ARCH_MISMATCH|CUDNN_STATUS_ARCH_MISMATCH"),
    (Trouble.PTX_REFUSED, r"PTX was compiled with an unsupported toolchain|UnsupportedPtxVersion"),
    (Trouble.DRIVER, r"driver on your system is too old \(found version (?P<cuda>\d{4,5})\)"),
    (Trouble.DRIVER, r"driver version is insufficient|InsufficientDriver"),
    (Trouble.DRIVER, r"forward compatibility was attempted on non supported HW|CompatNotSupportedOnDevice"),
    (Trouble.NO_DRIVER, r"Found no NVIDIA driver|libcuda\.so\.1: cannot open|NVIDIA-SMI has failed"),
    (Trouble.NO_GPU, r"No CUDA GPUs are available|no CUDA-capable device|cudaErrorNoDevice"),
    (Trouble.CPU_BUILD, r"Torch not compiled with CUDA enabled"),
    (Trouble.INSTRUCTION, r"[Ii]llegal instruction|\bSIGILL\b|trap invalid opcode"),
    (Trouble.LIBC, r"version `GLIBC(?:XX)?_[\d.]+' not found"),
    (Trouble.MIXED_LIBRARIES, r"undefined symbol: .*(?P<library>libnvJitLink|libcu\w+|libnccl)[\w.]*"),
    (Trouble.MIXED_LIBRARIES, r"(?P<library>lib\w+\.so[\w.]*): undefined symbol|undefined symbol: (?:__nv|cu|nccl)\w+"),
    (Trouble.LIBRARY, r"(?P<library>lib[\w.+-]+\.so[\w.]*): cannot open shared object file"),
    (
        Trouble.OTHER_ARCH,
        r"wrong ELF class|Exec format error|invalid ELF header|cannot open shared object.*_C\.cpython",
    ),
    (Trouble.BAD_VERSION, r"file too short|ELF load command past end of file|Bus error"),
    (Trouble.NO_TORCH, r"No module named '?torch\b"),
)
_COMPILED = tuple((trouble, re.compile(pattern)) for trouble, pattern in _PATTERNS)


def read_symptoms(message: str) -> tuple[Symptom, ...]:
    """Every known message in a text, each kind once, in the order in which they stand there."""
    found: dict[Trouble, Symptom] = {}
    for symptom in _each(message):
        known = found.get(symptom.trouble)
        if known is None or (known.capability is None and symptom.capability is not None):
            found[symptom.trouble] = symptom
    return tuple(found.values())


def _each(message: str) -> Iterator[Symptom]:
    for line in message.splitlines():
        for trouble, pattern in _COMPILED:
            if match := pattern.search(line):
                yield _symptom(trouble, line.strip(), match)
                break


def _symptom(trouble: Trouble, line: str, match: re.Match[str]) -> Symptom:
    named = match.groupdict()
    capability = None
    if named.get("sm"):
        capability = Capability.from_number(int(named["sm"]))
    elif named.get("capability"):
        capability = Capability.parse(named["capability"])
    cuda = named.get("cuda")
    driver_cuda = f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}" if cuda else None
    return Symptom(trouble, line[:300], capability, named.get("gpu"), named.get("library"), driver_cuda)

"""The kernels of a cubin, read from the names of its code sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchtailor.catalog.gpus import CodeKind
from torchtailor.code.binary.elf_headers import MAGIC, SECTION_HEADER, SectionType
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.fatbin import Image, decompress
from torchtailor.core.errors import BadInputError

_CODE = b".text."
_CONSTANTS = b".nv.constant"
_MAY_BE_EMPTY = 1 << 16  # bytes: a larger image has kernels
_NOT_IN_FILE = (SectionType.NULL, SectionType.NOBITS)


def kernel_names(source: ByteSource, image: Image) -> frozenset[str] | None:
    """The names of all functions in a cubin; None where it is not a cubin or cannot be read."""
    if image.target is None or image.target.kind is not CodeKind.CUBIN:
        return None
    try:
        return names_in_cubin(decompress(source, image))
    except BadInputError:
        return None


def may_have_kernels(source: ByteSource, image: Image) -> bool:
    """nvcc leaves an image without kernels where a source has no device code; what cannot be read may have some."""
    return image.raw_size > _MAY_BE_EMPTY or kernel_names(source, image) != frozenset()


def names_in_cubin(cubin: bytes) -> frozenset[str] | None:
    """The names of the code sections of a raw cubin, or None if it is not a whole ELF file."""
    sections = cubin_sections(cubin)
    if sections is None:
        return None
    return frozenset(_text(name[len(_CODE) :]) for name, _ in sections if name.startswith(_CODE))


def cubin_sections(cubin: bytes) -> list[tuple[bytes, int]] | None:
    """The names and sizes in the file of all sections of a raw cubin, or None if it is not a whole ELF file."""
    if len(cubin) < 64 or cubin[:4] != MAGIC:
        return None
    table = int.from_bytes(cubin[40:48], "little")
    count = int.from_bytes(cubin[60:62], "little")
    names_index = int.from_bytes(cubin[62:64], "little")
    if names_index >= count or table + count * SECTION_HEADER.size > len(cubin):
        return None
    headers = list(SECTION_HEADER.iter_unpack(cubin[table : table + count * SECTION_HEADER.size]))
    start, size = headers[names_index][4:6]
    if start + size > len(cubin):
        return None
    sections = []
    for name, kind, _, _, _, length, *_ in headers:
        end = cubin.find(b"\0", start + name, start + size)
        if end < 0:
            return None
        sections.append((cubin[start + name : end], 0 if kind in _NOT_IN_FILE else length))
    return sections


@dataclass(frozen=True, slots=True)
class FunctionSize:
    """Bytes of one function of a cubin, by what they are."""

    code: int = 0
    constants: int = 0
    tables: int = 0  # what the driver and debuggers read of it: registers, parameters, relocations

    @property
    def total(self) -> int:
        return self.code + self.constants + self.tables


def functions_in_cubin(cubin: bytes) -> tuple[dict[str, FunctionSize], int] | None:
    """The functions of a raw cubin, and the bytes that belong to none; None where it is not a whole ELF file."""
    sections = cubin_sections(cubin)
    if sections is None:
        return None
    sizes: dict[bytes, list[int]] = {name[len(_CODE) :]: [0, 0, 0] for name, _ in sections if name.startswith(_CODE)}
    for section, size in sections:
        kind, function = _split(section, sizes)
        if function:
            sizes[function][0 if kind == _CODE[:-1] else 1 if kind.startswith(_CONSTANTS) else 2] += size
    found = {_text(name): FunctionSize(*columns) for name, columns in sizes.items()}
    return found, len(cubin) - sum(size.total for size in found.values())


def _split(section: bytes, functions: Mapping[bytes, object]) -> tuple[bytes, bytes]:
    """`.nv.constant0.kernel` -> `.nv.constant0`, `kernel`; no function where the section belongs to none."""
    dot = section.find(b".", 1)
    while dot >= 0:
        if section[dot + 1 :] in functions:
            return section[:dot], section[dot + 1 :]
        dot = section.find(b".", dot + 1)
    return section, b""


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")

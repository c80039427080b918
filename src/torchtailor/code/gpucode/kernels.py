"""The kernels of a cubin, read from the names of its code sections."""

from __future__ import annotations

from torchtailor.catalog.gpus import CodeKind
from torchtailor.code.binary.elf_headers import MAGIC, SECTION_HEADER
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.fatbin import Image, decompress
from torchtailor.core.errors import BadInputError

_CODE = b".text."


def kernel_names(source: ByteSource, image: Image) -> frozenset[str] | None:
    """The names of all functions in a cubin; None where it is not a cubin or cannot be read."""
    if image.target is None or image.target.kind is not CodeKind.CUBIN:
        return None
    try:
        return names_in_cubin(decompress(source, image))
    except BadInputError:
        return None


def names_in_cubin(cubin: bytes) -> frozenset[str] | None:
    """The names of the code sections of a raw cubin, or None if it is not a whole ELF file."""
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
    names = set()
    for header in headers:
        at = start + header[0]
        if cubin.startswith(_CODE, at):
            end = cubin.find(b"\0", at, start + size)
            if end < 0:
                return None
            names.add(cubin[at + len(_CODE) : end].decode("utf-8", "backslashreplace"))
    return frozenset(names)

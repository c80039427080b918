"""Files that are GPU code themselves: cubins, fatbins, PTX, bitcode for one architecture, static libraries; and those
with code that is never cut: libraries for Windows, and code for other makers' GPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, Suffix
from torchtailor.code.binary.elf_headers import HEADER
from torchtailor.code.binary.source import ByteSource
from torchtailor.code.gpucode.bare import cubin_image
from torchtailor.code.gpucode.fatbin import CONTAINER_START, Image
from torchtailor.code.gpucode.foreign import GpuMaker, amd_object, bundled_code, code_of_dll
from torchtailor.code.gpucode.report import ImageGroup, group_images, merge_groups
from torchtailor.code.gpucode.scan import containers_in, ptx_target

HEAD_SIZE = 4096  # of PTX comments come first

_ARCHIVE_START = b"!<arch>\n"
_BITCODE_STARTS = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
_NAMED_ARCH = re.compile(r"(?<![a-z0-9])sm_?(\d{2,3})([af]?)(?![a-z0-9])", re.IGNORECASE)


class CodeFileKind(Enum):
    """What a file of GPU code is."""

    CUBIN = "cubin"
    FATBIN = "fatbin"
    BITCODE = "bitcode"
    ARCHIVE = "static library"
    PTX = "PTX"
    WINDOWS = "Windows library"
    AMD = "AMD code object"
    ROCM = "ROCm library"
    XPU = "Intel XPU library"

    @property
    def never_cut(self) -> bool:
        """Whether such files are shown and never cut, nor left out for the target's sake."""
        return self in _NEVER_CUT


_NEVER_CUT = frozenset((CodeFileKind.WINDOWS, CodeFileKind.AMD, CodeFileKind.ROCM, CodeFileKind.XPU))
_SUFFIXES = {
    ".cubin": CodeFileKind.CUBIN,
    ".fatbin": CodeFileKind.FATBIN,
    ".bc": CodeFileKind.BITCODE,
    ".a": CodeFileKind.ARCHIVE,
    ".ptx": CodeFileKind.PTX,
    ".lib": CodeFileKind.ARCHIVE,
    ".dll": CodeFileKind.WINDOWS,
    ".pyd": CodeFileKind.WINDOWS,
    ".exe": CodeFileKind.WINDOWS,
    ".hsaco": CodeFileKind.AMD,
    ".co": CodeFileKind.AMD,
}


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of GPU code and what is in it."""

    name: str
    size: int
    kind: CodeFileKind
    architectures: tuple[ImageGroup, ...]

    @classmethod
    def of_others(cls, name: str, size: int, code: tuple[ImageGroup, ...]) -> CodeFile | None:
        """A library for Linux with code for GPUs of other makers; None for one without."""
        if not code:
            return None
        rocm = any(group.other == GpuMaker.HIP.label for group in code)
        return cls(name, size, CodeFileKind.ROCM if rocm else CodeFileKind.XPU, code)

    @property
    def stored(self) -> int:
        return sum(group.stored for group in self.architectures)

    @property
    def target(self) -> CodeTarget | None:
        """What the whole file is for, where that is one thing."""
        return self.architectures[0].target if len(self.architectures) == 1 else None

    @property
    def family(self) -> str:
        """Its name without the architecture: the same file for another GPU has the same."""
        return _NAMED_ARCH.sub("*", self.name)


def is_code_file(name: str) -> bool:
    """Whether a file of this name may be GPU code."""
    return kind_by_name(name) is not None


def known_by_head(name: str) -> bool:
    """Whether the first bytes of such a file tell all."""
    return kind_by_name(name) in (CodeFileKind.CUBIN, CodeFileKind.PTX, CodeFileKind.BITCODE, CodeFileKind.AMD)


def read_code_file(name: str, source: ByteSource, size: int) -> CodeFile | None:
    """Read a file of GPU code of this size; None where it is something else, or for no architecture in particular.

    Of a file that is `known_by_head` the source may be the first `HEAD_SIZE` bytes.
    """
    kind = kind_by_name(name)
    groups: tuple[ImageGroup, ...] = ()
    if kind is CodeFileKind.CUBIN:
        groups = group_images(images_of(name, source, size), "file")
    elif kind is CodeFileKind.PTX:
        target = ptx_target(bytes(source.read(0, min(HEAD_SIZE, source.size))))
        groups = (_group(str(target), target, size, "text"),) if target else ()
    elif kind is CodeFileKind.BITCODE:
        target = _bitcode_target(name, source)
        groups = (_group(f"bitcode_{target.capability.number}", target, size, "none"),) if target else ()
    elif kind is CodeFileKind.WINDOWS:
        groups = code_of_dll(source) or ()
    elif kind is CodeFileKind.AMD:
        groups = amd_object(name, source, size)
    elif kind and _begins(source, (CONTAINER_START if kind is CodeFileKind.FATBIN else _ARCHIVE_START,)):
        groups = (*group_images(images_of(name, source, size), "file"), *merge_groups(bundled_code(source)))
    return CodeFile(name, size, kind, groups) if kind and groups else None


def images_of(name: str, source: ByteSource, size: int) -> tuple[Image, ...]:
    """The images in a cubin, a fatbin, a static library or one for Windows; PTX and bitcode have none."""
    kind = kind_by_name(name)
    if kind is CodeFileKind.CUBIN:
        image = cubin_image(bytes(source.read(0, min(HEADER.size, source.size))), size)
        return (image,) if image else ()
    if kind in (CodeFileKind.FATBIN, CodeFileKind.ARCHIVE, CodeFileKind.WINDOWS):
        return tuple(image for one in containers_in(source) for image in one.entries)
    return ()


def kind_by_name(name: str) -> CodeFileKind | None:
    """What a file of this name is, if it is GPU code."""
    return _SUFFIXES.get(os.path.splitext(name)[1].lower())  # noqa: PTH122 (a Path each is slow)


def _begins(source: ByteSource, starts: Iterable[bytes]) -> bool:
    return any(bytes(source.read(0, min(len(start), source.size))) == start for start in starts)


def _bitcode_target(name: str, source: ByteSource) -> CodeTarget | None:
    """Bitcode says nothing of the GPU itself; its name may."""
    named = _NAMED_ARCH.findall(name.rsplit("/", 1)[-1])
    if len(named) != 1 or not _begins(source, _BITCODE_STARTS):
        return None
    return CodeTarget(CodeKind.LTOIR, Capability.from_number(int(named[0][0])), Suffix(named[0][1].lower()))


def _group(label: str, target: CodeTarget, size: int, stored_as: str) -> ImageGroup:
    return ImageGroup(label, target, 1, size, size, {stored_as: 1}, {"file": 1})

"""Finds every fatbin container and bare cubin of a library, wherever it lives, and says how it is reached.

Containers lie in `.nv_fatbin`, but also in `__nv_relfatbin` (objects from before the device link),
`.cask_resource`, `.ldata` and `.rodata`. So every section of data is searched for the first eight bytes of
a container, and for those of a cubin or of a zstd frame that holds one (`bare.py`); what follows must then be a whole
and consistent one. What lies inside one is never searched.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

from torchtailor.catalog.gpus import Capability, CodeKind, CodeTarget, Suffix
from torchtailor.code.binary.elf import FETCH_AGAIN, ElfFile
from torchtailor.code.binary.elf_headers import DynamicTag, ElfMachine, Relocation, Section, SectionFlag, SectionType
from torchtailor.code.binary.instructions import named_by_code
from torchtailor.code.binary.source import ByteSource, blamed_on, open_source
from torchtailor.code.binary.symbols import dynamic_text
from torchtailor.code.gpucode.bare import CUBIN_START, FRAME_START, read_bare
from torchtailor.code.gpucode.fatbin import (
    ALIGNMENT,
    CONTAINER_START,
    WRAPPER,
    Container,
    DamagedContainerError,
    Image,
    Wrapper,
    WrapperVersion,
    read_container,
    read_wrapper,
)
from torchtailor.core.errors import BadInputError

WRAPPER_SECTION = ".nvFatBinSegment"
RELOCATABLE_SECTION = "__nv_relfatbin"
# sections that hold only containers: there, anything that is neither a container nor zero is damage
CONTAINER_SECTIONS = frozenset({".nv_fatbin", RELOCATABLE_SECTION})
RECORDED_SECTION = ".cask_resource"  # whose containers are reached through records
LARGE_DATA = (".ldata", ".lrodata")  # where x86_64's medium code model puts what it reaches by immediates
UNWIND_TABLES = frozenset({".eh_frame", ".eh_frame_hdr", ".gcc_except_table"})
CODE_STARTS = (CONTAINER_START, CUBIN_START, FRAME_START)

_SEARCHED_TYPES = frozenset({SectionType.PROGBITS, SectionType.NOTE})
# host code and debug information are half of the bytes to search, and never hold containers, which are data
_UNSEARCHED_FLAGS = SectionFlag.COMPRESSED | SectionFlag.EXECUTE
_PTX_HEAD = 256  # bytes from the version of PTX to its target, with comments between
_NEAR = 64  # bytes of a record on either side of its pointer, and of padding behind a container
_ZEROS_STEP = 1 << 20
_MAX_LOOKALIKES = 4096  # of whole libraries none is known that has one; more are a file made to be slow
_MAX_WALKED = 64 << 20  # bytes of lookalikes that were walked through before they turned out to be none


class Reference(Enum):
    """How host code reaches a container."""

    WRAPPER = "wrapper"  # an ordinary wrapper: registered with the CUDA runtime when the library is loaded
    LINKED = "linked"  # the wrapper of a device link
    PRELINKED = "prelinked"  # an input of the device link; the linked container is what runs
    POINTER = "pointer"  # some other pointer in the library's data
    CODE = "code"  # instructions compute its address (looked for where a bare cubin has no pointer)
    NONE = "none"  # nothing visible: reached by distance or by a table of offsets


class CodeContainer(Protocol):
    """A container, or a group of containers with the same architectures, as far as what runs of it is concerned."""

    @property
    def images(self) -> tuple[Image, ...]: ...

    @property
    def reference(self) -> Reference: ...

    @property
    def loaded(self) -> bool: ...

    @property
    def can_be_cut(self) -> bool: ...


def can_be_cut(bare: bool, reference: Reference, loaded: bool) -> bool:
    """Whether images may be taken out: of what is not loaded nothing is gained by it, and a bare cubin to which no
    pointer is known may be a part of anything."""
    return loaded and (not bare or reference is not Reference.NONE)


class FoundContainer(NamedTuple):
    """A container and its place in the library."""

    container: Container
    section: str
    address: int | None  # None where the section is not loaded
    reference: Reference
    pointers: tuple[Relocation, ...]  # the relocated pointers to its first byte
    recorded: bool = False  # it is bare, and its size stands beside every pointer to it

    @property
    def images(self) -> tuple[Image, ...]:
        return self.container.entries

    @property
    def loaded(self) -> bool:
        return self.address is not None

    @property
    def can_be_cut(self) -> bool:
        return can_be_cut(self.container.bare, self.reference, self.loaded)


@dataclass(frozen=True, slots=True)
class FoundWrapper:
    """A wrapper, and where its two pointers lead."""

    wrapper: Wrapper
    address: int
    container: Relocation | None
    last: Relocation | None

    @property
    def container_address(self) -> int:
        """The container's virtual address: relocated, or as stored in a file loaded at a fixed address."""
        return self.container.addend if self.container else self.wrapper.container_pointer


class PtxText(NamedTuple):
    """PTX as plain text in a library's data: host code gives it to the driver or to a compiler."""

    target: CodeTarget
    section: str
    size: int


@dataclass(frozen=True)
class LibraryCode:
    """All GPU code of one library."""

    machine: ElfMachine
    size: int
    containers: tuple[FoundContainer, ...]  # in the order of the file
    wrappers: tuple[FoundWrapper, ...]
    lookalikes: tuple[int, ...]  # offsets that begin like a container and are none
    soname: str = ""  # the name by which others load it; empty where it has none
    texts: tuple[PtxText, ...] = ()  # PTX outside of containers, where it was asked for

    @property
    def images(self) -> Iterator[Image]:
        return (image for found in self.containers for image in found.images)

    @cached_property
    def stored_size(self) -> int:
        """Bytes of all containers."""
        return sum(found.container.stored_size for found in self.containers)

    @property
    def device_linked(self) -> bool:
        """Whether some containers are the result of a device link, and others what it was made from."""
        return any(found.reference is Reference.LINKED for found in self.containers)


def scan_file(path: Path) -> LibraryCode:
    """Read all GPU code of a shared library."""
    with open_source(path) as source, blamed_on(str(path)):
        return scan_source(source)


def scan_source(source: ByteSource, *, texts: bool = False) -> LibraryCode:
    """Read all GPU code of the ELF file in `source`; `texts` looks for PTX outside of containers too."""
    elf = ElfFile(source)
    source.verify()  # now: a packed source has come near its end, where the section table is
    return scan_elf(elf, texts=texts)


def scan_elf(elf: ElfFile, *, texts: bool = False) -> LibraryCode:
    """Read all GPU code of an ELF file."""
    elf.source.keep([(s.offset, s.size) for s in elf.sections if s.in_file and _needed_later(s)])
    found: list[tuple[Section, Container]] = []
    lookalikes: list[int] = []
    ptx: list[PtxText] | None = [] if texts else None
    for section in sorted(_searched(elf), key=lambda section: section.offset):
        if section.name in CONTAINER_SECTIONS:
            containers = _only_containers(elf.source, section)
        else:
            containers = _containers_among_others(elf.source, section, lookalikes, ptx)
        found.extend((section, container) for container in containers)
    if not found:
        return LibraryCode(elf.machine, elf.size, (), (), tuple(lookalikes), texts=tuple(ptx or ()))
    wrappers = tuple(_wrappers(elf))
    referenced = tuple(_referenced(elf, found, wrappers))
    soname = dynamic_text(elf, DynamicTag.SONAME)
    return LibraryCode(elf.machine, elf.size, referenced, wrappers, tuple(lookalikes), soname, tuple(ptx or ()))


def containers_in(source: ByteSource) -> list[Container]:
    """All containers and bare cubins of a file that is no library, such as an archive of objects."""
    whole = Section(
        index=0,
        name="",
        name_offset=0,
        type=SectionType.PROGBITS,
        flags=SectionFlag(0),
        address=0,
        offset=0,
        size=source.size,
        link=0,
        info=0,
        alignment=1,
        entry_size=0,
    )
    return list(_containers_among_others(source, whole, []))


def _needed_later(section: Section) -> bool:
    """Whether the pointers of wrappers, or the soname, are found with the help of this section."""
    kinds = (SectionType.RELA, SectionType.RELR, SectionType.DYNAMIC, SectionType.STRTAB)
    return section.allocated and (section.type in kinds or section.name == WRAPPER_SECTION)


def _searched(elf: ElfFile) -> Iterator[Section]:
    if not elf.sections:  # a file without section headers: its loaded segments are all there is to search
        for index, segment in enumerate(elf.loads):
            if segment.file_size:
                yield Section(
                    index=index,
                    name="",
                    name_offset=0,
                    type=SectionType.PROGBITS,
                    flags=SectionFlag.ALLOC,
                    address=segment.address,
                    offset=segment.offset,
                    size=segment.file_size,
                    link=0,
                    info=0,
                    alignment=segment.alignment,
                    entry_size=0,
                )
        return
    for section in elf.sections:
        searched = section.type in _SEARCHED_TYPES and not section.flags & _UNSEARCHED_FLAGS
        if section.in_file and searched and not section.name.startswith(".debug_"):
            yield section


def _only_containers(source: ByteSource, section: Section) -> Iterator[Container]:
    """The containers of a section that holds nothing else but zeros between them."""
    position, end = section.offset, section.file_end
    while (position := _skip_zeros(source, position, end)) < end:
        start = position - position % ALIGNMENT
        if bytes(source.read(start, min(len(CONTAINER_START), end - start))) != CONTAINER_START:
            raise BadInputError(
                f"Section {section.name} holds something at {position:#x} that is no GPU code container.",
                FETCH_AGAIN,
            )
        container = read_container(source, start, end)
        yield container
        position = container.end


def _skip_zeros(source: ByteSource, position: int, end: int) -> int:
    """Where the next byte is that is not zero."""
    step = len(CONTAINER_START)  # most often there are no zeros at all
    while position < end:
        part = bytes(source.read(position, min(step, end - position)))
        rest = part.lstrip(b"\0")
        if rest:
            return position + len(part) - len(rest)
        position += len(part)
        step = _ZEROS_STEP
    return end


def _containers_among_others(
    source: ByteSource, section: Section, lookalikes: list[int], texts: list[PtxText] | None = None
) -> Iterator[Container]:
    position, end, walked = section.offset, section.file_end, 0
    # tables for unwinding are large and hold nothing else; a container there is found all the same
    starts = (CONTAINER_START,) if section.name in UNWIND_TABLES else CODE_STARTS
    if texts is not None:
        starts = (*starts, PTX_MARK)
    while (start := _next_start(source, starts, position, end)) >= 0:
        if texts is not None and bytes(source.read(start, 1)) == PTX_MARK[:1]:
            position = _ptx_text(source, section, start, texts)
            continue
        try:
            if bytes(source.read(start, min(len(CONTAINER_START), end - start))) == CONTAINER_START:
                container: Container | None = read_container(source, start, end)
            else:
                container = read_bare(source, start, end)
        except DamagedContainerError as error:
            lookalikes.append(start)
            walked += max(0, error.reached - start)
            if len(lookalikes) > _MAX_LOOKALIKES or walked > _MAX_WALKED:
                raise BadInputError(
                    f"{len(lookalikes)} places of section {section.name} begin like a GPU code container and are none.",
                    "Compare the library's hash with the publisher's; without GPU code it need not be cut.",
                ) from None
            container = None
        if container is None:
            position = start + 1
            continue
        yield container
        position = container.end


def _next_start(source: ByteSource, starts: tuple[bytes, ...], position: int, end: int) -> int:
    """Where the next of them is: most often behind some zeros, with which none of them begins."""
    near = bytes(source.read(position, min(_NEAR, end - position)))
    rest = near.lstrip(b"\0")
    position += len(near) - len(rest)
    return position if rest.startswith(CONTAINER_START) else source.find(starts, position, end)


def _ptx_text(source: ByteSource, section: Section, mark: int, texts: list[PtxText]) -> int:
    """Where the search goes on behind what may be PTX: its text ends with a zero."""
    start = max(section.offset, mark - _PTX_HEAD)
    head = bytes(source.read(start, min(mark + len(PTX_MARK) + 8, section.file_end) - start))
    target = ptx_target(head[head.rfind(b"\0", 0, mark - start) + 1 :])
    if target is None:
        return mark + 1
    end = source.find(b"\0", mark, section.file_end)
    end = section.file_end if end < 0 else end
    texts.append(PtxText(target, section.name, end - mark))
    return end


def _wrappers(elf: ElfFile) -> Iterator[FoundWrapper]:
    section = elf.section(WRAPPER_SECTION)
    if section is None or not section.allocated:
        return
    if section.size % WRAPPER.size:
        raise BadInputError(f"Section {section.name} is not a whole number of wrappers long.")
    pointers = elf.relocations_in(section.address, section.memory_end)
    for step in range(0, section.size, WRAPPER.size):
        address = section.address + step
        yield FoundWrapper(
            read_wrapper(elf.source, section.offset + step),
            address,
            pointers.get(address + Wrapper.CONTAINER_FIELD),
            pointers.get(address + Wrapper.LAST_FIELD),
        )


def _referenced(
    elf: ElfFile, found: list[tuple[Section, Container]], wrappers: tuple[FoundWrapper, ...]
) -> Iterator[FoundContainer]:
    shifts = {
        s.index: s.address - s.offset for s in {section.index: section for section, _ in found}.values() if s.allocated
    }
    addresses = [
        container.offset + shifts[section.index] if section.index in shifts else None for section, container in found
    ]
    loaded = [address for address in addresses if address is not None]
    pointers: dict[int, list[Relocation]] = {address: [] for address in loaded}
    if loaded:
        for relocation in elf.relocations_to(pointers.keys()):
            pointers[relocation.addend].append(relocation)
    named = _named_by_code(elf, found, addresses, pointers)
    wrapped: dict[int, Reference] = {}
    for wrapper in wrappers:
        target = wrapper.container_address
        if target not in pointers:
            raise BadInputError(
                f"The wrapper at {wrapper.wrapper.offset:#x} points to {target:#x}, where no container is."
            )
        linked = wrapper.wrapper.version is WrapperVersion.LINKED
        wrapped[target] = Reference.LINKED if linked else Reference.WRAPPER
    for (section, container), address in zip(found, addresses, strict=True):
        at = tuple(pointers[address]) if address is not None else ()
        reference = wrapped.get(address) if address is not None else None
        if reference is Reference.WRAPPER and section.name == RELOCATABLE_SECTION:
            reference = Reference.PRELINKED
        if reference is None:
            reference = Reference.POINTER if at else Reference.CODE if address in named else Reference.NONE
        recorded = container.bare and bool(at) and all(_is_record(elf, container, pointer) for pointer in at)
        yield FoundContainer(container, section.name, address, reference, at, recorded)


def _is_record(elf: ElfFile, container: Container, pointer: Relocation) -> bool:
    """Whether the stored size of a bare cubin, in 32 or 64 bits, stands beside a pointer to it."""
    start = pointer.place - _NEAR
    offset = elf.offset_of(start)
    if offset is None or elf.offset_of(start + 2 * _NEAR - 1) != offset + 2 * _NEAR - 1:
        return False
    return container.stored_size in array("I", bytes(elf.read(offset, 2 * _NEAR)))


def _named_by_code(
    elf: ElfFile,
    found: list[tuple[Section, Container]],
    addresses: list[int | None],
    pointers: dict[int, list[Relocation]],
) -> set[int]:
    """The bare cubins without a pointer whose address instructions compute."""
    pairs = zip(found, addresses, strict=True)
    unknown = {at for (_, container), at in pairs if container.bare and at is not None and not pointers[at]}
    return named_by_code(elf, unknown) if unknown else set()


PTX_MARK = b"\n.target sm_"

_HEAD = re.compile(
    rb"^\s*\.version\s+\d+\.\d+[^\n]*\n(?:\s*(?://[^\n]*)?\n)*\s*\.target\s+sm_(\d{2,3})([af]?)\b", re.MULTILINE
)


def ptx_target(head: bytes) -> CodeTarget | None:
    """What the first bytes of a PTX text say it is for; None where they are none."""
    found = _HEAD.search(head)
    if found is None:
        return None
    return CodeTarget(CodeKind.PTX, Capability.from_number(int(found[1])), Suffix(found[2].decode()))

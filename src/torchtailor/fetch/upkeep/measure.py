"""What is in a torch wheel itself: the architectures of its GPU code, and what its host code needs of a CPU.

One library at a time is unpacked while it is downloaded, read, and removed; the wheel is never stored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchtailor.catalog.gpus import CodeKind, CodeTarget, TorchArch
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.gpucode.fatbin import codes_of
from torchtailor.code.gpucode.scan import LibraryCode, Reference, scan_file
from torchtailor.code.hostcode.analyse import HostCode, analyse
from torchtailor.code.hostcode.features import feature_table
from torchtailor.code.hostcode.reach import Reach
from torchtailor.core.disk import staging_folder
from torchtailor.core.progress import Progress
from torchtailor.fetch.upkeep.remote import ListedWheel

_LIBRARY = re.compile(r".*\.so(\.\d+)*")
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class Measured:
    """The contents of one wheel.

    `architectures` is what most of its containers hold, as TORCH_CUDA_ARCH_LIST has it; `special` is code that only
    some hold, such as sm_90a. `baseline` are the words of /proc/cpuinfo beyond the platform's oldest CPU that code
    behind no dispatch needs, and `loading` those that are needed to load it.
    """

    libraries: int
    architectures: tuple[TorchArch, ...]
    special: tuple[CodeTarget, ...]
    baseline: tuple[str, ...]
    loading: tuple[str, ...]

    @property
    def arch_list(self) -> str:
        return ";".join(str(item) for item in self.architectures)


def measure(wheel: ListedWheel, scratch: Path, progress: Progress) -> Measured:
    """Read all libraries of a wheel."""
    members = [member for name, member in wheel.members.items() if _LIBRARY.fullmatch(name) and member.size]
    progress.begin(wheel.name, sum(member.size for member in members))
    codes: list[LibraryCode] = []
    hosts: list[HostCode] = []
    with staging_folder(scratch) as folder:
        for member in members:
            place = folder / "library.so"
            with place.open("wb") as file:
                for chunk in wheel.chunks(member):
                    file.write(chunk)
                    progress.advance(len(chunk))
            with place.open("rb") as file:
                if file.read(len(_ELF)) != _ELF:
                    continue  # a linker script
            codes.append(scan_file(place))
            if codes[-1].machine in (ElfMachine.X86_64, ElfMachine.AARCH64):
                hosts.append(analyse(place))
    held, special = architectures_of(codes)
    return Measured(len(codes), held, special, *_needs(hosts))


def architectures_of(codes: Iterable[LibraryCode]) -> tuple[tuple[TorchArch, ...], tuple[CodeTarget, ...]]:
    """What at least half of all containers hold, and the rest; objects from before a device link do not count."""
    counts: Counter[CodeTarget] = Counter()
    total = 0
    for code in codes:
        for found in code.containers:
            if found.reference is not Reference.PRELINKED:
                total += 1
                counts.update(set(codes_of(found.images)))
    usual = {code for code, count in counts.items() if 2 * count >= total}
    cubins = sorted((code for code in usual if code.kind is CodeKind.CUBIN), key=_order)
    listed = tuple(
        TorchArch(code.capability, code.suffix, CodeTarget(CodeKind.PTX, code.capability, code.suffix) in usual)
        for code in cubins
    )
    covered = {target for item in listed for target in item.codes}
    return listed, tuple(sorted(counts.keys() - covered, key=_order))


def _order(code: CodeTarget) -> tuple[object, ...]:
    return code.capability, code.suffix.value, code.kind.value


def _needs(hosts: Iterable[HostCode]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    read = list(hosts)
    if not read:
        return (), ()
    table = feature_table(read[0].machine)
    always = {word for host in read for word in host.needs(Reach.STARTUP, Reach.PLAIN)}
    loading = {word for host in read for word in host.needs(Reach.STARTUP)}
    return table.strongest(always), table.strongest(loading)

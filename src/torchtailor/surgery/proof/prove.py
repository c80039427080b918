"""The proof: stock and output are read from scratch and compared, before the output is put in place.

It knows nothing of how the output was made, except that a recompressed payload was compared with the stock one when
it was cached (`image_cache.py`). What it shows: every kept image is the stock one; what a target could use it can
still use; nothing for a foreign architecture is left; every loaded byte outside of the containers is the same at the
same address, except pointers that follow a container to its new place; and what host code may read is mapped.
"""

from __future__ import annotations

from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.gpucode.policy import Policy
from torchtailor.core.errors import BadInputError, CheckFailedError
from torchtailor.surgery.files import FileSource
from torchtailor.surgery.image_cache import ProvenImages
from torchtailor.surgery.opened import OpenLibrary
from torchtailor.surgery.proof.bytes import check_loaded_bytes
from torchtailor.surgery.proof.code import check_images
from torchtailor.surgery.proof.headers import check_sections, check_segments, check_symbols
from torchtailor.surgery.proof.pairs import pair_containers
from torchtailor.surgery.proof.pointers import check_pointers
from torchtailor.surgery.proof.reach import check_mapped
from torchtailor.workload.pack import Pack


def _where_code_may_be(before: OpenLibrary, after: ElfFile) -> list[tuple[int, int]]:
    """The sections to search for containers: all other bytes are compared with stock's, where none was found."""
    names = {found.section for found in before.code.containers}
    return [(section.offset, section.file_end) for section in after.sections if section.name in names]


def prove(
    before: OpenLibrary,
    output: FileSource,
    policy: Policy | None,
    *,
    stripped: bool,
    proven: ProvenImages | None,
    pack: Pack | None = None,
    split: bool = False,
) -> None:
    """Raise CheckFailedError unless `output` is the stock library cut by `policy` (None: cut nothing).

    `proven` are pairs of payloads that unpack to the same bytes; None means that all must be stored as before. `pack`
    has the containers that were moved out: together with the output it must be all that the policy keeps. With `split`
    the policy is for the pack alone, and what was not moved must be as it was.
    """
    try:
        output.searched = _where_code_may_be(before, ElfFile(output))
        after = OpenLibrary.read(output)
    except BadInputError as error:
        raise CheckFailedError(f"The output cannot be read: {error.message}") from error
    if output.size > before.source.size:
        raise CheckFailedError("The output is larger than the input.")
    check_segments(before.elf, after.elf)
    check_sections(before.elf, after.elf, stripped=stripped)
    pairs = pair_containers(before.code, after.code)
    check_images(before, after, pairs, policy, proven, pack, split=split)
    changed = check_pointers(before.elf, after.elf, before.code, after.code, pairs)
    changed = sorted([*changed, *check_symbols(before.elf, after.elf)])
    check_loaded_bytes(before, after, pairs, changed)
    check_mapped(before.elf, after.elf, before.code, pairs)

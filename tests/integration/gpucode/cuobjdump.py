"""Compares what we find in a library with what NVIDIA's cuobjdump finds, image by image.

cuobjdump reads `.nv_fatbin`, and with `-all` `__nv_relfatbin`; other sections it does not look at. So those are
compared in the library itself, and the containers of all other sections are written to a file of their own, which
cuobjdump reads too. As a script, it prints the table of docs/inspect.md:

    python -m tests.integration.gpucode.cuobjdump --cuobjdump T/nvidia/cu13/bin/cuobjdump LIBRARY...
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from torchtailor.code.binary.source import open_source
from torchtailor.code.gpucode.fatbin import ImageKind
from torchtailor.code.gpucode.scan import CONTAINER_SECTIONS, FoundContainer, scan_file

_ENTRY = re.compile(r"^\t?Fatbin (elf|ptx|nvvm) code:\n\t?=+\n\t?arch = sm_(\S+)", re.MULTILINE)
_PREFIX = {"elf": "sm", "ptx": "compute", "nvvm": "lto"}


@dataclass(frozen=True)
class Agreement:
    """The images of one library, counted by both."""

    library: str
    own_sections: Counter[str]  # in the sections that cuobjdump reads: ours
    own_sections_theirs: Counter[str]
    elsewhere: Counter[str]  # in other sections: ours
    elsewhere_theirs: Counter[str]

    @property
    def agrees(self) -> bool:
        return (self.own_sections, self.elsewhere) == (self.own_sections_theirs, self.elsewhere_theirs)


def compare(cuobjdump: Path, library: Path) -> Agreement:
    """Count the images of a library by both readers."""
    code = scan_file(library)
    containers = [found for found in code.containers if not found.container.bare]  # it lists no others
    own = [found for found in containers if found.section in CONTAINER_SECTIONS]
    others = [found for found in containers if found.section not in CONTAINER_SECTIONS]
    elsewhere: Counter[str] = Counter()
    if others:
        with tempfile.NamedTemporaryFile(suffix=".fatbin") as file, open_source(library) as source:
            for found in others:
                file.write(source.read(found.container.offset, found.container.stored_size))
            file.flush()
            elsewhere = _listed(cuobjdump, Path(file.name))
    theirs = _listed(cuobjdump, library) if own else Counter()
    return Agreement(library.name, _ours(own), theirs, _ours(others), elsewhere)


def _ours(containers: list[FoundContainer]) -> Counter[str]:
    labels: Counter[str] = Counter()
    for found in containers:
        for image in found.images:
            if image.kind is ImageKind.CONCATENATED:
                labels.update(part.label for part in image.parts)
            else:
                labels[image.label] += 1
    return labels


def _listed(cuobjdump: Path, file: Path) -> Counter[str]:
    # it warns about LTO-IR that it cannot unpack, and lists it all the same
    result = subprocess.run([cuobjdump, "-all", file], capture_output=True, text=True, check=True)
    return Counter(f"{_PREFIX[kind]}_{arch}" for kind, arch in _ENTRY.findall(result.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuobjdump", type=Path, required=True)
    parser.add_argument("libraries", type=Path, nargs="+")
    options = parser.parse_args()
    print("| library | images in `.nv_fatbin`, `__nv_relfatbin` | cuobjdump | elsewhere | cuobjdump | agrees |")
    print("|---|---|---|---|---|---|")
    for library in options.libraries:
        found = compare(options.cuobjdump, library)
        numbers = (found.own_sections, found.own_sections_theirs, found.elsewhere, found.elsewhere_theirs)
        counts = " | ".join(str(one.total()) for one in numbers)
        print(f"| {found.library} | {counts} | {'yes' if found.agrees else 'NO'} |", flush=True)
        if not found.agrees:
            print(found)


if __name__ == "__main__":
    main()

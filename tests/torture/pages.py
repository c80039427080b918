"""Damaged libraries that were cut to touched pages, and packs: what runs is right, or a sentence says why not."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

from tests.torture.harness import Torture
from tests.torture.mutations import damage_bytes
from tests.unit.surgery.paged import paged_library, touched
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import open_source
from torchtailor.core.errors import BadInputError, TorchtailorError
from torchtailor.surgery.cut import Cut, HostPages, PackCompression
from torchtailor.surgery.library import tailor_library
from torchtailor.verification.static.whole import whole_library
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.hook import HOOK_NAME, HookKind, hook_library
from torchtailor.workload.host_table import host_table
from torchtailor.workload.pack import PackPlace, open_pack

PLACE = "torchtailor-packs"
CALLS = (
    "import ctypes, sys; x = ctypes.CDLL(sys.argv[1]); print(x.hot(5), x.cold1(5), x.cold3(13), x.cold4(1), x.cold5(5),"
    "x.tables(9000))"
)
PAGES = 64 << 10  # where the pages of a raw pack begin: those are compared by `verify`, not when they are mapped


class Pages(Torture):
    """Mutants of packs in front of the hook, and of packs and libraries in front of `verify`."""

    name = "pages"
    share = 0.02

    def prepare(self, folder: Path) -> None:
        self.cuts: list[tuple[Path, Path, bool]] = []
        if shutil.which("c++") is None:
            return
        stock = paged_library(folder / "stock" / "libfar.so", flags=["-DTABLES", "-Wl,-z,relro"])
        self.results = self._called(stock).stdout
        workload = TracedWorkload(touched(stock, writable=True))
        for pages in (HostPages.CODE, HostPages.ALL):
            for compression in PackCompression:
                home = folder / f"{pages.value}-{compression.value}"
                chosen = Cut(workload=workload, host_pages=pages, gap=4096, pack_compress=compression)
                result = tailor_library(stock, home / stock.name, chosen, pack=PackPlace(home / PLACE, PLACE))
                with open_source(home / stock.name) as source:
                    hook = hook_library(ElfFile(source).machine, HookKind.NEEDED)
                shutil.copy(hook, home / PLACE / HOOK_NAME)
                raw = compression is PackCompression.NONE
                self.cuts.append((home / stock.name, home / PLACE / result.pack, raw))

    def attempt(self, dice: random.Random, folder: Path) -> str:
        if not self.cuts:
            return "no C++ compiler"
        library, pack, raw = dice.choice(self.cuts)
        whole = pack.read_bytes()
        damaged = damage_bytes(whole[:PAGES], dice) + whole[PAGES:] if raw else damage_bytes(whole, dice)
        if dice.random() < 0.5:
            pack.write_bytes(damaged)
            try:
                return self._run(library)
            finally:
                pack.write_bytes(whole)
        other = folder / pack.name
        other.write_bytes(damaged)
        copy = folder / library.name
        copy.write_bytes(damage_bytes(library.read_bytes(), dice) if dice.random() < 0.7 else library.read_bytes())
        return self._read(copy, other)

    def _called(self, library: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", CALLS, str(library)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    def _run(self, library: Path) -> str:
        done = self._called(library)
        if done.returncode == 0:
            assert done.stdout == self.results, done
            return "runs as stock"
        assert done.returncode in (127, -11), done
        assert done.stderr.startswith("torchtailor: ") and done.stderr.count("torchtailor: ") == 1, done
        return "refused by the hook"

    def _read(self, library: Path, pack: Path) -> str:
        try:
            with open_source(library) as source:
                host_table(ElfFile(source))
            with open_pack(pack):
                pass
            with whole_library(library, [pack]) as (whole, facts):
                if facts is None or facts.missing or facts.problem:
                    return "refused by verify"
                with open_source(whole) as source:
                    ElfFile(source)
        except TorchtailorError as error:
            if not isinstance(error, BadInputError):
                raise
            return "refused by a reader"
        return "nothing that counts"

"""Programs recorded on a library whose data is in a pack: the trace names the containers that stock's would."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import Entry, container
from tests.unit.surgery.paged import FAR, paged_library, touched
from torchtailor.catalog.gpus import TorchArch
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import open_source
from torchtailor.code.binary.symbols import dynamic_symbols
from torchtailor.code.gpucode.targets import Targets
from torchtailor.surgery.cut import Cut, HostPages, PackCompression
from torchtailor.surgery.library import tailor_library
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.events import make_trace, read_events
from torchtailor.workload.pack import PACK_VARIABLE, PackPlace
from torchtailor.workload.trace import Trace, merge_traces
from torchtailor.workload.whole import packed_sections

pytestmark = pytest.mark.xdist_group("host pages")
PLACE = "torchtailor-packs/far"
# in the order of real libraries: data with code among it, .nv_fatbin, and what records lead to
SOURCE = """
__asm__(".section .rodata; .balign 65536; plain: .incbin \\"{code}\\"; .balign 65536; .fill {far}, 1, 0x5a; .text");
__asm__(".section .cask_resource,\\"a\\"; .balign 65536; .fill {far}, 1, 0x5a; .balign 8; recorded:"
        ".incbin \\"{code}\\"; .balign 65536; .fill {far}, 1, 0x5a; .text");
__attribute__((visibility("hidden"))) extern const char plain[], code[], recorded[];
const char *places[] = {{plain, code, recorded}};
"""


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stock")
    code = folder / "code.fatbin"
    code.write_bytes(container(Entry(random.Random(1).randbytes(1 << 16), sm=80), Entry(b"kept" * 99, sm=90)))
    more = folder / "more.h"
    more.write_text(SOURCE.format(code=code, far=FAR))
    return paged_library(folder / "libfar.so", flags=[f'-DGPU="{code}"', f'-DALSO="{more}"'])


def cut(stock: Path, folder: Path, compression: PackCompression = PackCompression.NONE) -> Path:
    targets = Targets(TorchArch.parse_list("9.0"))
    workload = TracedWorkload(touched(stock))
    chosen = Cut(targets, host_pages=HostPages.ALL, gap=4096, workload=workload, pack_compress=compression)
    tailor_library(stock, folder / stock.name, chosen, pack=PackPlace(folder / PLACE, PLACE))
    with open_source(folder / stock.name) as source:
        assert {section.name for section in packed_sections(ElfFile(source))} >= {".rodata", ".cask_resource"}
    return folder / stock.name


def addresses(library: Path) -> list[int]:
    """Where the three containers are, by the pointers that the library has to them."""
    with open_source(library) as source:
        elf = ElfFile(source)
        at = next(symbol.value for symbol in dynamic_symbols(elf) if symbol.name == "places")
        found = elf.relocations_in(at, at + 24)
        return [found[at + 8 * number].addend for number in range(3)]


def recorded(library: Path, folder: Path, *loaded: int, touch: bool = False) -> Trace:
    """The trace of a process that gave these of the containers to the driver, by what the hook notes."""
    where = addresses(library)
    events = folder / "1-1.tsv"
    events.write_text("".join(f"load\t{library}\t{where[number]:#x}\t0x28\n" for number in loaded))
    pages = folder / "1-1.pages"
    pages.write_text(f"map\t100000\t101000\t0\t{library}\nat\t0+1\nend\tpages\n" if touch else "end\tpages\n")
    return make_trace(read_events([events, pages]))


@pytest.mark.parametrize("compression", PackCompression)
def test_it_names_the_containers_that_stock_has(stock: Path, tmp_path: Path, compression: PackCompression) -> None:
    library = cut(stock, tmp_path, compression)
    for loaded in ((0,), (1,), (2,), (0, 1, 2)):
        traces = [recorded(one, tmp_path, *loaded) for one in (stock, library)]
        (before,), (after,) = (trace.libraries for trace in traces)
        assert before.used == after.used == loaded
        assert before.containers == after.containers == 3
        assert before.identity == after.identity
        assert not traces[1].lost
        assert merge_traces(traces).libraries[0].used == loaded


def test_of_a_program_that_loads_no_gpu_code_nothing_is_asked(stock: Path, tmp_path: Path) -> None:
    """The pack is not read: what it has of GPU code is known from other traces."""
    library = cut(stock, tmp_path)
    touches = recorded(library, tmp_path, touch=True)
    ((own,), loads) = (touches.libraries, recorded(stock, tmp_path, 1))
    assert (own.containers, own.used, own.pages) == (0, (), ((0, 1),))
    for order in ([touches, loads], [loads, touches]):
        (both,) = merge_traces(order).libraries
        assert (both.containers, both.used, both.pages) == (3, (1,), ((0, 1),))


def test_without_its_pack_a_sentence_says_what_to_do(
    stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is said to be used that is not: of what is in the file, the second would be the first."""
    library = cut(stock, tmp_path)
    (pack,) = (tmp_path / PLACE).iterdir()
    away = pack.rename(tmp_path / pack.name)
    trace = recorded(library, tmp_path, 1)
    assert not trace.libraries
    (lost,) = trace.lost
    assert "torchtailor restore" in lost and pack.name in lost and str(library) in lost
    for named in (tmp_path, away, tmp_path.parent):
        monkeypatch.setenv(PACK_VARIABLE, f"/not/there:{named}")
        assert recorded(library, tmp_path, 1).libraries[0].used == (1,)


def test_a_damaged_pack_is_named(stock: Path, tmp_path: Path) -> None:
    library = cut(stock, tmp_path)
    (pack,) = (tmp_path / PLACE).iterdir()
    data = bytearray(pack.read_bytes())
    data[-FAR // 2] ^= 1
    pack.write_bytes(data)
    trace = recorded(library, tmp_path, 1)
    assert not trace.libraries and "damaged" in trace.lost[0]

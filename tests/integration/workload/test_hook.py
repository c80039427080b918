"""The hook under a stand-in driver: which container arrives for which request."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.workload.rig import (
    FOLDER,
    PRELOAD,
    WAYS,
    Pack,
    Rig,
    address_of,
    arrival,
    container,
    entry,
    key_of,
    recorded,
    ticket,
)

pytestmark = pytest.mark.xdist_group("hook")  # what is compiled is used by all

KEPT = container(entry(b"kept in the library"))
STOCK = [container(entry(f"stock code {number}".encode() * 40, 80), entry(b"sm90" * 200)) for number in range(6)]
MOVED = [container(entry(f"moved code {number}".encode() * (5 + number))) for number in range(6)]
PACK = Pack({key_of(stock): moved for stock, moved in zip(STOCK, MOVED, strict=True)})
CODES = [*(ticket(stock) for stock in STOCK), KEPT]
ALL = len(CODES)
NO_BINARY = "209"


@pytest.fixture(scope="module")
def cut(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cut library that brings the hook, its pack beside it."""
    folder = tmp_path_factory.mktemp("cut")
    PACK.write(folder / FOLDER / "all.ttpack")
    return rig.library(folder / "libcode.so", CODES, renamed=True, imports=True)


@pytest.fixture(scope="module")
def plain(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without the hook: for LD_PRELOAD."""
    folder = tmp_path_factory.mktemp("plain")
    PACK.write(folder / FOLDER / "all.ttpack")
    return rig.library(folder / "libcode.so", CODES, imports=True)


@pytest.fixture(params=["needed", "preload"])
def variant(request: pytest.FixtureRequest, rig: Rig, cut: Path, plain: Path) -> tuple[Path, tuple[Path, ...]]:
    return (cut, ()) if request.param == "needed" else (plain, (rig.preload,))


Variant = tuple[Path, tuple[Path, ...]]


@pytest.mark.parametrize("way", WAYS)
def test_the_pack_s_container_arrives(rig: Rig, variant: Variant, way: str) -> None:
    library, preload = variant
    loads = [f"load={number},{way}" for number in range(ALL)]
    done = rig.run(f"{'global' if way == 'default' else 'open'}={library}", *loads, preload=preload)
    assert (done.code, done.answers) == (0, ["0"] * ALL), done
    assert done.arrived == [arrival(way, code) for code in [*MOVED, KEPT]]
    assert done.said.count("\n") == 1
    assert f"torchtailor: {library} uses GPU code that its workload trace did not name; loading it from" in done.said


@pytest.mark.parametrize("way", sorted(set(WAYS) - {"default"}))
def test_without_the_hook_nothing_arrives(rig: Rig, plain: Path, way: str) -> None:
    done = rig.run(f"open={plain}", f"load=0,{way}", f"load=6,{way}")
    assert done.answers == [NO_BINARY, "0"]
    assert done.arrived == [arrival(way, CODES[0][:16]), arrival(way, KEPT)]


def test_other_functions_are_the_driver_s_own(rig: Rig, variant: Variant) -> None:
    library, preload = variant
    assert rig.run(f"open={library}", "load=0,launch", preload=preload).answers == ["77"]


def test_loaded_again_it_is_the_same(rig: Rig, variant: Variant) -> None:
    library, preload = variant
    done = rig.run(f"open={library}", *["load=1,library", "load=1,container"] * 3, preload=preload)
    assert done.arrived == [arrival("library", MOVED[1])] * 6


@pytest.mark.parametrize("way", ["library", "module", "nvjitlink", "import-library"])
def test_threads_that_load_at_once(rig: Rig, variant: Variant, way: str) -> None:
    library, preload = variant
    done = rig.run(f"open={library}", f"threads=16,{ALL},{way}", preload=preload)
    assert done.code == 0, done
    assert sorted(done.arrived) == sorted(16 * [arrival(way, code) for code in [*MOVED, KEPT]])
    assert done.said.count("\n") == 1


def test_a_library_that_was_closed_and_opened_again(rig: Rig, variant: Variant) -> None:
    library, preload = variant
    words = [f"open={library}", "load=2,library", "close"]
    done = rig.run(*words, *words, *words, preload=preload)
    assert (done.code, done.arrived) == (0, [arrival("library", MOVED[2])] * 3), done


# --- packs: where they are, that they are missing or damaged


def test_no_pack(rig: Rig, tmp_path: Path) -> None:
    library = rig.library(tmp_path / "libcode.so", CODES, renamed=True)
    done = rig.run(f"open={library}", "load=0,library", "load=0,library", "load=1,module", "load=6,module")
    assert done.answers == [NO_BINARY, NO_BINARY, NO_BINARY, "0"]
    assert done.arrived[0] == arrival("library", CODES[0][:16])
    said = [
        f"torchtailor: {library} needs GPU code (container {key_of(STOCK[number]).hex()[:12]}) that was moved to a "
        f"pack, and no pack with it was found (looked in {tmp_path}/{FOLDER} and in its parent folders). "
        "Put the pack there, set TORCHTAILOR_PACK, or run `torchtailor restore`."
        for number in (0, 1)
    ]
    assert done.said.splitlines() == said


def test_no_pack_is_said_also_quietly(rig: Rig, tmp_path: Path) -> None:
    library = rig.library(tmp_path / "libcode.so", CODES, renamed=True)
    done = rig.run(f"open={library}", "load=0,library", TORCHTAILOR_QUIET="1", TORCHTAILOR_PACK="/nowhere")
    assert "no pack with it was found (looked in /nowhere, " in done.said


def come(path: Path, *, whole: bool = True) -> None:
    """A pack that comes while a program waits: at once, or half of it first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if whole:
        PACK.write(path.with_name("staged")).rename(path)
    else:
        path.write_bytes(PACK.to_bytes()[:200])
        time.sleep(0.3)  # so that the half is seen
        path.write_bytes(PACK.to_bytes())


@pytest.mark.parametrize("place", ["beside", "named", "inside", "half"])
def test_a_pack_that_comes_later_is_waited_for(rig: Rig, tmp_path: Path, place: str) -> None:
    library = rig.library(tmp_path / "libcode.so", CODES, renamed=True)
    folder = {"beside": tmp_path / FOLDER, "inside": tmp_path / "packs" / "torch"}.get(place, tmp_path / "packs")
    variables = {} if place == "beside" else {"TORCHTAILOR_PACK": str(tmp_path / "packs")}
    done = rig.run(
        f"open={library}",
        "load=3,library",
        "load=4,module",
        variables={**variables, "TORCHTAILOR_PACK_WAIT": "60"},
        waiting=lambda: come(folder / "x.ttpack", whole=place != "half"),
    )
    assert done.arrived == [arrival("library", MOVED[3]), arrival("module", MOVED[4])]
    waiting, loading = done.said.splitlines()
    assert waiting == (
        f"torchtailor: {library} needs GPU code that is in a pack, which is not there yet: waiting for it up to 60 "
        "seconds."
    )
    assert "loading it from" in loading


def test_waiting_ends_and_is_not_done_twice(rig: Rig, tmp_path: Path) -> None:
    """Folders are looked at forty times: files are not left open, and what is refused is said at the start and end."""
    library = rig.library(tmp_path / "libcode.so", CODES, renamed=True)
    for number in range(8):
        Pack({key_of(bytes([number])): MOVED[0]}).write(tmp_path / FOLDER / f"other{number}.ttpack")
    (tmp_path / FOLDER / "damaged.ttpack").write_bytes(b"TTPACK")
    (tmp_path / FOLDER / "link.ttpack").symlink_to("other0.ttpack")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, limits[1]))
    began = time.monotonic()
    try:
        done = rig.run(f"open={library}", *(f"load={n},library" for n in range(4)), TORCHTAILOR_PACK_WAIT="2")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert 2 <= time.monotonic() - began < 60
    assert done.answers == [NO_BINARY] * 4
    assert done.said.count("waiting for it up to 2 seconds") == 1 and done.said.count("no pack with it was found") == 4
    assert done.said.count("link.ttpack is not used: it is a link") <= 5
    assert done.said.count("damaged.ttpack is not used") == 1


@pytest.mark.parametrize("up", [0, 1, 8])
def test_packs_of_folders_above(rig: Rig, tmp_path: Path, up: int) -> None:
    place = tmp_path.joinpath(*"abcdefghij")
    library = rig.library(place / "libcode.so", CODES, renamed=True)
    PACK.write([place, *place.parents][up] / FOLDER / "x.ttpack")
    assert rig.run(f"open={library}", "load=3,library").arrived == [arrival("library", MOVED[3])]


def test_nine_folders_above_is_too_far(rig: Rig, tmp_path: Path) -> None:
    place = tmp_path.joinpath(*"abcdefghij")
    library = rig.library(place / "libcode.so", CODES, renamed=True)
    PACK.write(place.parents[8] / FOLDER / "x.ttpack")
    assert rig.run(f"open={library}", "load=3,library").answers == [NO_BINARY]


def test_beside_the_file_that_a_link_leads_to(rig: Rig, cut: Path, tmp_path: Path) -> None:
    link = tmp_path / "libcode.so"
    link.symlink_to(cut)
    assert rig.run(f"open={link}", "load=3,library").arrived == [arrival("library", MOVED[3])]


def test_a_relative_name_after_the_folder_was_changed(rig: Rig, cut: Path, tmp_path: Path) -> None:
    done = rig.run(f"chdir={cut.parent}", "open=./libcode.so", f"chdir={tmp_path}", "load=3,library")
    assert done.arrived == [arrival("library", MOVED[3])]
    assert f"torchtailor: {cut} uses" in done.said


def test_named_packs(rig: Rig, tmp_path: Path) -> None:
    """Files and folders, in TORCHTAILOR_PACK, together with what lies beside the library."""
    library = rig.library(tmp_path / "lib" / "libcode.so", CODES, renamed=True)
    parts = [Pack({key_of(STOCK[number]): MOVED[number]}) for number in range(3)]
    parts[0].write(tmp_path / "one.ttpack")
    parts[1].write(tmp_path / "folder" / "two.ttpack")
    parts[2].write(tmp_path / "lib" / FOLDER / "three.ttpack")
    Pack({key_of(STOCK[3]): MOVED[3]}).write(tmp_path / "folder" / "other.name")
    Pack({key_of(STOCK[3]): MOVED[3]}).write(tmp_path / "folder" / ".hidden.ttpack")
    named = f"{tmp_path}/one.ttpack::{tmp_path}/not/there:{tmp_path}/folder"
    loads = [f"load={number},library" for number in range(4)]
    done = rig.run(f"open={library}", *loads, TORCHTAILOR_PACK=named, TORCHTAILOR_QUIET="1")
    assert done.answers == ["0", "0", "0", NO_BINARY]
    assert done.arrived == [arrival("library", code) for code in [*MOVED[:3], CODES[3][:16]]]
    assert done.said.count("\n") == 1


def test_a_name_set_by_the_program_itself(rig: Rig, tmp_path: Path) -> None:
    library = rig.library(tmp_path / "lib" / "libcode.so", CODES, renamed=True)
    pack = PACK.write(tmp_path / "elsewhere.ttpack")
    done = rig.run(f"open={library}", f"set=TORCHTAILOR_PACK,{pack}", "load=0,library")
    assert done.answers == ["0"]


def test_packs_of_two_gpus_are_one_container(rig: Rig, tmp_path: Path) -> None:
    sm80, sm90, both = entry(b"eighty" * 9, 80), entry(b"ninety" * 11, 90), entry(b"for both", 70)
    key = key_of(STOCK[0])
    library = rig.library(tmp_path / "libcode.so", CODES, renamed=True)
    Pack({key: container(both, sm80)}).write(tmp_path / FOLDER / "sm80.ttpack")
    Pack({key: container(both, sm90), key_of(STOCK[1]): MOVED[1]}).write(tmp_path / FOLDER / "sm90.ttpack")
    Pack({key: container(both, sm90)}).write(tmp_path / FOLDER / "sm90-again.ttpack")
    done = rig.run(f"open={library}", "load=0,library", "load=0,module", "load=0,link", "load=1,library")
    merged = container(both, sm80, sm90)
    assert done.arrived == [
        arrival("library", merged),
        arrival("module", merged),
        arrival("link", merged),
        arrival("library", MOVED[1]),
    ]


def split_site(rig: Rig, tmp_path: Path, *targets: int) -> Path:
    """A library of a split distribution as it is installed, with the packs of these GPUs beside it."""
    site = tmp_path / "site-packages"
    note = site / FOLDER / "torch" / "split.txt"
    note.parent.mkdir(parents=True)
    note.write_text("torch\n2.15.0+cu132.host\nlibcode.so\n")
    for target in targets:
        code = {
            key_of(stock): container(entry(f"{number} for {target}".encode(), target))
            for number, stock in enumerate(STOCK)
        }
        meta = {"library": "libcode.so", "split": True, "target": f"sm{target}"}
        Pack(code, meta=meta).write(site / FOLDER / f"torch_gpu_sm{target}" / "libcode.so-0000.ttpack")
    return rig.library(site / "torch" / "lib" / "libcode.so", CODES, renamed=True)


def test_packs_of_a_split_are_found_and_are_no_misses(rig: Rig, tmp_path: Path) -> None:
    library = split_site(rig, tmp_path, 90)
    misses = tmp_path / "misses.tsv"
    done = rig.run(
        f"open={library}", "load=0,library", "load=5,module", STANDIN_SM="90", TORCHTAILOR_MISSES=str(misses)
    )
    assert done.arrived == [
        arrival("library", container(entry(b"0 for 90", 90))),
        arrival("module", container(entry(b"5 for 90", 90))),
    ]
    assert done.said == ""
    assert not misses.exists()


def test_packs_of_a_split_for_two_gpus(rig: Rig, tmp_path: Path) -> None:
    library = split_site(rig, tmp_path, 80, 90)
    for sm in ("80", "90"):
        done = rig.run(f"open={library}", "load=1,library", STANDIN_SM=sm)
        both = container(entry(b"1 for 80", 80), entry(b"1 for 90", 90))
        assert (done.arrived, done.said) == ([arrival("library", both)], "")


@pytest.mark.parametrize(("sm", "extra"), [("90", "sm90"), ("120", "sm120"), ("103", "sm103"), ("", "sm90")])
def test_without_the_packs_of_a_split_one_sentence_names_the_command(
    rig: Rig, tmp_path: Path, sm: str, extra: str
) -> None:
    library = split_site(rig, tmp_path)
    loads = [f"load={number},library" for number in range(3)]
    done = rig.run(f"open={library}", *loads, STANDIN_SM=sm)
    assert done.answers == [NO_BINARY] * 3
    assert done.said.count("\n") == 1
    assert f"{library} has its GPU code in a package of its own, and " in done.said
    assert f"Run `pip install 'torch[{extra}]==2.15.0+cu132.host'`" in done.said


@pytest.mark.parametrize(
    ("installed", "sm", "said"),
    [(80, "90", True), (90, "80", True), (86, "80", True), (86, "89", False), (120, "121", False), (100, "120", True)],
)
def test_the_packs_of_a_split_for_another_gpu(rig: Rig, tmp_path: Path, installed: int, sm: str, said: bool) -> None:
    library = split_site(rig, tmp_path, installed)
    done = rig.run(f"open={library}", "load=0,library", "load=1,library", STANDIN_SM=sm)
    assert done.said.count(f"`pip install 'torch[sm{sm}]==2.15.0+cu132.host'`") == done.said.count("\n") == said


@pytest.mark.parametrize(
    "note", ["", "torch", "torch\n2.15", "to`rch\n2.15\nlibcode.so\n", "torch\n2 15\nlibcode.so\n"]
)
def test_a_note_that_says_nothing(rig: Rig, tmp_path: Path, note: str) -> None:
    library = split_site(rig, tmp_path)
    (tmp_path / "site-packages" / FOLDER / "torch" / "split.txt").write_text(note)
    done = rig.run(f"open={library}", "load=0,library", STANDIN_SM="90")
    assert "no pack with it was found" in done.said
    assert "pip install" not in done.said


def test_two_packs_of_which_one_cannot_be_walked(rig: Rig, tmp_path: Path) -> None:
    """Its checksum is right, so it is what was written: the first is used as it is."""
    odd = container(b"\xff" * 64)
    library = rig.library(tmp_path / "libcode.so", CODES, renamed=True)
    Pack({key_of(STOCK[0]): MOVED[0]}).write(tmp_path / FOLDER / "a.ttpack")
    Pack({key_of(STOCK[0]): odd}).write(tmp_path / FOLDER / "b.ttpack")
    assert rig.run(f"open={library}", "load=0,library").arrived == [arrival("library", MOVED[0])]


HUGE = (1 << 64) - 64


def damaged() -> dict[str, tuple[bytes, str]]:
    """Every kind of damage: the bytes, and what is said of them."""
    good, rows = PACK.to_bytes(), PACK.table()

    def table(*changed: tuple[bytes, int, int, int, int]) -> bytes:
        return Pack(PACK.containers, rows=[*changed, *rows[len(changed) :]]).to_bytes()

    def header(**values: int) -> bytes:
        return Pack(PACK.containers, header=values).to_bytes()

    key, offset, size, crc, zero = rows[0]
    cases = {
        "empty": (b"", "shorter"),
        "short": (good[:63], "shorter"),
        "header only": (good[:64], "size"),
        "cut": (good[:-1], "size"),
        "longer": (good + bytes(64), "size"),
        "no pack": (b"x" * 4096, "begin"),
        "other newline": (Pack(PACK.containers, magic=b"TTPACK\n\n").to_bytes(), "begin"),
        "version": (header(version=2), "version"),
        "size": (header(file_size=HUGE), "size"),
        "rows far away": (header(rows_offset=HUGE), "table"),
        "rows over the end": (header(rows_offset=len(good) - 8), "table"),
        "many rows": (header(row_count=0xFFFFFFFF), "table"),
        "description far away": (header(meta_offset=HUGE), "description"),
        "long description": (header(meta_size=HUGE), "description"),
        "rows' checksum": (header(rows_crc=0), "table has a wrong checksum"),
        "unsorted": (table(rows[1], rows[0]), "not sorted"),
        "twice": (table(rows[0], rows[0]), "not sorted"),
        "place far away": (table((key, HUGE, size, crc, zero)), "outside"),
        "huge size": (table((key, offset, HUGE + 63, crc, zero)), "outside"),
        "sum too large": (table((key, HUGE, 4096, crc, zero)), "outside"),
        "too small": (table((key, offset, 15, crc, zero)), "cannot be"),
        "unaligned": (table((key, offset + 8, size, crc, zero)), "cannot be"),
        "in the header": (table((key, 0, size, crc, zero)), "overlap"),
        "in the table": (table((key, 64, size, crc, zero)), "overlap"),
        "overlapping": (table((key, offset, size + 128, crc, zero)), "overlap"),
    }
    for at in (0, 8, 12, 16, 24, 32, 40, 48, 52, 56, 60, 63):
        flipped = bytearray(good)
        flipped[at] ^= 0x40
        cases[f"byte {at}"] = (bytes(flipped), "begin" if at < 8 else "header has a wrong checksum")
    for at in (64, 64 + 16, 64 + 24, 64 + 36, 64 + 40 * len(rows) - 1):
        flipped = bytearray(good)
        flipped[at] ^= 1
        cases[f"row byte {at}"] = (bytes(flipped), "table has a wrong checksum")
    return cases


DAMAGED = damaged()


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_pack_is_not_used(rig: Rig, cut: Path, tmp_path: Path, case: str) -> None:
    content, reason = DAMAGED[case]
    bad = tmp_path / FOLDER / "bad.ttpack"
    bad.parent.mkdir()
    bad.write_bytes(content)
    library = tmp_path / "libcode.so"
    shutil.copyfile(cut, library)
    done = rig.run(f"open={library}", "load=0,library", "load=1,library")
    assert (done.code, done.answers) == (0, [NO_BINARY] * 2), done
    first, *rest = done.said.splitlines()
    assert first.startswith(f"torchtailor: the pack {bad} is not used: ")
    assert reason in first
    assert len(rest) == 2
    assert all("no pack with it was found" in line for line in rest)


def test_a_good_pack_is_used_beside_a_damaged_one(rig: Rig, cut: Path, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "a.ttpack").write_bytes(DAMAGED["cut"][0])
    (tmp_path / FOLDER / "folder.ttpack").mkdir()
    PACK.write(tmp_path / FOLDER / "b.ttpack")
    library = Path(shutil.copyfile(cut, tmp_path / "libcode.so"))
    assert rig.run(f"open={library}", "load=0,library").arrived == [arrival("library", MOVED[0])]


def test_a_damaged_container_is_not_handed_out(rig: Rig, cut: Path, tmp_path: Path) -> None:
    good = PACK.to_bytes()
    bad = bytearray(good)
    rows = {row[0]: row for row in PACK.table()}
    bad[rows[key_of(STOCK[0])][1] + 70] ^= 1
    pack = tmp_path / FOLDER / "a.ttpack"
    pack.parent.mkdir()
    pack.write_bytes(bad)
    library = Path(shutil.copyfile(cut, tmp_path / "libcode.so"))
    done = rig.run(f"open={library}", "load=0,library", "load=1,library", TORCHTAILOR_QUIET="1")
    assert done.answers == [NO_BINARY, "0"]
    assert f"the container {key_of(STOCK[0]).hex()[:12]} in the pack {pack} is damaged" in done.said
    assert "no pack with it was found" in done.said


def test_a_row_that_leads_to_no_container_is_damaged(rig: Rig, cut: Path, tmp_path: Path) -> None:
    Pack({key_of(STOCK[0]): b"no container" * 9, key_of(STOCK[1]): MOVED[1] + bytes(8)}).write(
        tmp_path / FOLDER / "a.ttpack"
    )
    library = Path(shutil.copyfile(cut, tmp_path / "libcode.so"))
    done = rig.run(f"open={library}", "load=0,library", "load=1,library")
    assert done.answers == [NO_BINARY, NO_BINARY]
    assert done.said.count("is damaged") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users: needs root")
def test_a_pack_of_another_user_is_not_used_unless_named(rig: Rig, cut: Path, tmp_path: Path) -> None:
    library = Path(shutil.copyfile(cut, tmp_path / "libcode.so"))
    pack = PACK.write(tmp_path / FOLDER / "a.ttpack")
    os.chown(pack, 4711, 4711)
    refused = rig.run(f"open={library}", "load=0,library")
    assert refused.answers == [NO_BINARY]
    assert "it belongs to another user than the library" in refused.said
    assert rig.run(f"open={library}", "load=0,library", TORCHTAILOR_PACK=str(pack)).answers == ["0"]
    os.chown(library, 4711, 4711)
    assert rig.run(f"open={library}", "load=0,library").answers == ["0"]


# --- libcudart, which cut libraries share and which is not changed


@pytest.mark.parametrize(
    "flags", [("-Wl,-z,lazy",), ("-Wl,-z,now", "-Wl,-z,relro"), ("-fno-plt",)], ids=["lazy", "now", "no-plt"]
)
@pytest.mark.parametrize(
    "before",
    [(), ("global={runtime}",), ("open={runtime}", "call=cudart_init"), ("open={other}", "load=0,library")],
    ids=["together", "runtime first", "runtime in use", "hook first"],
)
def test_libraries_that_use_libcudart(
    rig: Rig, cut: Path, tmp_path: Path, flags: tuple[str, ...], before: tuple[str, ...]
) -> None:
    runtime = rig.runtime(tmp_path / "runtime", *flags)
    library = rig.library(tmp_path / "libcode.so", CODES, renamed=True, runtime=True)
    PACK.write(tmp_path / FOLDER / "a.ttpack")
    words = [word.format(runtime=runtime, other=cut) for word in before]
    loads = [f"load={number},shared" for number in range(ALL)]
    done = rig.run(*words, f"lazy={library}", *loads, path=[runtime.parent])
    assert done.code == 0, done
    assert done.arrived[-ALL:] == [arrival("library", code) for code in [*MOVED, KEPT]]


def test_a_stock_library_and_a_cut_one_share_libcudart(rig: Rig, tmp_path: Path) -> None:
    """What the first used stays right after the hook came."""
    stock = rig.library(tmp_path / "libstock.so", [KEPT], runtime=True)
    library = rig.library(tmp_path / "libcode.so", CODES, renamed=True, runtime=True)
    PACK.write(tmp_path / FOLDER / "a.ttpack")
    first, second = [f"open={stock}", "load=0,shared"], [f"open={library}", "load=0,shared"]
    done = rig.run(*first, *second, *first)
    kept = arrival("library", KEPT)
    assert done.arrived == [kept, arrival("library", MOVED[0]), kept]


# --- other tools in the process


@pytest.fixture(scope="module")
def tool(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    standin = Path(__file__).parent / "standin"
    return rig.compile(tmp_path_factory.mktemp("tool") / "libtool.so", "-shared", standin / "tool.c")


@pytest.mark.parametrize("order", ["hook, tool", "tool, hook"])
def test_a_tool_that_answers_dlsym_too(rig: Rig, plain: Path, tool: Path, order: str) -> None:
    preload = (rig.preload, tool) if order == "hook, tool" else (tool, rig.preload)
    done = rig.run(f"open={plain}", "load=0,library", "load=1,module", "load=6,library", preload=preload)
    assert done.arrived == [
        "tool cuLibraryLoadData",
        arrival("library", MOVED[0]),
        "tool cuModuleLoadData",
        arrival("module", MOVED[1]),
        "tool cuLibraryLoadData",
        arrival("library", KEPT),
    ]


def test_a_cut_library_under_such_a_tool(rig: Rig, cut: Path, tool: Path) -> None:
    done = rig.run(f"open={cut}", "load=0,library", "load=1,module", preload=[tool])
    assert done.arrived == [
        "tool cuLibraryLoadData",
        arrival("library", MOVED[0]),
        "tool cuModuleLoadData",
        arrival("module", MOVED[1]),
    ]


def test_libcudart_under_such_a_tool(rig: Rig, tool: Path, tmp_path: Path) -> None:
    library = rig.library(tmp_path / "libcode.so", CODES, renamed=True, runtime=True)
    PACK.write(tmp_path / FOLDER / "a.ttpack")
    runtime = rig.folder / "libcudart.so.13"
    for before in ([], [f"open={runtime}", "call=cudart_init"]):
        done = rig.run(*before, f"open={library}", "load=0,shared", preload=[tool])
        assert done.arrived == ["tool cuLibraryLoadData", arrival("library", MOVED[0])], before


@pytest.mark.parametrize("order", ["hook first", "hook last", "needed"])
@pytest.mark.parametrize("linked", [True, False], ids=["with the driver", "without"])
def test_a_tool_that_has_the_driver_s_function_itself(
    rig: Rig, cut: Path, plain: Path, tmp_path: Path, order: str, linked: bool
) -> None:
    """A tool that does not need the driver finds no next function by itself, but ours: no circle."""
    standin = Path(__file__).parent / "standin"
    driver: list[str | Path] = ["-Wl,--no-as-needed", rig.folder / "libcuda.so.1"] if linked else []
    tool = rig.compile(tmp_path / "libtool.so", "-shared", standin / "interposer.c", *driver)
    preload = {"hook first": [rig.preload, tool], "hook last": [tool, rig.preload], "needed": [tool]}[order]
    library = cut if order == "needed" else plain
    done = rig.run(f"open={library}", "load=0,import-module", preload=preload)
    assert done.code == 0, done
    arrives = linked or order == "hook last"
    assert done.arrived == ["interposer", *([arrival("module", MOVED[0])] if arrives else [])]


@pytest.mark.parametrize("order", ["first", "between", "last", "needed"])
def test_the_next_function_is_that_after_the_caller(rig: Rig, tmp_path: Path, order: str) -> None:
    """RTLD_NEXT and RTLD_DEFAULT mean the library that calls, not the hook."""
    chain = Path(__file__).parent / "standin" / "chain.c"
    flags = ["-DDLSYM=torchtailor_dlsym"] if order == "needed" else []
    libraries = []
    for name in "ab":
        arguments: list[str | Path] = ["-shared", f'-DNAME="{name}"', *flags, chain, *([rig.hook] if flags else [])]
        libraries.append(rig.compile(tmp_path / f"lib{name}.so", *arguments))
    a, b = libraries
    hook = rig.preload
    preload = {"first": [hook, a, b], "between": [a, hook, b], "last": [a, b, hook], "needed": [a, b]}[order]
    done = rig.run("ask=next_of,a", "ask=next_of,b", "ask=found_by_default,whose", preload=preload)
    assert (done.code, done.answers) == (0, ["b", "nobody", "found"]), done
    alone = rig.run(f"open={a}", "default=whose", preload=[] if flags else [hook])
    assert alone.answers == ["not found error"]


def test_the_driver_s_functions_are_not_found_where_no_driver_is(rig: Rig, plain: Path) -> None:
    done = rig.run(
        "default=cuModuleLoadData", "default=cuGetProcAddress_v2", "default=nvJitLinkAddData", preload=[rig.preload]
    )
    assert done.answers == ["not found error"] * 3


@pytest.mark.parametrize("how", ["deep", "lazily deep"])
def test_a_library_that_binds_past_others(rig: Rig, cut: Path, plain: Path, tmp_path: Path, how: str) -> None:
    """RTLD_DEEPBIND: the library finds the C library's dlsym before ours."""
    flags = ["-Wl,-z,lazy"] if how == "lazily deep" else ["-Wl,-z,now"]
    PACK.write(tmp_path / FOLDER / "a.ttpack")
    library = rig.library(tmp_path / "libcode.so", CODES, *flags)
    shared = rig.library(tmp_path / "libshared.so", CODES, *flags, renamed=True, runtime=True)
    assert rig.run(f"deep={library}", "load=0,library", preload=[rig.preload]).arrived == [arrival("library", MOVED[0])]
    assert rig.run(f"deep={cut}", "load=0,library").arrived == [arrival("library", MOVED[0])]
    assert rig.run(f"deep={shared}", "load=0,shared").arrived == [arrival("library", MOVED[0])]
    assert rig.run(f"deep={shared}", "load=0,shared", preload=[rig.preload]).arrived == [arrival("library", MOVED[0])]


def test_both_hooks_at_once(rig: Rig, cut: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    loads = [f"load={number},library" for number in range(ALL)]
    done = rig.run(f"open={cut}", *loads, preload=[rig.preload], TORCHTAILOR_RECORD=str(record))
    assert done.arrived == [arrival("library", code) for code in [*MOVED, KEPT]]
    assert done.said.count("\n") == 1
    assert len([line for line in recorded(record) if line[0] == "load"]) == ALL


# --- processes


def test_a_child_that_was_forked(rig: Rig, variant: Variant) -> None:
    library, preload = variant
    for words in (
        ["fork", f"open={library}", "load=0,library"],
        [f"open={library}", "load=0,library", "fork", "load=0,library"],
    ):
        done = rig.run(*words, preload=preload)
        assert done.code == 0
        assert set(done.arrived) == {arrival("library", MOVED[0])}


def test_a_child_that_was_started(rig: Rig, variant: Variant) -> None:
    library, preload = variant
    done = rig.run(f"open={library}", "load=0,library", "spawn", f"open={library}", "load=1,library", preload=preload)
    assert done.arrived == [arrival("library", MOVED[0]), arrival("library", MOVED[1])]
    assert done.said.count("\n") == 2


def test_forks_while_threads_are_inside(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = rig.run(f"forks=200,{tmp_path}/file", preload=[rig.preload], TORCHTAILOR_RECORD=str(tmp_path / "record"))
    assert done.code == 0, done


def storm(rig: Rig, kind: str, forks: int, record: Path, *, cut: Path, plain: Path) -> None:
    """Children that begin while other threads load libraries, open a file, hand over code and leave: none hangs.

    The loader's locks that another thread has at that moment stay taken in the child.
    """
    library = {"needed": cut, "preload": plain, "both, recording": cut}.get(kind)
    before, how = ([f"open={library}"], ",library") if library else ([], "")
    preload = [] if kind == "needed" else [rig.preload]
    settings = {"TORCHTAILOR_RECORD": str(record)} if "recording" in kind else {}
    quiet = {"TORCHTAILOR_QUIET": "1", "TORCHTAILOR_MISSES": "none"}
    done = rig.run(*before, f"storm={forks},{rig.storm()}{how}", preload=preload, variables=settings | quiet)
    assert (done.code, done.answers, done.said) == (0, [f"{forks} forks, 0 hung, 0 wrong"], ""), done
    if library:
        expected = {arrival("library", code) for code in MOVED[:2]}
        assert (set(done.arrived), len(done.arrived)) == (expected, forks)
    if settings:
        children = [file for file in record.glob("*.tsv") if f"open\t{rig.storm()}/storm0.so\n" in file.read_text()]
        assert len(children) >= forks


STORMS = ["recording", "needed", "preload", "both, recording"]


@pytest.mark.parametrize("kind", STORMS)
def test_forks_while_threads_load_libraries(rig: Rig, cut: Path, plain: Path, tmp_path: Path, kind: str) -> None:
    storm(rig, kind, 40, tmp_path, cut=cut, plain=plain)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORMS)
def test_two_thousand_forks_while_threads_load_libraries(
    rig: Rig, cut: Path, plain: Path, tmp_path: Path, kind: str
) -> None:
    storm(rig, kind, 2000, tmp_path, cut=cut, plain=plain)


def test_a_forked_child_that_loads_libraries(rig: Rig, cut: Path, plain: Path, tmp_path: Path) -> None:
    """What was not loaded before the fork: by the loader's names there are none, but the kernel's."""
    shared = rig.library(tmp_path / "libshared.so", CODES, renamed=True, runtime=True)
    PACK.write(tmp_path / FOLDER / "a.ttpack")
    link = tmp_path / "link.so"
    link.symlink_to(plain)
    words = ["fork", f"open={shared}", "load=0,shared", f"deep={link}", "load=1,library", "load=2,module"]
    record = tmp_path / "record"
    done = rig.run(*words, "leave=0", preload=[rig.preload], TORCHTAILOR_RECORD=str(record))
    assert (done.code, done.arrived) == (
        0, [arrival("library", MOVED[0]), arrival("library", MOVED[1]), arrival("module", MOVED[2])]
    ), done  # fmt: skip
    lines = recorded(record)
    for library, code in ((shared, CODES[0]), (plain, CODES[1]), (plain, CODES[2])):
        assert ["load", str(library), f"{address_of(library, code):#x}", "0x28"] in lines
    assert ["open", str(shared)] in lines
    assert ["open", str(plain)] in lines
    for first in (shared, cut):
        way = "shared" if first == shared else "library"
        done = rig.run("fork", f"open={first}", f"load=3,{way}", f"chdir={tmp_path}", f"load=6,{way}")
        assert done.arrived == [arrival("library", MOVED[3]), arrival("library", KEPT)], done


# --- misses


def test_misses_are_written(rig: Rig, variant: Variant, home: Path) -> None:
    library, preload = variant
    rig.run(f"open={library}", "load=0,library", "load=0,module", "load=2,library", "load=6,library", preload=preload)
    lines = [
        f"miss\t{library}\t{address_of(library, CODES[number]):#x}\t0x28\t{key_of(STOCK[number]).hex()}"
        for number in (0, 2)
    ]
    misses = home / ".cache" / "torchtailor" / "misses.tsv"
    assert misses.read_text().splitlines() == lines
    rig.run(f"open={library}", "load=0,library", preload=preload)
    assert misses.read_text().splitlines() == [*lines, lines[0]]


def test_where_misses_are_written(rig: Rig, cut: Path, home: Path, tmp_path: Path) -> None:
    words = (f"open={cut}", "load=0,library")
    rig.run(*words, TORCHTAILOR_MISSES=str(tmp_path / "new" / "folder" / "file"))
    assert (tmp_path / "new" / "folder" / "file").read_text().startswith("miss\t")
    rig.run(*words, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (tmp_path / "cache" / "torchtailor" / "misses.tsv").exists()
    done = rig.run(*words, TORCHTAILOR_MISSES="none")
    assert done.answers == ["0"]
    (tmp_path / "file").touch()
    done = rig.run(*words, TORCHTAILOR_MISSES=str(tmp_path / "file" / "cannot"), TORCHTAILOR_QUIET="1")
    assert (done.answers, done.said) == (["0"], "")
    assert not (home / ".cache").exists()


def test_misses_do_not_fill_the_disk(rig: Rig, cut: Path, tmp_path: Path) -> None:
    full = tmp_path / "misses.tsv"
    with full.open("wb") as file:
        file.truncate(16 << 20)
    assert rig.run(f"open={cut}", "load=0,library", TORCHTAILOR_MISSES=str(full)).answers == ["0"]
    assert full.stat().st_size == 16 << 20


@pytest.mark.parametrize(("value", "lines"), [("1", 0), ("yes", 0), ("0", 1), ("", 1)])
def test_quiet(rig: Rig, variant: Variant, value: str, lines: int) -> None:
    library, preload = variant
    done = rig.run(f"open={library}", "load=0,library", preload=preload, TORCHTAILOR_QUIET=value)
    assert done.said.count("\n") == lines


# --- records


def test_loads_are_recorded(rig: Rig, variant: Variant, tmp_path: Path) -> None:
    library, preload = variant
    record = tmp_path / "not" / "there"
    record.parent.mkdir()
    loads = ["load=6,library", "load=6,module", "load=0,library", "load=1,nvjitlink", "load=6,link"]
    done = rig.run(f"open={library}", *loads, preload=preload, TORCHTAILOR_RECORD=str(record))
    assert done.code == 0
    lines = [line for line in recorded(record) if line[0] in {"load", "link", "proc", "lost"}]
    (first, *rest), pid = lines, next(record.glob("*.tsv")).name.split("-")[0]
    assert first == ["proc", pid, str(rig.folder / "program")]
    unseen = [] if preload else [["lost", "which files were opened"]]  # the hook of a library comes too late for that
    assert rest == [
        *unseen,
        ["load", str(library), f"{address_of(library, KEPT):#x}", f"{len(KEPT):#x}"],
        ["load", str(library), f"{address_of(library, CODES[0]):#x}", "0x28"],
        ["link", str(library), f"{address_of(library, CODES[1]):#x}", "0x10"],
    ]


def test_without_the_variable_nothing_is_recorded(rig: Rig, variant: Variant, tmp_path: Path) -> None:
    library, preload = variant
    rig.run(f"chdir={tmp_path}", f"open={library}", "load=6,library", preload=preload)
    assert not list(tmp_path.iterdir())


def cubin(body: bytes) -> bytes:
    """An ELF image with a section, its table in front of what it describes."""
    import struct

    sections = [(0,) * 10, (1, 1, 0, 0, 64 + 192, len(body), 0, 0, 8, 0), (1, 8, 0, 0, 64, 1 << 30, 0, 0, 8, 0)]
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64, 0, 64, 0, 0, 64, 3, 0)
    return header + b"".join(struct.pack("<IIQQQQIIQQ", *section) for section in sections) + body


def test_code_in_no_library_is_recorded_by_its_checksum(rig: Rig, variant: Variant, tmp_path: Path) -> None:
    import zlib

    library, preload = variant
    image, text = cubin(b"made at run time" * 99), b".version 8.0 // ptx"
    lying = bytearray(image)
    lying[40:48] = (1 << 30).to_bytes(8, "little")
    files = [tmp_path / name for name in ("image", "text", "lying")]
    for file, content in zip(files, (image + b"beyond", text + b"\0", bytes(lying)), strict=True):
        file.write_bytes(content)
    words = [f"memory={file}" for file in files]
    done = rig.run(f"open={library}", *words, preload=preload, TORCHTAILOR_RECORD=str(tmp_path / "record"))
    assert done.code == 0, done
    lines = [line for line in recorded(tmp_path / "record") if line[0] not in {"open", "proc"}]
    assert lines[0 if preload else 1 :] == [
        ["cubin", f"{len(image):#x}", f"{zlib.crc32(image):08x}"],
        ["lost", "a cubin whose size could not be read"],
    ]


def test_files_that_are_opened_are_recorded(
    rig: Rig, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "below" / "here")  # a folder above which nothing else records
    data = tmp_path / "data"
    data.mkdir()
    names = ["read", "stream", "at", "relative", "tab\tand\nline\\"]
    for name in (*names, "unread", "written"):
        (data / name).write_text("x")
    (tmp_path / "link").symlink_to(data / "read")
    words = [
        *(f"read={data}/read", f"read={data}/read", f"read={tmp_path}/link", f"stream={data}/stream"),
        *(f"at={data},at", f"chdir={data}", "read=./relative", f"read={data}/{names[-1]}", f"write={data}/written"),
        *(f"read={data}", "read=/proc/self/maps", "read=/dev/null", f"read={data}/not-there", f"open={plain}"),
    ]
    rig.run(*words, preload=[rig.preload], TORCHTAILOR_RECORD="../record")
    opened = [
        line[1] for line in recorded(tmp_path / "record") + recorded(tmp_path / "below" / "record") if line[0] == "open"
    ]
    ours = [path for path in opened if path.startswith(str(tmp_path))]
    escaped = f"{data}/tab\\tand\\nline\\\\"
    assert ours == [f"{data}/read", f"{tmp_path}/link", f"{data}/stream", f"{data}/at", f"{data}/relative", escaped]
    assert str(plain) in opened
    assert any(Path(path).name == "libc.so.6" for path in opened)
    assert not any(PRELOAD in path for path in opened)
    assert len(opened) == len(set(opened))


def test_a_file_that_is_made_gets_its_mode(rig: Rig, tmp_path: Path) -> None:
    umask = os.umask(0o022)
    os.umask(umask)
    done = rig.run(f"mode={tmp_path}/new", preload=[rig.preload], TORCHTAILOR_RECORD=str(tmp_path / "record"))
    assert done.answers == [f"{0o640 & ~umask:o}"]


def test_each_process_has_a_record(rig: Rig, variant: Variant, tmp_path: Path) -> None:
    library, preload = variant
    words = [f"open={library}", "load=6,library", "fork", "load=6,library", "load=0,library", "spawn"]
    done = rig.run(
        *words, f"open={library}", "load=1,library", "leave=0", preload=preload, TORCHTAILOR_RECORD=str(tmp_path)
    )
    assert done.code == 0, done
    loads = []
    for file in tmp_path.glob("*.tsv"):
        lines = [line.split("\t") for line in file.read_text().splitlines()]
        assert [line[0] for line in lines].count("proc") == 1
        assert lines[0][:2] == ["proc", file.name.split("-")[0]]
        loads.append([int(line[2], 16) for line in lines if line[0] == "load"])
    places = [address_of(library, code) for code in CODES]
    assert sorted(loads) == sorted([[places[6]], [places[6], places[0]], [places[1]]])


def test_libraries_are_recorded_also_if_the_program_leaves_at_once(rig: Rig, plain: Path, tmp_path: Path) -> None:
    done = rig.run(f"open={plain}", "leave=7", preload=[rig.preload], TORCHTAILOR_RECORD=str(tmp_path))
    assert done.code == 7
    assert ["open", str(plain)] in recorded(tmp_path)


def test_a_record_that_cannot_be_written_is_said_once(rig: Rig, plain: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = [f"open={plain}", "load=6,library", "load=6,module"]
    done = rig.run(*words, preload=[rig.preload], TORCHTAILOR_RECORD=str(tmp_path / "file"))
    assert done.answers == ["0", "0"]
    assert done.said.count("\n") == 1
    assert f"torchtailor: the record {tmp_path}/file/" in done.said


def test_threads_record_each_place_once(rig: Rig, variant: Variant, tmp_path: Path) -> None:
    library, preload = variant
    rig.run(f"open={library}", f"threads=16,{ALL},library", preload=preload, TORCHTAILOR_RECORD=str(tmp_path))
    loads = [line for line in recorded(tmp_path) if line[0] == "load"]
    assert len(loads) == ALL
    assert {int(line[2], 16) for line in loads} == {address_of(library, code) for code in CODES}


# --- a library that was changed as cut ones are


def test_a_library_whose_imports_patchelf_renamed(rig: Rig, plain: Path, tmp_path: Path) -> None:
    from torchtailor.workload.hook import PREFIX, renamed_symbols

    if not (patchelf := shutil.which("patchelf")):
        pytest.skip("patchelf not found")
    if (
        "--rename-dynamic-symbols"
        not in subprocess.run([patchelf, "--help"], capture_output=True, text=True, check=False).stderr
    ):
        pytest.skip("this patchelf does not rename symbols")
    library = Path(shutil.copy(plain, tmp_path / "libcode.so"))
    names = tmp_path / "names"
    names.write_text("".join(f"{name} {PREFIX}{name}\n" for name in renamed_symbols()))
    line = [patchelf, "--rename-dynamic-symbols", str(names), "--add-needed", rig.hook.name, str(library)]
    subprocess.run(line, check=True)
    PACK.write(tmp_path / FOLDER / "a.ttpack")
    for way in sorted(set(WAYS) - {"default"}):
        done = rig.run(f"open={library}", f"load=0,{way}", f"load=6,{way}")
        assert done.arrived == [arrival(way, MOVED[0]), arrival(way, KEPT)], (way, done)

"""The hook where other users can write: whose packs and notes are used, what is printed, and files that change."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.workload.rig import FOLDER, Pack, Rig, arrival, container, entry, key_of
from tests.integration.workload.test_hook import ALL, CODES, MOVED, NO_BINARY, PACK, STOCK, split_site
from torchtailor.core.format import printable

pytestmark = pytest.mark.xdist_group("hook")  # what is compiled is used by all

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users: needs root")
STRANGER = 65534
EVIL = container(entry(b"another user's code"))
EVIL_PACK = Pack({key_of(stock): EVIL for stock in STOCK})
REFUSED = "Give it to the library's owner and nobody else the right to write there, or name it in TORCHTAILOR_PACK."


@pytest.fixture(scope="module")
def built(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rig.library(tmp_path_factory.mktemp("built") / "libcode.so", CODES, renamed=True)


@pytest.fixture
def library(built: Path, tmp_path: Path) -> Path:
    """A cut library in a folder, as yet without packs."""
    folder = tmp_path / "env" / "lib"
    folder.mkdir(parents=True)
    return Path(shutil.copy(built, folder / "libcode.so"))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    current = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(current)


def link(path: Path) -> None:
    target = path.parent.parent.parent / "target"
    if path.suffix == ".ttpack":
        EVIL_PACK.write(target)
    elif path.suffix == ".txt":
        target.write_text("evil-package\n1.0\nlibcode.so\n")
    else:
        EVIL_PACK.write(target / "a.ttpack")
    path.symlink_to(target)


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [fifo, listener, link, folder])
@pytest.mark.parametrize("name", ["x.ttpack", "torch/x.ttpack", "torch/split.txt", "torch", ""])
def test_what_is_no_plain_file_is_not_opened(rig: Rig, library: Path, make: Callable[[Path], None], name: str) -> None:
    path = library.parent / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    done = rig.run(f"open={library}", "load=0,library")
    assert (done.code, done.answers) == (0, [NO_BINARY])
    assert "no pack with it was found" in done.said
    if name and (name != "torch" and (make is not folder or name != "x.ttpack")):
        reason = "it is a link" if make is link else "it is not a plain file"
        assert f"{path} is not used: {reason}. {REFUSED}" in done.said


def owned(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def world(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def sticky(path: Path) -> None:
    path.chmod(0o1777)


def group(path: Path) -> None:
    os.chown(path, -1, STRANGER)
    path.chmod(path.stat().st_mode | 0o020)


@needs_root
@pytest.mark.parametrize("change", [owned, world, group, sticky])
@pytest.mark.parametrize("name", ["..", "", "torch", "torch/x.ttpack"])
def test_packs_that_others_can_change(rig: Rig, library: Path, change: Callable[[Path], None], name: str) -> None:
    """The folder that they lie in, the packs' own, the distribution's, the file."""
    pack = PACK.write(library.parent / FOLDER / "torch" / "x.ttpack")
    (pack.parent / "split.txt").write_text("torch\n2.15.0\nlibcode.so\n")
    assert rig.run(f"open={library}", "load=0,library").answers == ["0"]
    path = library.parent if name == ".." else library.parent / FOLDER / name
    change(path)
    done = rig.run(f"open={library}", "load=0,library", STANDIN_SM="90")
    shared = name == ".." and change is group  # who may replace the library itself
    assert (done.code, done.answers) == (0, ["0"] if shared else [NO_BINARY]), done
    assert (REFUSED in done.said) == (not shared)
    assert ("pip install" in done.said) == (name == "torch/x.ttpack")  # then the note is still the owner's
    if name != ".." and not shared:
        assert f"{path} is not used: " in done.said
    assert rig.run(f"open={library}", "load=0,library", TORCHTAILOR_PACK=str(pack)).answers == ["0"]


@needs_root
@pytest.mark.parametrize("change", [owned, world, group, sticky])
def test_notes_that_others_can_change(rig: Rig, tmp_path: Path, change: Callable[[Path], None]) -> None:
    library = split_site(rig, tmp_path)
    change(tmp_path / "site-packages" / FOLDER / "torch" / "split.txt")
    done = rig.run(f"open={library}", "load=0,library", "load=1,library", STANDIN_SM="90")
    assert "pip install" not in done.said
    assert done.said.count(f"the note {tmp_path}/site-packages/{FOLDER}/torch/split.txt is not used: ") == 1


@needs_root
def test_a_group_that_may_write_to_the_library(rig: Rig, library: Path) -> None:
    """As with a umask of 002: whoever is in it could change the library."""
    PACK.write(library.parent / FOLDER / "torch" / "x.ttpack")
    for path in (library, library.parent / FOLDER, library.parent / FOLDER / "torch" / "x.ttpack"):
        group(path)
    assert rig.run(f"open={library}", "load=0,library").answers == ["0"]


@needs_root
def test_a_named_folder_that_all_may_write_to(rig: Rig, library: Path, tmp_path: Path) -> None:
    """It was named for what its owner, the program's user and the library's owner put there."""
    shared = tmp_path / "shared"
    evil = EVIL_PACK.write(shared / "a.ttpack")
    PACK.write(shared / "b.ttpack")
    owned(evil)
    sticky(shared)
    done = rig.run(f"open={library}", "load=0,library", TORCHTAILOR_PACK=str(shared))
    assert done.arrived == [arrival("library", MOVED[0])]
    assert f"{evil} is not used: it belongs to another user than its folder, the library and the program." in done.said
    owned(shared)
    done = rig.run(f"open={library}", "load=0,library", TORCHTAILOR_PACK=str(shared))
    assert len(done.arrived) == 1
    assert arrival("library", MOVED[0]) not in done.arrived  # both, as one container


NASTY = "a\x1b]0;title\x07\n\r\x7f\u009b\u202e\u2028\udcff \\ ünï"


@pytest.mark.parametrize("what", ["library", "pack", "named"])
def test_names_are_printed_without_what_a_terminal_obeys(rig: Rig, library: Path, tmp_path: Path, what: str) -> None:
    settings = {}
    if what == "library":
        nasty = tmp_path / NASTY
        nasty.mkdir()
        library = Path(shutil.copy(library, nasty / "libcode.so"))
    elif what == "pack":
        (library.parent / FOLDER).mkdir()
        (library.parent / FOLDER / f"{NASTY}.ttpack").write_bytes(b"x")
    else:
        settings = {"TORCHTAILOR_PACK": str(tmp_path / NASTY)}
    done = rig.run(f"open={library}", "load=0,library", variables=settings)
    shown = r"a\x1b]0;title\x07\x0a\x0d\x7f\xc2\x9b\xe2\x80\xae\xe2\x80\xa8\xff \ ünï"
    assert shown in done.said
    assert done.said.count("\n") == (2 if what == "pack" else 1)
    assert done.said.replace("\n", "").isprintable()


# --- packs that change while the program runs


@pytest.mark.parametrize("change", ["truncate", "rewrite"])
@pytest.mark.parametrize("at", [0, 64, 400, 1024, 2000])
def test_a_pack_that_is_changed_in_place(rig: Rig, library: Path, change: str, at: int) -> None:
    """No SIGBUS and no other code: a sentence, and CUDA's own error."""
    pack = PACK.write(library.parent / FOLDER / "x.ttpack")
    loads = [f"load={number},library" for number in range(ALL - 1)]
    done = rig.run(f"open={library}", "load=0,library", f"{change}={pack},{at}", *loads, TORCHTAILOR_QUIET="1")
    assert done.code == 0
    first = {row[0]: row[1] for row in PACK.table()}
    whole = [number == 0 or first[key_of(STOCK[number])] + len(MOVED[number]) <= at for number in range(ALL - 1)]
    assert done.answers == ["0", *("0" if good else NO_BINARY for good in whole)]
    assert done.arrived[1:] == [
        arrival("library", MOVED[number] if good else CODES[number][:16]) for number, good in enumerate(whole)
    ]
    lost = whole.count(False)
    assert done.said.count(f"in the pack {pack} is damaged and is not used: the pack was changed while the") == lost


def test_a_pack_that_was_removed_or_replaced_is_still_the_same(rig: Rig, library: Path) -> None:
    pack = PACK.write(library.parent / FOLDER / "x.ttpack")
    os.link(pack, pack.with_name("kept"))
    EVIL_PACK.write(pack.with_name("new"))
    done = rig.run(
        f"open={library}", "load=0,library", f"rename={pack.with_name('new')},{pack}", "load=1,library",
        TORCHTAILOR_QUIET="1",
    )  # fmt: skip
    assert done.arrived == [arrival("library", MOVED[0]), arrival("library", MOVED[1])]


def test_a_program_that_closes_all_files(rig: Rig, library: Path) -> None:
    pack = PACK.write(library.parent / FOLDER / "x.ttpack")
    done = rig.run(f"open={library}", "load=0,library", "closeall", "load=1,library", TORCHTAILOR_QUIET="1")
    assert done.arrived == [arrival("library", MOVED[0]), arrival("library", MOVED[1])]
    os.link(pack, pack.with_name("kept"))
    EVIL_PACK.write(pack.with_name("new"))
    words = ["load=0,library", "closeall", f"rename={pack.with_name('new')},{pack}", "load=1,library"]
    done = rig.run(f"open={library}", *words, TORCHTAILOR_QUIET="1")
    assert done.answers == ["0", NO_BINARY]
    assert "the pack was changed while the program ran" in done.said


# --- what is written


def test_misses_and_records_are_not_written_to_pipes_and_links(rig: Rig, library: Path, tmp_path: Path) -> None:
    PACK.write(library.parent / FOLDER / "x.ttpack")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "aim")
    for name in ("pipe", "link"):
        assert rig.run(f"open={library}", "load=0,library", TORCHTAILOR_MISSES=str(tmp_path / name)).answers == ["0"]
    assert not (tmp_path / "aim").exists()


@needs_root
def test_no_misses_in_the_home_of_another_user(rig: Rig, library: Path, home: Path) -> None:
    PACK.write(library.parent / FOLDER / "x.ttpack")
    owned(home)
    rig.run(f"open={library}", "load=0,library")
    assert not (home / ".cache").exists()


# --- random packs, notes, folders, wrappers and containers, while another thread changes them


def fuzz(rig: Rig, tmp_path: Path, count: int) -> None:
    from tests.integration.workload.test_other_builds import sanitized

    checked = sanitized(tmp_path, "address")
    native = Path(__file__).parents[3] / "src" / "torchtailor" / "workload" / "native"
    sources = [native / name for name in ("hook.c", "objects.c", "packs.c", "pages.c", "record.c", "zstd.c")]
    standin = Path(__file__).parent / "standin" / "fuzz.c"
    driver = checked.compile(tmp_path / "libcuda.so.1", "-shared", "-Wl,-soname,libcuda.so.1", "-DDRIVER", standin)
    program = checked.compile(
        tmp_path / "fuzz", *checked.flags[:-1], f"-I{native}", standin, *sources, "-Wl,--no-as-needed", driver
    )
    pack = PACK.write(tmp_path / "seed.ttpack")
    (tmp_path / "work").mkdir()
    line = [str(program), str(pack), str(tmp_path / "work"), "7", str(count)]
    settings = {**os.environ, **checked.settings, "TORCHTAILOR_MISSES": "none", "LD_LIBRARY_PATH": str(tmp_path)}
    said = tmp_path / "said"
    with said.open("wb") as stderr:
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=stderr, env=settings, check=False, text=True)
    text = said.read_bytes()
    assert done.returncode == 0, text[-3000:]
    inputs, opened, refused = map(int, done.stdout.split())
    assert inputs == count
    assert opened > count / 20
    assert refused > count / 5
    assert printable(text.decode()) == text.decode()


def test_random_folders_under_a_sanitizer(rig: Rig, tmp_path: Path) -> None:
    fuzz(rig, tmp_path, 300)


@pytest.mark.slow
def test_many_random_folders_under_a_sanitizer(rig: Rig, tmp_path: Path) -> None:
    fuzz(rig, tmp_path, 20_000)

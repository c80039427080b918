"""The pages that processes touch: recorded by the real recorder, and read from what it writes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchtailor.workload.events import make_trace, read_events
from torchtailor.workload.record import record_program, recording_environment
from torchtailor.workload.trace import PAGE, Trace, TracedLibrary, merge_traces, read_trace, trace_facts, write_trace

pytestmark = pytest.mark.xdist_group("hook-files")
FUNCTIONS = 64

PROGRAM = """
import ctypes, os, signal, subprocess, sys, threading
def call(number): getattr(ctypes.CDLL(sys.argv[1]), f"f{number}")()
if len(sys.argv) > 2:
    call(int(sys.argv[2]))
    if sys.argv[2] == "40":
        os.execv(sys.executable, [sys.executable, *sys.argv[:2], "44"])
    sys.exit()
call(4)
worker = threading.Thread(target=call, args=(8,)); worker.start(); worker.join()
for how in (12, 16, 20):
    if not os.fork():
        call(how)
        {12: sys.exit, 16: lambda: os._exit(0), 20: lambda: os.kill(os.getpid(), signal.SIGKILL)}[how]()
    os.wait()
child = os.fork()
if not child:
    grandchild = os.fork()
    if not grandchild:
        call(24)
        os._exit(0)
    os.waitpid(grandchild, 0)
    call(28)
    os._exit(0)
os.waitpid(child, 0)
subprocess.run([sys.executable, *sys.argv[:2], "32"])
subprocess.run([sys.executable, *sys.argv[:2], "40"])
os.closerange(3, 256)
call(36)
os.kill(os.getpid(), signal.SIGTERM)
"""
CALLED = (4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library each of whose functions has a page of its own, and writes to another."""
    if not shutil.which("cc"):
        pytest.skip("cc not found")
    folder = tmp_path_factory.mktemp("pages")
    text = f"__attribute__((aligned({PAGE}))) char data[{FUNCTIONS}][{PAGE}] = {{{{1}}}};\n" + "".join(
        f"__attribute__((aligned({PAGE}))) int f{number}(void) {{ return ++data[{number}][9]; }}\n"
        for number in range(FUNCTIONS)
    )
    (folder / "paged.c").write_text(text)
    made = folder / "libpaged.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wl,-z,separate-code", "-o", str(made), str(folder / "paged.c")]
    subprocess.run(command, check=True)
    return made


def called(trace: Trace, library: Path) -> set[int]:
    """The functions whose pages a trace names."""
    touched = touched_pages(trace, library)
    return {int(name[1:]) for name, page in symbols(library).items() if name[1:].isdigit() and page in touched}


def written(trace: Trace, library: Path) -> set[int]:
    """Those whose data a trace names."""
    first = symbols(library)["data"]
    return {page - first for page in touched_pages(trace, library) if 0 <= page - first < FUNCTIONS}


def symbols(library: Path) -> dict[str, int]:
    """The pages of symbols."""
    lines = subprocess.run(["nm", "-D", library], check=True, capture_output=True, text=True).stdout.splitlines()
    return {words[2]: int(words[0], 16) // PAGE for words in map(str.split, lines) if len(words) == 3}


def touched_pages(trace: Trace, library: Path) -> set[int]:
    (own,) = (one for one in trace.libraries if one.name == library.name)
    return {page for first, count in own.pages for page in range(first, first + count)}


def test_each_page_that_a_program_or_its_children_touch_and_no_other(library: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = record_program([sys.executable, str(program), str(library)])
    assert run.exit_code == 128 + 15
    found = called(run.trace, library)
    assert found >= set(CALLED) and written(run.trace, library) >= set(CALLED)
    assert not [what for what in run.trace.lost if "pages" in what]
    if run.trace.neighbours:
        pytest.skip("this kernel maps pages in groups")
    assert found - {FUNCTIONS - 1} == set(CALLED) == written(run.trace, library)  # the last page has .fini, too


FIRST = """
import ctypes, os, signal, sys
def call(number): getattr(ctypes.CDLL(sys.argv[1]), f"f{number}")()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(1, signal.SIGUSR1)
assert signal.sigtimedwait({signal.SIGUSR1}, 60)
assert os.getpgrp() == os.getpid()
call(4)
reading, writing = os.pipe()
if not os.fork():
    os.close(writing)
    os.read(reading, 1)
    call(8)
    os._exit(0)
ctypes.CDLL(sys.argv[2])
"""


@pytest.fixture
def apart() -> list[str]:
    """What makes a program the first process of its container."""
    line = ["unshare", "--pid", "--fork"]
    if not shutil.which("unshare") or subprocess.run([*line, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare, and rights for it")
    return line


@pytest.mark.parametrize("through", [[], ["sh", "-c", 'exec "$@"', "sh"]], ids=["itself", "after exec"])
@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGTERM)", 128 + 15)])
def test_the_first_process_of_a_container(
    apart: list[str], library: Path, tmp_path: Path, through: list[str], end: str, code: int
) -> None:
    """All others end with it, also what reads pages: so it is recorded as the child of one that waits for all."""
    source, made = tmp_path / "last.c", tmp_path / "liblast.so"
    alone = f"noinline, aligned({PAGE * 64})"
    source.write_text(
        f'__attribute__((section(".text.called"), {alone})) int called(int one) {{ return one + 1; }}\n'
        f'__attribute__((destructor, section(".text.last"), {alone})) int last(void) {{ return called(2); }}\n'
    )
    flags = ["-shared", "-fPIC", "-O1", "-Wl,-z,separate-code"]
    subprocess.run(["cc", *flags, "-o", str(made), str(source)], check=True)
    program = [sys.executable, "-c", FIRST + end, str(library), str(made)]
    run = record_program([*apart, *through, *program])
    assert run.exit_code == code and not run.trace.lost
    assert {4, 8} <= called(run.trace, library)
    if code == 7:
        assert {symbols(made)["last"], symbols(made)["called"]} <= touched_pages(run.trace, made)


def test_the_first_process_of_a_container_has_its_terminal(apart: list[str], tmp_path: Path) -> None:
    spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    program = "import os, sys; sys.exit(7 if os.getppid() == 1 and os.tcgetpgrp(0) == os.getpgrp() else 1)"
    line = [sys.executable, "-c", spawn, "env", f"TORCHTAILOR_RECORD={tmp_path}", *apart, sys.executable, "-c", program]
    environment = recording_environment(tmp_path)
    del environment["TORCHTAILOR_RECORD"]  # of the program alone
    assert subprocess.run(line, env=environment, stdin=subprocess.DEVNULL, check=False).returncode == 7


def test_the_first_process_of_a_container_with_threads_stays_it(
    apart: list[str], library: Path, tmp_path: Path
) -> None:
    """Its child would be without them; it writes what it touched up to its end."""
    (tmp_path / "early.c").write_text(
        "#include <pthread.h>\n#include <unistd.h>\n"
        "static void *wait(void *none) { pause(); return none; }\n"
        "__attribute__((constructor)) void early(void) { pthread_t one; pthread_create(&one, 0, wait, 0); }\n"
    )
    (tmp_path / "main.c").write_text(
        "#include <unistd.h>\nvoid early(void); int f4(void);\n"
        "int main(int count, char **words) { (void)words; if (count > 1) early(); f4(); return getpid(); }\n"
    )
    early, main = tmp_path / "libearly.so", tmp_path / "main"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-z,initfirst", "-o", early, tmp_path / "early.c", "-lpthread"], check=True
    )
    paths = [f"-Wl,-rpath,{folder}" for folder in (tmp_path, library.parent)]
    subprocess.run(["cc", "-o", main, tmp_path / "main.c", early, library, *paths], check=True)
    run = record_program([*apart, str(main)])
    assert run.exit_code == 1 and 4 in called(run.trace, library)


def test_without_rights_the_neighbours_of_pages_are_named_too(library: Path, tmp_path: Path) -> None:
    """As under a filter that forbids userfaultfd."""
    environment = recording_environment(tmp_path)
    del environment["LD_AUDIT"]
    line = [sys.executable, "-c", PROGRAM, str(library), "32"]
    subprocess.run(line, check=True, env=environment)
    for _ in range(100):
        trace = make_trace(read_events(tmp_path.iterdir()))
        if trace.libraries:
            break
    assert trace.neighbours and called(trace, library) > {32}
    assert "neighbours" in trace_facts(trace, "a").__struct_fields__ and trace_facts(trace, "a").neighbours


NUMBERS = {
    "x86_64": {"ioctl": 16, "userfaultfd": 323, "pidfd_open": 434, "close_range": 436, "process_madvise": 440},
    "aarch64": {"ioctl": 29, "userfaultfd": 282, "pidfd_open": 434, "close_range": 436, "process_madvise": 440},
}.get(platform.machine(), {})
ENOSYS, EPERM, EINVAL = 38, 1, 22
ASKED, REGISTERED, SCANNED = 0xC018AA3F, 0xC020AA00, 0xC0606610  # UFFDIO_API, UFFDIO_REGISTER, PAGEMAP_SCAN
# (system call, request of an ioctl or 0, what it fails with), and whether pages are known one by one all the same
REFUSED = {
    "userfaultfd, docker": ([("userfaultfd", 0, EPERM)], False),
    "userfaultfd, not built in": ([("userfaultfd", 0, ENOSYS)], False),
    "asynchronous writes, before 6.7": ([("ioctl", ASKED, EINVAL)], False),
    "registering": ([("ioctl", REGISTERED, EPERM)], False),
    "what is of use only": (
        [(name, 0, ENOSYS) for name in ("pidfd_open", "close_range", "process_madvise")] + [("ioctl", SCANNED, EINVAL)],
        True,
    ),
}
# a filter as docker sets one, for this process and what it becomes
FILTERED = """
import ctypes, os, struct, sys
refused = eval(sys.argv[1])
rows = []
for number, request, error in refused:
    rows += [(0x20, 0, 0, 0), (0x15, 0, 3 if request else 1, number)]  # the number of the call
    rows += [(0x20, 0, 0, 24), (0x15, 0, 1, request)] if request else []  # its second argument
    rows += [(0x06, 0, 0, 0x50000 | error)]
rows += [(0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(rows), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert not libc.prctl(38, 1, 0, 0, 0) and not libc.prctl(22, 2, program, 0, 0), os.strerror(ctypes.get_errno())
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@pytest.mark.skipif(not NUMBERS, reason="no numbers of system calls for this processor")
@pytest.mark.parametrize("what", REFUSED)
def test_what_a_kernel_refuses_is_done_without(library: Path, what: str) -> None:
    rules, exact = REFUSED[what]
    refused = repr([(NUMBERS[name], request, error) for name, request, error in rules])
    run = record_program([sys.executable, "-c", FILTERED, refused, "-c", PROGRAM, str(library), "32"])
    assert run.exit_code == 0 and not run.trace.lost
    found = called(run.trace, library)
    assert 32 in found
    if exact and len(found) > 2:
        pytest.skip("this kernel maps pages in groups")
    assert run.trace.neighbours is not exact


def test_what_was_mapped_from_a_pack_is_of_the_library(library: Path, tmp_path: Path) -> None:
    """A cut library has other files mapped between its own pages."""
    lines = (
        f"map\t7f0000000000\t7f0000001000\t0\t{library}",
        "at\t0+1",
        "map\t7f0000001000\t7f0000041000\t1000\t/packs/libpaged.ttpack",
        "at\t2+1 8+2",
        "map\t7f0000041000\t7f0000042000\t0\t",
        "end\texact",
    )
    (tmp_path / "1-1-1.pages").write_text("\n".join([*lines, ""]))
    trace = make_trace(read_events([tmp_path / "1-1-1.pages"]))
    assert called(trace, library) == {0, 6, 7}
    assert trace.libraries[0].pages[:3] == ((0, 1), (3, 1), (9, 2)) and len(trace.libraries[0].pages) == 4
    assert written(trace, library) == set(range(FUNCTIONS))  # whatever is mapped there is from no file
    assert not trace.neighbours and not trace.lost


def test_a_process_that_has_not_ended_is_named(library: Path, tmp_path: Path) -> None:
    (tmp_path / "1-1-1.pages").write_text(f"map\t1000\t2000\t0\t{library}\nat\t0+1\nmap\t20")
    (tmp_path / "2-1-1.pages").write_bytes(b"at\tx\nmap\tz\t\t\t/\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "3-1-1.pages").write_text(f"map\t1000\t2000\t0\t{tmp_path}/pipe\nat\t0+ffffffffffffffff\nend\texact\n")
    trace = make_trace(read_events(sorted(tmp_path.glob("*.pages"))))
    assert trace.lost == ("the pages of 2 processes that had not ended",)
    assert [one.pages for one in trace.libraries] == [((0, 1),)]


def test_pages_of_several_traces_are_one_set(tmp_path: Path) -> None:
    one = TracedLibrary("a" * 32, "lib.so", 0, (), pages=((1, 2), (9, 1)))
    other = TracedLibrary("a" * 32, "lib.so", 0, (), pages=((2, 3),))
    merged = merge_traces([Trace((one,)), Trace((other,), neighbours=True)])
    assert merged.libraries[0].pages == ((1, 4), (9, 1)) and merged.neighbours
    assert merged.touched_size == 5 * PAGE == trace_facts(merged, "x").libraries[0].touched
    write_trace(tmp_path / "a.trace", merged)
    assert read_trace(tmp_path / "a.trace") == merged

"""From what processes recorded to a trace, with a real library."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.waiting import not_hanging
from torchtailor.code.binary.source import open_source
from torchtailor.code.gpucode.scan import scan_file
from torchtailor.core.errors import BadInputError
from torchtailor.workload.events import make_trace, read_events
from torchtailor.workload.pack import container_key
from torchtailor.workload.trace import Trace, merge_traces, read_trace, write_trace

FIXTURES = Path(__file__).parents[1] / "gpucode" / "fixtures"


def lines(path: Path, *rows: str) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def test_addresses_become_positions(tmp_path: Path) -> None:
    library = FIXTURES / "linked.so"
    found = [one for one in scan_file(library).containers if one.loaded]
    first, last = found[0], found[-1]
    events = read_events(
        [
            lines(
                tmp_path / "1.tsv",
                "proc\t1\t/usr/bin/python3",
                f"load\t{library}\t{first.address:x}\t{first.container.stored_size:x}",
                "open\t/env/lib/python3.12/site-packages/torch/lib/libtorch.so",
                "open\t/env/lib/python3.12/site-packages/../../../bin/x",
                "open\t/etc/passwd",
                "cubin\t100\tabcd",
            ),
            lines(
                tmp_path / "2.tsv",
                "proc\t2\t/usr/bin/python3",
                f"link\t{library}\t{(last.address or 0) + 20:x}\t10",
                f"load\t{library}\t0\t10",
                "load\t/no/such.so\t0\t10",
                "lost\tsomething",
                "who\tknows",
            ),
        ]
    )
    trace = make_trace(events, ["python a.py"])
    assert [one.name for one in trace.libraries] == ["linked.so"]
    assert trace.libraries[0].used == tuple(sorted({0, len(found) - 1}))
    assert trace.libraries[0].containers == len(found)
    assert trace.opened == ("torch/lib/libtorch.so",)
    assert trace.processes == 2 and trace.programs == ("python a.py",)
    assert len(trace.lost) == 3
    assert "/no/such.so cannot be read: No such file or directory" in trace.lost


def test_a_line_that_a_kill_cut_off_is_no_event(tmp_path: Path) -> None:
    (tmp_path / "1.tsv").write_text("proc\t1\t/x\nload\t/a/b.so\t12")
    assert not read_events([tmp_path / "1.tsv"]).loads


def test_names_are_unescaped(tmp_path: Path) -> None:
    lines(tmp_path / "1.tsv", "load\t/a\\tb\\\\c\\n.so\tff\t10", "load\t/x\tzz\t10")
    events = read_events([tmp_path / "1.tsv"])
    assert set(events.loads) == {"/a\tb\\c\n.so", "/x"}
    assert events.lost


@pytest.mark.parametrize("name", ["raw.so", "linked.so"])
def test_one_library_by_two_paths(tmp_path: Path, name: str) -> None:
    other = tmp_path / "other.so"
    other.write_bytes((FIXTURES / name).read_bytes())
    address = next(one.address for one in scan_file(other).containers if one.loaded)
    lines(tmp_path / "1.tsv", f"load\t{FIXTURES / name}\t{address:x}\t1", f"load\t{other}\t{address:x}\t1")
    assert len(make_trace(read_events([tmp_path / "1.tsv"])).libraries) == 1


def test_names_that_are_no_text_can_be_written_and_read_again(tmp_path: Path) -> None:
    library = tmp_path / os.fsdecode(b"lib\xff.so")
    library.write_bytes((FIXTURES / "linked.so").read_bytes())
    os.mkfifo(tmp_path / "pipe")
    rows = [b"open\t/env/site-packages/%b" % name for name in (b"a\\nb.so", b"\xff.so", b"a" * 5000, b"good.so")]
    rows += [b"load\t%b\t0\t1" % name for name in (os.fsencode(library), b"a\0b", os.fsencode(tmp_path / "pipe"))]
    rows += [b"load\t/%b\t0\t1" % (b"d/" * 5000), b"lost\t\xff", b"miss\t/x\tno number\t1\tabcd"]
    (tmp_path / "1.tsv").write_bytes(b"\n".join([*rows, b""]))
    trace = make_trace(read_events([tmp_path / "1.tsv"]), [os.fsdecode(b"python \xff.py")])
    write_trace(tmp_path / "a.trace", trace)
    assert read_trace(tmp_path / "a.trace") == trace
    assert trace.opened == ("good.so",) and trace.programs == ("python \\udcff.py",)
    assert [one.name for one in trace.libraries] == ["library"]
    assert len(trace.lost) == 6 and max(map(len, trace.lost)) < 1100


def test_a_file_in_which_no_line_is_an_event_is_refused(tmp_path: Path) -> None:
    """A misses file that was mistaken for another must not pass as one in which nothing was missed."""
    for rows in (["16 cores; Python 3.12.3", "a table"], ["load\t/a.so\tno number\t10"]):
        with pytest.raises(BadInputError, match="not what a program recorded"):
            read_events([lines(tmp_path / "a.txt", *rows)])
    assert not read_events([lines(tmp_path / "empty.tsv")]).loads


def test_a_file_without_lines_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "1.tsv").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadInputError, match="not what a program recorded"):
        read_events([tmp_path / "1.tsv"])


def test_a_miss_is_found_by_its_key_where_the_library_was_restored_or_cut_again(tmp_path: Path) -> None:
    """The address is that of the file as it was; another container may be there now."""
    library = FIXTURES / "linked.so"
    with open_source(library) as source:
        found = [one for one in scan_file(library).containers if one.loaded]
        keys = [container_key(source, one.container).hex() for one in found]
    assert len(found) > 1
    there = found[0].address
    rows = [f"miss\t{library}\t{there:x}\t28\t{keys[-1]}", f"miss\t{library}\t{there:x}\t28\t{'0' * 64}"]
    trace = make_trace(read_events([lines(tmp_path / "misses.tsv", *rows)]))
    assert trace.libraries[0].used == (len(found) - 1,)
    assert trace.lost == (f"1 miss of {library}, which is another file now",)


def test_what_was_opened_where_packages_were_installed_into_any_folder(tmp_path: Path) -> None:
    for name in ("deps/torch-2.dist-info", "deps/torch/_vendor/x-1.dist-info", "deps/torch/lib"):
        (tmp_path / name).mkdir(parents=True)
    opened = [f"open\t{tmp_path}/{name}" for name in ("deps/torch/lib/a.so", "deps/torch/_vendor/x/b.so", "other/c.so")]
    rows = [f"proc\t1\t{tmp_path}/deps/torch/bin/tool", *opened]
    trace = make_trace(read_events([lines(tmp_path / "1.tsv", *rows)]))
    assert trace.opened == ("torch/bin/tool", "torch/lib/a.so", "torch/_vendor/x/b.so")


def test_files_are_named_in_the_order_of_their_first_use(tmp_path: Path) -> None:
    """By processes as they began, whatever their numbers; temporary files are nobody's."""
    site, own = "/env/lib/python3.12/site-packages", "/usr/lib/python3.12"
    second = [f"{site}/b.py", f"{own}/json/z.py", f"{own}/abc.py", "/srv/app.py", f"{site}/a.py", "/tmp/x", "/srv/b"]
    for name, program, paths in (
        ("7-200.tsv", "/usr/bin/python3", second),
        ("30-90.tsv", "/bin/sh", ["/etc/z", "/srv/b"]),
    ):
        lines(tmp_path / name, f"proc\t1\t{program}", *(f"open\t{path}" for path in paths))
    trace = make_trace(read_events(tmp_path.iterdir()))
    assert trace.opened == ("b.py", "a.py") and trace.standard == ("json/z.py", "abc.py")
    assert trace.elsewhere == ("bin/sh", "etc/z", "srv/b", "usr/bin/python3", "srv/app.py")
    assert merge_traces([Trace(opened=("a.py", "z.py")), trace]).opened == ("a.py", "z.py", "b.py")


@pytest.mark.parametrize("suffix", [".tsv", ".pages"])
@pytest.mark.parametrize("harm", ["pipe", "zero", "hole", "folder"])
def test_what_others_put_into_a_shared_folder_of_records_is_refused(tmp_path: Path, suffix: str, harm: str) -> None:
    """Not waited for, and not read until the memory is full."""
    path = tmp_path / f"1{suffix}"
    match harm:
        case "pipe":
            os.mkfifo(path)
        case "zero":
            path.symlink_to("/dev/zero")
        case "hole":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case "folder":
            path.with_suffix("").mkdir()
            path.symlink_to(path.with_suffix(""))
    with not_hanging("a record"), pytest.raises(BadInputError, match=r"not what a program recorded|not a plain file"):
        read_events([path])


def test_what_a_line_names_is_opened_only_where_it_is_plain(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.so"
    os.mkfifo(pipe)
    record = lines(tmp_path / "1.tsv", f"proc\t1\t{pipe}", f"open\t{pipe}", f"load\t{pipe}\t10\t10")
    pages = lines(tmp_path / "1.pages", f"map\t1000\t2000\t0\t{pipe}", "at\t0+1", "end\tgone")
    with not_hanging("a record"):
        trace = make_trace(read_events([record, pages]))
    assert len(trace.lost) == 1 and "pipe.so" in trace.lost[0]

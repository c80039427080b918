"""Modules from an index: which, when it is not used, and that nothing else is another than without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.calling import call
from tests.unit.tailoring.helpers import check_records, install, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.catalog import load_catalog
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.errors import EnvironmentProblem, ImpossibleError, UsageError
from torchtailor.surgery.cut import Cut
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.folder import tailor_folder
from torchtailor.tailoring.restore import restore_environment
from torchtailor.tailoring.wheel import tailor_wheel
from torchtailor.workload import compile_modules
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.moved_modules import IndexedModules, read_index, write_index
from torchtailor.workload.trace import Trace, write_trace

TAG = sys.implementation.cache_tag
FILES = {
    "demo/__init__.py": b"from demo import used\n",
    "demo/used.py": b'"""Where it is."""\n\ndef where():\n    return __file__\n\ndef fails():\n    raise KeyError\n',
    "demo/empty.py": b"",
    "demo/cold.py": b"value = 3\n",
    "demo/sub/__init__.py": b"",
    "demo/sub/deep.py": b"from demo.used import where\nvalue = where()\n",
    "demo/sub/__main__.py": b"print('run', __name__, __spec__.name)\n",
    "demo/part/in_namespace.py": b"value = 4\n",
    "demo/both.py": b"value = 'module'\n",
    "demo/both/__init__.py": b"value = 'package'\n",
    "demo/data.txt": b"text",
    "demo/broken.py": b"def\n",
    "other.py": b"value = 5\n",
}
COLD = ("demo/cold.py", "demo/data.txt")
OPENED = tuple(name for name in FILES if name not in COLD)
TRACE = Trace(opened=(*OPENED, f"demo/__pycache__/used.{TAG}.pyc"))
INDEX = f"torchtailor-packs/demo/index-{TAG}.bin"


def chosen(trace: Trace = TRACE, **more: object) -> Cut:
    cut = Cut(Targets((), cpu=True), workload=TracedWorkload(trace), index_modules=True, processes=1)
    return replace(cut.resolved(load_catalog()), **more)  # type: ignore[arg-type]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return build_wheel(tmp_path, FILES, name="demo", version="1")


@pytest.fixture
def stock(tmp_path: Path, wheel: Path) -> Path:
    site = tmp_path / "an env" / "lib" / "python3.x" / "site-packages"
    install(wheel, site)
    return site


@pytest.fixture
def site(stock: Path) -> Path:
    tailor_environment(stock, chosen())
    return stock


def run(site: Path, program: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [
        sys.executable,
        "-I",
        *options,
        "-c",
        f"import site, sys\nsite.addsitedir(sys.argv[1])\n{program}",
        str(site),
    ]
    return subprocess.run(line, capture_output=True, text=True, check=False, env={"PATH": os.defpath, **variables})


FROM_INDEX = """
def from_index(name):
    import importlib
    return type(importlib.import_module(name).__loader__).__name__ == "_IndexedLoader"
"""


def indexed(site: Path, *names: str, before: str = "", options: tuple[str, ...] = (), **variables: str) -> list[bool]:
    done = run(site, f"{before}{FROM_INDEX}print([from_index(name) for name in {names!r}])", *options, **variables)
    assert not done.stderr
    return [word == "True" for word in done.stdout.strip("[]\n").split(", ")]


def test_what_was_imported_is_in_the_index_and_all_else_is_as_ever(site: Path) -> None:
    known = ("demo", "demo.used", "demo.empty", "demo.sub", "demo.sub.deep", "other", "demo.both")
    assert indexed(site, *known) == [True] * len(known)
    assert indexed(site, "demo.cold", "demo.part.in_namespace") == [False, False]
    program = "import demo.both, demo.part.in_namespace as there, demo.cold\nprint(demo.both.value, there.value)"
    assert run(site, program).stdout == "package 4\n"
    assert "SyntaxError" in run(site, "import demo.broken").stderr
    assert "No module named 'demo.nothing'" in run(site, "import demo.nothing").stderr


SAME = """
import importlib.resources, importlib.metadata, importlib.util, inspect, pkgutil, traceback
import demo.sub.deep, demo.used as it
print(it.__file__, it.__cached__, it.__spec__.origin, it.__spec__.cached, it.__spec__.parent, it.__package__)
print(demo.__path__, demo.__spec__.submodule_search_locations, it.__spec__.has_location, it.__doc__)
print(inspect.getsource(it), inspect.getsourcefile(it.where), inspect.getmodule(it.where.__code__), it.where.__code__)
print(importlib.resources.files(demo).joinpath("data.txt").read_text(), importlib.metadata.version("demo"))
print(sorted(module.name for module in pkgutil.walk_packages(demo.__path__, "demo.") if "broken" not in module.name))
print(it.__loader__.get_source("demo.used"), it.__loader__.is_package("demo.used"))
print(pkgutil.get_data("demo", "data.txt"), demo.sub.deep.value, importlib.util.find_spec("demo.empty").origin)
print(isinstance(it.__loader__, importlib.machinery.SourceFileLoader))
print(sorted(vars(it)))
try: it.fails()
except KeyError: print(traceback.format_exc())
"""


def test_nothing_tells_a_module_of_an_index_from_others(site: Path) -> None:
    with_index = run(site, SAME)
    without = run(site, SAME, TORCHTAILOR_INDEX="0")
    assert not with_index.stderr and with_index.stdout.count(str(site)) > 10
    cut_address = [line.split(" at 0x")[0] for line in with_index.stdout.splitlines()]
    assert cut_address == [line.split(" at 0x")[0] for line in without.stdout.splitlines()]


ASKING = {
    **FILES,
    "demo/__init__.py": b"import inspect\nimport demo.asking, demo.used\n",
    "demo/asking.py": b"""import inspect, os
asked = []
stock = os.stat
def counting(path, *other, **more):
    asked.append(path)
    return stock(path, *other, **more)
def shown():
    return 1
os.stat = counting
sources = [inspect.getsource(shown) for _ in range(20)]
os.stat = stock
""",
}
CHANGED = """
import demo.asking as it, inspect
print(it.asked.count(it.__file__))
print(len(set(it.sources)), inspect.getmodule(it.shown.__code__) is it)
with open(it.__file__) as file:
    text = file.read()
with open(it.__file__, "w") as file:
    file.write(text.replace("return 1", "return 'another'"))
print(inspect.getsource(it.shown))
"""


def test_a_source_is_asked_once_while_its_package_is_imported_and_each_time_afterwards(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    install(build_wheel(tmp_path, ASKING, name="demo", version="1"), site)
    tailor_environment(site, chosen(Trace(opened=(*TRACE.opened, "demo/asking.py"))))
    outputs = [run(site, CHANGED, TORCHTAILOR_INDEX=value).stdout.partition("\n") for value in ("", "0")]
    assert [rest for _, _, rest in outputs] == ["1 True\ndef shown():\n    return 'another'\n\n"] * 2
    with_index, without = (int(asked) for asked, _, _ in outputs)
    assert with_index < 5
    assert without >= 20


def test_running_reloading_and_debugging(site: Path) -> None:
    module = "import runpy; sys.argv[1:] = []; runpy.run_module('demo.sub', run_name='__main__', alter_sys=True)"
    assert run(site, module).stdout == "run __main__ demo.sub.__main__\n"
    reload = """
import demo.cold, demo.used, importlib
demo.used.where = None
print(importlib.reload(demo.used).where() == demo.used.__file__)
open(demo.used.__file__, 'w').write("changed = 1\\n")
importlib.invalidate_caches()
print(importlib.reload(demo.used).changed)
"""
    assert run(site, reload).stdout == "True\n1\n"


def test_a_debugger_stops_in_it(site: Path) -> None:
    program = """
import pdb, io, demo.used
out = io.StringIO()
debugger = pdb.Pdb(stdin=io.StringIO(f"b {demo.used.__file__}:4\\nc\\nw\\nc\\n"), stdout=out)
debugger.run("demo.used.where()")
print(out.getvalue())
"""
    assert "return __file__" in run(site, program).stdout


def edited_in_place(site: Path) -> None:
    with (site / "demo/used.py").open("a") as file:
        file.write("more = 1\n")


def edited_by_an_editor(site: Path) -> None:
    new = site / "demo/used.py~"
    new.write_bytes(FILES["demo/used.py"] + b"more = 1\n")
    new.replace(site / "demo/used.py")


def deleted(site: Path) -> None:
    (site / "demo/used.py").unlink()


def folder_gone(site: Path) -> None:
    (site / "demo/sub").rename(site / "demo/other")


def test_a_changed_or_deleted_source_is_seen(site: Path) -> None:
    edited_by_an_editor(site)
    assert run(site, "import demo.used; print(demo.used.more)").stdout == "1\n"
    assert indexed(site, "demo.used", "demo.sub.deep") == [False, True]
    deleted(site)
    assert "ImportError" in run(site, "import demo").stderr


def test_a_folder_that_went_is_seen(site: Path) -> None:
    folder_gone(site)
    assert "No module named 'demo.sub'" in run(site, "import demo.sub.deep").stderr


def test_what_is_written_into_a_file_is_seen_where_files_are_looked_at(site: Path) -> None:
    edited_in_place(site)
    program = "import demo.used; print(hasattr(demo.used, 'more'))"
    assert run(site, program).stdout == "False\n"  # as docs/module-index.md says
    assert run(site, program, TORCHTAILOR_INDEX="files").stdout == "True\n"
    assert run(site, program, TORCHTAILOR_INDEX="0").stdout == "True\n"
    assert indexed(site, "demo.sub.deep", TORCHTAILOR_INDEX="files") == [True]


def test_what_comes_first_in_the_path_is_first(site: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    (first / "demo").mkdir(parents=True)
    (first / "other.py").write_text("value = 'mine'")
    (first / "demo" / "used.py").write_text("")
    program = f"sys.path.insert(0, {str(first)!r})\nimport other, demo.sub.deep; print(other.value, demo.__file__)"
    assert run(site, program).stdout == f"mine {site}/demo/__init__.py\n"  # the other demo is no package
    (first / "demo" / "__init__.py").write_text("")
    assert "No module named 'demo.sub'" in run(site, program).stderr
    later = f"""
sys.path.insert(0, {str(tmp_path)!r})
import demo, importlib
open({str(tmp_path / "other.py")!r}, "w").write("value = 'late'")
importlib.invalidate_caches()
import other; print(other.value)
"""
    assert run(site, later).stdout == "late\n"


@pytest.mark.parametrize("option", ["-O", "-OO"])
def test_of_another_optimisation_it_is_not_used(site: Path, option: str) -> None:
    assert indexed(site, "demo", options=(option,)) == [False]


def test_where_no_pth_file_is_run_modules_are_imported_from_their_files(site: Path) -> None:
    line = [sys.executable, "-S", "-c", f"import demo.sub.deep{FROM_INDEX}print(from_index('demo'))"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(site)})
    assert done.stdout == "False\n"


def test_processes_that_are_spawned_use_it(site: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        f"import site, sys\nsite.addsitedir({str(site)!r})\n{FROM_INDEX}\nimport multiprocessing, demo\n"
        "if __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(from_index, ['demo.used']))\n"
    )
    done = subprocess.run([sys.executable, str(tmp_path / "app.py")], capture_output=True, text=True, check=True)
    assert done.stdout == "[True]\n"


def test_in_place_and_back(stock: Path) -> None:
    before = tree(stock)
    result = tailor_environment(stock, chosen(keep_removed=True))
    (made,) = result.module_indexes
    assert result.differs and (made.path, made.package, made.modules) == (INDEX, "demo", 8)
    check_records(stock)
    first = (stock / INDEX).read_bytes()
    again = tailor_environment(stock, chosen(keep_removed=True))
    assert [one.path for one in again.module_indexes] == [INDEX]
    check_records(stock)
    assert (stock / INDEX).read_bytes() == first
    assert indexed(stock, "demo") == [True]
    restore_environment(stock)
    assert tree(stock) == before


def test_an_index_that_a_user_removed_is_forgotten(site: Path) -> None:
    (site / INDEX).unlink()
    assert indexed(site, "demo") == [False]
    tailor_environment(site, chosen(index_modules=False, strip=True))
    check_records(site)
    assert not (site / "torchtailor-packs").exists() and not list(site.glob("*.pth"))


def test_a_later_cut_does_not_bring_an_old_source_back(site: Path) -> None:
    """It writes RECORD anew, and what is newer than RECORD was changed."""
    edited_by_an_editor(site)
    trace = Trace(opened=(*OPENED, "demo/data.txt"))
    tailor_environment(site, chosen(trace, index_modules=False, drop_unopened=True, drop=("docs",)))
    assert run(site, "import demo.used; print(demo.used.more)").stdout == "1\n"


def test_the_command_says_what_it_made(stock: Path, tmp_path: Path) -> None:
    write_trace(tmp_path / "app.trace", TRACE)
    words = ("tailor", "--env", stock, "--workload", tmp_path / "app.trace", "--index-modules")
    said = " ".join(call(*words, "--dry-run").stdout.split())
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert "Would index 8 modules of 1 package in 1 file of " in said and f"for Python {python}." in said
    assert not (stock / INDEX).exists()
    assert "Indexed 8 modules of 1 package" in " ".join(call(*words).stdout.split()) and (stock / INDEX).exists()


def test_in_a_folder(tmp_path: Path, stock: Path) -> None:
    (stock / "libx.so").write_bytes(b"\x7fELF" + bytes(100))
    tailor_folder(stock, tmp_path / "out", chosen())
    check_records(tmp_path / "out")
    line = [sys.executable, "-c", f"import demo.sub.deep{FROM_INDEX}print(from_index('demo'))"]
    on_path = {"PYTHONPATH": str(tmp_path / "out")}
    assert subprocess.run(line, capture_output=True, text=True, check=True, env=on_path).stdout == "True\n"
    assert indexed(tmp_path / "out", "demo", "demo.sub.deep", "demo.cold") == [True, True, False]
    assert indexed(tmp_path / "out", "demo", "demo.sub.deep") == [
        False,
        True,
    ]  # Python made a __pycache__ for demo.cold


def test_in_a_wheel(tmp_path: Path, wheel: Path) -> None:
    result = tailor_wheel(wheel, tmp_path / "made", chosen())
    assert (
        result.output is not None and result.output != wheel and [one.modules for one in result.module_indexes] == [8]
    )
    assert not result.notes  # that it is larger was asked for
    site = tmp_path / "site"
    install(result.output, site)
    (site / "demo" / "__pycache__").mkdir()  # as pip leaves it: RECORD is written last
    (record,) = site.glob("*.dist-info/RECORD")
    record.touch()
    check_records(site)
    assert indexed(site, "demo", "demo.sub.deep", "demo.cold") == [True, True, False]


def test_wheels_are_the_same_each_time(tmp_path: Path, wheel: Path) -> None:
    made = [tailor_wheel(wheel, tmp_path / name, chosen()).output for name in ("one", "two")]
    assert made[0] and made[1] and made[0].read_bytes() == made[1].read_bytes()


def test_what_it_needs(stock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--index-modules belong to --workload"):
        Cut(index_modules=True)
    with pytest.raises(UsageError, match="which files were opened, and --index-modules needs that"):
        chosen(Trace())
    with pytest.raises(ImpossibleError, match="does not say which Python imported modules"):
        tailor_environment(stock, chosen(Trace(opened=("demo/__init__.py",))))
    with pytest.raises(EnvironmentProblem, match=r"ran on Python 3\.99, and there is none here"):
        tailor_environment(stock, chosen(Trace(opened=(*OPENED, "x/__pycache__/y.cpython-399.pyc"))))
    assert not (stock / INDEX).exists()
    monkeypatch.setattr(compile_modules, "__file__", "/nowhere.py")
    with pytest.raises(EnvironmentProblem, match="could not compile the modules: "):
        tailor_environment(stock, chosen())


def truncated(data: bytes) -> bytes:
    return data[:-20]


def of_another_python(data: bytes) -> bytes:
    return data[:8] + b"\x00\x00\r\n" + data[12:]


def without_anything(data: bytes) -> bytes:
    return b""


def with_another_byte(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


@pytest.mark.parametrize("damage", [truncated, of_another_python, without_anything, with_another_byte])
def test_what_cannot_be_used_is_not(site: Path, damage: Callable[[bytes], bytes]) -> None:
    now = (site / INDEX).stat()
    (site / INDEX).write_bytes(damage((site / INDEX).read_bytes()))
    os.utime(site / INDEX, ns=(now.st_atime_ns, now.st_mtime_ns))
    done = run(site, "import demo.sub.deep, demo.used, other; print(demo.used.where())")
    assert done.stdout == f"{site}/demo/used.py\n" and not done.stderr


CODE = compile("value = 1", "demo/x.py", "exec")
MODULES = st.lists(
    st.tuples(st.text(min_size=1), st.text(), st.binary(), st.integers(-1, 1 << 40), st.binary(max_size=8)),
    unique_by=lambda row: row[0],
    max_size=5,
)


TIMES = st.dictionaries(st.text(), st.integers(0, 1 << 62), max_size=3)


@given(MODULES, TIMES, st.text())
def test_what_is_written_is_read(
    modules: list[tuple[str, str, bytes, int, bytes]], times: dict[str, int], version: str
) -> None:
    data = write_index(modules, times, version)
    *rest, rows = read_index(data)
    assert rest == [version, times] and list(rows) == [row[0] for row in modules]
    for inside, file, code, size, source in modules:
        row = rows[inside]
        assert (row[0], row[1], data[row[2] : row[3]], row[5]) == (file, size, code, source)


@given(MODULES, st.data())
def test_a_damaged_table_has_no_modules(modules: list[tuple[str, str, bytes, int, bytes]], data: st.DataObject) -> None:
    whole = write_index(modules, {})
    end = 28 + int.from_bytes(whole[12:20], "little")
    at = data.draw(st.integers(0, end - 1))
    other = data.draw(st.integers(0, 255).filter(lambda value: value != whole[at]))
    assert read_index(whole[:at] + bytes([other]) + whole[at + 1 :]) == ("", {}, {})
    assert read_index(whole[:at]) == ("", {}, {})


def test_a_table_that_says_it_is_longer_is_damaged() -> None:
    whole = write_index([("0", "", b"", 0, b"")], {})
    assert read_index(whole)[2] and read_index(whole[:13] + b"\1" + whole[14:]) == ("", {}, {})


def test_modules_that_python_has_frozen_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ntpath", raising=False)
    assert "ntpath" in [inside for inside, *_ in compile_modules.of_python(())]


def test_there_is_one_finder(site: Path) -> None:
    program = (
        "site.addsitedir(sys.argv[1])\nprint([type(one).__name__ for one in sys.meta_path].count('IndexedModules'))"
    )
    assert run(site, program).stdout == "1\n"
    assert IndexedModules().find_spec("os") is None

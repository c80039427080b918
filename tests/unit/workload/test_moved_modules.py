"""Modules that were never imported: which go to packs, and how Python gets them back."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtailor.catalog import load_catalog
from torchtailor.code.gpucode.targets import Targets
from torchtailor.surgery.cut import UNOPENED, Cut
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.left_out import distinct, is_stand_in, stand_ins
from torchtailor.tailoring.restore import restore_environment
from torchtailor.tailoring.tree import InstalledTree
from torchtailor.trees.artifact.drops import DroppedFile
from torchtailor.trees.artifact.installed import find_installed, owners_by_file
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import Trace

FILES = {
    "demo/__init__.py": "from demo import used",
    "demo/used.py": "",
    "demo/cold.py": "def where():\n    return __file__\n",
    "demo/empty.py": "",
    "demo/sub/__init__.py": "",
    "demo/sub/deep.py": "from demo.cold import where\nraised = where()\n",
    "demo/twin.py": "",
    "demo/twin/data.txt": "",
    "demo/looked": "x" * (64 << 10),
    "demo/large": "x" * (64 << 10),
    "single.py": "value = 7",
    "demo-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1\n",
}
OPENED = ("demo/__init__.py", "demo/__pycache__/used.cpython-311.pyc")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site packages"
    rows = []
    for name, text in FILES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
        rows.append(f"{name},,\n")
    (site / "demo-1.dist-info" / "RECORD").write_text("".join([*rows, "demo-1.dist-info/RECORD,,\n"]))
    return site


def sizes(site: Path) -> dict[str, int]:
    return {path.relative_to(site).as_posix(): path.stat().st_size for path in site.rglob("*") if path.is_file()}


def moved(site: Path, *opened: str) -> list[str]:
    """Take the unopened files out of a folder, and put in what comes in their place."""
    workload = TracedWorkload.of([Trace(opened=(*OPENED, *opened), looked=("demo/looked",))])
    found = sizes(site)
    gone = sorted(workload.unopened(found, sources=True))
    installed, _ = find_installed(site, sorted(site.rglob("*.dist-info"), reverse=True))
    tree = InstalledTree(site, found, owners_by_file(installed))
    added = distinct(stand_ins(tree, {path: DroppedFile(path, UNOPENED, found[path]) for path in gone}).values())
    for file in added:
        file.put((site / file.path).parent)
    for path in gone:
        (site / path).unlink()
    return gone


def run(site: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-I", "-c", f"import site, sys; site.addsitedir(sys.argv[1])\n{program}", str(site)]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=variables)


def test_what_was_never_opened_goes_and_what_was_looked_for_stays(site: Path) -> None:
    assert moved(site) == ["demo/cold.py", "demo/empty.py", "demo/large", "demo/sub/deep.py", "single.py"]
    workload = TracedWorkload.of([Trace(opened=OPENED)])
    assert set(workload.unopened(sizes(site))) == {"demo/looked"}


def test_an_import_that_was_not_recorded_works_and_says_a_line(site: Path) -> None:
    moved(site)
    program = """
import demo
from demo.sub import deep
import demo.empty, single, inspect, demo.cold
print(deep.raised == sys.argv[1] + "/demo/cold.py", single.value, "return" in inspect.getsource(demo.cold.where))
"""
    done = run(site, program)
    assert done.stdout == "True 7 True\n", done.stderr
    assert done.stderr.count("torchtailor: ") == 1
    assert "demo.sub.deep was not imported when the program was recorded" in done.stderr
    assert run(site, program, TORCHTAILOR_QUIET="1").stderr == ""
    assert run(site, "import demo; print(sys.modules.get('zipfile'))").stdout == "None\n"


@pytest.mark.parametrize("first", ["", "import pkgutil\n"])
def test_modules_in_packs_are_listed(site: Path, first: str) -> None:
    program = "import demo, demo.sub, pkgutil; print([m.name for m in pkgutil.walk_packages(demo.__path__, 'demo.')])"
    before = run(site, program).stdout
    moved(site)
    assert "demo.cold" in before and "demo.sub.deep" in before
    line = [sys.executable, "-I", "-c", f"{first}import site, sys; site.addsitedir(sys.argv[1])\n{program}", str(site)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert sorted(done.stdout.strip("[]\n").split(", ")) == sorted(before.strip("[]\n").split(", ")), done.stderr
    top = run(site, "import pkgutil; print({'single', 'demo'} < {module.name for module in pkgutil.iter_modules()})")
    assert top.stdout == "True\n" and not top.stderr


@pytest.mark.parametrize("packs", ["there", "not there"])
def test_what_reads_the_files_of_listed_modules(site: Path, packs: str) -> None:
    """torch hashes the sources of all of its modules so, before it compiles something: it stopped in an assertion."""
    program = """
import demo, hashlib, pkgutil
def read(folders, prefix):
    for module in pkgutil.iter_modules(folders, prefix):
        spec = module.module_finder.find_spec(module.name, None)
        with open(spec.origin, "rb") as file:
            yield spec.name, hashlib.sha256(file.read()).hexdigest()
        if module.ispkg:
            yield from read(spec.submodule_search_locations, spec.name + ".")
print(sorted(read(demo.__path__, "demo.")))
"""
    before = run(site, program).stdout
    moved(site)
    if packs == "not there":
        for pack in (site / "torchtailor-packs").rglob("*.zip"):
            pack.unlink()
    done = run(site, program)
    names = [name for name, _ in ast.literal_eval(done.stdout or "[]")]
    assert names == [name for name, _ in ast.literal_eval(before)], done.stderr
    assert not done.stderr
    assert run(site, program).stdout == done.stdout
    assert dict(ast.literal_eval(before))["demo.used"] == dict(ast.literal_eval(done.stdout))["demo.used"]


def test_packages_that_another_brings_along(site: Path) -> None:
    """setuptools has packages with a .dist-info each in its `_vendor`, which it adds to sys.path."""
    vendor = site / "demo" / "_vendor"
    names = ("inner/__init__.py", "inner/cold.py", "inner-2.dist-info/METADATA", "inner-2.dist-info/RECORD")
    for name in names:
        (vendor / name).parent.mkdir(parents=True, exist_ok=True)
        (vendor / name).write_text("value = 8")
    (vendor / "inner-2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: inner\nVersion: 2\n")
    (vendor / "inner-2.dist-info" / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    with (site / "demo-1.dist-info" / "RECORD").open("a") as record:
        record.write("".join(f"demo/_vendor/{name},,\n" for name in names))
    assert "demo/_vendor/inner/cold.py" in moved(site, "demo/_vendor/inner/__init__.py")
    done = run(site, "sys.path.append(sys.argv[1] + '/demo/_vendor')\nimport inner.cold as it; print(it.value)")
    assert done.stdout == "8\n", done.stderr


def test_what_finds_modules_is_loaded_once_and_looks_into_the_packs_of_the_package_that_is_asked_for(
    site: Path,
) -> None:
    """With 58 packages it was compiled 58 times: a second at every start of Python."""
    (site / "other").mkdir()
    (site / "other-1.dist-info").mkdir()
    (site / "other-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    rows = ("other/__init__.py", "other/cold.py", "other-1.dist-info/METADATA", "other-1.dist-info/RECORD")
    for name in rows[:2]:
        (site / name).write_text("value = 9")
    (site / "other-1.dist-info" / "RECORD").write_text("".join(f"{name},,\n" for name in rows))
    moved(site, "other/__init__.py")
    assert len([*site.glob("*.pth")]) == 2
    program = """
opened = []
sys.addaudithook(lambda event, args: event == "open" and ".zip" in str(args[0]) and opened.append(args[0]))
try: import nothing
except ImportError: print(len(opened))
import other.cold
print(other.cold.value, len(opened), len([one for one in sys.meta_path if type(one).__name__ == "MovedModules"]))
"""
    done = run(site, program)
    assert done.stdout == "0\n9 1 1\n", done.stderr


def test_what_is_in_no_pack_is_missing_as_ever(site: Path) -> None:
    moved(site)
    done = run(site, "import demo.nothing")
    assert "No module named 'demo.nothing'" in done.stderr and "torchtailor" not in done.stderr


def test_a_python_that_cannot_read_packs_misses_modules_as_ever(site: Path) -> None:
    """Names in a zip are of the encoding cp437, which a Python that was cut to a program may lack."""
    moved(site)
    done = run(
        site, "sys.modules['encodings.cp437'] = None\ntry: import demo.nothing\nexcept ImportError: print('missing')"
    )
    assert done.stdout == "missing\n" and "is not used: unknown encoding" in done.stderr


def test_a_pack_may_lie_elsewhere_and_a_damaged_one_is_named(site: Path, tmp_path: Path) -> None:
    moved(site)
    (pack,) = site.glob("torchtailor-packs/demo/python-*.zip")
    content = pack.read_bytes()
    pack.unlink()
    assert "No module named 'single'" in run(site, "import single").stderr
    for program in ("import demo.cold", "from demo import cold"):
        assert f"No module named 'demo.cold': it was not imported when the program was recorded, and {pack.name}" in (
            run(site, program).stderr
        )
    other = tmp_path / "packs"
    other.mkdir()
    (other / pack.name).write_bytes(content)
    assert run(site, "import single; print(single.value)", TORCHTAILOR_PACK=str(other)).stdout == "7\n"
    pack.write_bytes(b"no zip")
    done = run(site, "import single")
    assert "is not used" in done.stderr and "No module named 'single'" in done.stderr


STRANGER = 12345


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def as_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def as_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_a_strangers(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root gives files away")
    os.chown(path, STRANGER, STRANGER)


@pytest.mark.parametrize("spoil", [open_to_all, as_a_link, as_a_pipe, as_a_strangers])
def test_a_pack_that_another_user_could_have_made_is_not_used(site: Path, spoil: Callable[[Path], None]) -> None:
    moved(site)
    (pack,) = site.glob("torchtailor-packs/demo/python-*.zip")
    spoil(pack)
    done = run(site, "import single")
    assert f"{pack} is not used" in done.stderr and "No module named 'single'" in done.stderr


@pytest.mark.parametrize("spoil", [open_to_all, as_a_link, as_a_strangers])
@pytest.mark.parametrize("place", ["torchtailor-packs", "torchtailor-packs/demo"])
def test_nor_is_one_in_a_folder_that_another_user_could_change(
    site: Path, place: str, spoil: Callable[[Path], None]
) -> None:
    moved(site)
    spoil(site / place)
    done = run(site, "import single")
    assert "is not used" in done.stderr and "No module named 'single'" in done.stderr


def test_another_user_is_trusted_where_the_pack_was_named(site: Path, tmp_path: Path) -> None:
    moved(site)
    (pack,) = site.glob("torchtailor-packs/demo/python-*.zip")
    other = tmp_path / "packs"
    other.mkdir()
    pack.rename(other / pack.name)
    for path in (other, other / pack.name):
        as_a_strangers(path)
    program = "import single; print(single.value)"
    assert run(site, program, TORCHTAILOR_PACK=str(other)).stdout == "7\n"
    os.chown(other / pack.name, STRANGER + 1, 0)
    assert "belongs to another user" in run(site, program, TORCHTAILOR_PACK=str(other)).stderr


def test_a_pack_that_is_cut_off_while_the_program_runs_is_named(site: Path) -> None:
    # more than a reader keeps: 128 KiB in Python 3.14
    (site / "single.py").write_text(f"value = '{os.urandom(1 << 18).hex()}'")
    moved(site)
    program = """
import glob, os
from demo.sub import deep
for pack in glob.glob(sys.argv[1] + "/torchtailor-packs/demo/*.zip"):
    os.truncate(pack, 70)
import single
"""
    done = run(site, program)
    assert "is not used" in done.stderr and "No module named 'single'" in done.stderr


def test_the_same_modules_give_the_same_pack(site: Path) -> None:
    moved(site)
    first = {path.name: path.read_bytes() for path in site.glob("torchtailor-packs/demo/*")}
    for name, text in FILES.items():
        (site / name).write_text(text)
    moved(site)
    assert {path.name: path.read_bytes() for path in site.glob("torchtailor-packs/demo/*")} == first
    (start,) = site.glob("*.pth")
    assert is_stand_in(start) and not is_stand_in(site / "demo" / "used.py")


def test_an_environment_and_its_record_are_restored(site: Path) -> None:
    record = site / "demo-1.dist-info" / "RECORD"
    before, rows = sizes(site), record.read_text()
    workload = TracedWorkload.of([Trace(opened=OPENED, looked=("demo/looked",))])
    options = Cut(Targets((), cpu=True), workload=workload, drop_unopened=True, keep_removed=True, processes=1)
    result = tailor_environment(site, options.resolved(load_catalog()))
    assert {file.path for file in result.dropped_files} >= {"demo/cold.py", "single.py"}
    (pack,) = site.glob("torchtailor-packs/demo/python-*.zip")
    listed = {line.split(",")[0] for line in record.read_text().splitlines()}
    assert {pack.relative_to(site).as_posix(), "torchtailor-packs/demo/modules.py", "torchtailor-demo.pth"} < listed
    assert "demo/cold.py" not in listed and not (site / "demo" / "cold.py").exists()
    assert run(site, "import single; print(single.value)").stdout == "7\n"
    restore_environment(site)
    assert sizes(site).keys() == before.keys()
    assert all((site / name).read_text() == text for name, text in FILES.items())
    assert sorted(row.split(",")[0] for row in record.read_text().splitlines()) == sorted(
        row.split(",")[0] for row in rows.splitlines()
    )
    assert not (site / "torchtailor-packs").exists()

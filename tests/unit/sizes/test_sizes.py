"""Sizes: every byte is counted once, as independent readers count it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.calling import call
from tests.oracle.library import read_library
from tests.unit.gpucode.builders import BASE_FLAGS, FIXTURES, Entry, Place, container, cubin, elf
from tests.unit.gpucode.test_foreign import BUNDLE, PACKED, dll
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.gpucode.scan import LibraryCode, scan_elf
from torchtailor.core.errors import ExitCode
from torchtailor.core.format import human_bytes
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.verification.inspection import read
from torchtailor.verification.inspection.inspect import inspect as read_inspection
from torchtailor.verification.inspection.kernels import HOST, REST
from torchtailor.verification.inspection.measure import Sizes, measure
from torchtailor.verification.inspection.parts import ByteClass
from torchtailor.verification.sizes.compare import SizeChange, SizeComparison
from torchtailor.verification.sizes.history import newest_of_each
from torchtailor.verification.sizes.markdown import share
from torchtailor.verification.sizes.tree import tree_of

LIBRARIES = sorted(FIXTURES.glob("*.so"))


def measured(path: Path, *, kernels: bool = False) -> Sizes:
    return measure(open_artifact(path), kernels=kernels, processes=1)


def wheel_of(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    path = folder / f"{name}-py3-none-any.whl"
    project, version = name.split("-")
    info = f"{project}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode()
    own = {"METADATA": metadata, "WHEEL": b"Wheel-Version: 1.0\n", "RECORD": b""}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inner, content in {**files, **{f"{info}/{one}": text for one, text in own.items()}}.items():
            archive.writestr(inner, content)
    return path


def wheel_with(folder: Path, name: str, *libraries: str) -> Path:
    files = {f"demo/{one}": (FIXTURES / one).read_bytes() for one in libraries}
    return wheel_of(folder, name, {**files, "demo/__init__.py": b"x = 1\n" * 500, "demo/a.h": b"// c\n" * 300})


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_every_byte_of_a_library_is_counted_once(path: Path) -> None:
    assert measured(path).total == path.stat().st_size


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_gpu_code_by_architecture_is_what_an_independent_reader_finds(path: Path) -> None:
    theirs: Counter[str] = Counter()
    for _, entry in read_library(path).entries:
        theirs[entry.label] += 0 if entry.solid else len(entry.stored)  # those packed together share their bytes
    ours = {name: total.size for name, total in measured(path).by(lambda row: row.code).items()}
    for label, stored in theirs.items():
        assert ours[label] >= stored  # and the headers of entries and their padding
    assert set(theirs) == set(ours) - {"containers"}
    gpu = measured(path).by(lambda row: row.kind.value)[ByteClass.GPU.value].size
    assert sum(ours.values()) == gpu


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4), st.booleans())
def test_whatever_sections_hold(contents: list[bytes], arm: bool) -> None:
    data = elf(*(Place(f".data{n}", one) for n, one in enumerate(contents)), machine=183 if arm else 62)
    from torchtailor.code.binary.elf import ElfFile
    from torchtailor.verification.inspection.parts import spans_of

    parsed = ElfFile.from_buffer(data)
    spans = list(spans_of(parsed, scan_elf(parsed)))
    assert [span.start for span in spans[1:]] == [span.end for span in spans[:-1]]
    assert (spans[0].start, spans[-1].end) == (0, len(data))


def test_compressed_bytes_add_up_to_the_wheel(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path, "demo-1.0", "size.so", "raw.so", "linked.so")
    sizes = measured(wheel)
    assert sizes.packed == wheel.stat().st_size
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            rows = [row for row in sizes.rows if row.file == info.filename]
            assert sum(row.size for row in rows) == info.file_size
            assert sum(row.packed or 0 for row in rows) == info.compress_size
    assert {row.package for row in sizes.rows} == {"demo"}
    kinds = sizes.by(lambda row: row.kind.value)
    assert kinds["Python"].size == 3000 and kinds["C headers"].size == 1500


def test_compressed_bytes_of_a_windows_library_add_up(tmp_path: Path) -> None:
    windows = dll((b".nv_fatb", container(*(Entry(cubin(f"{sm}", 2999 + sm), sm=sm) for sm in (70, 80, 86, 90)))))
    wheel = wheel_of(tmp_path, "demo-1.0", {"demo/x.dll": windows})
    sizes = measured(wheel)
    assert len({row.code for row in sizes.rows if row.file == "demo/x.dll"}) > 2
    assert sizes.packed == wheel.stat().st_size


def test_a_folder_counts_every_file(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "size.so").write_bytes((FIXTURES / "size.so").read_bytes())
    (tmp_path / "lib" / "readme").write_bytes(b"hello")
    (tmp_path / "lib" / "broken.so").write_bytes((FIXTURES / "size.so").read_bytes()[:5000])
    sizes = measured(tmp_path / "lib")
    assert sizes.total == (FIXTURES / "size.so").stat().st_size + 5 + 5000
    assert len(sizes.skipped) == 1 and "broken.so" in sizes.skipped[0]


@pytest.mark.parametrize("name", ["size.so", "raw.so", "linked.so", "concat.so"])
def test_kernels_are_those_of_the_cubins(name: str) -> None:
    """The functions, and in all exactly the unpacked bytes, of an independent reader."""
    functions: dict[str, Counter[str]] = {}
    unpacked: Counter[str] = Counter()
    for _, entry in read_library(FIXTURES / name).entries:
        if entry.label.startswith("sm_"):
            functions.setdefault(entry.label, Counter()).update(entry.kernels)
            unpacked[entry.label] += len(entry.raw)
    rows = [row for row in measured(FIXTURES / name, kernels=True).kernels if row.code.startswith("sm_")]
    ours: Counter[str] = Counter()
    for row in rows:
        ours[row.code] += row.size
    assert ours == unpacked
    for label, names in functions.items():
        assert sum(row.functions for row in rows if row.code == label) == names.total()


CODE_FILES = {
    "k_sm_90.cubin": cubin("90", 5000, kernel="_Z1kILi0EEvv"),
    "k.fatbin": container(Entry(cubin("90", 5000, kernel="_Z1kILi0EEvv"), sm=90)),
    "libk.a": b"!<arch>\n"
    + elf(Place(".nv_fatbin", container(Entry(cubin("90", 5000, kernel="_Z1kILi0EEvv"), sm=90)))),
    "k.dll": dll((b".nv_fatb", container(Entry(cubin("90", 5000, kernel="_Z1kILi0EEvv"), sm=90)))),
}


@pytest.mark.parametrize("name", CODE_FILES)
def test_files_that_are_gpu_code_have_kernels(name: str, tmp_path: Path) -> None:
    """Of the 15,970 cubins of flashinfer-cubin not one function was listed."""
    wheel = wheel_of(tmp_path, "demo-1.0", {f"demo/{name}": CODE_FILES[name], "demo/no.cubin": b"x"})
    found = json.loads(call("inspect", wheel, "--kernels", "--json").stdout)["kernels"]
    assert {(row["code"], row["name"], row["functions"]) for row in found} == {("sm_90", "k", 1), ("sm_90", REST, 0)}
    sizes = measured(wheel, kernels=True)
    assert sum(row.size for row in sizes.kernels) == len(cubin("90", 5000, kernel="_Z1kILi0EEvv"))
    assert call("inspect", wheel, "--kernels").returncode == 0


def test_the_map_draws_host_functions_as_large_as_they_are(tmp_path: Path) -> None:
    """Those that symbols name took the room of all host code: the map and the table told two sizes of one thing."""
    sizes = measured(FIXTURES / "size.so", kernels=True)
    named = {row.name: row.size for row in sizes.kernels if row.code == HOST}
    whole = sizes.by(lambda row: row.kind.value)[ByteClass.HOST.value].size
    assert 0 < sum(named.values()) < whole
    (host,) = (one for one in tree_of("x", sizes, None, {}).children[0].children if one.name == "host code")
    drawn = {one.name: one.size for one in host.children}
    assert {name: size for name, size in drawn.items() if name in named} == {
        name: size for name, size in named.items() if name in drawn
    }
    assert sum(drawn.values()) == whole


def test_diff_says_what_came_and_went(tmp_path: Path) -> None:
    old, new = (
        wheel_with(tmp_path, "demo-1.0", "size.so", "raw.so"),
        wheel_with(tmp_path, "demo-1.1", "size.so", "linked.so"),
    )
    done = call("diff", old, new, "--json", "--kernels")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    files = {row["name"]: row for row in found["files"]}
    assert files["demo/raw.so"]["new"] == 0 and files["demo/linked.so"]["old"] == 0
    assert "demo/size.so" not in files and "demo.dist-info/METADATA" not in files  # the same but for its version
    growth = found["new"]["size"] - found["old"]["size"]
    assert growth == sum(row["new"] - row["old"] for row in found["classes"])
    assert sum(row["new"] - row["old"] for row in found["files"]) == growth
    assert found["new"]["packed"] == new.stat().st_size


def test_the_same_twice_has_no_change(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path, "demo-1.0", "size.so")
    found = json.loads(call("diff", wheel, wheel, "--json", "--kernels").stdout)
    assert found["files"] == [] and found["kernels"] == []


BUDGETS = {
    'total = {size = "10 kB"}': "The total has",
    'total = {growth = "0.1 %"}': "The total grew by",
    'total = {packed = "1 kB"}': "compressed",
    'library."linked.so" = {size = "1 kB"}': "demo/linked.so has",
    'architecture."sm_*" = {growth = "1 B"}': "sm_",
    'package.demo = {growth = "10 B"}': "demo grew by",
}


@pytest.mark.parametrize("line", BUDGETS)
def test_a_budget_that_is_exceeded_fails_and_says_what(line: str, tmp_path: Path) -> None:
    old, new = wheel_with(tmp_path, "demo-1.0", "size.so"), wheel_with(tmp_path, "demo-1.1", "size.so", "linked.so")
    budget = tmp_path / "budget.toml"
    budget.write_text(f"[budget]\n{line}\n")
    done = call("diff", old, new, "--budget", budget)
    assert done.returncode == ExitCode.OVER_BUDGET and BUDGETS[line] in done.stdout
    assert call("diff", new, old, "--budget", budget, "--markdown").returncode in (ExitCode.OK, ExitCode.OVER_BUDGET)


def test_a_budget_that_is_kept(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path, "demo-1.0", "size.so")
    budget = tmp_path / "torchtailor.toml"
    budget.write_text('[budget]\ntotal = {size = "1 GB", growth = "0 B"}\nlibrary."absent.so" = {size = "1 MB"}\n')
    done = call("diff", wheel, wheel, "--budget", budget, cwd=tmp_path)
    assert done.returncode == 0 and "nothing is called absent.so" in done.stderr


def test_libraries_of_two_versions_are_one_and_have_the_name_that_people_know(tmp_path: Path) -> None:
    """`libcurand.so` was said of libcurand.so.10."""
    content = (FIXTURES / "size.so").read_bytes()
    old = wheel_of(tmp_path, "demo-1.0", {"d/libcurand.so.10": content, "d/libfoo-1a2b3c4d.so": content})
    new = wheel_of(tmp_path, "demo-1.1", {"d/libcurand.so.10": content + b"x", "d/libfoo-99999999.so": content + b"x"})
    files = {one["name"]: one for one in json.loads(call("diff", old, new, "--json").stdout)["files"]}
    assert {"d/libcurand.so.10", "d/libfoo.so"} <= set(files)
    assert all(files[name]["old"] and files[name]["new"] for name in ("d/libcurand.so.10", "d/libfoo.so"))
    budget = tmp_path / "budget.toml"
    for name in ("libcurand.so", "libcurand.so.10"):
        budget.write_text(f'[budget]\nlibrary."{name}" = {{size = "1 B"}}\n')
        assert call("diff", old, new, "--budget", budget).returncode == ExitCode.OVER_BUDGET


def test_inspect_says_what_of_its_promise_is_no_gpu_code() -> None:
    """Of xgboost 56.1 MB would be saved, beside 48.1 MB of GPU code."""
    assert " of it symbol tables" in call("inspect", FIXTURES / "raw.so", "--gpu", "9.0").stdout
    assert "symbol tables" not in call("inspect", FIXTURES / "size.so", "--gpu", "8.0").stdout


BAD = {
    "no budget": "x = 1\n",
    "no TOML": "[budget\n",
    "no size": '[budget]\ntotal = {size = "large"}\n',
    "a share of nothing": '[budget]\ntotal = {size = "3 %"}\n',
    "unknown": "[budget]\nwheels = {}\n",
    "a list": "[budget]\ntotal = [1]\n",
    "huge": '[budget]\ntotal = {size = "99999999999999999999 GB"}\n',
}


@pytest.mark.parametrize("name", BAD)
def test_a_budget_that_cannot_be_read_is_a_sentence(name: str, tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path, "demo-1.0", "size.so")
    (tmp_path / "b.toml").write_text(BAD[name])
    done = call("diff", wheel, wheel, "--budget", tmp_path / "b.toml")
    assert done.returncode == ExitCode.USAGE and done.stderr.startswith("error: ") and not done.stdout


def test_pages_have_everything_in_them(tmp_path: Path) -> None:
    old, new = wheel_with(tmp_path, "demo-1.0", "size.so"), wheel_with(tmp_path, "demo-1.1", "size.so", "linked.so")
    assert call("diff", old, new, "--report", tmp_path / "diff.html").returncode == 0
    assert call("sizes", new, "--report", tmp_path / "sizes.html").returncode == 0
    for page in ("diff.html", "sizes.html"):
        text = (tmp_path / page).read_text()
        data = json.loads(text.split('id="data">')[1].split("</script>")[0])
        assert data["tree"]["size"] == measured(new).total
        assert "http://" not in text and "https://" not in text


def test_a_page_says_in_words_what_came_and_what_names_mean(tmp_path: Path) -> None:
    wheels = []
    for name, numbers in (("demo-1.0", (70, 80)), ("demo-1.1", (80, 90))):
        library = elf(
            Place(".nv_fatbin", container(*(Entry(cubin(f"{sm}", 40 * sum(numbers)), sm=sm) for sm in numbers)))
        )
        files = {"demo/lib.so": library, "demo/a.h": b"// c\n" * 90 * numbers[0], f"demo/{name}/__init__.py": b""}
        wheels.append(wheel_of(tmp_path, name, files))
    assert call("diff", *wheels, "--kernels", "--report", tmp_path / "diff.html").returncode == 0
    text = (tmp_path / "diff.html").read_text()
    assert "New: code for sm_90 (lib.so). Gone: code for sm_70 (lib.so)." in text
    assert "By kind: C headers +4.5 kB" in text
    assert ("sm_90", "Hopper: H100") in {(name, below[:12]) for name, _, below in rows_of_page(text)}
    assert "a.h" in {name for name, *_ in rows_of_page(text)}
    assert "__init__.py" not in {name for name, *_ in rows_of_page(text)}


def rows_of_page(page: str) -> list[tuple[str, list[str], str]]:
    """Of all tables the name, the cells, and what stands below them."""
    found: list[tuple[str, list[str], str]] = []
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page.replace("<wbr>", "")):
        cells = [re.sub(r"<small>(.*?)</small>", r" (\1)", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t", row)]
        if "colspan" in row:
            found[-1] = (*found[-1][:2], cells[0])
        elif "scope=row" in row:
            found.append((cells[0], cells[1:], ""))
    return found


def sections_of_page(page: str) -> dict[str, list[tuple[str, list[str], str]]]:
    return {part.partition("</h2>")[0]: rows_of_page(part) for part in page.split("<h2>")[1:]}


def test_a_page_compares_kernels_by_architecture(tmp_path: Path) -> None:
    """A reader took the sum over all architectures for what each of them grew by, and counts were in the text alone."""
    wheels = []
    for name, instances in (("demo-1.0", 1), ("demo-1.1", 3)):
        codes = [Entry(cubin("80", 4000, kernel="_Z1kILi0EEvv"), sm=80)]
        for sm in (90, 100):
            codes += [Entry(cubin(f"{sm}", 40 * sm, kernel=f"_Z1kILi{one}EEvv"), sm=sm) for one in range(instances)]
            codes += [Entry(cubin(f"{sm}", 2000 * instances, kernel="lone"), sm=sm)]
        wheels.append(wheel_of(tmp_path, name, {"demo/lib.so": elf(Place(".nv_fatbin", container(*codes)))}))
    assert call("diff", *wheels, "--kernels", "--report", tmp_path / "diff.html").returncode == 0
    text = (tmp_path / "diff.html").read_text()
    (kernels,) = (rows for title, rows in sections_of_page(text).items() if title.startswith("Kernels that grew"))
    below = {name: below for name, _, below in kernels}
    assert below["k"] == "1 → 3 functions for each unless said otherwise: sm_100 +8 kB, sm_90 +7.2 kB; unchanged: sm_80"
    assert below["lone"] == "1 function as before for each: sm_100 +4 kB, sm_90 +4 kB"
    assert "5 → 9 functions." in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])["tree"]
    (code,) = (one for part in data["children"] for one in part["children"] if one["name"] == "sm_100")
    assert all(kernel["old"] and kernel["old"] < kernel["size"] for kernel in code["children"][:2])


def test_a_page_says_how_well_code_is_compressed(tmp_path: Path) -> None:
    """A wheel doubled while its library grew by a third: code that lay there raw was compressed by the compiler."""
    codes = [cubin("90", 90_000, kernel=f"_Z1kILi{n}EEvv") for n in range(3)]
    old, new = (
        wheel_of(tmp_path, f"demo-1.{n}", {"demo/lib.so": elf(Place(".nv_fatbin", container(*entries)))})
        for n, entries in enumerate(
            ([Entry(codes[0], sm=90)], [Entry(code, sm=90, compression="zstd") for code in codes])
        )
    )
    assert call("diff", old, new, "--kernels", "--report", tmp_path / "diff.html").returncode == 0
    text = (tmp_path / "diff.html").read_text()
    held = [measured(wheel).by(lambda row: row.code)["sm_90"] for wheel in (old, new)]
    raw = [len(codes[0]), sum(map(len, codes))]
    (before, after), (was, now) = (
        [f"{100 * (size or 0) / whole:.0f} %" for size, whole in zip(sizes, raw, strict=True)]
        for sizes in ([one.size for one in held], [one.packed for one in held])
    )
    assert before == "100 %"
    assert f" in libraries {after} (before {before}), in the wheel {now} (before {was}): " in text
    ((_, _, below),) = (row for row in sections_of_page(text)["By architecture"] if row[0] == "sm_90")
    assert below.endswith(f"; unpacked {human_bytes(raw[0])} → {human_bytes(raw[1])}")


def test_a_library_of_a_version_that_is_new_is_one_change(tmp_path: Path) -> None:
    """Of cuTENSOR, `libcutensorMp.so.2` was a change and each of its parts another: 10.5 MB twice."""
    raw = (FIXTURES / "raw.so").read_bytes()
    old = wheel_of(tmp_path, "demo-1.0", {"demo/libgone.so.1": raw})
    new = wheel_of(tmp_path, "demo-1.1", {"demo/libnew.so.2": raw + b"x"})
    comparison = SizeComparison(measured(old), measured(new))
    named = {one.name: one for one in comparison.causes if one.name.startswith("lib")}
    assert set(named) == {"libgone.so.1", "libnew.so.2"} <= set(comparison.contents)
    assert sum(one.growth for one in comparison.causes) == comparison.total.growth
    # what was not there took nothing in the wheel either
    assert (named["libnew.so.2"].old_packed, named["libgone.so.1"].new_packed) == (0, 0)
    sums = [sum(getattr(one, side) for one in comparison.causes) for side in ("old_packed", "new_packed")]
    assert sums[1] - sums[0] == len(new.read_bytes()) - len(old.read_bytes()) - growth_of_the_zip(comparison)


def growth_of_the_zip(comparison: SizeComparison) -> int:
    (one,) = (one for one in comparison.classes if one.name == ByteClass.ZIP.value)
    return (one.new_packed or 0) - (one.old_packed or 0)


def test_growth_by_a_large_factor_is_said_as_one() -> None:
    """`other files +342100 %` ran into the column before."""
    assert [share(SizeChange("", 10, new)) for new in (11, 60, 3422)] == [" (+10.0 %)", " (+500 %)", " (x 342)"]


def test_a_page_counts_the_functions_of_code_that_came_for_another(tmp_path: Path) -> None:
    """Of cuTENSOR, whose code for sm_100a became sm_100f, it said `0 → 258 functions for each`, 258 as before too."""
    wheels = [
        wheel_of(tmp_path, name, {"demo/lib.so": elf(Place(".nv_fatbin", container(*codes)))})
        for name, codes in (
            ("demo-1.0", [Entry(cubin(f"{sm}", 9000, kernel="_Z1kILi1EEvv"), sm=sm) for sm in (70, 80, 90)]),
            ("demo-1.1", [Entry(cubin(f"{sm}", 50 * sm, kernel="_Z1kILi1EEvv"), sm=sm) for sm in (75, 80, 90, 120)]),
        )
    ]
    assert call("diff", *wheels, "--kernels", "--report", tmp_path / "diff.html").returncode == 0
    sections = sections_of_page((tmp_path / "diff.html").read_text())
    ((_, _, below),) = (row for rows in sections.values() for row in rows if row[0] == "k")
    assert below.startswith("1 function for each: ") and "sm_70 -9 kB (gone)" in below
    assert "sm_120 +6 kB (new)" in below
    # where every architecture changed, the last row has its words too
    assert all(below for _, _, below in sections["By architecture"])


def test_a_page_says_in_which_library_a_kernel_grew(tmp_path: Path) -> None:
    """A reader takes a kernel for twice as large where another library has a copy of it."""
    old = wheel_with(tmp_path, "demo-1.0", "size.so")
    size = (FIXTURES / "size.so").read_bytes()
    new = wheel_of(tmp_path, "demo-1.1", {"demo/size.so": size, "demo/copy.so": size, "demo/more.so": size})
    assert call("diff", old, new, "--kernels", "--report", tmp_path / "diff.html").returncode == 0
    sections = sections_of_page((tmp_path / "diff.html").read_text())
    (grew,) = (rows for title, rows in sections.items() if title.startswith("Kernels that grew"))
    _, figures, below = grew[0]
    growth = sum(row.size for row in measured(FIXTURES / "size.so", kernels=True).kernels if row.name == grew[0][0])
    assert figures[2] == f"+{human_bytes(2 * growth)}"
    assert below.endswith(f"; of this in copy.so +{human_bytes(growth)}, in more.so +{human_bytes(growth)}")


def test_a_page_says_what_is_in_a_library_that_is_new(tmp_path: Path) -> None:
    """Of lmcache's new library half was debug information."""
    old, new = wheel_with(tmp_path, "demo-1.0"), wheel_with(tmp_path, "demo-1.1", "raw.so")
    assert call("diff", old, new, "--kernels", "--report", tmp_path / "diff.html").returncode == 0
    sections = sections_of_page((tmp_path / "diff.html").read_text())
    (grew,) = (rows for title, rows in sections.items() if title.startswith("What grew"))
    ((figures, below),) = ((figures, below) for name, figures, below in grew if name == "raw.so")
    raw = measured(FIXTURES / "raw.so")
    gpu, host = (raw.by(lambda row: row.kind.value)[kind].size for kind in ("GPU code", "host code"))
    assert figures[3] == "new"
    assert f"GPU code {human_bytes(gpu)}" in below and f"host code {human_bytes(host)}" in below
    # a kernel that came for every architecture is not said to be new for each
    (kernels,) = (rows for title, rows in sections.items() if title.startswith("Kernels that grew"))
    assert any(figures[3] == "new" for _, figures, _ in kernels)
    assert all("(new)" not in below for _, figures, below in kernels if figures[3] == "new")
    # the zip's own records take no room on disk, and are no file that stayed
    ((_, figures, _),) = (row for row in sections["By kind"] if row[0] == "zip records")
    assert figures[0].startswith(" (") and figures[2].startswith("0 (+")


def test_a_page_says_what_shrank_and_what_stayed(tmp_path: Path) -> None:
    old = wheel_of(tmp_path, "demo-1.0", {"demo/a.h": b"//a\n" * 900, "demo/lib.so": library_for(80, 90)})
    new = wheel_of(tmp_path, "demo-1.1", {"demo/a.h": b"//a\n" * 100, "demo/lib.so": library_for(80, 90, 100)})
    assert call("diff", old, new, "--report", tmp_path / "diff.html").returncode == 0
    text = (tmp_path / "diff.html").read_text()
    sections = sections_of_page(text)
    assert [name for name, *_ in sections["What shrank: -3.2 kB"]] == ["a.h"]
    ((_, figures, below),) = (row for row in sections["By architecture"] if "unchanged" in row[0])
    assert below == "sm_80, sm_90, containers" and figures[2].startswith("0")
    # on disk and as compressed, before and after
    sizes = [measured(wheel) for wheel in (old, new)]
    for size in (*(one.total for one in sizes), *(wheel.stat().st_size for wheel in (old, new))):
        assert human_bytes(size) in text.partition("At a glance")[0]
    ((_, figures, _),) = (row for row in sections["What shrank: -3.2 kB"])
    assert re.fullmatch(r"3\.6 kB \(\d+ B\)", figures[0])
    # both names, of the page and of its window
    assert "<title>demo 1.0 → 1.1: " in text and "<h1>demo 1.0 → 1.1</h1>" in text.replace("<wbr>", "")


def library_for(*numbers: int) -> bytes:
    return elf(Place(".nv_fatbin", container(*(Entry(cubin(f"{sm}", 4000), sm=sm) for sm in numbers))))


def test_a_colour_of_a_page_is_one_thing(tmp_path: Path) -> None:
    """Architectures that share a colour of the bar had the colour of host code in the map."""
    (tmp_path / "lib.so").write_bytes(library_for(*range(70, 90)))
    assert call("sizes", tmp_path / "lib.so", "--report", tmp_path / "page.html").returncode == 0
    text = (tmp_path / "page.html").read_text()
    tree = json.loads(text.split('id="data">')[1].split("</script>")[0])["tree"]
    drawn = {name: found for found, name in re.findall(r'class="(c?\w+)" data-label="([^"]+)"', text)}

    def leaves(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for child in node.get("children", []):
            yield child["name"], child["colour"]
            yield from leaves(child)

    in_map = {name: colour for name, colour in leaves(tree) if name.startswith("sm_")}
    assert len(in_map) > 10
    for name, colour in in_map.items():
        assert colour == drawn.get(name, drawn["other architectures"])
    assert drawn["host"] not in in_map.values()


def test_the_newest_of_each_minor_release() -> None:
    """2.13.0+cpu of a second index stood for 2.13.0."""
    versions = map(Version, ("2.13.0+cpu", "2.13.0", "2.12.0", "2.12.1+cpu", "2.12.1+cu130"))
    assert [str(one) for one in newest_of_each(versions)] == ["2.12.1+cu130", "2.13.0"]


def test_markdown_cannot_be_broken_by_names(tmp_path: Path) -> None:
    old = wheel_of(tmp_path, "demo-1.0", {"demo/a.txt": b"1"})
    new = wheel_of(
        tmp_path, "demo-1.1", {"demo/a.txt": b"1", "demo/x|y.txt": b"2" * 4000, "demo/@all.txt": b"3" * 3000}
    )
    text = call("diff", old, new, "--markdown").stdout
    assert "x\\|y.txt" in text and "\\@all.txt" in text


@pytest.mark.parametrize("word", ["nothing.whl", "./nowhere", "demo==1.0; python_version < '3'", "@", ""])
def test_what_names_nothing_is_a_sentence(word: str) -> None:
    done = call("sizes", word)
    assert done.returncode in (ExitCode.USAGE, ExitCode.NO_MATCH, ExitCode.NETWORK) and done.stderr.startswith(
        "error: "
    )


def test_code_that_no_gpu_loads() -> None:
    """Objects of a device link are not loaded where the linked code has what every GPU needs."""
    done = call("inspect", FIXTURES / "linked.so", "--unused", "--json")
    found = json.loads(done.stdout)
    assert found["loaded"]
    loaded = Counter()  # type: Counter[str]
    for row in found["loaded"]:
        loaded[row["gpu"]] += row["size"]
    gpu_bytes = measured(FIXTURES / "linked.so").by(lambda row: row.kind.value)[ByteClass.GPU.value].size
    assert max(loaded.values()) <= gpu_bytes
    assert all(
        row["why"] in {"PTX", "linked", "passed over", "for no known GPU", "repeated"} for row in found["unused"]
    )


def test_repeated_code_is_found_in_several_libraries(tmp_path: Path) -> None:
    code = container(Entry(cubin("90", 9000), sm=90, kind=2, flags=BASE_FLAGS))
    for name in ("a.so", "b.so"):
        (tmp_path / name).write_bytes(elf(Place(".nv_fatbin", code), Place(".data", name.encode())))

    def repeated(path: Path) -> list[dict[str, object]]:
        found = json.loads(call("inspect", path, "--unused", "--json").stdout)["unused"]
        return [row for row in found if row["why"] == "repeated"]

    assert repeated(tmp_path / "a.so") == []
    (again,) = repeated(tmp_path)
    assert (again["code"], again["images"]) == ("sm_90", 1)


@pytest.mark.parametrize("bundle", [BUNDLE, PACKED], ids=["plain", "compressed"])
def test_code_for_other_makers_gpus_has_its_architectures(bundle: bytes, tmp_path: Path) -> None:
    library = elf(Place(".hip_fatbin", bundle), Place(".data", b"x" * 99))
    wheel = wheel_of(tmp_path, "rocm-1.0", {"rocm/lib.so": library})
    sizes = measured(wheel)
    inspected = json.loads(call("inspect", wheel, "--json").stdout)["inputs"][0]["files"][0]["architectures"]
    codes = {name: total.size for name, total in sizes.by(lambda row: row.code).items() if name != "containers"}
    assert codes == {row["name"]: row["stored"] for row in inspected} and len(codes) > 1
    assert sizes.packed == wheel.stat().st_size
    assert sum(row.size for row in sizes.rows if row.file == "rocm/lib.so") == len(library)


def test_libraries_of_the_same_name_in_two_folders_are_both_told(tmp_path: Path) -> None:
    """Only the last one was: rows were kept by the library's name."""
    code = container(Entry(cubin("10", 9000), sm=10, kind=2, flags=BASE_FLAGS))
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.so").write_bytes(elf(Place(".nv_fatbin", code)))
    found = json.loads(call("inspect", tmp_path / "one", tmp_path / "two", "--unused", "--json").stdout)
    assert [row["why"] for row in found["unused"]] == ["for no known GPU"] * 2 + ["repeated"]
    assert found["loaded"] == []


def test_what_is_wanted_of_a_library_is_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[ElfFile] = []

    def counted(elf: ElfFile, *, texts: bool = False) -> LibraryCode:
        scans.append(elf)
        return scan_elf(elf, texts=texts)

    monkeypatch.setattr(read, "scan_elf", counted)
    inspection = read_inspection(FIXTURES / "linked.so", kernels=True, use=True)
    assert inspection.kernels and inspection.loaded and inspection.libraries
    assert len(scans) == 1


def test_a_library_that_is_gone_is_one_change(tmp_path: Path) -> None:
    """Not one for each architecture: who reads it asks which library went."""
    old = wheel_with(tmp_path, "demo-1.0", "size.so", "linked.so")
    new = wheel_with(tmp_path, "demo-1.1", "size.so", "raw.so")
    page = tmp_path / "page.html"
    done = call("diff", old, new, "--kernels", "--report", page)
    largest = done.stdout.partition("Largest changes")[2].splitlines()[2:4]
    assert {line.split()[0] for line in largest} == {"linked.so", "raw.so"}
    assert "in linked.so" not in done.stdout and "in raw.so" not in done.stdout
    kernels = re.findall(r"^ (\S+) +(sm_\w+|compute_\w+) ", done.stdout, re.MULTILINE)
    assert kernels and len(kernels) == len(set(kernels))
    text = page.read_text()
    assert "linked.so</th>" in text and "in linked.so</th>" not in text
    assert "By architecture" in text and "Kernels that grew" in text
    assert "linked.so | " in call("diff", old, new, "--markdown").stdout


def test_a_comment_stays_short_with_many_architectures(tmp_path: Path) -> None:
    def library(numbers: range) -> bytes:
        entries = (Entry(cubin(str(sm), 1000 + 8 * sm), sm=sm, kind=2, flags=BASE_FLAGS) for sm in numbers)
        return elf(Place(".nv_fatbin", container(*entries)))

    (tmp_path / "old.so").write_bytes(library(range(70, 71)))
    (tmp_path / "new.so").write_bytes(library(range(71, 99)))
    lines = call("diff", tmp_path / "old.so", tmp_path / "new.so", "--markdown").stdout.splitlines()
    assert len(lines) < 30
    (more,) = (line for line in lines if " more |" in line)
    assert more.startswith("| 21 more | ")


def test_pages_need_nothing_that_a_plain_installation_lacks(tmp_path: Path) -> None:
    """The action of `diff` installs torchtailor without its extras."""
    without = "import sys; sys.modules.update(dict.fromkeys(['capstone', 'numpy'])); from torchtailor.cli import main"
    words = ["diff", str(FIXTURES / "size.so"), str(FIXTURES / "raw.so"), "--kernels", "--report", "page.html"]
    line = [sys.executable, "-c", f"{without}; sys.exit(main({words!r}))"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_release_that_the_first_index_lacks_is_measured_from_the_next(tmp_path: Path) -> None:
    for index, version in (("private", "1.0"), ("public", "2.0")):
        (tmp_path / index / "demo").mkdir(parents=True)
        wheel_with(tmp_path / index / "demo", f"demo-{version}", "size.so")
    indexes = ("--index-url", tmp_path / "public", "--extra-index-url", tmp_path / "private")
    done = call("diff", "demo==1.0", "demo==2.0", "--json", *indexes)
    assert done.returncode == 0
    assert [json.loads(done.stdout)[side]["name"] for side in ("old", "new")] == [
        "demo-1.0-py3-none-any.whl",
        "demo-2.0-py3-none-any.whl",
    ]
    assert "demo-2.0-py3-none-any.whl is measured as " in done.stderr
    assert "the first index that has demo has no demo==2.0." in " ".join(done.stderr.split())
    done = call("diff", "demo==1.0", "demo==2.0", "--index-strategy", "first-index", *indexes)
    assert done.returncode == ExitCode.NO_MATCH
    done = call("sizes", "demo", *indexes)
    assert "demo is taken from" in " ".join(done.stderr.split()) and "2.0" not in done.stdout


def test_a_folder_that_is_gone_is_one_change(tmp_path: Path) -> None:
    """The 736 headers of CUTLASS that left libraft-cu13 were 736 changes, of which three were large enough to be
    named."""
    kept = {"demo/lib.so": (FIXTURES / "size.so").read_bytes(), "demo/include/a.h": b"//" * 40}
    headers = {f"demo/include/cute/{place}{n}.hpp": b"//" * 600 for n in range(9) for place in ("", "arch/")}
    lone = {"demo/share/notes.txt": b"x" * 9000, "demo/plugins/new.so": (FIXTURES / "raw.so").read_bytes()}
    old, new = wheel_of(tmp_path, "demo-1.0", kept | headers), wheel_of(tmp_path, "demo-1.1", kept | lone)
    largest = call("diff", old, new).stdout.partition("Largest changes")[2].splitlines()[2:5]
    assert {re.split(" {2,}", line.strip())[0] for line in largest} == {
        "demo/include/cute/ (18 files)",
        "notes.txt",
        "new.so",
    }
    comparison = SizeComparison(measured(old), measured(new))
    assert sum(one.growth for one in comparison.causes) == comparison.total.growth

"""Small libraries, compiled by tests/fixtures/hostcode/build.sh: what always runs is told from what does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torchtailor.catalog import load_catalog
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.binary.instructions import instructions_sha256
from torchtailor.code.hostcode.analyse import HostCode, analyse
from torchtailor.code.hostcode.cache import host_code
from torchtailor.code.hostcode.features import feature_table
from torchtailor.code.hostcode.image import CodeImage, FunctionOrigin
from torchtailor.code.hostcode.reach import Reach
from torchtailor.core.errors import BadInputError
from torchtailor.trees.artifact.libraries import LibraryFile
from torchtailor.verification.result import Check, CheckOutcome
from torchtailor.verification.static.host_checks import host_checks, who_has
from torchtailor.verification.static.read import LibraryFacts

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hostcode"
ARCHS = ("x86_64", "aarch64")
WIDE = {"x86_64": "avx512f", "aarch64": "sve"}
NARROW = {"x86_64": "avx2", "aarch64": "armv8_2"}
BROAD = {"x86_64": "avx512", "aarch64": "armv9"}


def library(arch: str, name: str) -> Path:
    return FIXTURES / arch / f"{name}.so"


def verdicts(arch: str, name: str, isa: str) -> list[Check]:
    return verdicts_of(library(arch, name), isa)


def verdicts_of(path: Path, isa: str) -> list[Check]:
    facts = LibraryFacts(LibraryFile(path.name, "", path.stat().st_size, path), host=analyse(path))
    catalog = load_catalog()
    return list(host_checks([facts], catalog.isa(isa), catalog))


def within(arch: str, name: str, isa: str) -> CheckOutcome:
    (check,) = [check for check in verdicts(arch, name, isa) if check.name.startswith(f"host code within {isa}")]
    return check.outcome


def only(code: HostCode) -> tuple[Reach, str]:
    (group,) = code.groups
    assert group.functions == 1
    return group.reach, group.examples[0].because


@pytest.mark.parametrize("arch", ARCHS)
class TestReach:
    def test_static_initialiser(self, arch: str) -> None:
        code = analyse(library(arch, "startup_wide"))
        reach, because = only(code)
        assert reach is Reach.STARTUP
        assert because == "called at load time by _GLOBAL__sub_I_startup.cpp"
        assert WIDE[arch] in code.needs(Reach.STARTUP)

    def test_static_initialiser_without_names(self, arch: str) -> None:
        reach, because = only(analyse(library(arch, "startup_wide_stripped")))
        assert reach is Reach.STARTUP
        assert because.startswith("called at load time by 0x")

    def test_static_initialiser_beside_what_it_calls(self, arch: str) -> None:
        assert only(analyse(library(arch, "startup_near")))[0] is Reach.STARTUP

    def test_static_initialiser_of_the_baseline(self, arch: str) -> None:
        assert analyse(library(arch, "startup_base")).groups == ()

    def test_dispatched_kernel(self, arch: str) -> None:
        reach, because = only(analyse(library(arch, "dispatched")))
        assert (reach, because) == (Reach.DISPATCHED, "ATen")

    def test_helper_that_only_a_kernel_calls(self, arch: str) -> None:
        reach, because = only(analyse(library(arch, "helper")))
        assert (reach, because) == (Reach.DISPATCHED, "all its callers are behind dispatch")

    def test_template_that_the_linker_took_from_the_wrong_file(self, arch: str) -> None:
        """The cause of pytorch#37577; the caller's jump is the last instruction of the section."""
        reach, because = only(analyse(library(arch, "leaked_template")))
        assert (reach, because) == (Reach.PLAIN, "called by plain")

    def test_template_that_the_linker_took_from_the_right_file(self, arch: str) -> None:
        assert analyse(library(arch, "own_template")).groups == ()

    def test_plain_function(self, arch: str) -> None:
        assert only(analyse(library(arch, "plain_wide")))[0] is Reach.PLAIN

    def test_example_is_an_instruction_that_needs_it(self, arch: str) -> None:
        (group,) = analyse(library(arch, "plain_wide")).groups
        said = group.examples[0].instruction
        assert ("zmm" in said) if arch == "x86_64" else ("z" in said or "p0" in said)


def test_cores_are_named_where_no_isa_has_it_all() -> None:
    """Armv9-A does not ask for BF16, though its cores have it: the baseline of torch's official aarch64 wheels."""
    catalog = load_catalog()
    words = frozenset({"sve", "bf16"})
    said = who_has(words, ElfMachine.AARCH64, feature_table(ElfMachine.AARCH64), catalog)
    assert said.startswith("no ISA of the catalog has all of it, but ")
    assert "neoverse_v1, neoverse_v2" in said
    assert "neoverse_n1" not in said


@pytest.mark.parametrize("arch", ARCHS)
class TestVerdict:
    def test_static_initialiser_is_caught(self, arch: str) -> None:
        checks = verdicts(arch, "startup_wide", NARROW[arch])
        (failed,) = [check for check in checks if check.failed and "within" in check.name]
        assert WIDE[arch] in failed.reason
        assert "1 function runs at load time" in failed.reason
        assert "illegal instruction" in failed.reason
        assert failed.details["startup"] == 1
        assert failed.details["functions"][0]["because"] == "called at load time by _GLOBAL__sub_I_startup.cpp"

    @pytest.mark.parametrize("name", ["dispatched", "helper", "own_template", "startup_base"])
    def test_what_is_behind_dispatch_is_not(self, arch: str, name: str) -> None:
        assert within(arch, name, NARROW[arch]) is CheckOutcome.PASS

    @pytest.mark.parametrize("name", ["leaked_template", "plain_wide"])
    def test_what_anybody_may_call_is(self, arch: str, name: str) -> None:
        assert within(arch, name, NARROW[arch]) is CheckOutcome.FAIL

    @pytest.mark.parametrize("name", ["startup_wide", "leaked_template", "plain_wide"])
    def test_it_may_where_the_isa_has_it(self, arch: str, name: str) -> None:
        assert within(arch, name, BROAD[arch]) is CheckOutcome.PASS

    def test_an_isa_that_nothing_uses(self, arch: str) -> None:
        (check,) = [c for c in verdicts(arch, "startup_base", BROAD[arch]) if c.name.startswith("host code uses")]
        assert check.failed
        assert "compiled for something less" in check.reason

    def test_an_isa_of_the_other_architecture(self, arch: str) -> None:
        other = NARROW[next(a for a in ARCHS if a != arch)]
        assert within(arch, "startup_base", other) is CheckOutcome.FAIL

    def test_the_baseline_is_said(self, arch: str) -> None:
        check = verdicts(arch, "plain_wide", BROAD[arch])[0]
        assert check.outcome is CheckOutcome.PASS
        assert WIDE[arch] in check.details["needs"]
        assert check.details["loading"] == ()
        assert f"and no more; 1 behind no dispatch needs {WIDE[arch]}" in check.reason

    def test_what_loading_needs_is_said_apart(self, arch: str) -> None:
        check = verdicts(arch, "startup_wide", BROAD[arch])[0]
        assert WIDE[arch] in check.details["loading"]
        assert "behind no dispatch" not in check.reason

    def test_who_has_what_it_needs_is_said(self, arch: str) -> None:
        check = verdicts(arch, "plain_wide", BROAD[arch])[0]
        assert re.search(rf"every CPU of [\w, ]*{BROAD[arch]}[\w, ]* has that", check.reason)

    def test_what_loads_and_may_crash_later(self, arch: str) -> None:
        checks = verdicts(arch, "plain_wide", NARROW[arch])
        (failed,) = [check for check in checks if check.failed and "within" in check.name]
        assert "it loads on such a CPU" in failed.reason


def _with_initialiser(tmp_path: Path, instructions: str) -> Path:
    """The library of startup.cpp whose static initialiser does something else."""
    image = CodeImage(library("x86_64", "startup_base"))
    names = [image.name_of(function) for function in range(len(image.functions))]
    (function,) = [number for number, name in enumerate(names) if "FillC2" in name]
    start, end = int(image.functions.starts[function]), int(image.functions.ends[function])
    code, data = bytes(image.bytes_at(start, end)), library("x86_64", "startup_base").read_bytes()
    assert data.count(code) == 1
    made = (bytes.fromhex(instructions) + b"\xc3").ljust(len(code), b"\x90")
    assert len(made) == len(code)
    (tmp_path / "made.so").write_bytes(data.replace(code, made))
    return tmp_path / "made.so"


@pytest.mark.parametrize(
    ("instructions", "known"),
    [
        ("c4e272d2c2", False),  # vpdpwsud %xmm2,%xmm1,%xmm0 of AVX-VNNI-INT16
        ("c4e27fcbc2", False),  # vsha512rnds2
        ("c5f0c6c200", True),  # vshufps
        ("06c4e272d2c2", True),  # after what is no instruction: data, of which nothing is said
    ],
)
def test_an_instruction_that_is_not_known_is_said(tmp_path: Path, instructions: str, known: bool) -> None:
    checks = verdicts_of(_with_initialiser(tmp_path, instructions), "avx2")
    (check,) = [check for check in checks if check.name.startswith("host code within avx2")]
    assert check.outcome is (CheckOutcome.PASS if known else CheckOutcome.NOT_APPLICABLE)
    if not known:
        assert "1 function holds instructions that are not known here" in check.reason
        assert "called at load time by _GLOBAL__sub_I_startup.cpp" in check.reason


@pytest.mark.parametrize("arch", ARCHS)
def test_functions_cover_the_code_once(arch: str) -> None:
    for path in sorted((FIXTURES / arch).glob("*.so")):
        image = CodeImage(path)
        functions = image.functions
        assert (functions.starts[1:] >= functions.ends[:-1]).all()
        size = sum(section.size for section in image.code_sections)
        assert int((functions.ends - functions.starts).sum()) == size
        assert set(functions.origins.tolist()) <= {FunctionOrigin.SYMBOL, FunctionOrigin.FRAME, FunctionOrigin.GAP}


@pytest.mark.parametrize("arch", ARCHS)
def test_stripped_functions_are_known_from_unwind_tables(arch: str) -> None:
    whole, bare = CodeImage(library(arch, "startup_wide")), CodeImage(library(arch, "startup_wide_stripped"))
    assert not whole.stripped
    assert bare.stripped
    assert set(bare.functions.starts.tolist()) <= set(whole.functions.starts.tolist())
    assert FunctionOrigin.FRAME in bare.functions.origins


@pytest.mark.parametrize("arch", ARCHS)
def test_same_code_with_and_without_names(arch: str) -> None:
    one, other = CodeImage(library(arch, "startup_wide")), CodeImage(library(arch, "startup_wide_stripped"))
    assert instructions_sha256(one.elf) == instructions_sha256(other.elf)
    assert instructions_sha256(one.elf) != instructions_sha256(CodeImage(library(arch, "startup_base")).elf)
    assert other.stripped
    assert not one.stripped


def test_the_second_reading_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = library("x86_64", "startup_wide")
    first = host_code(path, folder=tmp_path)
    monkeypatch.setattr("torchtailor.code.hostcode.cache.analyse", lambda *_, **__: pytest.fail("read again"))
    assert host_code(path, folder=tmp_path) == first


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    path = library("aarch64", "startup_wide")
    first = host_code(path, folder=tmp_path)
    for kept in tmp_path.iterdir():
        kept.write_bytes(b"{")
    assert host_code(path, folder=tmp_path) == first


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    path = library("x86_64", "startup_wide")
    assert host_code(path, folder=blocked / "under") == analyse(path)


def test_another_isa_is_another_result(tmp_path: Path) -> None:
    path = library("x86_64", "startup_wide")
    host_code(path, folder=tmp_path)
    before = len(list(tmp_path.glob("*.json")))
    host_code(path, frozenset({"avx2"}), folder=tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == before + 1
    assert len(list(tmp_path.glob("*.msgpack"))) == 1  # instructions are read once for all


def test_an_object_file_is_refused(tmp_path: Path) -> None:
    data = bytearray(library("x86_64", "startup_base").read_bytes())
    data[16] = 1  # ET_REL
    path = tmp_path / "x.o"
    path.write_bytes(data)
    with pytest.raises(BadInputError, match="not linked"):
        analyse(path)


@pytest.mark.parametrize("cut", [0, 10, 64, 700, 2000])
def test_a_file_that_is_cut_short(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(library("x86_64", "startup_base").read_bytes()[:cut])
    with pytest.raises(BadInputError):
        analyse(path)

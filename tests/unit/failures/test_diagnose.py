"""Every known failure has a log excerpt that it, and nothing else, explains."""

from __future__ import annotations

import importlib
import io
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import machines
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode
from torchtailor.core.tables import read_table
from torchtailor.verification.doctor.examine import explain_log
from torchtailor.verification.failures import Diagnosis, diagnose, load_failures
from torchtailor.verification.failures.known import UNNAMED, Pattern, error_patterns, summary_patterns
from torchtailor.verification.failures.log import MAX_LINE, blocks, percent

LOGS = Path(__file__).parent / "logs"
FAILURES = {failure.id: failure for failure in load_failures()}


def read(text: str | bytes) -> Diagnosis:
    return diagnose(io.BytesIO(text.encode() if isinstance(text, str) else text))


def test_the_catalogue_is_large_enough_and_every_failure_has_its_log() -> None:
    assert len(FAILURES) >= 40
    assert {path.stem for path in LOGS.glob("*.log")} == set(FAILURES)


@pytest.mark.parametrize("failure", FAILURES)
def test_log_is_explained(failure: str) -> None:
    found = read((LOGS / f"{failure}.log").read_bytes())
    assert found.finding
    assert found.finding.failure == failure
    assert UNNAMED not in found.finding.cause + found.finding.fix
    assert found.finding.source
    assert any(line.number == found.finding.line for line in found.context)


def test_every_name_in_a_text_is_a_group_of_a_pattern() -> None:
    for name, row in FAILURES.items():
        regexes = [regex for pattern in row.patterns for regex in (pattern.regex, *pattern.then)]
        groups = {re.sub(r"\d$", "", group) for regex in regexes for group in regex.groupindex}
        if "arch" in groups:
            groups.add("toolkits")  # by the catalog
        assert set(re.findall(r"(?<!\{)\{(\w+)\}(?!\})", row.cause + row.fix)) <= groups, name


@pytest.mark.parametrize(
    ("arch", "fix"),
    [
        ("compute_37", "Use CUDA 11.8 or older (6.5 was the first for it)"),
        ("compute_30", "Use CUDA 10.2 or older (4.2 was the first for it)"),
        ("sm_61", "Use CUDA 12.9 or older (8.0 was the first for it)"),
        ("compute_103a", "Use CUDA 12.9 or newer"),
        ("compute_121f", "Use CUDA 12.9 or newer"),
        ("compute_107", "Use CUDA 13.4 or newer"),
        ("compute_99", "No CUDA that is known compiles for it"),
    ],
)
def test_an_architecture_that_nvcc_does_not_know_needs_another_toolkit(arch: str, fix: str) -> None:
    found = diagnose(io.BytesIO(f"nvcc fatal   : Unsupported gpu architecture '{arch}'\n".encode())).finding
    assert found is not None and found.fix.startswith(fix)


SEED_002 = [
    ("unbound-variable", None),
    ("no-setuptools", None),
    ("mkl-on-arm", None),
    ("xnnpack-arm", 10),
    ("protobuf-build", 10),
    ("shm-manager-link", 92),
]


@pytest.mark.parametrize(("failure", "reached"), SEED_002)
def test_the_five_attempts_of_seed_002(failure: str, reached: int | None) -> None:
    found = read((LOGS / f"{failure}.log").read_bytes())
    assert found.finding
    assert "seed 002" in found.finding.source
    assert found.percent == reached


NOISE = "".join(
    f"[{n}/7412] Building CXX object caffe2/CMakeFiles/torch_cpu.dir/__/aten/src/ATen/error_{n}.cpp.o -Wno-error=x\n"
    f"warning: unused variable 'error' [-Wunused-variable]\n"
    for n in range(1, 2000)
)


def test_the_first_real_error_wins_over_all_that_follows() -> None:
    log = NOISE + (LOGS / "out-of-memory.log").read_text() + "collect2: error: ld returned 1 exit status\n" * 20
    log += "ninja: build stopped: subcommand failed.\nERROR: Failed building wheel for torch\n"
    found = read(log)
    assert found.finding
    assert found.finding.failure == "out-of-memory"
    assert found.first_error
    assert "VariableType_2" in found.first_error.text


def test_a_certain_cause_beats_a_likely_one_before_it() -> None:
    likely, certain = (LOGS / "missing-header.log").read_text(), (LOGS / "disk-full.log").read_text()
    found = read(likely + certain)
    assert found.finding
    assert found.finding.failure == "disk-full"
    assert [other.failure for other in found.others] == ["missing-header"]


UNKNOWN_END = (
    'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nValueError: n must be 1 or more\n'
)
WARNED = [
    "WARNING 04-01 10:00:00 [cuda.py:200] flash_attn is not installed. Using XFormers backend.",
    "(Worker pid=7) INFO 04-01 10:00:00 [cuda.py:200] flash_attn is not installed.",
    "/env/cextension.py:34: UserWarning: The installed version of bitsandbytes was compiled without GPU support.",
    "2025-04-01 10:00:00,123 - WARNING - flash_attn is not installed.",
]


@pytest.mark.parametrize("warning", WARNED)
def test_a_warning_is_no_cause_of_an_unknown_exception_after_it(warning: str) -> None:
    found = read(f"{warning}\n{UNKNOWN_END}")
    assert found.finding is None
    assert len(found.others) == 1
    assert found.end
    assert found.end.text.startswith("ValueError")
    assert read(warning).finding  # alone it is what was asked


def test_a_warning_comes_after_what_ended_the_program() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    found = read(f"{WARNED[0]}\n{oom}\n")
    assert found.finding
    assert found.finding.failure == "gpu-out-of-memory"
    assert [other.failure for other in found.other_causes] == ["flash-attention-missing"]
    assert found.end is None


def test_an_unknown_end_is_said_beside_an_earlier_cause(capsys: pytest.CaptureFixture[str]) -> None:
    log = f"ModuleNotFoundError: No module named 'triton'\n{UNKNOWN_END}"
    found = read(log)
    assert found.finding
    assert found.finding.failure == "triton-missing"
    assert main(["doctor", log, "--no-run"]) == ExitCode.CHECK_FAILED
    assert "ends with another error, which is not known: ValueError: n must" in " ".join(
        capsys.readouterr().out.split()
    )


def test_two_causes_are_both_said_and_no_symptom_beside_them() -> None:
    found = read(
        (LOGS / "missing-header.log").read_text() + (LOGS / "disk-full.log").read_text() + "nccl: ncclSystemError\n"
    )
    report = explain_log(found)
    assert report
    assert [problem.kind for problem in report.problems] == ["disk-full", "missing-header"]
    assert "nccl" in {other.failure for other in found.others}


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("ValueError: FP8 requires compute capability 8.9 or newer, this GPU has 7.5", "gpu-too-old"),
        ("ValueError: DeepGEMM requires compute capability 9.0 or 10.0, but got 12.0", "instruction-of-another-gpu"),
    ],
)
def test_a_message_that_contradicts_a_rule_is_not_answered_by_it(line: str, failure: str) -> None:
    found = read(line)
    assert found.finding
    assert found.finding.failure == failure


def test_a_symptom_yields_to_the_cause_above_it() -> None:
    found = read((LOGS / "undefined-reference.log").read_text())
    assert found.finding
    assert (found.finding.failure, found.percent) == ("undefined-reference", 92)


@pytest.mark.parametrize("prefix", ["#17 1032.4 ", "pytorch210> ", "2026-11-15T02:58:01.123Z ", "  │ "])
def test_prefixes_of_the_tools_around(prefix: str) -> None:
    log = "".join(prefix + line for line in (LOGS / "magma-clockrate.log").read_text().splitlines(keepends=True))
    found = read(log)
    assert found.finding
    assert found.finding.failure == "magma-clockrate"


def test_colours_and_redrawn_lines() -> None:
    red = b"\x1b[1m\x1b[31mc++: fatal error:\x1b[0m Killed signal terminated program cc1plus\r\n"
    found = read(b"[1/10] one\r[2/10] two\r[9/10] nine\n" + red)
    assert found.finding
    assert found.finding.failure == "out-of-memory"
    assert found.percent == 90


def test_an_unknown_failure_is_said_to_be_unknown_with_its_lines() -> None:
    found = read(NOISE + "foo.cpp:3:1: error: the flux capacitor is out of phase\n  here\nninja: build stopped: x.\n")
    assert not found.known
    assert found.first_error
    assert "flux capacitor" in found.first_error.text
    assert [line.text for line in found.context][-2:] == ["  here", "ninja: build stopped: x."]


def test_a_good_log_is_clean() -> None:
    found = read(NOISE + "[7412/7412] Linking\nSuccessfully built torch\n")
    assert found.clean
    assert found.percent == 100


def test_a_switch_that_cmake_only_names_is_no_failure() -> None:
    """Variants without SVE set this variable, and CMake lists what a project does not use."""
    unused = "CMake Warning:\n  Manually-specified variables were not used by the project:\n\n"
    log = f"-- No SVE support on this machine.\n{unused}    BUILD_IGNORE_SVE_UNAVAILABLE\n    USE_KLEIDIAI\n\n"
    assert read(log).clean
    found = read(log + (LOGS / "missing-header.log").read_text())
    assert found.finding
    assert found.finding.failure == "missing-header"


REMARKS = [
    "-- Could NOT find NCCL (missing: NCCL_INCLUDE_DIR NCCL_LIBRARY)",
    "-- Could NOT find CUDNN (missing: CUDNN_LIBRARY_PATH CUDNN_INCLUDE_PATH)",
    "-- Could NOT find CUDAToolkit (missing: CUDAToolkit_INCLUDE_DIR)",
    "-- Could NOT find Protobuf (missing: Protobuf_LIBRARIES Protobuf_INCLUDE_DIR)",
    "-- Could NOT find BLAS (missing: BLAS_LIBRARIES)",
    "-- Could NOT find Python3 (missing: Python3_INCLUDE_DIRS Development)",
    "  Cannot find cuDNN library.  Turning the option off",
    "-- Cannot find a library with BLAS API. Not using BLAS.",
    "-- A library with LAPACK API not found.",
    "make[2]: warning:  Clock skew detected.  Your build may be incomplete.",
]


@pytest.mark.parametrize("failure", ["out-of-memory", "undefined-reference", "cuda-source"])
@pytest.mark.parametrize("line", REMARKS)
def test_what_good_builds_print_too_is_no_cause(line: str, failure: str) -> None:
    excerpt = (LOGS / f"{failure}.log").read_text()
    found = read(f"{line}\n-- Configuring done\n{excerpt}")
    assert found.finding
    assert found.finding.failure == failure
    assert found.first_error == read("\n\n" + excerpt).first_error


@pytest.mark.parametrize("line", REMARKS)
def test_a_remark_switches_nothing_off(line: str) -> None:
    found = read(f"{line}\nfoo.cpp:3:1: error: the flux capacitor is out of phase\n")
    assert found.finding
    assert (found.finding.confidence, found.finding.auto) == ("a remark", None)
    assert found.first_error
    assert "flux capacitor" in found.first_error.text


def test_a_package_that_is_required_is_a_cause() -> None:
    found = read("CMake Error at a.cmake:230 (message):\n  Could NOT find NCCL (missing: NCCL_LIBRARY)\n")
    assert found.finding
    assert (found.finding.failure, found.finding.confidence) == ("no-nccl", "certain")
    assert found.finding.auto


def test_a_symbol_of_bad_alloc_is_no_lack_of_memory() -> None:
    found = read("a.o: undefined reference to `typeinfo for std::bad_alloc'\n")
    assert found.finding
    assert found.finding.failure == "undefined-reference"
    thrown = read("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
    assert thrown.finding
    assert thrown.finding.failure == "out-of-memory"


def test_without_kleidiai_is_a_safe_fix() -> None:
    found = read((LOGS / "no-kleidiai.log").read_bytes())
    assert found.finding
    assert found.finding.auto
    assert found.finding.auto.switches == {"USE_KLEIDIAI": "0"}


NVCC = [
    ('a.cu(12): error: identifier "x" is undefined', "cuda-source"),
    (
        '/tmp/tmpxft_000061b5_00000000-1_stdin(1): error #177-D: variable "y" was declared but never referenced',
        "cuda-source",
    ),
    ('k.cuh(3): catastrophic error: cannot open source file "cub/cub.cuh"', "missing-header"),
    ("ptxas fatal   : Unresolved extern function '_Z1fi'", "device-link"),
    ("ptxas fatal   : Input file 'k.ptx' could not be opened", "ptxas-error"),
    ("nvlink fatal   : Input file 'k.o' newer than toolkit (130 vs 128)", "cuda-toolkits-mixed"),
    ("nvlink error   : Multiple definition of '_Z1fv' in 'b.o', first defined in 'a.o'", "nvlink-error"),
]


@pytest.mark.parametrize(("line", "failure"), NVCC, ids=lambda value: value[:20])
def test_errors_of_nvcc_and_its_tools_are_errors(line: str, failure: str) -> None:
    found = read(f"[1/2] Building CUDA object a.cu.o\n{line}\n")
    assert found.first_error
    assert found.first_error.text == line
    assert found.finding
    assert found.finding.failure == failure


def test_a_compile_error_of_nvcc_is_named_with_its_place() -> None:
    found = read((LOGS / "cuda-source.log").read_bytes())
    assert found.finding
    assert found.finding.cause == 'nvcc does not compile a.cu, line 12: identifier "x" is undefined.'


@pytest.mark.parametrize(
    "line",
    [
        "- **Error:** Flash Attention, XNNPACK, Protobuf build errors",  # as seed 002 writes it
        "FAILED: third_party/protobuf/cmake/CMakeFiles/libprotobuf.dir/__/src/google/protobuf/any.cc.o",
        "gmake[2]: *** [third_party/protobuf/cmake/CMakeFiles/libprotoc.dir/build.make:90: x.cc.o] Error 1",
    ],
)
def test_protobuf_errors_of_seed_002(line: str) -> None:
    found = read(line + "\n")
    assert found.finding
    assert (found.finding.failure, found.finding.confidence) == ("protobuf-build", "likely")


def test_a_component_that_was_killed_for_memory_is_not_blamed() -> None:
    killed = "cc: fatal error: Killed signal terminated program cc1\n"
    found = read(f"FAILED: confu-deps/XNNPACK/CMakeFiles/x.dir/a.c.o\ncc -c a.c\n{killed}")
    assert found.finding
    assert found.finding.failure == "out-of-memory"
    assert [other.failure for other in found.others] == ["xnnpack-arm"]


def test_a_late_certain_cause_is_found_behind_many_likely_ones() -> None:
    log = "".join(f"a.cpp:{n}:1: fatal error: h{n}.h: No such file or directory\n" for n in range(200))
    found = read(log + "ld: final link failed: No space left on device\n")
    assert found.finding
    assert found.finding.failure == "disk-full"


def test_a_hash_mismatch_is_named_from_the_lines_that_follow() -> None:
    found = read((LOGS / "nix-hash.log").read_bytes())
    assert found.finding
    assert found.finding.names["what"] == "source"
    assert found.finding.names["got"].startswith("sha256-i9Inbx")


def test_progress() -> None:
    assert percent("[3701/7402] Building") == 50
    assert percent("[ 92%] Linking") == 92
    assert percent("[0/0]") is None
    assert percent("nothing") is None


@given(st.binary(max_size=400))
def test_any_bytes_can_be_read(data: bytes) -> None:
    assert diagnose(io.BytesIO(data)).lines >= 0
    coloured = io.BytesIO(b"\x1b[31m" + data.replace(b"\x1b", b"")[:100])
    assert b"\x1b[" not in b"".join(blocks(coloured))


def test_excerpts_in_random_noise_are_found_where_they_stand() -> None:
    generator = random.Random(2)
    for failure in generator.sample(sorted(FAILURES), 12):
        at = generator.randrange(1, 500)
        excerpt = (LOGS / f"{failure}.log").read_text()
        found = read("".join(NOISE.splitlines(keepends=True)[:at]) + excerpt)
        assert found.finding
        assert found.finding.failure == failure
        assert at < found.finding.line <= at + excerpt.count("\n") + 1


ALL_PATTERNS = [
    *(pattern for failure in FAILURES.values() for pattern in failure.patterns),
    *error_patterns(),
    *summary_patterns(),
]
_parser: Any = importlib.import_module("re._parser")


def walk(tree: Any, *, repeated: bool = False, last: bool = True) -> Iterator[str]:
    """What could make an expression take more than linear time."""
    items = list(tree)
    for place, (operation, value) in enumerate(items):
        ends = last and place == len(items) - 1
        if str(operation) in ("MAX_REPEAT", "MIN_REPEAT"):
            _, most, inner = value
            if repeated and int(most) > 1:
                yield "a repeat inside a repeat"
            if int(most) > 400 and not ends:
                yield "an unbounded repeat before something else"
            yield from walk(inner, repeated=repeated or int(most) > 1, last=ends)
        elif str(operation) == "SUBPATTERN":
            yield from walk(value[-1], repeated=repeated, last=ends)
        elif str(operation) == "BRANCH":
            for branch in value[1]:
                yield from walk(branch, repeated=repeated, last=ends)


def literals(tree: Any) -> list[str]:
    """The runs of characters that every match contains."""
    runs = [""]
    for operation, value in tree:
        if str(operation) == "LITERAL":
            runs[-1] += chr(value)
        elif str(operation) == "SUBPATTERN":
            first, *more = literals(value[-1])
            runs = [*runs[:-1], runs[-1] + first, *more]
        elif str(operation) != "AT":
            runs.append("")
    return runs


def test_expressions_are_linear_and_contain_their_literal() -> None:
    assert len(ALL_PATTERNS) > 400
    for pattern in ALL_PATTERNS:
        for regex in (pattern.regex, *pattern.then):
            assert not list(walk(_parser.parse(regex.pattern))), regex.pattern
        tree = _parser.parse(pattern.regex.pattern)
        begins_anew = str(tree[0][0]) in ("MAX_REPEAT", "MIN_REPEAT")  # at every character
        assert not begins_anew, pattern.regex.pattern
        assert any(pattern.literal.decode() in run for run in literals(tree)), pattern.regex.pattern


LONG_LINES = [
    "x" * 20_000,
    "ld" * 10_000,
    "FAILED: XNNPACK/" * 1200,
    "make: *** protobuf " * 1000,
    "fatal error: cuda/" * 1000,
    "a.cu(1): error: " * 1200,
    "google/protobuf/: error" * 1000,
    "lib.so: undefined symbol: " * 800,
    "/nix/store/" * 2000 + "hash mismatch in fixed-output derivation '",
    "error: " * 3000,
]


def work(log: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Characters that were given to expressions while reading a log."""
    offered = 0
    search = Pattern.search

    def count(self: Pattern, line: str) -> re.Match[str] | None:
        nonlocal offered
        offered += len(line)
        return search(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(Pattern, "search", count)
        read(log)
    return offered


@pytest.mark.parametrize("line", LONG_LINES, ids=lambda line: line[:16])
def test_work_is_linear_in_the_size_of_a_log(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    once = work((line + "\n") * 40, monkeypatch)
    assert once <= 40 * MAX_LINE * 40  # of 200 expressions, few are tried on a line
    assert work((line + "\n") * 80, monkeypatch) <= 2 * once
    assert work(line * 80 + "\n", monkeypatch) <= MAX_LINE * 40  # one line of a megabyte: its front alone


@given(st.lists(st.sampled_from([*LONG_LINES, "ok", ""]), max_size=6), st.binary(max_size=50))
def test_lines_are_counted_however_long_they_are(lines: list[str], more: bytes) -> None:
    log = "".join(f"{line}\n" for line in lines).encode() + more
    assert read(log).lines == len(log.splitlines())


def test_a_log_without_anything_telling_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work(NOISE, monkeypatch) == 0


@pytest.mark.parametrize(
    ("name", "text", "code", "says"),
    [
        ("known.log", (LOGS / "nvcc-unsupported-arch.log").read_text(), ExitCode.CHECK_FAILED, "compute_61"),
        ("-", (LOGS / "nix-hash.log").read_text(), ExitCode.CHECK_FAILED, "sha256-i9Inbx"),
        ("odd.log", "make: x\nx.c:1:1: error: odd\n", ExitCode.NO_MATCH, ">       2  x.c:1:1: error: odd"),
        ("good.log", "[2/2] Linking\nSuccessfully built torch\n", ExitCode.OK, "No error in 2 lines"),
        ("-", REMARKS[0] + "\n", ExitCode.OK, "No error in 1 line"),
    ],
    ids=["known", "piped", "unknown", "good", "a remark"],
)
def test_doctor_reads_logs(
    name: str,
    text: str,
    code: ExitCode,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One command for messages and logs; for the log of a build the machine is not looked at."""
    host = tmp_path / "host.json"
    host.write_bytes(msgspec.json.encode(machines.host("zen4")))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    log = name
    if name != "-":
        (tmp_path / name).write_text(text)
        log = str(tmp_path / name)
    assert main(["doctor", "--from", str(host), log]) == code
    printed = capsys.readouterr().out
    assert says in printed
    assert ("machine " in printed) == (code == ExitCode.NO_MATCH)


def test_doctor_gives_logs_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(LOGS / "nix-hash.log"), "--json"]) == ExitCode.CHECK_FAILED
    answer = json.loads(capsys.readouterr().out)
    assert answer["problems"][0]["kind"] == answer["log"]["finding"]["failure"] == "nix-hash"
    assert answer["log"]["finding"]["table"] == "nix"
    assert main(["doctor", "/nonexistent.log"]) == ExitCode.NO_MATCH
    assert "/nonexistent.log does not exist" in capsys.readouterr().err


CODES = {
    "CUDA error 35 at main.cu:12": "driver-insufficient",
    "Cuda initialization failure with error 100. Please check cuda installation": "no-gpu",
    "CUDA initialization failure with error: 35. Please check your CUDA installation": "driver-insufficient",
    "cuda driver library init failure: 999": "cuda-init",
    'CUDA error at vectorAdd.cu:65 code=802(cudaErrorSystemNotReady) "cudaMalloc"': "fabric-manager",
    "cudaGetDeviceCount returned 803": "driver-library-mismatch",
    "cuInit(0) failed with error code 804": "compat-libraries",
    "CUDA runtime error (700)": "kernel-crash",
    "make: *** [Makefile:12: cuda.o] Error 2": None,
    "the CUDA build stopped; exit code 35": None,
    "error: 35 tests failed on CUDA": None,
}


@pytest.mark.parametrize("line", CODES)
def test_numbers_of_cudas_errors(line: str) -> None:
    """Programs that do not ask CUDA for a text print the number alone."""
    finding = diagnose(io.BytesIO(f"{line}\n".encode())).finding
    assert (finding.failure if finding else None) == CODES[line]


class CudaError(msgspec.Struct):
    name: str
    text: str
    driver: str = ""


class CudaErrors(msgspec.Struct):
    error: list[CudaError]


def test_every_error_of_cuda_is_known_by_its_text_and_by_both_names() -> None:
    """None is forgotten, and what the runtime and the driver's interface call it has one answer."""
    for error in read_table("verification.failures", "cuda_errors.toml", CudaErrors).error:
        shown = [f"RuntimeError: CUDA error: {error.text}", f"{error.name}: x", error.driver or error.name]
        answers = {text: finding.failure if (finding := read(text).finding) else None for text in shown}
        assert None not in answers.values() and len(set(answers.values())) == 1, answers

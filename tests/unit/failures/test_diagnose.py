"""Every known failure has a log excerpt that it, and nothing else, explains."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.errors import ExitCode
from torchtailor.failures import Diagnosis, diagnose, load_failures
from torchtailor.failures.log import clean, percent

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
    assert "named there" not in found.finding.cause
    assert found.finding.source
    assert any(line.number == found.finding.line for line in found.context)


@pytest.mark.parametrize("failure", FAILURES)
def test_every_name_in_a_text_is_a_group_of_a_pattern(failure: str) -> None:
    row = FAILURES[failure]
    groups = {re.sub(r"\d$", "", name) for pattern in row.patterns for name in pattern.groupindex}
    assert set(re.findall(r"(?<!\{)\{(\w+)\}(?!\})", row.cause + row.mend)) <= groups


SEED_002 = [
    ("unbound-variable", None),
    ("no-setuptools", None),
    ("mkl-on-arm", None),
    ("xnnpack-arm", 10),
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


def test_without_kleidiai_is_a_safe_mend() -> None:
    found = read((LOGS / "no-kleidiai.log").read_bytes())
    assert found.finding
    assert found.finding.auto
    assert found.finding.auto.switches == {"USE_KLEIDIAI": "0"}


def test_progress() -> None:
    assert percent("[3701/7402] Building") == 50
    assert percent("[ 92%] Linking") == 92
    assert percent("[0/0]") is None
    assert percent("nothing") is None


@given(st.binary(max_size=400))
def test_any_bytes_can_be_read(data: bytes) -> None:
    assert diagnose(io.BytesIO(data)).lines >= 0
    assert "\x1b[" not in clean(b"\x1b[31m" + data.replace(b"\x1b", b"")[:100])


def test_excerpts_in_random_noise_are_found_where_they_stand() -> None:
    generator = random.Random(2)
    for failure in generator.sample(sorted(FAILURES), 12):
        at = generator.randrange(1, 500)
        excerpt = (LOGS / f"{failure}.log").read_text()
        found = read("".join(NOISE.splitlines(keepends=True)[:at]) + excerpt)
        assert found.finding
        assert found.finding.failure == failure
        assert at < found.finding.line <= at + excerpt.count("\n") + 1


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "torchtailor", "diagnose", *arguments], input=stdin, capture_output=True, check=False
    )


def test_command() -> None:
    known = run(str(LOGS / "nvcc-unsupported-arch.log"))
    assert known.returncode == 0
    assert b"compute_61" in known.stdout
    piped = run("-", "--json", stdin=(LOGS / "nix-hash.log").read_bytes())
    assert json.loads(piped.stdout)["finding"]["failure"] == "nix-hash"
    assert run("-", stdin=b"x.c:1:1: error: odd\n").returncode == ExitCode.NO_MATCH
    missing = run("/nonexistent.log")
    assert (missing.returncode, missing.stderr.startswith(b"error: The log")) == (ExitCode.BAD_INPUT, True)
    assert run("/").returncode == ExitCode.BAD_INPUT

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.core.errors import BadInputError
from torchtailor.verification.compare import CaseVerdict, compare
from torchtailor.verification.imports import cpu_checks
from torchtailor.verification.ongpu import comparison_checks, gpu_checks
from torchtailor.verification.result import CheckOutcome
from torchtailor.verification.suite_results import CaseResult, OutputHash, SuiteResults, load_results, steady


def case(name: str, content: str = "x", outcome: Any = "pass", **more: Any) -> CaseResult:
    outputs = (OutputHash("float32", (2, 3), content),) if outcome == "pass" else ()
    deterministic = more.pop("deterministic", outcome == "pass")
    library = name.split("/", maxsplit=1)[0]
    return CaseResult(name, library, outcome, deterministic=deterministic, outputs=outputs, **more)


def results(*cases: CaseResult, unusable: str | None = None) -> SuiteResults:
    return SuiteResults(1, {}, unusable, cases)


def verdicts(stock: list[SuiteResults], tailored: SuiteResults) -> dict[str, CaseVerdict]:
    return {one.name: one.verdict for one in compare(stock, tailored).cases}


def test_verdicts() -> None:
    stock = [
        results(
            case("aten/same"),
            case("aten/changed"),
            case("aten/unsteady", "1", deterministic=False),
            case("aten/across", "1"),
            case("aten/lost"),
            case("aten/dropped"),
            case("aten/refused"),
            case("aten/broken", outcome="fail", reason="a bug"),
            case("aten/fixed", outcome="fail", reason="a bug"),
            case("aten/no", outcome="not-applicable"),
        ),
        results(
            case("aten/same"),
            case("aten/changed"),
            case("aten/unsteady", "2", deterministic=False),
            case("aten/across", "2"),  # the same in one process, another in the next
            case("aten/lost"),
            case("aten/dropped"),
            case("aten/refused"),
            case("aten/broken", outcome="fail", reason="a bug"),
            case("aten/fixed", outcome="fail"),
            case("aten/no", outcome="not-applicable"),
        ),
    ]
    tailored = results(
        case("aten/same"),
        case("aten/changed", "y"),
        case("aten/unsteady", "3", deterministic=False),
        case("aten/across", "3"),
        case("aten/lost", outcome="fail", reason="no kernel image"),
        case("aten/refused", outcome="not-applicable", reason="No available kernel"),
        case("aten/broken", outcome="fail", reason="a bug"),
        case("aten/fixed"),
        case("aten/no", outcome="not-applicable"),
    )
    assert verdicts(stock, tailored) == {
        "aten/same": CaseVerdict.IDENTICAL,
        "aten/changed": CaseVerdict.DIFFERS,
        "aten/unsteady": CaseVerdict.CLOSE,
        "aten/across": CaseVerdict.CLOSE,
        "aten/lost": CaseVerdict.LOST,
        "aten/dropped": CaseVerdict.LOST,
        "aten/refused": CaseVerdict.LOST,
        "aten/broken": CaseVerdict.NEITHER,
        "aten/fixed": CaseVerdict.GAINED,
        "aten/no": CaseVerdict.NEITHER,
    }
    comparison = compare(stock, tailored)
    assert [one.name for one in comparison.bad] == ["aten/changed", "aten/lost", "aten/dropped", "aten/refused"]
    assert comparison.summary() == "1 identical, 2 close, 1 differs, 3 lost, 1 gained, 2 neither"


def test_a_case_that_became_unsteady_is_different() -> None:
    stock = [results(case("aten/a")), results(case("aten/a"))]
    found = compare(stock, results(case("aten/a", "y", deterministic=False)))
    assert found.cases[0].verdict is CaseVerdict.DIFFERS
    assert "same bytes twice" in found.cases[0].reason


def test_a_case_that_stock_passes_only_sometimes_is_not_lost() -> None:
    stock = [results(case("aten/a")), results(case("aten/a", outcome="fail"))]
    assert verdicts(stock, results(case("aten/a", outcome="fail"))) == {"aten/a": CaseVerdict.NEITHER}


def test_nothing_to_compare_with() -> None:
    with pytest.raises(BadInputError):
        compare([], results())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from(["pass", "fail"])), max_size=6))
def test_stock_against_itself_is_never_bad(rows: list[tuple[str, bool, str]]) -> None:
    cases = [
        case(f"aten/{number}", content, outcome, deterministic=steady_one)
        for number, (content, steady_one, outcome) in enumerate(rows)
    ]
    stock = results(*cases)
    comparison = compare([stock, stock], stock)
    assert not comparison.bad
    assert len(comparison.cases) == len(cases)
    assert comparison.count(CaseVerdict.IDENTICAL) == len(steady([stock, stock]))


def test_lines_for_a_comparison() -> None:
    stock = [results(case("aten/a"), case("cufft/a"), case("nccl/a", outcome="not-applicable", reason="no NCCL"))]
    tailored = results(
        case("aten/a"), case("cufft/a", outcome="fail", reason="CUFFT_INTERNAL_ERROR"), case("nccl/a", outcome="fail")
    )
    lines = {check.name: check for check in comparison_checks(compare(stock, tailored))}
    assert lines["as stock (aten)"].outcome is CheckOutcome.PASS
    assert lines["as stock (cufft)"].outcome is CheckOutcome.FAIL
    assert "CUFFT_INTERNAL_ERROR" in lines["as stock (cufft)"].reason
    assert lines["as stock (nccl)"].outcome is CheckOutcome.NOT_APPLICABLE


def test_what_stock_fails_does_not_count_against_a_build() -> None:
    skipped = case("nccl/a", outcome="not-applicable", reason="no NCCL")
    found = results(case("aten/a"), case("aten/b", outcome="fail", reason="torch bug"), skipped)
    alone = list(gpu_checks(found))
    assert [check.outcome for check in alone] == [CheckOutcome.FAIL, CheckOutcome.NOT_APPLICABLE]
    aten, nccl, inherited = gpu_checks(found, [found])
    assert aten.outcome is CheckOutcome.PASS
    assert nccl.reason == "no NCCL"
    assert inherited.outcome is CheckOutcome.NOT_APPLICABLE
    assert inherited.details["cases"] == ["aten/b"]


def test_a_failure_of_stock_excuses_no_other_failure() -> None:
    found = results(case("aten/a", outcome="fail", reason="no kernel image is available"))
    memory = results(case("aten/a", outcome="fail", reason="out of memory: 12.5 GiB at 0x7f01"))
    for stock in ([memory, memory], [results(case("aten/a")), memory]):
        assert [check.outcome for check in gpu_checks(found, stock)] == [CheckOutcome.FAIL]
        assert verdicts(stock, found) == {"aten/a": CaseVerdict.LOST}
    again = results(case("aten/a", outcome="fail", reason="out of memory: 3 GiB at 0x7fee"))
    assert [check.outcome for check in gpu_checks(again, [memory])] == [CheckOutcome.NOT_APPLICABLE]
    assert verdicts([memory], again) == {"aten/a": CaseVerdict.NEITHER}


def test_stock_on_an_unusable_gpu_excuses_nothing() -> None:
    found = results(case("aten/a", outcome="fail", reason="the driver is gone"))
    broken = results(*found.cases, unusable="the driver is gone")
    assert [check.outcome for check in gpu_checks(found, [broken])] == [CheckOutcome.FAIL]
    assert verdicts([broken, results(case("aten/a"))], found) == {"aten/a": CaseVerdict.LOST}
    with pytest.raises(BadInputError):
        compare([broken], found)


def test_an_unusable_gpu_is_one_line() -> None:
    lines = list(gpu_checks(results(case("aten/a", outcome="fail"), unusable="no kernel image")))
    assert [(line.outcome, "no kernel image" in line.reason) for line in lines] == [(CheckOutcome.FAIL, True)]


def test_cpu_lines() -> None:
    found = results(
        case("aten/a", error=1e-7, limit=1e-6),
        case("aten/b", outcome="fail", reason="differs from the reference by 0.2"),
        case("cufft/a", error=0.0, limit=1e-6),
        case("nccl/a", outcome="not-applicable", reason="not run on cpu"),
    )
    lines = {check.name: check for check in cpu_checks(found)}
    assert lines["CPU ops (kernels of torch)"].outcome is CheckOutcome.FAIL
    assert "aten/b: differs" in lines["CPU ops (kernels of torch)"].reason
    assert lines["CPU ops (Fourier transforms)"].outcome is CheckOutcome.PASS
    assert lines["CPU ops (GPU libraries)"].outcome is CheckOutcome.NOT_APPLICABLE


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": 1}', '{"format":7,"environment":{},"unusable":null,"cases":[]}'],
)
def test_bad_result_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(BadInputError):
        load_results(path)
    with pytest.raises(BadInputError):
        load_results(tmp_path / "missing.json")


def test_a_real_result_file(tmp_path: Path) -> None:
    """The shape that worker.py writes."""
    row = {
        "name": "cublas/matmul/float32",
        "library": "cublas",
        "outcome": "pass",
        "reason": "",
        "deterministic": True,
        "error": "inf",
        "limit": 2e-5,
        "seconds": [0.1, 0.2],
        "outputs": [{"dtype": "float32", "shape": [2, 3], "sha256": "ab"}],
    }
    document = {"format": 1, "environment": {"torch": "2.11"}, "unusable": None, "cases": [row], "crashes": []}
    (tmp_path / "r.json").write_text(json.dumps(document))
    loaded = load_results(tmp_path / "r.json")
    assert loaded.by_name["cublas/matmul/float32"].outputs[0].shape == (2, 3)
    assert loaded.libraries == ("cublas",)

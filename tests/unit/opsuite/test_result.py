from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.catalog import Capability
from torchtailor.core.documents import plain
from torchtailor.core.errors import BadInputError, CheckFailedError, EnvironmentProblem
from torchtailor.verification.output import as_document, as_junit, read_report, write_junit
from torchtailor.verification.result import Check, CheckOutcome, Level, VerifyReport

PASS = Check.of(Level.STATIC, "gpu code", True, "all 9.0")
FAIL = Check.of(Level.IMPORT, "import", False, "it crashed", stderr="boom", gpu=Capability(9, 0))
SKIP = Check.not_applicable(Level.GPU, "op suite", "no GPU")


def test_report_counts_and_levels() -> None:
    report = VerifyReport("x", (PASS, SKIP)).plus([FAIL], torch="2.13.0")
    assert report.levels == (Level.STATIC, Level.IMPORT, Level.GPU)
    assert [level.number for level in report.levels] == [1, 2, 3]
    assert not report.passed
    assert report.failures == (FAIL,)
    assert report.summary() == "1 passed, 1 failed, 1 not applicable"
    assert report.facts["torch"] == "2.13.0"
    with pytest.raises(CheckFailedError, match="'import': it crashed"):
        report.raise_if_failed()


def test_a_report_of_nothing_but_skips_has_not_passed() -> None:
    assert VerifyReport("x", (PASS, SKIP)).passed
    assert not VerifyReport("x", (SKIP,)).passed
    with pytest.raises(CheckFailedError, match="Nothing of x"):
        VerifyReport("x", (SKIP,)).raise_if_failed()
    VerifyReport("x", (PASS,)).raise_if_failed()


def test_json_round_trip() -> None:
    report = VerifyReport("x", (PASS, FAIL, SKIP), {"where": Path("/a"), "level": Level.GPU})
    again = read_report(msgspec.json.encode(plain(as_document(report))))
    assert as_document(again) == as_document(report)
    assert as_document(report).counts == {"pass": 1, "fail": 1, "not-applicable": 1}
    assert again.checks[1].details["stderr"] == "boom"


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"format": 9}', '{"format":1,"target":"x","checks":[{}]}'])
def test_bad_json(text: str) -> None:
    with pytest.raises(BadInputError):
        read_report(text)


def test_junit(tmp_path: Path) -> None:
    took = {"level_seconds": {"static": 1.5, "import": 2}, "total_seconds": 3.75}
    write_junit(VerifyReport("x", (PASS, FAIL, SKIP), took), tmp_path / "deep" / "r.xml")
    root = ElementTree.parse(tmp_path / "deep" / "r.xml").getroot()
    assert (root.attrib["tests"], root.attrib["time"]) == ("3", "3.750")
    assert [suite.attrib["time"] for suite in root] == ["1.500", "2.000", "0.000"]
    assert [suite.attrib["name"] for suite in root] == ["1 static", "2 import", "3 gpu"]
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.attrib["message"] == "it crashed"
    assert "boom" in (failure.text or "")
    assert root.find(".//skipped") is not None


@given(st.text(), st.text())
def test_any_message_makes_readable_xml(name: str, reason: str) -> None:
    check = Check(
        Level.GPU,
        name.encode("utf-8", "replace").decode(),
        CheckOutcome.FAIL,
        reason.encode("utf-8", "replace").decode(),
    )
    root = ElementTree.fromstring(as_junit(VerifyReport("x", (check,))))
    assert root.attrib["failures"] == "1"


def test_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem):
        write_junit(VerifyReport("x", (PASS,)), tmp_path / "file" / "r.xml")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]

"""A report as JSON (for scripts) and as JUnit XML (for CI systems)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

import msgspec
from msgspec import Meta, Struct

from torchtailor.core.disk import write_output
from torchtailor.core.errors import BadInputError
from torchtailor.core.shapes import shaped
from torchtailor.verification.result import Check, CheckOutcome, VerifyReport

FORMAT = 1

# Characters that XML 1.0 cannot hold even when escaped; libraries' own messages sometimes have them.
_NOT_XML = {code: " " for code in (*range(0x20), 0xFFFE, 0xFFFF) if code not in (0x9, 0xA, 0xD)}


class VerifyDocument(Struct):
    """All checks of one target, in the order in which they were made."""

    target: str
    passed: bool
    level_not_reached: Annotated[str, Meta(description="why the level asked for could not be checked, or empty")]
    counts: Annotated[dict[str, int], Meta(description="by outcome")]
    facts: Annotated[dict[str, Any], Meta(description="see [verify.md](verify.md)")]
    checks: tuple[Check, ...]
    format: int = FORMAT


class _Written(Struct):
    """What is read of a report: all else follows from it."""

    target: str
    checks: tuple[Check, ...]
    facts: dict[str, Any] = {}


class _WrittenFormat(Struct):
    format: int


def as_document(report: VerifyReport) -> VerifyDocument:
    """The document that `--json` prints; `read_report` reads it back."""
    return VerifyDocument(
        report.target,
        report.passed,
        report.not_reached,
        {outcome.value: report.count(outcome) for outcome in CheckOutcome},
        _plain(report.facts),
        tuple(msgspec.structs.replace(check, details=_plain(check.details)) for check in report.checks),
    )


def read_report(document: bytes | str) -> VerifyReport:
    """Read a report that was written as JSON."""
    try:
        if (written := msgspec.json.decode(document, type=shaped(_WrittenFormat)).format) != FORMAT:
            raise BadInputError(
                f"This verification report has format {written}, and this torchtailor reads {FORMAT}.",
                "Verify again, or use the torchtailor that wrote it.",
            )
        read = msgspec.json.decode(document, type=shaped(_Written))
    except msgspec.DecodeError as error:
        raise BadInputError(
            f"This is not a verification report: {error}.", "Write one with `torchtailor verify --json`."
        ) from error
    return VerifyReport(read.target, read.checks, read.facts)


def as_junit(report: VerifyReport) -> bytes:
    """JUnit XML: a suite for each level, a case for each check."""
    took: Mapping[str, float] = report.facts.get("level_seconds", {})
    counts = _counts(report.checks, report.facts.get("total_seconds", 0))
    root = ElementTree.Element("testsuites", counts, name=_text(report.target))
    for level in report.levels:
        counts = _counts(report.at(level), took.get(level.value, 0))
        suite = ElementTree.SubElement(root, "testsuite", counts, name=f"{level.number} {level.value}")
        for check in report.at(level):
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"torchtailor.verify.{level.value}", name=_text(check.name)
            )
            if check.outcome is CheckOutcome.FAIL:
                failure = ElementTree.SubElement(case, "failure", message=_text(check.reason))
                failure.text = _text(_details_text(check.details))
            elif check.outcome is CheckOutcome.NOT_APPLICABLE:
                ElementTree.SubElement(case, "skipped", message=_text(check.reason))
    ElementTree.indent(root)
    encoded: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return encoded + b"\n"


def write_junit(report: VerifyReport, path: Path) -> None:
    write_output(path, as_junit(report))


def _counts(checks: tuple[Check, ...], seconds: float) -> dict[str, str]:
    return {
        "tests": str(len(checks)),
        "failures": str(sum(check.failed for check in checks)),
        "skipped": str(sum(check.outcome is CheckOutcome.NOT_APPLICABLE for check in checks)),
        "time": f"{seconds:.3f}",
    }


def _details_text(details: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}: {_plain(value)}" for name, value in details.items())


def _plain(value: Any) -> Any:
    """Dataclasses, enums and paths as what JSON has."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return msgspec.to_builtins(value, enc_hook=str, builtin_types=())


def _text(text: str) -> str:
    return text.translate(_NOT_XML).encode("utf-8", "backslashreplace").decode()  # of names that are not UTF-8

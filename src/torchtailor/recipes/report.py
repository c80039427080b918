"""The audit's report as text, JSON or annotations of GitHub's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from torchtailor.recipes.audit import Finding, Report
from torchtailor.recipes.rules import RULES, Severity

_MANY = 6

_HEAD = """\
# Rules of the recipe audit

`torchtailor recipes check` applies all of them. An error fails the audit, a warning fails it with `--strict`.
This table is made by `torchtailor recipes rules --markdown`; a test fails when it drifts.

| Rule | Severity | Looks for | How to mend |
|---|---|---|---|""".splitlines()


def as_json(reports: Sequence[Report], *, strict: bool) -> dict[str, object]:
    """One document for all trees."""
    return {
        "passed": all(report.passed(strict=strict) for report in reports),
        "trees": [
            {
                "root": str(report.root),
                "release": report.release,
                "recipes": report.recipes,
                "evaluated": report.by_nix,
                "errors": report.errors,
                "warnings": report.warnings,
                "findings": [_plain(finding) for finding in report.findings],
            }
            for report in reports
        ],
    }


def github_lines(reports: Sequence[Report], base: Path) -> Iterator[str]:
    """Workflow commands that annotate files; paths are from the repository's root."""
    for report in reports:
        for finding in report.findings:
            path = report.root / finding.file
            shown = path.resolve()
            if shown.is_relative_to(base.resolve()):
                shown = shown.relative_to(base.resolve())
            text = _escape(f"{finding.message}. {finding.mend}")
            where = f"file={_escape_property(str(shown))},line={finding.line},title={finding.rule}"
            yield f"::{finding.severity.value} {where}::{text}"


def text_lines(report: Report) -> Iterator[tuple[Severity | None, str]]:
    """Lines for people, each with the severity it is coloured by: findings, then how to mend each kind.

    What is the same in many files is said once.
    """
    same: dict[tuple[str, str], list[Finding]] = {}
    for finding in report.findings:
        same.setdefault((finding.rule, finding.message), []).append(finding)
    for group in same.values():
        for finding in group if len(group) < _MANY else group[:1]:
            more = f", and in {len(group) - 1} more places" if len(group) >= _MANY else ""
            text = f"{finding.severity.value}: {finding.message} [{finding.rule}]{more}"
            yield finding.severity, f"{finding.file}:{finding.line}: {text}"
    rules = sorted({finding.rule for finding in report.findings})
    if rules:
        yield None, ""
        yield None, "How to mend:"
        for rule in rules:
            yield None, f"  {rule}: {RULES[rule].mend}"
    how = "evaluated with Nix" if report.by_nix else "read with the grammar alone, without Nix"
    yield None, ""
    counts = f"{report.errors} errors, {report.warnings} warnings"
    yield None, f"{report.root}: release {report.release}, {report.recipes} recipes {how}: {counts}."


def rules_table() -> str:
    """docs/recipe-rules.md, from the rules themselves."""
    lines = [*_HEAD]
    for rule in sorted(RULES.values(), key=lambda rule: rule.id):
        cells = (f"`{rule.id}`", rule.severity.value, _cell(rule.looks_for), _cell(rule.mend))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _plain(finding: Finding) -> dict[str, object]:
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "file": finding.file,
        "line": finding.line,
        "message": finding.message,
        "mend": finding.mend,
    }


def _cell(text: str) -> str:
    return (text[0].upper() + text[1:]).replace("|", "\\|")


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")

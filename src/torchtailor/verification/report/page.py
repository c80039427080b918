"""Renders the page: everything is in it, styles, script, drawings and the JSON they were made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from torchtailor.core.disk import write_output
from torchtailor.core.documents import json_text, plain
from torchtailor.core.format import human_bytes, human_seconds
from torchtailor.verification.output import as_document
from torchtailor.verification.report import svg
from torchtailor.verification.report.chart import Bytes, Chart, chart
from torchtailor.verification.report.parts import (
    card,
    command_line,
    encoded,
    legend,
    size_cell,
    table,
    whole_page,
)
from torchtailor.verification.result import HOST, Check, CheckOutcome, Level, VerifyReport

_WORDS = {CheckOutcome.PASS: "pass", CheckOutcome.FAIL: "fail", CheckOutcome.NOT_APPLICABLE: "n/a"}
_FOLDED = 4  # lines of the same kind and outcome that are shown as one
_ABOUT = {
    "static": "read from the files, without hardware",
    "import": "in a fresh process",
    "gpu": "computed on the GPU",
}


def write_report(report: VerifyReport, path: Path) -> None:
    """Write the page whole or not at all."""
    write_output(path, encoded(render(report)))


def render(report: VerifyReport) -> str:
    """The page as one string."""
    document = plain(as_document(report))
    facts = document["facts"]
    drawn = chart(facts)
    title = f"{Path(report.target).name or report.target}: torchtailor verify"
    return whole_page(
        "page.html",
        title=title,
        document=document,
        verdict="pass" if report.passed else "fail",
        verdict_text=_verdict(report),
        answer=_answer(report, facts, drawn),
        summary=escape(report.summary()),
        target=escape(report.target),
        expected=_expected(facts),
        failures=_failures(report),
        cards="".join(_cards(report, facts, drawn)),
        sizes=_sizes(drawn) + _packs(facts) + _pages(facts),
        made=_made(facts),
        proof="".join(_proof(report)),
        install=_install(facts),
        made_by=escape(_made_by(facts)),
    )


def _verdict(report: VerifyReport) -> str:
    """`Verified to level 2 of 3 (import)`: how far is part of the answer."""
    if not report.passed:
        return "Not verified"
    reached = [level for level in report.levels if any(c.outcome is CheckOutcome.PASS for c in report.at(level))]
    return f"Verified to level {reached[-1].number} of {len(Level)} ({reached[-1].value})"


def _answer(report: VerifyReport, facts: Mapping[str, Any], drawn: Chart) -> str:
    """How much smaller, of what, and whether it is safe: before everything else."""
    lines = []
    gpus = ", ".join(facts.get("expected", {}).get("gpus", ()))
    what = " for ".join(
        filter(None, [f"PyTorch {facts['torch']}" if facts.get("torch") else "", gpus and f"GPU {gpus}"])
    )
    if drawn.before and drawn.before.total > drawn.now.total:
        saved = 1 - drawn.now.total / drawn.before.total
        change = f"{human_bytes(drawn.before.total)} of libraries became {human_bytes(drawn.now.total)}"
        lines.append(f"<strong>{saved:.0%} smaller</strong>: {escape(f'{what}, {change}' if what else change)}.")
    elif what:
        lines.append(f"<strong>{escape(what)}</strong>")
    whose = f"GPU {gpus}" if gpus else "a GPU"
    against = next((c for c in report.checks if c.name == "coverage against stock" and c.details.get("images")), None)
    if report.failures:
        count = len(report.failures)
        lines.append(f"Do not use it: {'1 check' if count == 1 else f'{count} checks'} failed.")
    elif against is not None and against.outcome is CheckOutcome.PASS:
        images = against.details["images"]
        lines.append(f"All {images} images that {escape(whose)} would load are there, byte for byte.")
    elif facts.get("kept_images"):
        lines.append(
            f"All {facts['kept_images']} images kept for {escape(whose)} are stock's, byte for byte: the cut compared "
            "them, and these are the files that it wrote."
        )
    return "".join(f'<p class="answer">{line}</p>' for line in lines)


def _expected(facts: Mapping[str, Any]) -> str:
    expected = facts.get("expected", {})
    rows = [
        ("Variant", expected.get("variant")),
        ("GPU", ", ".join(expected.get("gpus", ()))),
        ("CPU", expected.get("isa")),
        ("Processor", expected.get("arch")),
        ("Python", expected.get("python")),
        ("Kind", facts.get("kind")),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>" for name, value in rows if value)


def _failures(report: VerifyReport) -> str:
    """What failed, before everything else."""
    if not report.failures:
        return ""
    lines = "".join(f"<li><strong>{escape(c.name)}</strong>: {escape(c.reason)}</li>" for c in report.failures)
    return f'<section class="failures" aria-label="What failed"><ul>{lines}</ul></section>'


def _cards(report: VerifyReport, facts: Mapping[str, Any], drawn: Chart) -> Iterator[str]:
    stock, wheels = facts.get("stock"), facts.get("wheels")
    size = facts.get("size", 0)
    if stock and wheels:
        yield _change("Download", stock["size"], size, "download")
    elif stock and not drawn.before:
        yield _change("On disk", stock["size"], size, "download")
    elif size and (wheels or not drawn.before):
        yield card("Size", human_bytes(size), "wheels" if wheels else "libraries", "download", size)
    if drawn.before:
        yield _change("Installed libraries", drawn.before.total, drawn.now.total, "installed")
        yield _change("GPU code", drawn.before.gpu, drawn.now.gpu, "gpu")
    elif drawn.now.gpu:
        yield card("GPU code", human_bytes(drawn.now.gpu), f"of {human_bytes(drawn.now.total)}", "gpu", drawn.now.gpu)
    failed = report.count(CheckOutcome.FAIL)
    yield card("Checks", f"{report.count(CheckOutcome.PASS)} passed", f"{failed} failed", "checks", len(report.checks))
    yield card("Time", human_seconds(facts.get("total_seconds", facts.get("seconds", 0))), "to verify", "time", 0)


def _change(name: str, before: int, after: int, key: str) -> str:
    saved = (before - after) / before if before else 0
    note = f"was {human_bytes(before)}, {abs(saved):.0%} {'less' if saved >= 0 else 'more'}"
    return card(name, human_bytes(after), note, key, after)


def _sizes(drawn: Chart) -> str:
    if not drawn.rows:
        return "<p>There are no libraries.</p>"
    colours = legend((svg.colour_class(drawn, label), _label_name(label)) for label in drawn.labels)
    return (
        f"{colours}<h3>All libraries</h3>{svg.totals(drawn)}"
        f"<h3>Each library <small>all on one scale</small></h3>{svg.bars(drawn)}"
        f"<details><summary>The same as a table</summary>{_table(drawn)}</details>"
    )


def _label_name(label: str) -> str:
    return "host code and data" if label == HOST else label


def _packs(facts: Mapping[str, Any]) -> str:
    """What was used of each library and stays in it, and what is in packs; nothing where there are none."""
    rows = facts.get("packs") or ()
    if not rows:
        return ""
    body = (
        f"<tr><th scope=row>{escape(str(row['name']))}</th>{size_cell(row['stays'])}{size_cell(row['in_packs'])}"
        f"<td>{row['containers']}</td><td>{row['missing'] or ''}</td></tr>"
        for row in sorted(rows, key=lambda row: -int(row["in_packs"]))
    )
    heads = ("Library", "Stays", "In packs", "Containers moved", "In no pack")
    stays, packed = (sum(int(row[key]) for row in rows) for key in ("stays", "in_packs"))
    return (
        f"<h3>GPU code in packs</h3><p>{human_bytes(stays)} stay in the libraries, {human_bytes(packed)} are in packs, "
        f"from where a program gets what it misses.</p>{table(heads, body, name='packs')}"
    )


def _pages(facts: Mapping[str, Any]) -> str:
    """What programs touch of each library, in its file, and the rest, in its pack; nothing where none was cut so."""
    rows = facts.get("pages") or ()
    if not rows:
        return ""
    body = (
        f"<tr><th scope=row>{escape(str(row['name']))}</th>{size_cell(row['hot'])}{size_cell(row['cold'])}"
        f"<td>{'code and data' if row['data'] else 'code'}</td><td>{'' if row['pack'] else 'missing'}</td></tr>"
        for row in sorted(rows, key=lambda row: -int(row["cold"]))
    )
    hot, cold = (sum(int(row[key]) for row in rows) for key in ("hot", "cold"))
    return (
        f"<h3>Pages of code and data</h3><p>{human_bytes(hot)} that were touched are in the libraries (hot), "
        f"{human_bytes(cold)} in their packs (cold), which are mapped when they are loaded.</p>"
        f"{table(('Library', 'Hot', 'Cold', 'Of', 'Pack'), body, name='pages')}"
    )


def _table(drawn: Chart) -> str:
    rows = []
    for row in drawn.rows:
        for when, size in (("before", row.before), ("after" if row.before else "now", row.now)):
            if size is not None:
                rows.append(_table_row(row.name, when, size, drawn))
    return table(("Library", "When", *drawn.labels, "Total"), rows, name="sizes")


def _table_row(name: str, when: str, size: Bytes, drawn: Chart) -> str:
    counts = [*(size.parts.get(label, 0) for label in drawn.labels), size.total]
    cells = "".join(size_cell(count) if count else '<td data-bytes="0"></td>' for count in counts)
    head = f"<th scope=row>{escape(name)}</th><td>{when}</td>"
    return f'<tr data-library="{escape(name)}" data-when="{when}">{head}{cells}</tr>'


def _made(facts: Mapping[str, Any]) -> str:
    made = facts.get("made") or {}
    if not made.get("wheels"):
        wheels = "".join(
            f"<li><code>{escape(wheel['name'])}</code> ({human_bytes(wheel['size'])})</li>"
            for wheel in facts.get("wheels", ())
        )
        return f"<p>There is no manifest: this was not made by torchtailor.</p><ul>{wheels}</ul>"
    rows = []
    for wheel in made["wheels"]:
        source, output = wheel.get("input", {}), wheel.get("output", {})
        size = f"{human_bytes(source['size'])}" if source.get("size") else ""
        after = f"{human_bytes(output['size'])}" if output.get("size") else ""
        digest = str(source.get("sha256", ""))
        rows.append(
            f"<tr><td>{escape(str(wheel.get('name', '')))}</td><td>{escape(str(wheel.get('step', 'cut')))}</td>"
            f"<td><code>{escape(str(source.get('filename', source.get('name', ''))))}</code></td>"
            f"<td>{size}</td><td>{after}</td>"
            f'<td><code title="{escape(digest)}">{escape(digest[:12])}</code></td></tr>'
        )
    gives = f"<p>{escape(str(made['gives']))}</p>" if made.get("gives") else ""
    return gives + table(("Package", "Step", "Made from", "Before", "After", "SHA-256"), rows)


def _proof(report: VerifyReport) -> Iterator[str]:
    for level in report.levels:
        lines = "".join(_folded(report.at(level)))
        yield (
            f"<h3>Level {level.number}: {level.value} <small>{_ABOUT[level.value]}</small></h3>"
            f'<ol class="proof" data-level="{level.value}">{lines}</ol>'
        )


def _folded(checks: Sequence[Check]) -> Iterator[str]:
    """Lines of one kind and one outcome as one that opens, where they are many; failures are never folded."""
    groups: dict[tuple[str, CheckOutcome], list[Check]] = {}
    for check in checks:
        kind = check.name.partition(": ")[0] if not check.failed else check.name
        groups.setdefault((kind, check.outcome), []).append(check)
    for (kind, outcome), group in groups.items():
        if len(group) < _FOLDED or outcome is CheckOutcome.FAIL:
            yield from map(_line, group)
            continue
        inside = "".join(map(_line, group))
        yield (
            f'<li class="{outcome.value} fold"><span class="outcome">{_WORDS[outcome]}</span><details><summary>'
            f"<strong>{escape(kind)}</strong> {len(group)} of the same</summary>"
            f'<ol class="proof">{inside}</ol></details></li>'
        )


def _line(check: Check) -> str:
    details = ""
    if check.details:
        text = escape(json_text(plain(dict(check.details)), indent=2))
        details = f"<details><summary>details</summary><pre>{text}</pre></details>"
    word = _WORDS[check.outcome]
    return (
        f'<li class="{check.outcome.value}" data-outcome="{check.outcome.value}"><span class="outcome">{word}</span>'
        f"<div><strong>{escape(check.name)}</strong> <p>{escape(check.reason)}</p>{details}</div></li>"
    )


def _install(facts: Mapping[str, Any]) -> str:
    commands = facts.get("install") or ()
    if not commands:
        return "<p>There are no wheels to install.</p>"
    return "".join(map(command_line, commands))


def _made_by(facts: Mapping[str, Any]) -> str:
    tool = facts.get("tool", {})
    return f"{tool.get('name', 'torchtailor')} {tool.get('version', '')}, {facts.get('started', '')}".strip()

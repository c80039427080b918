"""The page at the top of an index, for people, and `about.json`, which says what its folders are.

Installers read neither. What a wheelhouse says of itself (its manifest, and a verification report beside it) is kept in
`about.json`, because the index itself has only files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from torchtailor.core.store import Store
from torchtailor.core.trust import Label, Limit, PinnedRequirement, Size, decode_json, read_limited
from torchtailor.publish.additions import add_entries
from torchtailor.publish.places import TARGETS
from torchtailor.site.published import PublishedVariant, front_page
from torchtailor.trees.index.pages import HTML_NAME, HTML_TYPE, JSON_NAME, IndexedFile, read_project_json, read_targets
from torchtailor.wheelhouse.wheelhouse import Manifest

ABOUT = "about.json"
VERIFICATION, REPORT = "verify.json", "report.html"
REPORTS = "reports"
Verified = Literal["", "static", "import", "gpu"]
LEVELS: tuple[Verified, ...] = ("static", "import", "gpu")  # of a verification, from the lowest
_HINT = "Move it away, and publish again."


class AboutVariant(msgspec.Struct, frozen=True):
    """What the index knows of one wheelhouse that was published to it."""

    target: Label
    variant: Label
    requirements: Annotated[tuple[PinnedRequirement, ...], msgspec.Meta(min_length=1)]
    python: Label
    arch: Label
    size: Size
    stock_size: Size
    verified: Verified = ""
    reported: bool = False

    @property
    def report(self) -> str:
        """Where its report is in the index: made of its name, since what an index says of itself may be anyone's."""
        return f"{REPORTS}/{self.variant}.html" if self.reported else ""


def describe(wheelhouse: Path, manifest: Manifest, store: Store) -> AboutVariant:
    """What a wheelhouse says of itself; its report is stored, if it has one."""
    verified, page = _verified(wheelhouse), wheelhouse / REPORT
    about = AboutVariant(
        manifest.index_name,
        manifest.variant,
        tuple(manifest.requirements),
        manifest.target.python,
        manifest.target.arch,
        manifest.totals.output_bytes,
        manifest.totals.input_bytes,
        verified,
        reported=bool(verified) and page.is_file(),
    )
    if about.reported:
        store.put_bytes(read_limited(page, Limit.MANIFEST), about.report, HTML_TYPE)
    return about


class _ReportedCheck(msgspec.Struct):
    level: Label
    outcome: Label


class _Reported(msgspec.Struct):
    """What is read of `torchtailor verify --json`; the rest needs the extra `verify`, and publishing does not."""

    passed: bool
    checks: list[_ReportedCheck]


def _verified(wheelhouse: Path) -> Verified:
    """The highest level that a verification of it passed; empty without one, or where it failed."""
    try:
        content = read_limited(wheelhouse / VERIFICATION, Limit.MANIFEST)
    except FileNotFoundError:
        return ""
    hint = "Write it with `torchtailor verify --json`, or remove it."
    found = decode_json(content, _Reported, f"{wheelhouse / VERIFICATION} is not a verification report: it", hint)
    passed = {check.level for check in found.checks if check.outcome == "pass"}
    reached = [level for level in LEVELS if level in passed]
    return reached[-1] if found.passed and reached else ""


def write_front(store: Store, added: Iterable[AboutVariant] = ()) -> None:
    """Write `about.json` with what was added, and the page."""
    _add(store, added)
    targets = read_targets(store.read(TARGETS) or b"[]", TARGETS)
    shown = [row for row in _shown(store, _read(store)) if row.target in targets]
    store.put_bytes(front_page(shown, sorted(targets)), HTML_NAME, HTML_TYPE)


def copy_about(staging: Store, store: Store) -> None:
    """Add what another index knows of its folders, with its reports."""
    rows = _read(staging)
    for row in rows:
        if row.report and (page := staging.read(row.report)):
            store.put_bytes(page, row.report, HTML_TYPE)
    _add(store, rows)


def _add(store: Store, added: Iterable[AboutVariant]) -> None:
    new = _by_name(added)
    add_entries(ABOUT, lambda: _by_name(_read(store)), lambda _: new, lambda rows: _write(store, rows))


def _by_name(rows: Iterable[AboutVariant]) -> dict[tuple[str, str], AboutVariant]:
    return {(row.target, row.variant): row for row in rows}


def _read(store: Store) -> list[AboutVariant]:
    content = store.read(ABOUT)
    return decode_json(content, list[AboutVariant], ABOUT, _HINT) if content else []


def _write(store: Store, rows: Mapping[tuple[str, str], AboutVariant]) -> None:
    content = msgspec.json.encode([rows[name] for name in sorted(rows)])
    store.put_bytes(msgspec.json.format(content, indent=1) + b"\n", ABOUT, "application/json")


def _shown(store: Store, rows: Iterable[AboutVariant]) -> Iterator[PublishedVariant]:
    """The wheelhouses whose torch the pages list."""
    files: dict[str, Mapping[str, IndexedFile]] = {}
    for row in rows:
        named, _, version = row.requirements[0].partition("==")
        project = named.partition("[")[0]
        place = f"{row.target}/{project}/{JSON_NAME}"
        if place not in files:
            content = store.read(place)
            files[place] = {file.filename: file for file in (read_project_json(content, place) if content else ())}
        listed = [file for name, file in files[place].items() if name.split("-")[1:2] == [version]]
        if listed:
            yanked = listed[0].yanked if all(file.yanked for file in listed) else ""
            yield PublishedVariant(
                row.target,
                row.variant,
                row.requirements,
                row.python,
                row.arch,
                row.size,
                row.stock_size,
                row.verified,
                row.report,
                yanked,
            )

"""`torchtailor sizes`: where the bytes of an artifact are, or how a project grew from release to release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _options
from torchtailor.cli._sizes import SizeSources, takes_sources
from torchtailor.core.errors import NoMatchError, UsageError

if TYPE_CHECKING:
    from packaging.version import Version

    from torchtailor.core.progress import Progress
    from torchtailor.verification.inspection.measure import Sizes
    from torchtailor.verification.sizes.history import HistoryDocument, ReleaseSize


@takes_sources
def command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A library, wheel, folder, environment or image; a release as torch==2.11.0; a project as torch.",
        ),
    ],
    since: Annotated[str | None, typer.Option(metavar="VERSION", help="Of a project: from this release on.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Of a project: every release, and not the last patch of each.")
    ] = False,
    *,
    sources: SizeSources,
    report: _options.Report = None,
    json: _options.Json = False,
) -> None:
    """Show where bytes are, or how a project grew by release."""
    from torchtailor.cli.ui import ProgressBar, err, print_json
    from torchtailor.verification.inspection.measure import SizesDocument
    from torchtailor.verification.sizes import page

    with ProgressBar(quiet=json) as bar:
        asked = sources.requirement(what)
        if asked and not asked.specifier:
            found = _history(sources, asked.name, since, every=every, progress=bar)
            sizes = None
        elif since or every:
            raise UsageError("--since and --all are for projects.", "Give a project's name, such as torch.")
        else:
            sizes = sources.measured(what, bar)
    if sizes is None:
        if report:
            page.write_history(found, report)
        if json:
            print_json("sizes-history", found)
        else:
            _print_history(found)
        return
    if report:
        page.write_page(sizes, report)
    if json:
        print_json("sizes", SizesDocument.of(sizes))
    else:
        _print(sizes)
    for text in sizes.skipped:
        err().print(f"warning: {text.rstrip('.')}; it is counted as other files.", markup=False)


def _history(
    sources: SizeSources, project: str, since: str | None, *, every: bool, progress: Progress
) -> HistoryDocument:
    from packaging.version import InvalidVersion, Version

    from torchtailor.cli.ui import err
    from torchtailor.verification.sizes.history import history, newest_of_each
    from torchtailor.verification.sizes.released import CHECK_NAME, measure_released, released_versions

    try:
        first = Version(since) if since else Version("0")
    except InvalidVersion as error:
        raise UsageError(f"--since {since!r} is not a version.", "Write one such as 2.7.") from error
    files = released_versions(sources.finder, project, sources.target)
    wanted: tuple[Version, ...] = tuple(version for version in files if version >= first)
    if not wanted:
        raise NoMatchError(
            f"The configured indexes have no wheel of {project} for {sources.target.arch}"
            f"{f' from {first} on' if since else ''}.",
            sources.finder.elsewhere(project) or CHECK_NAME,
        )
    if others := sources.finder.elsewhere(project):
        err().print(others, markup=False)
    return history(
        project,
        (
            (version, measure_released(sources.finder, files[version], progress=progress))
            for version in (wanted if every else newest_of_each(wanted))
        ),
    )


def _print(sizes: Sizes) -> None:
    from torchtailor.cli.ui import apart, human_bytes, out, table

    for title, sums in (
        ("Package", sizes.by(lambda row: row.package)),
        ("Bytes", sizes.by(lambda row: row.kind.value)),
        ("Code for", sizes.by(lambda row: row.code)),
    ):
        packed = any(total.packed is not None for total in sums.values())
        columns = [title, "On disk", *(["Compressed"] if packed else [])]
        shown, little = apart(sorted(sums.items(), key=lambda pair: -pair[1].size), lambda pair: pair[1].size)
        each = [(name, total.size, total.packed or 0) for name, total in shown]
        if little:
            totals = [total for _, total in little]
            rest = sum(total.size for total in totals), sum(total.packed or 0 for total in totals)
            each.append((f"{len(little)} others", *rest))
        rows = [
            [name, human_bytes(size), *([human_bytes(compressed)] if packed else [])] for name, size, compressed in each
        ]
        if len(rows) > 1:
            out().print(table(columns, rows))
    line = f"{sizes.name}: {human_bytes(sizes.total)}"
    out().print(f"{line}, compressed {human_bytes(sizes.packed)}." if sizes.packed else f"{line}.", markup=False)


def _print_history(found: HistoryDocument) -> None:
    from torchtailor.cli.ui import human_bytes, out, table

    rows = [
        [
            release.version,
            human_bytes(release.packed),
            human_bytes(release.size),
            human_bytes(release.gpu),
            f"{sum(name.startswith('sm_') for name in release.architectures)}",
            _cause(release),
        ]
        for release in found.releases
    ]
    columns = ["Release", "Wheel", "Installed", "GPU code", "GPUs", "Largest changes"]
    out().print(table(columns, rows, optional=["GPUs"]))


def _cause(one: ReleaseSize) -> str:
    from torchtailor.verification.sizes.markdown import signed

    return ", ".join(f"{cause.name} {signed(cause.growth)}" for cause in one.causes[:3])

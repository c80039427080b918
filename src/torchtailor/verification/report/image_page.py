"""The page of a cut image: layers and libraries before and after, what is doubled, and what could still go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from torchtailor.core.disk import write_output
from torchtailor.core.documents import plain
from torchtailor.core.format import counted, human_bytes, printable
from torchtailor.core.version import __version__
from torchtailor.surgery.result import LibraryStatus
from torchtailor.tailoring.image.result import ImageLibrary, ImageReport, ImageResult, LayerResult
from torchtailor.trees.artifact.drops import drop_rules
from torchtailor.verification.report.parts import encoded, section, table, whole_page

_WIDTH = 600  # of a bar, in units of its drawing
_LEFT = {
    LibraryStatus.UNCHANGED: "all of its GPU code is needed, or cannot be moved",
    LibraryStatus.NO_GPU_CODE: "no GPU code",
    LibraryStatus.NOTHING_FOR_TARGET: "nothing in it runs on the target",
    LibraryStatus.NEEDS_NVIDIA_OPTION: "NVIDIA's own: --nvidia would cut it",
}


def write_image_report(report: ImageReport, path: Path) -> None:
    """Write the page whole or not at all."""
    done = "The image itself was written." if report.digest else "Nothing was written."
    write_output(path, encoded(render_image(report)), unchanged=done)


def render_image(report: ImageReport) -> str:
    """The page as one string."""
    options = report.options.cut
    facts = {
        "From": report.source,
        "GPU": str(options.targets),
        "Digest": report.digest or "nothing was written (dry run)",
        "Options": report.options.line().removeprefix("torchtailor image "),
    }
    return whole_page(
        "image.html",
        title=f"{report.destination}: torchtailor image",
        document=plain(report.document),
        verdict="Dry run" if report.digest is None else "Cut" if report.differs else "Unchanged",
        target=escape(report.destination),
        answer="".join(f'<p class="answer">{line}</p>' for line in _answer(report)),
        facts="".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in facts.items()),
        images="".join(_image(image, named=len(report.images) > 1) for image in report.images),
        made_by=escape(f"torchtailor {__version__}"),
    )


def _answer(report: ImageReport) -> Iterator[str]:
    before = sum(image.unpacked_before for image in report.images)
    after = sum(image.unpacked_after for image in report.images)
    if before:
        yield (
            f"<strong>{1 - after / before:.0%} smaller</strong>: {human_bytes(before)} of files became "
            f"{human_bytes(after)}."
        )
    for note in report.notes:
        yield escape(note)


def _image(image: ImageResult, *, named: bool) -> str:
    title = f"<h2>{escape(image.platform)}</h2>" if named else ""
    cards = "".join(_cards(image))
    parts = [
        f'<section aria-label="At a glance {escape(image.platform)}" class="cards">{cards}</section>',
        section("Layers", _layers(image.layers)),
        section("Libraries", _libraries(image.libraries)),
        section("In several layers", _doubled(image)) if image.doubled else "",
        section("What could go besides", _droppable(image)) if image.droppable or image.shadowed else "",
        section("Notes", "".join(f"<p>{escape(note)}</p>" for note in image.notes)) if image.notes else "",
    ]
    return title + "".join(parts)


def _cards(image: ImageResult) -> Iterator[str]:
    if image.size_after is not None:
        yield _card("To pull", human_bytes(image.size_after), f"was {human_bytes(image.size_before)}")
    yield _card("Unpacked", human_bytes(image.unpacked_after), f"was {human_bytes(image.unpacked_before)}")
    changed = sum(layer.changed for layer in image.layers)
    yield _card("Layers", f"{changed} of {len(image.layers)}", "changed; the others keep their digest")
    yield _card("Libraries", f"{len(image.changed)} cut", f"of {len(image.libraries)} with GPU code")
    if image.could_save:
        yield _card("With --nvidia", human_bytes(image.could_save), "could go besides")


def _card(name: str, value: str, note: str) -> str:
    return (
        f'<div class="card"><h3>{escape(name)}</h3><p class=big>{escape(value)}</p>'
        f"<p class=note>{escape(note)}</p></div>"
    )


def _layers(layers: Sequence[LayerResult]) -> str:
    largest = max((layer.unpacked_before for layer in layers), default=1) or 1
    rows = []
    for layer in layers:
        after = "?" if layer.size_after is None else human_bytes(layer.size_after) if layer.changed else "same"
        rows.append(
            f"<tr><th scope=row>{layer.number}</th><td>{escape(printable(layer.created_by)[:120])}</td>"
            f"<td>{human_bytes(layer.size_before)}</td><td>{after}</td>"
            f"<td>{human_bytes(layer.unpacked_before)}</td><td>{human_bytes(layer.unpacked_after)}</td>"
            f"<td>{human_bytes(layer.shadowed) if layer.shadowed else ''}</td>"
            f"<td>{_bar(layer.unpacked_before, layer.unpacked_after, largest)}</td></tr>"
        )
    heads = ("Layer", "Made by", "Packed", "After", "Unpacked", "After", "Shadowed", "Before and after")
    return table(heads, rows)


def _bar(before: int, after: int, largest: int) -> str:
    full, left = (max(1, round(_WIDTH * size / largest)) for size in (before, after))
    return (
        f'<svg viewBox="0 0 {_WIDTH} 24" width="200" height="12" role="img" aria-label="{human_bytes(before)} before, '
        f'{human_bytes(after)} after"><rect width="{full}" height="24" fill="currentColor" opacity="0.25"/>'
        f'<rect width="{min(left, _WIDTH)}" height="24" fill="currentColor"/></svg>'
    )


def _libraries(libraries: Sequence[ImageLibrary]) -> str:
    if not libraries:
        return "<p>There is no library with GPU code.</p>"
    rows = []
    for one in sorted(libraries, key=lambda one: -one.result.size_before):
        result = one.result
        said = ", ".join(result.kept) if result.status.changed else result.reason or _LEFT.get(result.status, "")
        rows.append(
            f"<tr><th scope=row>{escape(printable(result.path))}</th><td>{one.layer}</td>"
            f"<td>{human_bytes(result.size_before)}</td><td>{human_bytes(result.size_after)}</td>"
            f"<td>{escape(printable(said))}</td></tr>"
        )
    return table(("Library", "Layer", "Before", "After", "GPU code kept, or why it is as it was"), rows)


def _doubled(image: ImageResult) -> str:
    rows = [
        f"<tr><th scope=row>{escape(printable(file.path))}</th><td>{human_bytes(file.size)}</td>"
        f"<td>{', '.join(map(str, file.layers))}</td></tr>"
        for file in image.doubled
    ]
    return f"<p>{human_bytes(image.wasted)} in all.</p>" + table(("File", "Size", "Layers"), rows)


def _droppable(image: ImageResult) -> str:
    rules = drop_rules()
    rows = [
        f"<tr><th scope=row>--drop {rule}</th><td>{human_bytes(size)}</td><td>{counted(number, 'file')}</td>"
        f"<td>{escape(rules[rule].breaks)}</td></tr>"
        for rule, (number, size) in image.droppable.items()
    ]
    if left := image.shadowed - sum(layer.squashed for layer in image.layers):
        rows.append(
            f"<tr><th scope=row>--squash-shadowed</th><td>{human_bytes(left)}</td><td></td>"
            "<td>nothing: a later layer replaces or deletes these files</td></tr>"
        )
    return table(("Option", "Saves, unpacked", "Files", "What no longer works"), rows)

"""`torchtailor image`: cut a container image to GPUs, without a daemon."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _cut, _options

if TYPE_CHECKING:
    from rich.console import Console

    from torchtailor.surgery.cut import Cut
    from torchtailor.tailoring.image.result import ImageReport, ImageResult

_PLACES = "Where images are"


class Packing(StrEnum):
    """How layers that change are packed."""

    GZIP = "gzip"
    ZSTD = "zstd"
    ESTARGZ = "estargz"
    NONE = "none"


class ColdPlace(StrEnum):
    """Where the packs of an image go."""

    LAYER = "layer"
    ARTIFACT = "artifact"
    NONE = "none"


@_cut.takes_cut("image")
def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="The image: docker://HOST/NAME:TAG, oci:FOLDER:TAG, oci-archive:FILE or docker-archive:FILE; "
            "FILE can be - for a pipe.",
        ),
    ],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="The new image, named in the same way.")],
    *,
    cut: _cut.ChosenCut,
    squash_shadowed: Annotated[
        bool,
        typer.Option(
            "--squash-shadowed",
            help="Leave out files that a later layer replaces or deletes.",
            rich_help_panel=_cut.SMALLER,
        ),
    ] = False,
    cold: Annotated[
        ColdPlace | None,
        typer.Option(
            help="Where packs go: a last layer (default), an artifact that refers to the image, none.",
            rich_help_panel=_cut.WORKLOAD,
        ),
    ] = None,
    compress: Annotated[
        Packing | None,
        typer.Option(
            help="Compression of changed layers, default: as they were; estargz of all, to be pulled lazily.",
            rich_help_panel=_cut.SMALLER,
        ),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(
            metavar="OS/ARCH",
            help="Only this image of an index, such as linux/arm64; all, which is the default, cuts each.",
            rich_help_panel=_PLACES,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow registries without TLS on other machines.", rich_help_panel=_PLACES),
    ] = False,
    publish_nvidia: Annotated[
        bool,
        typer.Option(
            "--publish-nvidia",
            help="Push NVIDIA's cut libraries to a registry that is not local.",
            rich_help_panel=_PLACES,
        ),
    ] = False,
    attest: Annotated[
        bool,
        typer.Option(
            "--attest",
            help="Attach how it was cut (SLSA provenance) and what is in it (CycloneDX).",
            rich_help_panel=_PLACES,
        ),
    ] = False,
    jobs: _options.CutJobs = 0,
    dry_run: _options.CutDryRun = False,
    json: _options.Json = False,
    report: _options.Report = None,
) -> None:
    """Cut a container image: in a registry, OCI layout or archive."""
    from torchtailor.cli.ui import ProgressBar, err, out, print_json
    from torchtailor.core.disk import check_output
    from torchtailor.core.errors import UsageError
    from torchtailor.oci.compression import LayerCompression
    from torchtailor.oci.reference import parse_reference
    from torchtailor.tailoring.choices import cut_for
    from torchtailor.tailoring.image.cut_image import cut_image
    from torchtailor.tailoring.image.options import Cold, ImageOptions

    if source == "record":
        raise UsageError(
            "Programs in images are recorded by `record`.",
            f"torchtailor record --image {destination} -o app.trace -- PROGRAM",
        )
    choices = cut.choices
    if cold:
        if not cut.given.keys() & {"workload"} or cut.given.keys() & {"pack", "no_pack"}:
            raise UsageError("--cold is for --workload, without --pack and --no-pack.", "Leave one of them out.")
        choices |= {"no_pack": cold is ColdPlace.NONE}
    chosen = cut_for(cut.given.get("gpu", ()), **choices, dry_run=dry_run, processes=jobs)
    _cut.say_elsewhere_chosen(cut, chosen)
    to_pipe = parse_reference(destination).is_pipe and not dry_run
    if to_pipe and json:
        raise UsageError(
            "The archive and the JSON document would both go to standard output.",
            "Write the archive to a file, or leave out --json: the report then goes to standard error.",
        )
    if report:
        check_output(report)
    packing = LayerCompression(compress.value) if compress else None
    place = Cold.ARTIFACT if cold is ColdPlace.ARTIFACT else Cold.LAYER
    options = ImageOptions(chosen, squash_shadowed, packing, publish_nvidia, attest, place)
    with ProgressBar(quiet=json) as bar:
        images = cut_image(source, destination, options, platform=platform, insecure=insecure, progress=bar)
    if json:
        print_json("image", images.document)
    else:
        _print(images, err() if to_pipe else out())
    if report:
        from torchtailor.verification.report.image_page import write_image_report

        write_image_report(images, report)


def _print(report: ImageReport, console: Console) -> None:
    from torchtailor.cli.ui import err, human_seconds

    for image in report.images:
        if len(report.images) > 1:
            console.print(f"\n{image.platform}", markup=False)
        _print_tables(image, console)
        for line in _summary(image, report.options.cut):
            console.print(line, markup=False)
        for warning in _warnings(image):
            err().print(f"warning: {warning}", markup=False)
    for line in _cut.said_of_cpu_builds(stand_in for image in report.images for stand_in in image.stand_ins):
        console.print(line, markup=False)
    for note in report.notes:
        console.print(note, markup=False)
    took = human_seconds(report.seconds)
    if report.digest is None:
        console.print(f"Nothing was written (dry run, {took}).", markup=False)
        return
    what = "" if report.differs else ", the same image: there was nothing to cut"
    console.print(f"{report.destination} is {report.digest}{what} ({took}).", markup=False)


def _print_tables(image: ImageResult, console: Console) -> None:
    from torchtailor.cli.ui import human_bytes, table
    from torchtailor.core.format import printable

    rows = [
        [
            f"{layer.number}",
            printable(layer.created_by)[:60],
            human_bytes(layer.size_before),
            "?" if layer.size_after is None else "same" if not layer.changed else human_bytes(layer.size_after),
            human_bytes(layer.unpacked_before),
            human_bytes(layer.unpacked_after) if layer.changed else "same",
            human_bytes(layer.shadowed) if layer.shadowed else "",
        ]
        for layer in image.layers
    ]
    console.print(table(["Layer", "Made by", "Before", "After", "Unpacked", "After", "Shadowed"], rows))
    if image.changed:
        console.print(_cut.library_table([(one.result, f"{one.layer}") for one in image.changed], "Layer"))


def _summary(image: ImageResult, cut: Cut) -> Iterator[str]:
    from collections import Counter

    from torchtailor.cli.ui import human_bytes
    from torchtailor.core.format import counted
    from torchtailor.surgery.result import LibraryStatus

    share = 100 * image.unpacked_after / image.unpacked_before if image.unpacked_before else 100
    unpacked = f"{human_bytes(image.unpacked_before)} -> {human_bytes(image.unpacked_after)} ({share:.0f} %)"
    if image.size_after is None:
        yield f"Unpacked it would be {unpacked}."
    elif image.size_before:
        packed = f"{human_bytes(image.size_before)} -> {human_bytes(image.size_after)}"
        yield f"Packed {packed} ({100 * image.size_after / image.size_before:.0f} %), unpacked {unpacked}."
    reasons = {
        LibraryStatus.UNCHANGED: "all of the GPU code is needed, or cannot be moved",
        LibraryStatus.NOTHING_FOR_TARGET: "nothing in it runs on the target",
        LibraryStatus.NEEDS_NVIDIA_OPTION: "NVIDIA's own, which --nvidia cuts",
    }
    left = Counter(library.result.status for library in image.libraries)
    for status, reason in reasons.items():
        if left[status]:
            size = human_bytes(
                sum(library.result.size_before for library in image.libraries if library.result.status is status)
            )
            yield f"{counted(left[status], 'library', 'libraries')} of {size} unchanged: {reason}."
    if image.could_save:
        yield f"--nvidia would save another {human_bytes(image.could_save)} (read `torchtailor help licences` first)."
    yield from _cut.said_of_left_out(image, cut)
    yield from _cut.said_of_no_gpu(image, dry_run=cut.dry_run)
    yield from _cut.said_of_indexes(image, dry_run=cut.dry_run)
    yield from _cut.said_of_packs([one.result for one in image.changed], cut)
    if image.droppable:
        could = ", ".join(f"{rule} {human_bytes(size)}" for rule, (_, size) in image.droppable.items())
        yield f"--drop could leave out: {could}."
    if image.shadowed:
        squashed = sum(layer.squashed for layer in image.layers)
        done = f", {human_bytes(squashed)} of it left out" if squashed else ": --squash-shadowed leaves them out"
        yield f"Files that a later layer replaces or deletes take {human_bytes(image.shadowed)}{done}."
    if image.wasted:
        first = image.doubled[0]
        yield (
            f"The same bytes are in several layers: {human_bytes(image.wasted)}, such as {first.path} "
            f"in layers {', '.join(map(str, first.layers))}."
        )


def _warnings(image: ImageResult) -> Iterator[str]:
    from torchtailor.core.format import printable
    from torchtailor.surgery.result import LibraryStatus

    for library in image.libraries:
        name = printable(library.result.path)
        if library.result.status is LibraryStatus.SKIPPED:
            yield f"{name} is unchanged: {library.result.reason.rstrip('.')}."
        for warning in library.result.warnings:
            yield f"{name} {warning}."
    yield from image.notes

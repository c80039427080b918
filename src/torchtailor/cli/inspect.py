"""`torchtailor inspect`: the GPU code of libraries, wheels, folders, environments and images, as tables or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli import _options
from torchtailor.core.errors import ExitCode

if TYPE_CHECKING:
    from torchtailor.catalog import Gpu
    from torchtailor.code.gpucode.files import CodeFile
    from torchtailor.code.gpucode.report import ImageGroup, LibraryReport
    from torchtailor.verification.inspection.inspection import Droppable, Inspection


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Shared libraries, wheels, folders, environments; images as docker://, oci: and so on."
        ),
    ],
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="Say what runs on these GPUs and what cutting for them would save: 8.9,9.0 or 'RTX 4090'."),
    ] = None,
    platform: _options.ImagePlatform = None,
    insecure: _options.ImageInsecure = False,
    detail: Annotated[bool, typer.Option("--detail", "-d", help="List the architectures of every library.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document for scripts.")] = False,
) -> int:
    """Show the GPU code inside libraries, wheels, environments and images."""
    from contextlib import ExitStack

    from torchtailor.cli._artifacts import artifact_named
    from torchtailor.cli.ui import ProgressBar, err, print_json
    from torchtailor.verification.inspection.inspect import inspect

    with ProgressBar(quiet=json) as bar, ExitStack() as stack:
        artifacts = [
            stack.enter_context(artifact_named(path, platform=platform, insecure=insecure, progress=bar))
            for path in paths
        ]
        inspection = inspect(artifacts, gpus=gpu or (), progress=bar)
    if json:
        print_json("inspect", inspection.document)
    else:
        _print(inspection, detail=detail)
    for skipped in inspection.damaged:
        err().print(f"warning: skipped {skipped.reason}", markup=False)
    return ExitCode.BAD_INPUT if inspection.damaged else ExitCode.OK


def _print(inspection: Inspection, *, detail: bool) -> None:
    from torchtailor.cli.ui import out

    with_code = [library for library in inspection.libraries if library.has_code]
    if len(with_code) > 1:
        out().print(_library_table(inspection, with_code))
    for library in with_code if detail or len(with_code) == 1 else ():
        out().print(_architecture_table(library.architectures, title=library.name))
    if len(with_code) > 1:
        out().print(_architecture_table(inspection.architectures, title="All libraries"))
    if inspection.files:
        out().print(_file_table(inspection.files))
    for line in _summary(inspection, with_code):
        out().print(line, markup=False)


def _library_table(inspection: Inspection, libraries: Sequence[LibraryReport]) -> object:
    from torchtailor.cli.ui import human_bytes, table
    from torchtailor.code.gpucode.fitness import gpu_fit

    columns = ["Library", "Size", "GPU code", "Raw", "Images", "Architectures"]
    for device in inspection.devices:
        columns += [f"On {device}", "Saves"]
    rows = []
    for library in sorted(libraries, key=lambda library: library.stored, reverse=True):
        row = [
            library.name,
            human_bytes(library.size),
            human_bytes(library.stored),
            human_bytes(library.raw),
            f"{library.images}",
            _short(library.architectures),
        ]
        for device in inspection.devices:
            in_packs = library.moved and not library.images
            row.append("in packs" if in_packs else gpu_fit(library, device, inspection.rules).verdict)
            row.append(human_bytes(inspection.saved(library, device)))
        rows.append(row)
    return table(columns, rows)


def _file_table(files: Sequence[CodeFile]) -> object:
    """Files of GPU code, by kind: a package may have thousands."""
    from torchtailor.cli.ui import human_bytes, table
    from torchtailor.code.gpucode.report import merge_groups

    rows = []
    for kind in dict.fromkeys(file.kind for file in files):
        alike = [file for file in files if file.kind is kind]
        for group in merge_groups(group for file in alike for group in file.architectures):
            holding = [file for file in alike if any(own.label == group.label for own in file.architectures)]
            example = holding[0].name.rsplit("/", 1)[-1]
            more = f" and {len(holding) - 1} more" if len(holding) > 1 else ""
            rows.append([kind.value, group.label, f"{group.images}", human_bytes(group.stored), f"{example}{more}"])
    return table(["Files", "Code for", "Images", "Stored", "Such as"], rows, title="Files of GPU code")


def _architecture_table(groups: Sequence[ImageGroup], *, title: str) -> object:
    from torchtailor.cli.ui import human_bytes, table

    columns = ["Code for", "Images", "Stored", "Raw", "Compression", "Sections"]
    rows = [
        [
            group.label,
            f"{group.images}",
            human_bytes(group.stored),
            human_bytes(group.raw),
            _counts(group.compression.items()),
            _counts(group.sections.items()),
        ]
        for group in groups
    ]
    return table(columns, rows, title=title)


def _counts(pairs: Iterable[tuple[str, int]]) -> str:
    """`.nv_fatbin` where there is one, `.nv_fatbin 456, .cask_resource 60` where there are several."""
    ordered = sorted(pairs, key=lambda pair: pair[1], reverse=True)
    if len(ordered) == 1:
        return ordered[0][0]
    return ", ".join(f"{name} {count}" for name, count in ordered)


def _short(groups: Sequence[ImageGroup]) -> str:
    """`sm 80 90 90a, PTX 90, LTO 50`: all architectures of a library in one cell."""
    from torchtailor.catalog import CodeKind

    words = {CodeKind.CUBIN: "sm", CodeKind.PTX: "PTX", CodeKind.LTOIR: "LTO"}
    by_kind: dict[str, list[str]] = {}
    for group in groups:
        if group.target is None:
            by_kind.setdefault("unknown", []).append(group.label)
        else:
            number = f"{group.target.capability.number}{group.target.suffix.value}"
            by_kind.setdefault(words[group.target.kind], []).append(number)
    return ", ".join(f"{kind} {' '.join(names)}" for kind, names in by_kind.items())


def _verdict(inspection: Inspection, library: LibraryReport, gpu: Gpu) -> str:
    from torchtailor.catalog import Fit
    from torchtailor.code.gpucode.fitness import gpu_fit

    answer = gpu_fit(library, gpu.capability, inspection.rules)
    counts = [(count - library.moved * (fit is Fit.NONE), fit.value) for fit, count in answer.containers.items()]
    counts.append((library.moved, "in packs"))
    counts.append((answer.linked_at_run_time, "linked at run time"))
    parts = ", ".join(f"{count} {word}" for count, word in sorted(counts, reverse=True) if count)
    return f"On {gpu.capability}: {answer.verdict} (containers: {parts or 'none'})."


def _droppable(one: Droppable) -> str:
    """`static-libs 5 MB`, and how much of it needs --nvidia."""
    from torchtailor.cli.ui import human_bytes

    text = f"{one.rule} {human_bytes(one.size)}"
    if not one.only_with_nvidia:
        return text
    whole = one.only_with_nvidia == one.size
    return f"{text} ({'' if whole else f'{human_bytes(one.only_with_nvidia)} of it '}with --nvidia)"


def _for_gpus(inspection: Inspection, with_code: Sequence[LibraryReport], command: str) -> Iterable[str]:
    """What each GPU runs, and what a cut for it would save."""
    from torchtailor.cli.ui import human_bytes
    from torchtailor.code.gpucode.fitness import only_ptx

    for gpu in inspection.gpus:
        if len(with_code) == 1 and (with_code[0].images or not with_code[0].moved):
            yield _verdict(inspection, with_code[0], gpu)
        free = inspection.saved_in_all(gpu.capability, proprietary=False)
        asked = inspection.saved_in_all(gpu.capability, proprietary=True)
        line = f"Tailoring for {gpu.capability} ({gpu.describe()}) would save up to {human_bytes(free + asked)}"
        if asked:
            share = human_bytes(asked) if free else "all"
            line += f", {share} of it in NVIDIA's own libraries (with --nvidia)"
        if linkable := inspection.lto_in_all(gpu.capability):
            line += f", and {human_bytes(linkable)} more with --no-lto"
        yield f"{line}; `torchtailor {command} --dry-run` tells exactly."
        if zeroed := inspection.zeroed_in_all(gpu.capability):
            yield (
                f"Up to {human_bytes(zeroed)} of that may stay in the files as zeros: wheels compress them away, but "
                "on disk files keep their length, and only whole blocks of zeros take no space."
            )
        if number := inspection.only_ptx(gpu.capability):
            yield only_ptx(number, str(gpu.capability))


def _summary(inspection: Inspection, with_code: Sequence[LibraryReport]) -> Iterable[str]:
    from torchtailor.cli.ui import human_bytes
    from torchtailor.core.format import counted
    from torchtailor.trees.artifact.artifact import ArtifactKind
    from torchtailor.trees.artifact.drops import default_rules

    command = "image" if all(one.kind is ArtifactKind.IMAGE for one in inspection.artifacts) else "tailor"
    libraries = inspection.libraries
    stored = sum(library.stored for library in with_code)
    size = sum(library.size for library in libraries)
    images = sum(library.images for library in with_code)
    raw = sum(library.raw for library in with_code)
    noun = "library" if len(libraries) == 1 else "libraries"
    yield (
        f"{len(libraries)} {noun} of {human_bytes(size)}; {len(with_code)} with GPU code: "
        f"{human_bytes(stored)} in {images} images ({human_bytes(raw)} unpacked)."
    )
    if moved := [library for library in with_code if library.moved]:
        containers = counted(sum(library.moved for library in moved), "container")
        where = counted(len(moved), "library", "libraries")
        yield f"The code of {containers} in {where} is in packs and not counted here; `torchtailor verify` reads them."
    if paged := [library for library in libraries if library.cold]:
        where = counted(len(paged), "library", "libraries")
        hot, cold = (human_bytes(sum(sizes)) for sizes in zip(*((one.hot, one.cold) for one in paged), strict=True))
        yield f"{where} {'was' if len(paged) == 1 else 'were'} cut to touched pages: {hot} hot, {cold} cold, in packs."
    yield from _for_gpus(inspection, with_code, command)
    for name, size in inspection.pinned.items():
        yield f"{human_bytes(size)} of cubins in {name} always stay: how host code reaches them is not known."
    for library in libraries:
        if library.texts:
            held = ", ".join(f"{group.label} {group.images}" for group in library.texts)
            yield f"{library.name} has PTX as text ({held}), which is not cut."
    for library in with_code:
        if library.not_cut:
            yield f"`{command}` leaves {library.name} as it is: {library.not_cut}."
    droppable = {one.rule: _droppable(one) for one in inspection.droppable}
    if always := [droppable.pop(name) for name in default_rules() if name in droppable]:
        yield f"`{command}` would leave out: {', '.join(always)}."
    if droppable:
        yield f"`{command} --drop` could leave out: {', '.join(droppable.values())}."
    if inspection.foreign:
        yield f"{len(inspection.foreign)} files are for other processors or not what they are named, and were not read."
    lookalikes = [library.name for library in libraries if library.lookalikes]
    if lookalikes:
        yield f"Bytes that only look like GPU code were found in {', '.join(lookalikes)}."

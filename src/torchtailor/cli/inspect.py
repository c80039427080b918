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
    from torchtailor.verification.inspection.kernels import KernelRow
    from torchtailor.verification.inspection.unused import UnusedCode


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Shared libraries, wheels, conda packages, folders, environments; images as docker:// or oci:.",
        ),
    ],
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="Say what runs on these GPUs and what cutting for them would save: 8.9,9.0 or 'RTX 4090'."),
    ] = None,
    platform: _options.ImagePlatform = None,
    insecure: _options.ImageInsecure = False,
    detail: Annotated[bool, typer.Option("--detail", "-d", help="List the architectures of every library.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="List the functions inside GPU code and host code by their bytes.")
    ] = False,
    unused: Annotated[bool, typer.Option("--unused", help="List code that no GPU loads, and what avoids it.")] = False,
    only: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="With --kernels: names or architectures with this in them.")
    ] = "",
    top: Annotated[int, typer.Option("--top", min=1, help="With --kernels: so many rows.")] = 20,
    json: _options.Json = False,
) -> int:
    """Show the GPU code in libraries, wheels, environments, images."""
    from contextlib import ExitStack

    from torchtailor.cli._artifacts import artifact_named
    from torchtailor.cli.ui import ProgressBar, err, out, print_json
    from torchtailor.verification.inspection.inspect import inspect
    from torchtailor.verification.inspection.kernels import merged

    with ProgressBar(quiet=json) as bar, ExitStack() as stack:
        artifacts = [
            stack.enter_context(artifact_named(path, platform=platform, insecure=insecure, progress=bar))
            for path in paths
        ]
        inspection = inspect(artifacts, gpus=gpu or (), kernels=kernels, use=unused, progress=bar)
    rows = [row for row in inspection.kernels if only in row.name or only in row.code]
    if json:
        from torchtailor.verification.inspection.document import inspect_document

        print_json("inspect", inspect_document(inspection, rows))
    else:
        _print(inspection, detail=detail)
        if kernels:
            out().print(_kernel_table(merged(rows), top))
        if unused:
            for shown in _unused(inspection.unused):
                out().print(shown, markup=False)
    for skipped in inspection.damaged:
        err().print(f"warning: skipped {skipped.reason}", markup=False)
    return ExitCode.BAD_INPUT if inspection.damaged else ExitCode.OK


def _print(inspection: Inspection, *, detail: bool) -> None:
    from torchtailor.cli.ui import out

    with_code = [library for library in inspection.libraries if library.has_code]
    if len(with_code) > 1:
        out().print(_library_table(inspection, with_code, detail=detail))
    for library in with_code if detail or len(with_code) == 1 else ():
        out().print(_architecture_table(library.architectures, title=library.name))
    if len(with_code) > 1:
        out().print(_architecture_table(inspection.architectures, title="All libraries"))
    if inspection.files:
        out().print(_file_table(inspection.files, detail=detail))
    for line in _summary(inspection, with_code):
        out().print(line, markup=False)


def _library_table(inspection: Inspection, libraries: Sequence[LibraryReport], *, detail: bool) -> object:
    from torchtailor.cli.ui import apart, human_bytes, table
    from torchtailor.code.gpucode.fitness import gpu_fit
    from torchtailor.core.format import counted

    columns = ["Library", "Size", "GPU code", "Raw", "Images", "Architectures"]
    for device in inspection.devices:
        columns += [f"On {device}", "Saves"]
    rows = []
    ordered = sorted(libraries, key=lambda library: library.stored, reverse=True)
    shown, small = (ordered, []) if detail else apart(ordered, lambda library: library.stored)
    for library in shown:
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
    if small:
        sizes = [sum(one.size for one in small), sum(one.stored for one in small), sum(one.raw for one in small)]
        more = counted(len(small), "other") if shown else counted(len(small), "library", "libraries")
        row = [more, *map(human_bytes, sizes), f"{sum(one.images for one in small)}", ""]
        for device in inspection.devices:
            row += ["", human_bytes(sum(inspection.saved(one, device) for one in small))]
        rows.append(row)
    # A cut also saves what is no GPU code: beside what it saves, the size of the whole stays.
    size = () if inspection.devices else ("Size",)
    return table(columns, rows, optional=("Raw", "Images", "Architectures", *size), paths=True)


def _file_table(files: Sequence[CodeFile], *, detail: bool) -> object:
    """Files of GPU code, by kind: a package may have thousands. What is never cut is one row, whatever it is for."""
    from torchtailor.cli.ui import apart, human_bytes, table
    from torchtailor.code.gpucode.report import merge_groups
    from torchtailor.core.format import counted

    rows = []
    for kind in dict.fromkeys(file.kind for file in files):
        alike = [file for file in files if file.kind is kind]
        groups = merge_groups(group for file in alike for group in file.architectures)
        if kind.never_cut and len(groups) > 1 and not detail:
            rows.append([kind.value, f"{len(groups)} architectures", *_summed(groups), _such_as(alike)])
            continue
        shown, little = apart(groups, lambda group: group.stored)
        for group in shown:
            holding = [file for file in alike if any(own.label == group.label for own in file.architectures)]
            rows.append([kind.value, group.label, f"{group.images}", human_bytes(group.stored), _such_as(holding)])
        if little:
            rows.append([kind.value, counted(len(little), "other"), *_summed(little), ""])
    return table(
        ["Files", "Code for", "Images", "Stored", "Such as"], rows, title="Files of GPU code", optional=("Images",)
    )


def _such_as(files: Sequence[CodeFile]) -> str:
    """The name of the first of some files, and how many more there are."""
    example = files[0].name.rsplit("/", 1)[-1]
    return f"{example} and {len(files) - 1} more" if len(files) > 1 else example


def _summed(groups: Sequence[ImageGroup]) -> list[str]:
    """Images and bytes of several architectures."""
    from torchtailor.cli.ui import human_bytes

    return [f"{sum(group.images for group in groups)}", human_bytes(sum(group.stored for group in groups))]


def _architecture_table(groups: Sequence[ImageGroup], *, title: str) -> object:
    from torchtailor.cli.ui import apart, human_bytes, table

    columns = ["Code for", "Images", "Stored", "Raw", "Compression", "Sections"]
    shown, little = apart(groups, lambda group: group.stored)
    rows = [
        [
            group.label,
            f"{group.images}",
            human_bytes(group.stored),
            human_bytes(group.raw),
            _counts(group.compression.items()),
            _counts(group.sections.items()),
        ]
        for group in shown
    ]
    if little:
        rows.append(
            [f"{len(little)} others", *_summed(little), human_bytes(sum(group.raw for group in little)), "", ""]
        )
    return table(columns, rows, title=title, optional=("Sections", "Compression"))


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


def _kernel_table(rows: Sequence[KernelRow], top: int) -> object:
    """The largest; sizes are those of unpacked code."""
    from torchtailor.cli.ui import human_bytes, table
    from torchtailor.core.format import counted

    shown = [
        [
            f"{row.name} ({row.unit})" if row.unit else row.name,
            row.code,
            f"{row.functions}",
            *(human_bytes(size) if size else "" for size in (row.text, row.constants, row.tables)),
            human_bytes(row.size),
        ]
        for row in rows[:top]
    ]
    if rest := rows[top:]:
        functions, size = f"{sum(row.functions for row in rest)}", human_bytes(sum(row.size for row in rest))
        shown.append([counted(len(rest), "more name"), "", functions, "", "", "", size])
    columns = ["Kernel", "Code for", "Functions", "Code", "Constants", "Tables", "Unpacked"]
    return table(columns, shown, optional=["Constants", "Tables", "Code", "Functions"])


def _unused(left: Sequence[UnusedCode]) -> Iterable[object]:
    """Code that no GPU loads, by reason and architecture, and what a build can do about it."""
    from torchtailor.cli.ui import human_bytes, table
    from torchtailor.verification.inspection.unused import Why

    sums: dict[tuple[str, Why], dict[str, int]] = {}
    for code in left:
        sizes = sums.setdefault((code.library.rpartition("/")[2], code.why), {})
        sizes[code.code] = sizes.get(code.code, 0) + code.size
    if not sums:
        yield "All GPU code is loaded by some GPU."
        return
    rows = [
        [library, why.value, human_bytes(sum(sizes.values())), ", ".join(sorted(sizes, key=lambda name: -sizes[name]))]
        for (library, why), sizes in sorted(sums.items(), key=lambda pair: -sum(pair[1].values()))
    ]
    yield table(["Library", "Not loaded", "Stored", "Code for"], rows)
    for why in Why:
        if size := sum(sum(sizes.values()) for (_, own), sizes in sums.items() if own is why):
            yield f"{human_bytes(size)} {why.value}: {why.meaning}. To avoid it: {why.remedy}."


def _verdict(inspection: Inspection, library: LibraryReport, gpu: Gpu) -> str:
    from torchtailor.catalog import Fit
    from torchtailor.code.gpucode.fitness import gpu_fit

    answer = gpu_fit(library, gpu.capability, inspection.rules)
    counts = [(count - library.moved * (fit is Fit.NONE), fit.value) for fit, count in answer.containers.items()]
    counts.append((library.moved, "in packs"))
    counts.append((answer.linked_at_run_time, "linked at run time"))
    parts = ", ".join(f"{count} {word}" for count, word in sorted(counts, reverse=True) if count)
    return f"On {gpu.capability}: {answer.verdict} (fat binaries, one for each source file: {parts or 'none'})."


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

    for gpu in inspection.gpus if with_code or not inspection.never_cut else ():
        if len(with_code) == 1 and (with_code[0].images or not with_code[0].moved):
            yield _verdict(inspection, with_code[0], gpu)
        free = inspection.saved_in_all(gpu.capability, proprietary=False)
        asked = inspection.saved_in_all(gpu.capability, proprietary=True)
        known = all(gpu.capability in report.cuts for report in inspection.artifacts)
        about = "" if known else "about "
        line = f"Tailoring for {gpu.capability} ({gpu.describe()}) would save {about}{human_bytes(free + asked)}"
        if (symbols := inspection.symbols_in_all(gpu.capability)) > (free + asked) // 100:
            line += f", {human_bytes(symbols)} of it symbol tables"
        if asked:
            share = human_bytes(asked) if free else "all"
            line += f", {share} of it in NVIDIA's own libraries (with --nvidia)"
        if linkable := inspection.lto_in_all(gpu.capability):
            line += f", and {human_bytes(linkable)} more with --no-lto"
        yield f"{line}." if known else f"{line}; `torchtailor {command} --dry-run` tells exactly."
        if zeroed := inspection.zeroed_in_all(gpu.capability):
            yield (
                f"{'Another' if known else 'Of that, up to'} {human_bytes(zeroed)} would stay in the files as zeros: "
                "wheels compress them away, and disks do not store whole blocks of them."
            )
        if number := inspection.only_ptx(gpu.capability):
            yield only_ptx(number, str(gpu.capability))


def _never_cut(inspection: Inspection) -> Iterable[str]:
    """What there is of other platforms."""
    from torchtailor.cli.ui import human_bytes
    from torchtailor.core.format import counted

    for name, (number, size) in inspection.never_cut.items():
        noun = counted(number, name, name.replace("library", "libraries") if "library" in name else "")
        yield f"{noun} with {human_bytes(size)} of GPU code, which is shown here and never cut."
    others = [] if inspection.libraries or inspection.files else _without_code(inspection)
    if others:
        yield f"{' and '.join(others)} without GPU code, and no library for Linux."


def _without_code(inspection: Inspection) -> list[str]:
    """What has the name of a file that can hold GPU code, where nothing does."""
    from collections import Counter
    from pathlib import Path

    from torchtailor.code.gpucode.files import kind_by_name
    from torchtailor.core.format import counted

    names = {name for artifact in inspection.artifacts for name in (*artifact.every_file, Path(artifact.path).name)}
    kinds = Counter(kind.value for name in names if (kind := kind_by_name(name)))
    return [counted(number, name, name.replace("library", "libraries")) for name, number in kinds.items()]


def _summary(inspection: Inspection, with_code: Sequence[LibraryReport]) -> Iterable[str]:
    from torchtailor.cli.ui import human_bytes
    from torchtailor.core.format import counted
    from torchtailor.trees.artifact.artifact import ArtifactKind
    from torchtailor.trees.artifact.drops import default_rules

    command = "image" if all(artifact.kind is ArtifactKind.IMAGE for artifact in inspection.artifacts) else "tailor"
    libraries = inspection.libraries
    stored = sum(library.stored for library in with_code)
    size = sum(library.size for library in libraries)
    images = sum(library.images for library in with_code)
    raw = sum(library.raw for library in with_code)
    yield from _never_cut(inspection)
    if libraries or not (inspection.files or _without_code(inspection)):
        whose = "NVIDIA's GPU code" if inspection.never_cut else "GPU code"
        has = f"{human_bytes(stored)} in {counted(images, 'image')} ({human_bytes(raw)} unpacked)"
        which = f"{len(with_code)} with {whose}: {has}" if with_code else f"none with {whose}"
        yield f"{counted(len(libraries), 'library', 'libraries')} of {human_bytes(size)}; {which}."
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
        files = counted(len(inspection.foreign), "file")
        yield f"Not read, since for other processors or not what they are named: {files}."
    lookalikes = [library.name for library in libraries if library.lookalikes]
    if lookalikes:
        yield f"Bytes that only look like GPU code were found in {', '.join(lookalikes)}."

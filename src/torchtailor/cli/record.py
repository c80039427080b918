"""`torchtailor record`: run a program and note what GPU code it loads and which pages of its libraries it touches."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtailor.cli._layout import GroupedCommand

if TYPE_CHECKING:
    from torchtailor.workload.caches import Caches, GpusAndDriver
    from torchtailor.workload.trace import Trace

_WORTH_A_ROW = 1 << 20  # bytes of pages of a library without GPU code

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(cls=GroupedCommand, context_settings={"allow_interspersed_args": False})
def record(
    program: Annotated[
        list[str] | None, typer.Argument(metavar="-- PROGRAM ARGUMENTS", help="The program to run.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="TRACE", help="The trace to write, such as app.trace.")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Run it in a container of this image, with podman or docker; alone, what the image runs.",
        ),
    ] = None,
    engine_options: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS", help="For `podman run` or `docker run`, such as '--gpus all -v /models:/models'."
        ),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Add to the trace what else this run uses.")] = False,
    misses: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Add what a cut program had to load from packs (its misses.tsv)."),
    ] = None,
    caches: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also keep the compile caches that it writes (torch.compile, Triton, CUDA), for --bake-caches.",
        ),
    ] = None,
    print_env: Annotated[
        Path | None,
        typer.Option(
            "--print-env",
            metavar="FOLDER",
            help="Print the variables for a program that something else starts; `trace merge FOLDER` reads it.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON document for scripts; the program's output goes to stderr.")
    ] = False,
) -> int:
    """Run a program and note which GPU code it loads, which pages of libraries it touches, and which files it opens."""
    from torchtailor.cli.ui import err, out
    from torchtailor.core.errors import NoMatchError, ProgramCode, UsageError
    from torchtailor.workload.container import record_in_image
    from torchtailor.workload.record import record_program, trace_of
    from torchtailor.workload.trace import check_trace_output, merge_traces, read_trace, write_trace

    if print_env is not None:
        if json or output or append or misses or program or image or caches:
            raise UsageError(
                "--print-env only prints variables: it runs nothing and writes no trace.",
                "Leave the program and the other options out, or leave --print-env out.",
            )
        for line in _variables(print_env):
            out().print(line, markup=False, soft_wrap=True)
        return 0
    if output is None:
        raise UsageError("No output was given.", "Add -o app.trace.")
    if engine_options and not image:
        raise UsageError("--engine-options is for --image.", "Leave it out, or name an image.")
    if not program and not misses and not image:
        raise UsageError(
            "No program was given.", "Write it behind `--`: torchtailor record -o app.trace -- python app.py"
        )
    check_trace_output(output)
    earlier = [read_trace(output)] if append and output.exists() else []
    if misses:
        earlier.append(trace_of(misses))
    code = 0
    if program or image:
        to = sys.stderr if json else None
        words = shlex.split(engine_options or "")
        recording = (
            record_in_image(image, program or (), engine_options=words, stdout=to, caches=caches, machine=_machine)
            if image
            else record_program(program or (), stdout=to, caches=caches, machine=_machine)
        )
        code = recording.exit_code
        if not recording.trace.processes:
            raise NoMatchError(
                "Nothing was recorded: the program did not load the recorder.",
                "Programs that are static, run as another user or clear LD_PRELOAD cannot be recorded.",
            )
        earlier.append(recording.trace)
    trace = merge_traces(earlier)
    write_trace(output, trace)
    if code:
        err().print(f"warning: the program ended with exit code {code}; what it used until then is in the trace.")
    show(trace, str(output), json=json)
    if (program or image) and recording.caches:
        _say_caches(recording.caches)
    return ProgramCode(code)


def _machine() -> GpusAndDriver:
    from torchtailor.advise.host.detect import detect

    host = detect()
    gpus = tuple(sorted({gpu.capability for gpu in host.gpus if gpu.capability}))
    return gpus, host.driver.version if host.driver else ""


def _say_caches(caches: Caches) -> None:
    from torchtailor.cli.ui import err, human_bytes
    from torchtailor.core.format import counted

    made = caches.made_for
    words = {"torch": made.torch, "Triton": made.triton, "GPU": " and ".join(made.gpus), "driver": made.driver}
    known = ", ".join(f"{what} {value}" for what, value in words.items() if value)
    files, size = counted(len(caches.files), "file"), human_bytes(caches.size)
    line = f"{caches.folder}: {files} of compile caches, {size}, for {known}."
    err().print(line if caches.files else "warning: the program wrote no compile caches.", markup=False)


def _variables(folder: Path) -> list[str]:
    import os
    import shlex

    from torchtailor.core.disk import disk_errors
    from torchtailor.workload.record import recording_environment

    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    new = recording_environment(folder.resolve())
    changed = {name: value for name, value in new.items() if os.environ.get(name) != value}
    return [f"export {name}={shlex.quote(value)}" for name, value in changed.items()]


def show(trace: Trace, name: str, *, json: bool) -> None:
    """Print what a trace holds."""
    from torchtailor.cli.ui import err, human_bytes, out, print_json, table
    from torchtailor.core.format import counted
    from torchtailor.workload.trace import trace_facts

    if json:
        print_json("trace", trace_facts(trace, name))
        return
    gpu = [library for library in trace.libraries if library.used]
    shown = [library for library in trace.libraries if library.used or library.touched_size >= _WORTH_A_ROW]
    rows = [
        [
            one.name,
            f"{len(one.used)} of {one.containers}" if one.containers else "",
            human_bytes(one.stored_used) if one.containers else "",
            human_bytes(one.stored) if one.containers else "",
            human_bytes(one.touched_size) if one.pages else "",
        ]
        for one in sorted(shown, key=lambda one: -one.stored_used - one.touched_size)
    ]
    if rows:
        columns = ["Library", "Containers", "Used", "Has", "Pages touched"]
        out().print(table(columns, rows, optional=columns[1:]))
    used = human_bytes(trace.stored_used)
    code = f"{used} of GPU code in {counted(len(gpu), 'library', 'libraries')}" if gpu else "no GPU code"
    paged = [library for library in trace.libraries if library.pages]
    touched = (
        f"{human_bytes(trace.touched_size)} of pages in {counted(len(paged), 'library', 'libraries')}, "
        if paged
        else ""
    )
    processes = counted(trace.processes, "process", "processes")
    out().print(
        f"{name}: {code}, {touched}{counted(len(trace.opened), 'file')} opened, by {processes}; label {trace.label}.",
        markup=False,
    )
    if trace.neighbours:
        out().print("The kernel mapped pages in groups: the pages hold those beside touched ones, too.", markup=False)
    for what in trace.lost:
        err().print(f"warning: not recorded: {what}", markup=False)
    if not gpu and not paged:
        err().print("warning: the program loaded no GPU code.", markup=False)

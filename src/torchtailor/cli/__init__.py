"""The table of commands. Nothing heavy is imported here, so that `torchtailor --help` is quick."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from torchtailor.core.version import __version__

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Command(NamedTuple):
    """One command: the module that holds it, and the line that describes it."""

    module: str
    summary: str


# A row per command, in the order of the pipeline. The module has `command` (a function) or `app` (a group).
COMMANDS: dict[str, Command] = {
    "detect": Command("detect", "Describe this machine: CPU, GPUs, driver, tools."),
    "recommend": Command("recommend", "Show which PyTorch fits a machine, and why others do not."),
    "matrix": Command("matrix", "List the variants, or explain why one is not possible."),
    "inspect": Command("inspect", "Show the GPU code inside libraries, wheels, environments and images."),
    "diff": Command("diff", "Show where two artifacts or releases differ in size, and why; fail over a budget."),
    "sizes": Command(
        "sizes", "Show where the bytes of an artifact are, or how a project grew from release to release."
    ),
    "tailor": Command("tailor", "Cut out the GPU code that a target cannot run."),
    "image": Command("image", "Cut a container image for given GPUs: from a registry, an OCI layout or an archive."),
    "record": Command("record", "Run a program and note which GPU code it loads, and which files it opens."),
    "trace": Command("trace", "Show and merge traces of what programs use."),
    "run": Command("launch", "Start a program that loads the GPU code it lacks from packs."),
    "restore": Command("restore", "Undo an in-place tailoring, or print how to reinstall what cannot be restored."),
    "verify": Command("verify", "Check an artifact: its GPU code, host code, files, import, and results on the GPU."),
    "build": Command("build", "Make an installable set of wheels for a variant."),
    "install": Command("install", "Build if needed, and install into an environment."),
    "farm": Command("farm", "Check the machines that `build --on` uses."),
    "ci": Command("ci", "Write a workflow that builds, proves and publishes variants."),
    "publish": Command("publish", "Add built variants to an index for others."),
    "recipes": Command("recipes", "Write, check and migrate Nix/Flox recipes."),
    "site": Command("site", "Write a site: pick your hardware, get the command; no server is needed."),
    "catalog": Command("catalog", "Show what is new on the indexes, and add it to the catalog."),
    "history": Command("history", "Show every build attempt."),
    "cache": Command("cache", "Show or empty the cache of wheels."),
    "doctor": Command("doctor", "Explain why torch does not run, what a message means, or why a build failed."),
    "help": Command("help", "Show a page of the documentation, or the list of pages."),
}

HELP_OPTIONS = ("-h", "--help")
COMPLETION_OPTIONS = ("--install-completion", "--show-completion")
COMPLETE_VARIABLE = "_TORCHTAILOR_COMPLETE"  # set by a shell that asks for completions


def help_text() -> str:
    """What `torchtailor --help` prints; plain text, made from the table."""
    width = max(len(name) for name in COMMANDS)
    rows = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return (
        f"torchtailor {__version__}: makes PyTorch fit one machine.\n\n"
        f"Usage: torchtailor COMMAND [OPTIONS]\n\nCommands:\n{rows}\n\n"
        "Options:\n"
        "  -v, --verbose         Say on stderr what is done, and why; -vv says more. Also after the command\n"
        "  --help                Show this, or a command's options: torchtailor COMMAND --help\n"
        "  --version             Show the version\n"
        "  --install-completion  Complete commands and options in this shell\n"
        "  --show-completion     Show what --install-completion would add\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code (docs/exit-codes.md)."""
    _stand_on_three_feet()
    try:
        return _main(list(sys.argv[1:] if argv is None else argv), leave=argv is None)
    except OSError as error:  # of what is printed outside of any command, such as --version
        from torchtailor.cli._dispatch import say_refused

        return say_refused(error)


def _main(arguments: list[str], *, leave: bool) -> int:
    if os.environ.get(COMPLETE_VARIABLE):
        from torchtailor.cli._dispatch import run_root

        return run_root(arguments)
    verbose = list(takewhile(_is_verbose, arguments))
    arguments = arguments[len(verbose) :]
    if not arguments or arguments[0] in HELP_OPTIONS:
        sys.stdout.write(help_text())
        sys.stdout.flush()
        return 0
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"torchtailor {__version__}\n")
        sys.stdout.flush()
        return 0
    if arguments[0] in COMPLETION_OPTIONS:
        from torchtailor.cli._dispatch import run_root

        return run_root(arguments)
    from torchtailor.cli._dispatch import run_command

    code = run_command(arguments[0], [*verbose, *arguments[1:]])
    if leave and any(thread.name.startswith("fetch") for thread in threading.enumerate()):
        # threads that a slow server still holds are not waited for: all files are whole, or known as partial
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _is_verbose(word: str) -> bool:
    """Whether it is `-v`, `-vv` or `--verbose`, which may stand before the command too."""
    return word == "--verbose" or (word.startswith("-v") and not word.strip("-v"))


def _stand_on_three_feet() -> None:
    """Open what the caller closed of stdin, stdout and stderr: else the next file we open would take its place."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            with suppress(OSError):
                while os.open(os.devnull, os.O_RDWR) < number:
                    pass
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        elif stream in (sys.__stdout__, sys.__stderr__) and not stream.isatty():
            setattr(sys, name, _outliving(stream, _Outliving if number == 1 else _Unheard))
        elif number and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


class _Outliving(io.FileIO):
    """An end of a pipe whose reader may go away: what is said then goes nowhere, and the command goes on."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(memoryview(data))


class _Unheard(io.FileIO):
    """stderr: where it cannot be written, what is said goes nowhere, and the exit code tells."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(memoryview(data))


def _outliving(stream: io.TextIOWrapper, kind: type[io.FileIO]) -> io.TextIOWrapper:
    """The same stream, so that a command ends with its own exit code whoever has stopped reading."""
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(kind(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering or stream.write_through,
    )

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
    """One command: the module that holds it, the line that describes it, and its heading on the first screen; what few
    people need is only named there."""

    module: str
    summary: str
    group: str
    rare: bool = False


_CHOOSE, _CUT, _PROGRAM, _BUILD, _SHARE, _MAINTAIN = GROUPS = (
    "Choose", "Cut what is there", "Cut to one program", "Build and install", "Share", "Check and maintain",
)  # fmt: skip
# A row per command, in the order of the pipeline. The module has `command` (a function) or `app` (a group).
COMMANDS: dict[str, Command] = {
    "recommend": Command("recommend", "Show which PyTorch fits a machine, and why others do not.", _CHOOSE),
    "detect": Command("detect", "Describe this machine: CPU, GPUs, driver, tools.", _CHOOSE),
    "matrix": Command("matrix", "List the variants, or explain why one is not possible.", _CHOOSE),
    "inspect": Command("inspect", "Show the GPU code in libraries, wheels, environments, images.", _CUT),
    "sizes": Command("sizes", "Show where bytes are, or how a project grew by release.", _CUT),
    "diff": Command("diff", "Show where two artifacts differ in size; fail over a budget.", _CUT),
    "tailor": Command("tailor", "Cut out the GPU code that a target cannot run.", _CUT),
    "image": Command("image", "Cut a container image: in a registry, OCI layout or archive.", _CUT),
    "restore": Command("restore", "Undo a cut in place, or print how to reinstall.", _CUT),
    "record": Command("record", "Run a program and note which GPU code and files it uses.", _PROGRAM),
    "trace": Command("trace", "Show and merge what was recorded.", _PROGRAM),
    "packs": Command("packs", "Fetch the packs of an image that was cut to a program.", _PROGRAM, rare=True),
    "run": Command("launch", "Start a program that loads the GPU code it lacks from packs.", _PROGRAM),
    "install": Command("install", "Build if needed, and install into an environment.", _BUILD),
    "build": Command("build", "Make an installable set of wheels for a variant.", _BUILD),
    "recipes": Command("recipes", "Write, check and migrate Nix/Flox recipes.", _BUILD),
    "farm": Command("farm", "Check the machines that `build --on` uses.", _BUILD, rare=True),
    "publish": Command("publish", "Add built variants to an index for others.", _SHARE),
    "ci": Command("ci", "Write a workflow that builds, proves and publishes variants.", _SHARE),
    "site": Command("site", "Write a page on which one picks hardware and gets the command.", _SHARE, rare=True),
    "verify": Command("verify", "Prove an artifact: its code, files, import, results on the GPU.", _MAINTAIN),
    "doctor": Command("doctor", "Explain why torch does not run, a message, or a failed build.", _MAINTAIN),
    "history": Command("history", "Show every build attempt.", _MAINTAIN, rare=True),
    "cache": Command("cache", "Show or empty the cache of wheels.", _MAINTAIN, rare=True),
    "catalog": Command("catalog", "Show what is new on the indexes, and add it.", _MAINTAIN, rare=True),
    "help": Command("help", "Show a page of the documentation, or the list of pages.", _MAINTAIN),
}

HELP_OPTIONS = ("-h", "--help")
COMPLETION_OPTIONS = ("--install-completion", "--show-completion")
COMPLETE_VARIABLE = "_TORCHTAILOR_COMPLETE"  # set by a shell that asks for completions


def help_text() -> str:
    """What `torchtailor --help` prints in 80 columns; plain text, made from the table."""
    width = max(len(name) for name in COMMANDS)
    parts = []
    for group in GROUPS:
        rows = [
            f"  {name:<{width}}  {command.summary}"
            for name, command in COMMANDS.items()
            if command.group == group and not command.rare
        ]
        parts.append("\n".join([f"{group}:", *rows]))
    rare = ", ".join(name for name, command in COMMANDS.items() if command.rare)
    return (
        f"torchtailor {__version__}: makes PyTorch fit one machine.\n\n"
        "Usage: torchtailor COMMAND [OPTIONS]\n\n" + "\n\n".join(parts) + "\n\n"
        f"Seldom needed (`torchtailor help commands`):\n  {rare}\n\n"
        "Options:\n"
        "  -v, --verbose         Say on stderr what is done, and why; -vv says more\n"
        "  --help                Show this; torchtailor COMMAND --help shows its options\n"
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
        from torchtailor.core.origin import shown_version

        sys.stdout.write(f"torchtailor {shown_version()}\n")
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

"""Runs one command: imports its module alone, and turns every error into a sentence and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from torchtailor.cli import COMMANDS
from torchtailor.cli._layout import GroupedCommand
from torchtailor.cli._verbose import add_verbose
from torchtailor.core.errors import ExitCode, ProgramCode, StoppedError, TorchtailorError, UsageError

_PROGRAM = "torchtailor"


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run the command of this name with these arguments."""
    own = arguments[: list(arguments).index("--")] if "--" in arguments else arguments  # behind it, a program's
    if "--json" not in own:
        return _run(name, arguments)
    from torchtailor.cli.ui import json_lines, printed_documents

    before = printed_documents()
    try:
        code = _run(name, arguments)
    finally:
        json_lines(False)
    if printed_documents() == before:
        _say_as_json(code)
    return code


def _run(name: str, arguments: Sequence[str]) -> int:
    _said.clear()
    try:
        command = load_command(name)
        if command.context_settings.get(
            "allow_interspersed_args", True
        ):  # else it starts a program with arguments of its own
            _check_filled(arguments)
        if not arguments and getattr(command, "commands", None) and not command.invoke_without_command:
            arguments = ["--help"]  # a group alone lists its commands
        with _listening():
            result = command.main(list(arguments), prog_name=f"torchtailor {name}", standalone_mode=False)
        sys.stdout.flush()
    except TorchtailorError as error:
        stopped = isinstance(error, StoppedError)
        return _stop(error.message, error.hint) if stopped else _say(error.message, error.hint, error.code)
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _stop()
    except OSError as error:
        return say_refused(error)
    except UnicodeEncodeError as error:  # a name that is not UTF-8, where text is written
        return _say_not_text(error, arguments)
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C while a class is made is a RuntimeError
            return _stop()
        if hasattr(error, "format_message"):  # typer's own: a wrong option or argument
            message = str(error.format_message()).rstrip(".")
            path = getattr(getattr(error, "ctx", None), "command_path", f"torchtailor {name}")
            return _say(message if message.endswith("?") else f"{message}.", _usage_hint(error, path), ExitCode.USAGE)
        if os.environ.get("TORCHTAILOR_DEBUG"):
            raise
        return _say_unexpected(error)
    if result == ExitCode.INTERRUPTED and not isinstance(result, ProgramCode):  # typer turns Ctrl-C into this result
        return _stop()
    return result if isinstance(result, int) else ExitCode.OK


def _usage_hint(error: Any, path: str) -> str:
    """What to do about a wrong command line; where the result is named by an argument, -o has no place."""
    if getattr(error, "option_name", "") in ("-o", "--out", "--output") and error.ctx is not None:
        names = [one.metavar for one in error.ctx.command.params if one.param_type_name == "argument"]
        if len(names) > 1:
            return f"The result is named behind its source: `{path} {' '.join(names)}`."
    return f"See `{path} --help`."


def _root(load: Callable[[str], Any]) -> Any:
    """The group of all commands; `load` imports one."""

    class Commands(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(COMMANDS)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return load(cmd_name) if cmd_name in COMMANDS else None

        def shell_complete(self, ctx: Any, incomplete: str) -> Any:
            from typer.core import CompletionItem  # type: ignore[attr-defined]

            names = [name for name in COMMANDS if name.startswith(incomplete)]
            return [CompletionItem(name, help=COMMANDS[name].summary) for name in names]

    app = typer.Typer(name=_PROGRAM, cls=Commands, add_completion=True, rich_markup_mode=None)
    app.callback()(lambda: None)
    return typer.main.get_command(app)


def run_root(arguments: Sequence[str]) -> int:
    """Answer a shell that completes a command line, or show or install its completion."""
    from torchtailor.cli import COMPLETE_VARIABLE

    try:
        commands = _root(load_command)
        commands.main(list(arguments), prog_name=_PROGRAM, complete_var=COMPLETE_VARIABLE, standalone_mode=True)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else ExitCode.OK
        return ExitCode.USAGE if code == ExitCode.INTERNAL else code  # a shell that typer does not know
    except TorchtailorError as error:
        return _say(error.message, error.hint, error.code)
    sys.stdout.flush()
    return ExitCode.OK


@cache
def load_command(name: str) -> Any:
    """The typer command of this name; its module is imported now, and no other."""
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"Did you mean `torchtailor {near[0]}`?" if near else "`torchtailor --help` lists the commands."
        raise UsageError(f"There is no command {name!r}.", hint)
    module = import_module(f"torchtailor.cli.{COMMANDS[name].module}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name=name, cls=getattr(module, "CommandType", GroupedCommand))(module.command)
    command: Any = typer.main.get_command(app)
    add_verbose(command)
    command.context_settings["help_option_names"] = ["-h", "--help"]  # commands of a group inherit it
    return command


def _check_filled(arguments: Sequence[str]) -> None:
    """Refuse an empty word: as a path it would be the current folder, and mostly it is a variable that is not set."""
    for before, word in zip(("", *arguments), arguments, strict=False):
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if (equals or not option) and not value.strip():
            named = option or (before if before.startswith("-") and before != "--" else "An argument")
            raise UsageError(f"{named} is empty.", "Check the variable that it comes from, or leave it out.")


@contextmanager
def _listening() -> Iterator[None]:
    """Ctrl-C is an exception from now on, and so is being told to end, so that everything is left whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `__main__`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    ours = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, _interrupt)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)


_ended_by: list[int] = []  # the signal, if it was not Ctrl-C


def _interrupt(number: int, _: object) -> None:
    _ended_by.append(number)
    if multiprocessing := sys.modules.get("multiprocessing"):
        for child in multiprocessing.active_children():  # as a terminal does with Ctrl-C
            with suppress(OSError):
                os.kill(child.pid, signal.SIGINT)
    raise KeyboardInterrupt


def _stop(message: str = "Stopped.", hint: str = "What is finished is whole. Run the same command to resume.") -> int:
    code = 128 + _ended_by[0] if _ended_by else ExitCode.INTERRUPTED
    _ended_by.clear()
    with suppress(KeyboardInterrupt):  # a second Ctrl-C adds nothing
        return _say(message, hint, code)
    return code


_SHOWN = 300  # letters of a name that nobody meant as one
_said: list[tuple[str, str]] = []  # the error of this run: its sentence and the next step


def _say_as_json(code: int) -> None:
    """With --json an error is a document too, on stdout, unless the command's own document is there already."""
    from torchtailor.cli.ui import print_json
    from torchtailor.cli.ui.documents import ErrorDocument

    if _said:
        with suppress(OSError):  # a full disk: stderr has the sentence
            message, hint = _said[-1]
            print_json("error", ErrorDocument(message, hint, int(code)))
            sys.stdout.flush()


def _say(message: str, hint: str, code: int) -> int:
    from rich.text import Text

    from torchtailor.cli.ui import err, json_lines, print_event

    _said.append((message, hint))
    if json_lines():
        print_event({"kind": "error", "text": message, "hint": hint, "exit_code": int(code)})
        return code
    err().print(Text.assemble(("error: ", "bold red"), message))
    if hint:
        err().print(Text(f"       {hint}"))
    return code


def say_refused(error: OSError) -> int:
    """What the system refused wherever it was asked; what names no file and is no matter of disks is a bug."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        with suppress(OSError):  # of a stream that is no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer has no place
        where = f" ({error.filename})" if error.filename else ""
        return _say(f"There is no space left to write to{where}.", "Make room and try again.", ExitCode.ENVIRONMENT)
    if error.filename and error.errno:
        name = os.fsdecode(error.filename)
        shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
        message = f"{shown} cannot be used: {os.strerror(error.errno).lower()}."
        return _say(message, "Choose another place, or run it as its owner.", ExitCode.ENVIRONMENT)
    if isinstance(error, FileNotFoundError) and not error.filename:  # of getcwd(), which has no name to tell
        message = "The working directory does not exist any more."
        return _say(message, "Go to another folder, and run it again.", ExitCode.ENVIRONMENT)
    return _say_bug(error)


def _say_not_text(error: UnicodeEncodeError, arguments: Sequence[str]) -> int:
    """An argument of bytes that are not UTF-8 is a name for the file system, and no text."""
    for word in arguments:
        try:
            word.encode()
        except UnicodeEncodeError:
            return _say(f"{word[:_SHOWN]!r} is not UTF-8.", "Write it in UTF-8, or rename the file.", ExitCode.USAGE)
    return _say_bug(error)


def _say_unexpected(error: Exception) -> int:
    """What Python itself refuses about values, wherever that is; all else is a bug."""
    if isinstance(error, RecursionError):
        return _say("What was given is nested too deeply.", "Check that it is the right file.", ExitCode.BAD_INPUT)
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # of Path.resolve
        return _say(f"{error}.", "Remove the link.", ExitCode.ENVIRONMENT)
    return _say_bug(error)


def _say_bug(error: Exception) -> int:
    """A bug of ours: keep the traceback in a file and name it, rather than show it."""
    from torchtailor.core.disk import state_folder, write_atomically

    where = state_folder() / "last-bug.txt"
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(where, "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace"))
        hint = f"Please report it with {where}."
    except OSError:
        hint = "Set TORCHTAILOR_DEBUG=1 to see where, and please report it."
    return _say(f"This is a bug in torchtailor: {type(error).__name__}: {error}.", hint, ExitCode.INTERNAL)

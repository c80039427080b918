"""Every error a user can meet, and the exit code it ends with.

An error is one sentence that says what is wrong, and a second that says what to do next. The command line prints
both and exits with `code`; a traceback shown to a user is a bug.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process exit code means; the table in docs/exit-codes.md is generated from here."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    NO_MATCH = 3
    BAD_INPUT = 4
    IMPOSSIBLE = 5
    CHECK_FAILED = 6
    ENVIRONMENT = 7
    NETWORK = 8
    BUILD_FAILED = 9
    OVER_BUDGET = 10
    INTERRUPTED = 130


class ProgramCode(int):
    """How a program that a command ran has ended: 130 means that it was stopped, and not the command."""


EXIT_MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done; every check asked for passed",
    ExitCode.INTERNAL: "a bug in torchtailor",
    ExitCode.USAGE: "the command line or torchtailor.toml is wrong",
    ExitCode.NO_MATCH: "nothing has that name, or no variant fits the machine",
    ExitCode.BAD_INPUT: "a file given to torchtailor is damaged or not what it should be",
    ExitCode.IMPOSSIBLE: "what was asked for contradicts itself or cannot run on the target",
    ExitCode.CHECK_FAILED: "a proof, audit or verification did not pass, or the catalog is behind the indexes",
    ExitCode.ENVIRONMENT: "the machine lacks something: a tool, disk, memory, permission",
    ExitCode.NETWORK: "an index or server could not be used",
    ExitCode.BUILD_FAILED: "a build was started and failed",
    ExitCode.OVER_BUDGET: "`diff --budget`: a size or its growth exceeds the budget",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C (143: by SIGTERM, 129: by SIGHUP); run the same command to resume",
}


class TorchtailorError(Exception):
    """Base of all errors that are the user's to read."""

    code = ExitCode.INTERNAL

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class StoppedError(TorchtailorError):
    """A command was stopped by Ctrl-C or a signal, and knows what it had changed by then."""

    code = ExitCode.INTERRUPTED


class UsageError(TorchtailorError):
    """The command line or a configuration file is wrong."""

    code = ExitCode.USAGE


class NoMatchError(TorchtailorError):
    """A name, a product or a machine matches nothing we know."""

    code = ExitCode.NO_MATCH


class BadInputError(TorchtailorError):
    """A file is damaged or is not what it claims to be."""

    code = ExitCode.BAD_INPUT


class ImpossibleError(TorchtailorError):
    """The request contradicts itself: no build can satisfy it."""

    code = ExitCode.IMPOSSIBLE


class CheckFailedError(TorchtailorError):
    """A proof, audit or verification did not pass."""

    code = ExitCode.CHECK_FAILED


class EnvironmentProblem(TorchtailorError):  # noqa: N818  (EnvironmentError is a builtin)
    """The machine lacks a tool, disk, memory or a permission."""

    code = ExitCode.ENVIRONMENT


class NetworkError(TorchtailorError):
    """An index or server could not be used."""

    code = ExitCode.NETWORK


class BuildFailedError(TorchtailorError):
    """A build was started and failed."""

    code = ExitCode.BUILD_FAILED

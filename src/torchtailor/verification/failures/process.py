"""How a process failed: its signal, or its last message."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from torchtailor.verification.failures.diagnosis import find_failures
from torchtailor.verification.failures.known import FailureTable

if TYPE_CHECKING:
    from torchtailor.trees.artifact.launch import FinishedProcess

_SIGNALS = {
    signal.SIGILL: "an illegal instruction: this CPU lacks an instruction set that the build uses unconditionally",
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGBUS: "a bus error: a library file is shorter than its headers say, or the disk is failing",
    signal.SIGKILL: "a kill, most likely for lack of memory",
    signal.SIGABRT: "an abort",
}
_NOT_LOADED = ("missing-shared-library", "missing-system-library", "no-driver")
_MISSING_MODULE = re.compile(r"No module named '([\w.]{1,200})'")


def how_it_ended(ran: FinishedProcess) -> str:
    """A sentence for a process that did not end well."""
    if ran.signal is not None:
        known = _SIGNALS.get(signal.Signals(ran.signal), signal.Signals(ran.signal).name)
        return f"The process was ended by {known}."
    return f"It ended with: {ran.last_words}"


def message_of(ran: FinishedProcess) -> str:
    """What a shell would show of a process; empty where all went well."""
    if ran.signal is not None:
        return signal.strsignal(ran.signal) or f"signal {ran.signal}"
    return ran.errors if ran.code else ""


def missing_dependency(ran: FinishedProcess) -> str | None:
    """The library or package that was not found, where it is none of torch's own."""
    named = (found.names for found in find_failures(ran.errors, FailureTable.RUNTIME) if found.failure in _NOT_LOADED)
    library = next((names["library"] for names in named if "library" in names), None)
    if library is not None:
        return None if library.startswith(("libtorch", "libc10", "libshm")) else library
    if module := _MISSING_MODULE.search(ran.errors):
        return None if module[1].split(".")[0] == "torch" else module[1]
    return None

"""Words for a process that died: what its signal or its last message means for torch."""

from __future__ import annotations

import re
import signal

from torchtailor.artifact.launch import FinishedProcess

_SIGNALS = {
    signal.SIGILL: "an illegal instruction: this CPU lacks an instruction set that the build uses without asking",
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGBUS: "a bus error: a library file is shorter than its headers say, or the disk is failing",
    signal.SIGKILL: "a kill, most likely for lack of memory",
    signal.SIGABRT: "an abort",
}
_MISSING_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


def how_it_ended(ran: FinishedProcess) -> str:
    """A sentence for a process that did not end well."""
    if ran.signal is not None:
        known = _SIGNALS.get(signal.Signals(ran.signal), signal.Signals(ran.signal).name)
        return f"The process was ended by {known}."
    return f"It ended with: {ran.last_words}"


def missing_dependency(ran: FinishedProcess) -> str | None:
    """The library or package that was not found, where it is none of torch's own."""
    if library := _MISSING_LIBRARY.search(ran.errors):
        return None if library[1].startswith(("libtorch", "libc10", "libshm")) else library[1]
    if module := _MISSING_MODULE.search(ran.errors):
        return None if module[1].split(".")[0] == "torch" else module[1]
    return None

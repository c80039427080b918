"""Starts a command so that it ends with our process, even where that is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Becomes the command, after asking the kernel (PR_SET_PDEATHSIG) for SIGTERM when our process ends. It is a program of
# its own, because code that runs in a forked child before exec (preexec_fn) may deadlock where threads are running.
_LAUNCHER = """
import ctypes, os, signal, sys
parent, line = int(sys.argv[1]), sys.argv[2:]
ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(143)
os.execvp(line[0], line)
"""


def ending_with_us(line: Sequence[str]) -> tuple[str, ...]:
    """The line that starts this one; the kernel ends it when the thread that started it does."""
    return (sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *line)

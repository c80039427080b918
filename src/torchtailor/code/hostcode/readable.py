"""C++ names as people read them, where c++filt is installed; else unchanged."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache

_MANGLED = re.compile(r"\b_Z[A-Za-z0-9_]+(?:\.[a-z]+(?:\.\d+)?)*")
_LONGEST = 110


@cache
def readable(text: str) -> str:
    """A sentence with its mangled names demangled and cut to a length that can be read."""
    names = list(dict.fromkeys(_MANGLED.findall(text)))
    tool = shutil.which("c++filt")
    if not names or tool is None:
        return text
    try:
        done = subprocess.run([tool, *names], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return text
    shown = dict(zip(names, done.stdout.splitlines(), strict=False))
    return _MANGLED.sub(lambda match: _short(shown.get(match[0], match[0])), text)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"

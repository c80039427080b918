"""pip as it would decide on another machine."""

from __future__ import annotations


def pip_on(arch: str) -> tuple[str, str]:
    """What to give to a Python: --platform chooses wheels, but markers are those of the machine that pip is on."""
    line = f"import platform, runpy; platform.machine = lambda: {arch!r}; runpy.run_module('pip', run_name='__main__')"
    return "-c", line

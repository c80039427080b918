"""Kills a process at its n-th change of the file system, just before that happens.

As a script, it runs torchtailor so: `python tests/killing.py STEP ARGUMENT...`; with step 0 it runs to its end, and the
last line that it prints is how many steps there were.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

WRITING = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.link")


def die_at(step: int) -> Callable[[], int]:
    """From now on, count this process's changes; what is returned says how many there were."""
    counter = itertools.count(1)  # counts rightly for several threads
    armed = os.getpid()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in WRITING and (event != "open" or _writes(arguments))
        if changes and os.getpid() == armed and next(counter) == step:
            os.kill(armed, signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: next(counter) - 1


def until_killed(step: int, run: Callable[[], object]) -> tuple[int, int]:
    """Run something in a process that is killed at its n-th change; how it ended, and how many changes a whole run
    has."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            steps = die_at(step)
            run()
            os.write(writer, str(steps()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(said or 0)


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    return bool(set("wax+") & set(mode)) if mode else bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))


def main() -> int:
    from torchtailor.cli import main

    steps = die_at(int(sys.argv[1]))
    code = main(sys.argv[2:])
    print(steps())
    return code


if __name__ == "__main__":
    sys.exit(main())

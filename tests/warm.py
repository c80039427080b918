"""`torchtailor` for scripts that run it many times: each is a copy of one process that has imported what it needs.

Its imports are most of a command's time. What a script is given, prints and ends with is as ever; whatever is about
the process itself (signals, closed streams, imports) is tested with `python -m torchtailor`.
"""

from __future__ import annotations

import marshal
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.programs import write_program

_IMPORTED = (
    "torchtailor.building.build",
    "torchtailor.building.wheel.backend",
    "torchtailor.cli.build",
    "torchtailor.cli.publish",
    "torchtailor.cli.verify",
    "torchtailor.publish",
    "torchtailor.verification.report.page",
    "torchtailor.verification.verify",
    "typer",
)
_CLIENT = """import marshal, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[0].removesuffix("torchtailor.py") + "socket")
    socket.send_fds(server, [b"0"], [0, 1, 2])
    with server.makefile("rwb") as stream:
        marshal.dump((sys.argv[1:], os.getcwd(), dict(os.environ)), stream)
        stream.flush()
        code = stream.read(1)
sys.exit(code[0] if code else "it ended without an exit code")
"""


@contextmanager
def warm_torchtailor(folder: Path) -> Iterator[Path]:
    """A folder with the program, to be put first in PATH; it works until the block ends."""
    folder.mkdir()
    write_program(folder / "torchtailor", _CLIENT)
    line = [sys.executable, "-m", "tests.warm", str(folder / "socket")]
    root = Path(__file__).parents[1]
    with subprocess.Popen(line, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:  # ends with stdin
        assert server.stdout and server.stdout.readline() == b"ready\n"
        yield folder


def _serve(path: str) -> None:
    from importlib import import_module

    from torchtailor.catalog import load_catalog
    from torchtailor.catalog.variants import matrix_of

    for name in _IMPORTED:
        import_module(name)
    matrix_of(load_catalog(Path("/")))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        os.write(1, b"ready\n")
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _run(connection)
            connection.close()
            while _reaped():
                pass


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _run(connection: socket.socket) -> None:
    from torchtailor.cli import main

    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as stream:
        words, cwd, environment = marshal.load(stream)
    for number, given in enumerate(streams):
        os.dup2(given, number)
        os.close(given)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["torchtailor", *words]
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(bytes([code]))
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])

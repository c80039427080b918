"""What somebody without the keys of a Dask cluster tries at one of its ports; run as a program, as another user.

python -m tests.torture.intruder ATTACK,... PORT ...      prints, as JSON, what succeeded
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

SECONDS = 2.0  # for an answer


def code(protocol: str) -> Callable[[int], Awaitable[str]]:
    """Run a function in the process that listens: scheduler, nanny or worker."""

    async def attack(port: int) -> str:
        from distributed.core import rpc
        from distributed.protocol.pickle import dumps

        keys = _own_keys() if protocol == "tls" else None
        for operation in ("run", "run_function"):  # of workers and nannies, and of schedulers
            with suppress(Exception):
                async with rpc(f"{protocol}://127.0.0.1:{port}", timeout=SECONDS, connection_args=keys) as peer:
                    asked = getattr(peer, operation)(function=dumps(os.getuid), wait=True)
                    answer = await asyncio.wait_for(asked, SECONDS)
                    return f"code ran as user {answer['result']}"
        return ""

    return attack


def worker(protocol: str) -> Callable[[int], Awaitable[str]]:
    """Join as a worker, which gets jobs with the passwords of indexes and says what they made."""

    async def attack(port: int) -> str:
        from distributed import Security, Worker

        keys = _own_security() if protocol == "tls" else Security()
        joined = Worker(f"{protocol}://127.0.0.1:{port}", security=keys, protocol=protocol, host="127.0.0.1")
        await asyncio.wait([asyncio.ensure_future(joined.start())], timeout=SECONDS)  # it would try for ever
        return "joined as a worker" if joined.status.name == "running" else ""

    return attack


async def listen(port: int) -> str:
    """Say nothing, and see what is said."""
    return await asyncio.to_thread(_listen, port)


def _listen(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
        said = connection.recv(100)
    return f"it said {said!r}" if said else ""


async def garbage(port: int) -> str:
    """Bytes that are nothing, a hello of TLS that is cut off, and connections that stay open."""
    connections = [socket.create_connection(("127.0.0.1", port), SECONDS) for _ in range(30)]
    for number, connection in enumerate(connections):
        connection.sendall((os.urandom(2000), b"\x16\x03\x01\x02\x00\x01", b"")[number % 3])
    await asyncio.sleep(0.2)
    for connection in connections:
        connection.close()
    return ""


async def web(port: int) -> str:
    """Ask for a page."""
    return await asyncio.to_thread(_web, port)


def _web(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("GET", "/json/identity.json")
    answer = connection.getresponse()
    return f"HTTP {answer.status}, {len(answer.read())} bytes"


async def no_certificate(port: int) -> str:
    """TLS as a browser speaks it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await asyncio.to_thread(_speak_tls, context, port)


async def foreign_certificate(port: int) -> str:
    """TLS with a certificate of one's own that has the name of Dask's."""
    return await asyncio.to_thread(_speak_tls, _own_keys()["ssl_context"], port)


def _speak_tls(context: ssl.SSLContext, port: int) -> str:
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), SECONDS) as plain,
        context.wrap_socket(plain) as connection,
    ):
        said = connection.recv(100)
    return f"in TLS it said {said!r}" if said else ""


@cache
def _own_security() -> Any:
    from distributed import Security

    return Security.temporary()


def _own_keys() -> dict[str, Any]:
    return dict(_own_security().get_connection_args("client"))


ATTACKS: dict[str, Callable[[int], Awaitable[str]]] = {
    "code": code("tcp"),
    "code with own keys": code("tls"),
    "worker": worker("tcp"),
    "worker with own keys": worker("tls"),
    "listen": listen,
    "garbage": garbage,
    "web": web,
    "no certificate": no_certificate,
    "foreign certificate": foreign_certificate,
}


async def attempt(attack: str, port: int) -> str:
    """What succeeded, or nothing; what Dask raises where it is refused has many types."""
    with suppress(Exception):
        tried = asyncio.ensure_future(ATTACKS[attack](port))
        await asyncio.wait([tried], timeout=3 * SECONDS)
        return tried.result() if tried.done() else ""
    return ""


def listening(session: int) -> dict[int, str]:
    """The addresses at which the processes of a session listen, by port."""
    from tests.waiting import processes

    sockets = set()
    for process in processes(session):
        for link in Path(f"/proc/{process}/fd").iterdir():
            try:
                sockets.add(str(link.readlink()).removeprefix("socket:[").rstrip("]"))
            except OSError:  # closed meanwhile
                continue
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else ():
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and inode in sockets:
                host, _, port = local.partition(":")
                found[int(port, 16)] = _address(host)
    return found


def _address(digits: str) -> str:
    words = [int(digits[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(digits), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


async def main(attacks: list[str], ports: list[int]) -> None:
    tries = [(attack, port) for attack in attacks for port in ports]
    ends = await asyncio.gather(*(attempt(attack, port) for attack, port in tries))
    print(json.dumps([f"{attack} at {port}: {end}" for (attack, port), end in zip(tries, ends, strict=True) if end]))
    sys.stdout.flush()
    os._exit(0)  # workers of Dask do not end by themselves


def intrude(attacks: Iterable[str], ports: Iterable[int]) -> list[str]:
    """What another user reaches; where none can run this Python, another process of the same user: it has no keys
    either."""
    switch = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    may_switch = os.geteuid() == 0 and shutil.which("setpriv") is not None
    root = Path(__file__).parents[2]
    trial = [*switch, sys.executable, "-c", "import tests.torture.intruder"]
    if not may_switch or subprocess.run(trial, cwd=root, capture_output=True, check=False).returncode:
        switch = []
    done = subprocess.run(
        [*switch, sys.executable, "-m", "tests.torture.intruder", ",".join(attacks), *map(str, ports)],
        cwd=root,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    succeeded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return succeeded


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].split(","), [int(word) for word in sys.argv[2:]]))

"""The address of a scheduler: how it is written, and whether anything answers there."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from urllib.parse import urlsplit

from torchtailor.errors import NetworkError, UsageError

_PROTOCOLS = ("tcp", "tls", "ws", "wss", "ucx", "ucxx")  # of Dask
_PORT = 8786  # that `dask scheduler` has
_PROBE = 3.0  # seconds for a name to be found and a connection to be made
_SPEAK = 15.0  # seconds for a busy scheduler to say the first word
_AGAIN = 0.3  # seconds until the next try, of a scheduler that is just being started


def check_address(address: str, where: str) -> str:
    """The same address, where it is one; `where` names the option or section that has it."""
    shown = f"{where} {address!r}"
    scheme, separator, rest = address.partition("://")
    if not separator:
        name, _, number = address.partition(":")
        raise UsageError(f"{shown} has no protocol.", f"Write tcp://{name or 'HOST'}:{number or _PORT}.")
    if scheme not in _PROTOCOLS:
        raise UsageError(
            f"{shown}: {scheme}:// is no protocol of a scheduler.",
            f"Write tcp://{rest or f'HOST:{_PORT}'}, the address that `dask scheduler` prints.",
        )
    try:
        host, port = urlsplit(address).hostname, urlsplit(address).port
    except ValueError as error:  # of a port that is none, or of brackets
        reason = str(error).rstrip(".")
        raise UsageError(f"{shown} is no address: {reason}.", f"Write {scheme}://HOST:{_PORT}.") from error
    if not host:
        raise UsageError(f"{shown} names no host.", f"Write {scheme}://HOST:{_PORT}.")
    if not port:
        raise UsageError(f"{shown} has no port.", f"Write {scheme}://{host}:{_PORT}, which is Dask's usual one.")
    return address


def reach(address: str) -> None:
    """Say within seconds that no scheduler listens there; Dask itself waits for longer, of another server for ever."""
    parts = urlsplit(address)
    if parts.scheme.startswith("ucx"):
        return
    host, port, speaks = parts.hostname or "", parts.port or 0, parts.scheme == "tcp"
    end = time.monotonic() + _PROBE
    why = _why_not(host, port, speaks=speaks)
    while why == os.strerror(errno.ECONNREFUSED) and time.monotonic() < end:
        time.sleep(_AGAIN)
        why = _why_not(host, port, speaks=speaks)
    if why:
        raise NetworkError(
            f"The scheduler {address} does not answer: {why}.", "Start one (`dask scheduler`), or check the address."
        )


def _why_not(host: str, port: int, *, speaks: bool) -> str:
    """Why it is no scheduler, which `speaks` first; in a thread, since nothing ends a search for a name that hangs."""
    said: list[str] = []

    def connect() -> None:
        try:
            with socket.create_connection((host, port), _PROBE) as connection:
                connection.settimeout(_SPEAK)
                said.append("" if not speaks or _speaks(connection) else "what listens there is not a Dask scheduler")
        except socket.gaierror:
            said.append(f"the host {host!r} is not known")
        except (OSError, UnicodeError) as error:
            number = getattr(error, "errno", None)
            said.append(os.strerror(number) if number else str(error) or "no answer")

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_PROBE + _SPEAK + 1)
    return said[0] if said else "no answer"


def _speaks(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return False

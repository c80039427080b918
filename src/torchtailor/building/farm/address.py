"""The address of a scheduler: how it is written, and whether anything answers there."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from torchtailor.core.errors import NetworkError, UsageError

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


def has_tls(address: str) -> bool:
    """Whether both sides of a connection show certificates."""
    return urlsplit(address).scheme in ("tls", "wss")


def unprotected(address: str) -> str:
    """Who can use a scheduler without TLS, in a sentence; empty where it has TLS or is only for this machine."""
    host = urlsplit(address).hostname or ""
    if not host or has_tls(address) or _is_loopback(host):
        return ""
    return (
        f"{address} has no TLS: whoever reaches it can run code on its workers and on this machine, and read the "
        f"passwords in jobs. Use tls:// (`torchtailor help farm`)."
    )


def _is_loopback(host: str) -> bool:
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(ip_address(address.partition("%")[0]).is_loopback for address in addresses)


@dataclass(frozen=True)
class _Refusal:
    """Why a scheduler cannot be used, and what to do."""

    why: str
    hint: str = "Start one (`dask scheduler`), or check the address."


def reach(address: str, keys: ssl.SSLContext | None = None) -> None:
    """Say within seconds that no scheduler listens there; Dask itself waits for longer, of another server for ever.

    With TLS, `keys` are what is shown to it, and what it must show.
    """
    parts = urlsplit(address)
    if parts.scheme.startswith("ucx"):
        return
    end = time.monotonic() + _PROBE
    refusal = _refusal(parts, keys)
    while refusal and refusal.why == os.strerror(errno.ECONNREFUSED) and time.monotonic() < end:
        time.sleep(_AGAIN)
        refusal = _refusal(parts, keys)
    if refusal:
        raise NetworkError(f"The scheduler {address} does not answer: {refusal.why}.", refusal.hint)


def _refusal(parts: SplitResult, keys: ssl.SSLContext | None) -> _Refusal | None:
    """In a thread, since nothing ends a search for a name that hangs."""
    said: list[_Refusal | None] = []
    thread = threading.Thread(target=lambda: said.append(_try(parts, keys)), daemon=True)
    thread.start()
    thread.join(4 * _PROBE + _SPEAK + 1)
    return said[0] if said else _Refusal("no answer")


def _try(parts: SplitResult, keys: ssl.SSLContext | None) -> _Refusal | None:
    """Connect, and hear the first byte: a scheduler speaks first, but for one of the web's protocol."""
    host, port = parts.hostname or "", parts.port or 0
    speaks = parts.scheme in ("tcp", "tls")
    try:
        with socket.create_connection((host, port), _PROBE) as plain:
            plain.settimeout(_SPEAK)
            with keys.wrap_socket(plain) if keys else plain as connection:
                if not speaks or _speaks(connection, _PROBE):
                    return None
                if not keys and _offers_tls(host, port):
                    return _Refusal(
                        "it has TLS", f"Write tls://{parts.netloc}; `torchtailor help farm` says what it needs."
                    )
                if _speaks(connection, _SPEAK):
                    return None
        return _Refusal("what listens there is not a Dask scheduler")
    except socket.gaierror:
        return _Refusal(f"the host {host!r} is not known")
    except ssl.SSLError as error:
        return _refusal_of_tls(parts, error)
    except TimeoutError:
        return _Refusal("no answer")
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        return _Refusal(os.strerror(number) if number else str(error) or "no answer")


def _refusal_of_tls(parts: SplitResult, error: ssl.SSLError) -> _Refusal:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _Refusal(
            f"its certificate is refused, {error.verify_message}",
            "`distributed.comm.tls.ca-file` of Dask must be the CA that signed it, and it must not be expired.",
        )
    reason = (error.reason or "the connection was closed").replace("_", " ").lower()
    if "alert" in reason:  # what the other side says
        reason = reason.partition("alert ")[2]
        return _Refusal(
            f"it refuses our certificate, {reason}",
            "`distributed.comm.tls.client.cert` of Dask must be signed by the scheduler's CA, and not be expired.",
        )
    return _Refusal(
        f"it has no TLS ({reason})",
        f"Start it with `dask scheduler --protocol tls`, or write tcp://{parts.netloc} if that network is only yours.",
    )


def _speaks(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return False


def _offers_tls(host: str, port: int) -> bool:
    """Whether what says nothing waits for a hello of TLS."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), _PROBE) as plain, anybody.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False

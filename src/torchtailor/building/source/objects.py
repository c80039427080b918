"""The place where compiled files are shared (`--objects`), and whether this machine reaches it.

ccache itself says nothing where it does not: every file would be compiled again by the job that links.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import unquote, urlsplit

from torchtailor.building.source.ccache import remote_storage
from torchtailor.core.errors import UsageError
from torchtailor.core.urls import redact

_REDIS_PORT = 6379
_PATIENCE = 10.0  # seconds


def own_objects(store: str) -> str:
    """A folder beside the store where that is one; a bucket holds no objects of ccache."""
    if "://" in store:
        raise UsageError(
            f"Objects cannot be kept in {redact(store)}.",
            "Add --objects redis://HOST, http://HOST/PATH or a folder that all workers see.",
        )
    return str(Path(store) / "objects")


def why_unreachable(objects: str) -> str:
    """Why objects cannot be kept there, in a sentence; empty where they can."""
    url = urlsplit(remote_storage(objects))
    try:
        match url.scheme:
            case "redis" | "redis+unix":
                why = _ask_redis(objects)
            case "http":
                why = _ask_http(objects)
            case _:
                why = _try_folder(Path(unquote(url.path)))
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error) or "no answer"
    except ValueError as error:
        why = str(error)
    return f"the objects {redact(objects)} cannot be reached: {why}." if why else ""


def _ask_redis(objects: str) -> str:
    url = urlsplit(objects)
    if url.scheme == "redis":
        connection = socket.create_connection((url.hostname or "localhost", url.port or _REDIS_PORT), _PATIENCE)
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_PATIENCE)
        connection.connect(unquote(url.path))
    with connection:
        login = [unquote(word) for word in (url.username, url.password) if word]
        if login:
            said = _command(connection, "AUTH", *login)
            if not said.startswith(b"+"):
                return _text(said)
        said = _command(connection, "PING")
    return "" if said.startswith(b"+PONG") else _text(said)


def _command(connection: socket.socket, *words: str) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    connection.sendall(b"".join(parts))
    answer = b""
    while not answer.endswith(b"\n") and (piece := connection.recv(1000)):
        answer += piece
    return answer


def _text(answer: bytes) -> str:
    line = answer.partition(b"\r\n")[0].decode("utf-8", "replace").lstrip("-+")[:200].rstrip(".")
    return f"it says '{line}'" if line else "it is no Redis"


def _ask_http(objects: str) -> str:
    """Any answer will do: what is not there yet is not found."""
    import urllib3

    with urllib3.PoolManager(timeout=_PATIENCE, retries=False) as pool:
        try:
            status = pool.request("HEAD", objects).status
        except urllib3.exceptions.NameResolutionError:
            return f"the host {urlsplit(objects).hostname!r} is not known"
        except urllib3.exceptions.HTTPError as error:
            number = getattr(error.__cause__ or error.__context__, "errno", None)
            if number:
                return os.strerror(number)
            late = isinstance(error, urllib3.exceptions.TimeoutError)
            return "no answer" if late else "what listens there is no server for HTTP"
    return f"it answers with status {status}" if status in (401, 403) or status >= 500 else ""


def _try_folder(folder: Path) -> str:
    if folder.exists() and not folder.is_dir():
        return "it is a file, not a folder"
    folder.mkdir(parents=True, exist_ok=True)
    return "" if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"

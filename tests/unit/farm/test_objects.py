"""A place for objects that cannot be used is named before anything is compiled."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from torchtailor.building.source.objects import why_unreachable


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server that gives these answers, one for each message."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for answer in answers:
                    heard.append(connection.recv(1000))
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], heard
        thread.join()


def test_a_redis_that_answers() -> None:
    with answering(b"+PONG\r\n") as (port, heard):
        assert why_unreachable(f"redis://127.0.0.1:{port}") == ""
    assert heard == [b"*1\r\n$4\r\nPING\r\n"]
    with answering(b"+OK\r\n", b"+PONG\r\n") as (port, heard):
        assert why_unreachable(f"redis://me:s%40cret@127.0.0.1:{port}/1") == ""
    assert heard[0] == b"*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$6\r\ns@cret\r\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"-NOAUTH Authentication required.\r\n", "it says 'NOAUTH Authentication required'"),
        (b"", "it is no Redis"),
        (b"HTTP/1.1 400 Bad Request\r\n", "it says 'HTTP/1.1 400 Bad Request'"),
    ],
)
def test_one_that_refuses(answer: bytes, said: str) -> None:
    with answering(answer) as (port, _):
        assert why_unreachable(f"redis://127.0.0.1:{port}") == (
            f"the objects redis://127.0.0.1:{port} cannot be reached: {said}."
        )


def test_a_wrong_password_is_said_and_never_shown() -> None:
    with answering(b"-WRONGPASS invalid username-password pair\r\n") as (port, _):
        why = why_unreachable(f"redis://:secret@127.0.0.1:{port}")
    assert "WRONGPASS" in why and "secret" not in why


def test_nobody_there(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert "Connection refused" in why_unreachable(f"redis://127.0.0.1:{port}")
        where = f"http://127.0.0.1:{port}/ccache"
        assert why_unreachable(where) == f"the objects {where} cannot be reached: Connection refused."
    why = why_unreachable("http://no-such-host.invalid/x")
    assert why.endswith("cannot be reached: the host 'no-such-host.invalid' is not known.")
    assert "cannot be reached: " in why_unreachable("redis://no-such-host.invalid")
    assert "No such file" in why_unreachable(f"redis+unix://{tmp_path}/no.sock")


def test_a_server_for_http_and_a_folder(tmp_path: Path) -> None:
    for status, said in (("404 Not Found", ""), ("403 Forbidden", "status 403"), ("502 Bad", "status 502")):
        with answering(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()) as (port, _):
            why = why_unreachable(f"http://127.0.0.1:{port}/ccache")
        assert said in why and bool(said) == bool(why)
    assert why_unreachable(str(tmp_path / "new" / "objects")) == ""
    (tmp_path / "file").write_text("")
    assert why_unreachable(str(tmp_path / "file")).endswith("cannot be reached: it is a file, not a folder.")
    assert "Not a directory" in why_unreachable(str(tmp_path / "file" / "objects"))

"""A web server on this machine that serves an index, and misbehaves when told to."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.waiting import LONG


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer."""

    status: int = 0  # answer this instead
    location: str = ""  # and redirect there
    retry_after: str = ""
    drop_after: int | None = None  # close the connection after so many bytes of the body
    stall: bool = False  # send the first 64 KiB, and then nothing until the client hangs up
    wrong_bytes: bool = False  # the right number of other bytes
    ignore_range: bool = False  # 200 and the whole file
    lie_about_range: bool = False  # 206 that says it starts where asked and starts elsewhere, or says another place
    other_place: bool = False  # 206 with an honest but different start
    short: int = 0  # so many bytes fewer, with a Content-Length that agrees
    extra: int = 0  # so many bytes more, with a Content-Length that agrees


@dataclass(frozen=True)
class Request:
    """A request that the server saw."""

    method: str
    path: str
    headers: Mapping[str, str]
    status: int


def _opened() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class Site:
    """What is served, what goes wrong (in order, then nothing more), and what was asked for."""

    content: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    always: dict[str, Fault] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    etags: bool = True
    ranges: bool = True
    login: str = ""
    proxy_login: str = ""
    sent: int = 0
    hung_up: int = 0  # stalled downloads that the client gave up
    gate: threading.Event = field(default_factory=_opened)  # while closed, downloads stop after 64 KiB
    waiting: int = 0  # downloads that stopped there

    def asked(self, path: str, method: str = "GET") -> int:
        return sum(request.path == path and request.method == method for request in self.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def handle(self) -> None:
        with suppress(ConnectionError):  # of a client that was killed
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_CONNECT(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        site, path = self.site, self.path
        queue = site.faults.get(path, [])
        fault = (queue.pop(0) if queue and body else None) or site.always.get(path) or Fault()
        content = site.content.get(path)
        status, start, end = 200, 0, len(content or b"")
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"' if content is not None and site.etags else ""
        if site.proxy_login and self.headers.get("Proxy-Authorization") != site.proxy_login:
            status, content = 407, b""
        elif site.login and self.headers.get("Authorization") != site.login:
            status, content = 401, b""
        elif fault.status:
            status, content = fault.status, b"no"
        elif content is None:
            status, content = 404, b"not here"
        elif etag and self.headers.get("If-None-Match") == etag:
            status, content = 304, b""
        elif wanted and site.ranges and not fault.ignore_range and self.headers.get("If-Range", etag) == etag:
            size = len(content)
            start = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2]))
            end = min(int(wanted[2]) + 1, size) if wanted[1] and wanted[2] else size
            status = 206 if start < size else 416
        site.requests.append(Request(self.command, path, dict(self.headers.items()), status))
        self._send(status, content, start, end, etag, fault, body=body)

    def _send(self, status: int, content: bytes, start: int, end: int, etag: str, fault: Fault, *, body: bool) -> None:
        named = start
        if fault.other_place:
            start = named = max(0, start - 7)
        if fault.lie_about_range:
            start = max(0, start - 7)
        data = content[start:end] if status == 206 else content
        if fault.lie_about_range:
            data = data[: end - named]
        if fault.wrong_bytes:
            data = bytes(byte ^ 0x55 for byte in data)
        if fault.short:
            data = data[: -fault.short]
        data += b"\0" * fault.extra
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {named}-{end - 1}/{len(content)}")
        if status == 416:
            self.send_header("Content-Range", f"bytes */{len(content)}")
            data = b""
        if etag and status in (200, 206, 304):
            self.send_header("ETag", etag)
        if fault.location:
            self.send_header("Location", fault.location)
        if fault.retry_after:
            self.send_header("Retry-After", fault.retry_after)
        self.send_header("Content-Type", self.site.types.get(self.path, "text/html"))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self._body(data, fault)

    def _body(self, data: bytes, fault: Fault) -> None:
        stop = len(data) if fault.drop_after is None else min(fault.drop_after, len(data))
        try:
            for at in range(0, stop, 1 << 16):
                piece = data[at : min(at + (1 << 16), stop)]
                self.wfile.write(piece)
                self.site.sent += len(piece)
                if at == 0:
                    self._wait(fault)
            if stop < len(data) or fault.stall:
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
        except OSError:
            self.close_connection = True

    def _wait(self, fault: Fault) -> None:
        if fault.stall:
            self.wfile.flush()
            self.connection.settimeout(LONG)
            self.site.hung_up += self.connection.recv(1) == b""
        if not self.site.gate.is_set():
            self.wfile.flush()
            self.site.waiting += 1
            self.site.gate.wait(LONG)


@contextmanager
def serve(site: Site) -> Iterator[Site]:
    """Serve a site on a free port for as long as the block runs."""
    handler = type("Handler", (_Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

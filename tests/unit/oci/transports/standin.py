"""A registry in this process that keeps to the specification, and misbehaves when told to."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.unit.oci.transports.samples import SampleImage


@dataclass
class Fault:
    """What goes wrong with requests of one kind, so many times."""

    method: str
    path: str  # somewhere in the path
    times: int = 1
    status: int = 0  # answered instead
    headers: Mapping[str, str] = field(default_factory=dict)  # added, or in the place of others
    body: bytes | None = None
    drop_after: int | None = None  # the connection ends after so many bytes of the answer's body
    read_only: int | None = None  # the connection ends after so many bytes of the request's body
    flip: bool = False  # every byte is another one
    endless: bool = False  # a body without an end


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    method: str
    path: str
    headers: Mapping[str, str]
    status: int


@dataclass
class StandIn:
    """What is stored, what is allowed, what goes wrong, and what was asked for."""

    blobs: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by repository and digest
    manifests: dict[str, dict[str, tuple[str, bytes]]] = field(default_factory=dict)  # by tag and digest
    uploads: dict[str, bytearray] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    login: tuple[str, str] | None = None
    bearer: bool = False
    identity_token: str = ""
    tokens: set[str] = field(default_factory=set)
    scopes: list[str] = field(default_factory=list)
    public: bool = False  # tokens for everybody
    chunks: bool = True
    mounts: bool = True
    ranges: bool = True
    referrers: bool = False  # lists what refers to an image itself
    blobs_at: str = ""  # another server that has them
    host: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def add(self, repository: str, tag: str, image: SampleImage) -> None:
        self.blobs.setdefault(repository, {}).update(image.blobs)
        kept = self.manifests.setdefault(repository, {})
        kept[tag] = kept[image.digest] = (image.root.descriptor.media_type, image.root.data)

    def count(self, method: str, path: str) -> int:
        return sum(one.method == method and path in one.path for one in self.seen)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0
    registry: StandIn

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        registry = self.registry
        fault = next(
            (one for one in registry.faults if one.times and one.method == self.command and one.path in self.path), None
        )
        if fault:
            fault.times -= 1
        body = self._body(fault)
        if fault and fault.read_only is not None:
            self._note(0)
            self._partial(body)
            self._hang_up()
            return
        if fault and fault.status:
            self._answer(fault.status, {}, fault.body or b"", fault)
            return
        status, headers, content = self._route(body)
        self._answer(status, headers, content if not fault or fault.body is None else fault.body, fault)

    def _body(self, fault: Fault | None) -> bytes:
        length = int(self.headers.get("Content-Length", "0"))
        if fault and fault.read_only is not None:
            length = min(length, fault.read_only)
        return self.rfile.read(length)

    def _partial(self, body: bytes) -> None:
        """What came of a chunk before the connection broke."""
        if self.command == "PATCH":
            self.registry.uploads[self.path.rsplit("/", 1)[-1]] += body

    def _note(self, status: int) -> None:
        self.registry.seen.append(Seen(self.command, self.path, dict(self.headers.items()), status))

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _answer(self, status: int, headers: Mapping[str, str], content: bytes, fault: Fault | None) -> None:
        self._note(status)
        if fault and fault.flip:
            content = bytes(byte ^ 0x55 for byte in content)
        self.send_response(status)
        sent = {"Content-Length": str(len(content))} | dict(headers) | dict(fault.headers if fault else {})
        if fault and fault.endless:
            del sent["Content-Length"]
            self.close_connection = True
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            while fault and fault.endless:
                self.wfile.write(content or bytes(1 << 16))
            if fault and fault.drop_after is not None:
                self.wfile.write(content[: fault.drop_after])
                self._hang_up()
            else:
                self.wfile.write(content)
        except OSError:
            self.close_connection = True

    # The API

    def _route(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        path = urlsplit(self.path).path
        if path == "/token":
            return self._token(body)
        if path.startswith("/elsewhere/"):
            return self._elsewhere(path)
        if not self._allowed():
            return self._challenge()
        if path == "/v2/":
            return 200, {}, b"{}"
        if found := re.fullmatch(r"/v2/(.+)/(blobs/uploads|blobs|manifests)/([^/]*)", path):
            repository, kind, name = found.groups()
            if kind == "manifests":
                return self._manifest(repository, name, body)
            return self._upload(repository, name, body) if kind == "blobs/uploads" else self._blob(repository, name)
        if self.registry.referrers and (found := re.fullmatch(r"/v2/(.+)/referrers/([^/]*)", path)):
            return self._referring(*found.groups())
        return _error(404, "UNSUPPORTED")

    def _referring(self, repository: str, digest: str) -> tuple[int, dict[str, str], bytes]:
        rows = []
        for name, (kind, content) in self.registry.manifests.get(repository, {}).items():
            document = json.loads(content)
            if name.startswith("sha256:") and document.get("subject", {}).get("digest") == digest:
                own = {"artifactType": document["artifactType"], "annotations": document.get("annotations", {})}
                rows.append({"mediaType": kind, "digest": name, "size": len(content), **own})
        kind = "application/vnd.oci.image.index.v1+json"
        return 200, {"Content-Type": kind}, json.dumps({"schemaVersion": 2, "manifests": rows}).encode()

    def _allowed(self) -> bool:
        registry, sent = self.registry, self.headers.get("Authorization", "")
        if registry.bearer:
            return sent.removeprefix("Bearer ") in registry.tokens
        return registry.login is None or sent == _basic(registry.login)

    def _challenge(self) -> tuple[int, dict[str, str], bytes]:
        registry = self.registry
        how = f'Bearer realm="{registry.url}/token",service="stand-in"' if registry.bearer else 'Basic realm="stand-in"'
        status, headers, content = _error(401, "UNAUTHORIZED")
        return status, headers | {"WWW-Authenticate": how}, content

    def _token(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        registry = self.registry
        given = parse_qs(body.decode()) if self.command == "POST" else parse_qs(urlsplit(self.path).query)
        sent = self.headers.get("Authorization", "")
        if self.command == "POST":
            good = given.get("refresh_token") == [registry.identity_token]
        else:
            good = (registry.public and not sent) or (registry.login is not None and sent == _basic(registry.login))
        if not good:
            return _error(401, "UNAUTHORIZED")
        registry.scopes.append(" ".join(given.get("scope", [])))
        token = uuid.uuid4().hex
        registry.tokens.add(token)
        return 200, {}, json.dumps({"token": token}).encode()

    def _elsewhere(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """The store behind a registry: it takes no logins."""
        if self.headers.get("Authorization"):
            return _error(400, "a login that was not meant for this")
        digest = path.rsplit("/", 1)[-1]
        found = next((blobs[digest] for blobs in self.registry.blobs.values() if digest in blobs), None)
        return self._bytes(found)

    def _blob(self, repository: str, digest: str) -> tuple[int, dict[str, str], bytes]:
        found = self.registry.blobs.get(repository, {}).get(digest)
        if found is not None and self.registry.blobs_at and self.command == "GET":
            return 307, {"Location": f"{self.registry.blobs_at}/elsewhere/{digest}"}, b""
        return self._bytes(found)

    def _bytes(self, found: bytes | None) -> tuple[int, dict[str, str], bytes]:
        if found is None:
            return _error(404, "BLOB_UNKNOWN")
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and self.registry.ranges:
            start = int(wanted[1])
            return 206, {"Content-Range": f"bytes {start}-{len(found) - 1}/{len(found)}"}, found[start:]
        return 200, {"Content-Type": "application/octet-stream"}, found

    def _manifest(self, repository: str, name: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        kept = self.registry.manifests.setdefault(repository, {})
        if self.command == "PUT":
            content = json.loads(body)
            blobs = self.registry.blobs.get(repository, {})
            needed = [one["digest"] for one in (content.get("config"), *content.get("layers", ())) if one]
            if any(digest not in blobs for digest in needed):
                return _error(400, "MANIFEST_BLOB_UNKNOWN")
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            kept[name] = kept[digest] = (self.headers["Content-Type"], body)
            listed = (
                {"OCI-Subject": content["subject"]["digest"]}
                if self.registry.referrers and "subject" in content
                else {}
            )
            return 201, {"Docker-Content-Digest": digest, **listed}, b""
        if name not in kept:
            return _error(404, "MANIFEST_UNKNOWN")
        kind, content_ = kept[name]
        digest = f"sha256:{hashlib.sha256(content_).hexdigest()}"
        return 200, {"Content-Type": kind, "Docker-Content-Digest": digest}, content_

    def _upload(self, repository: str, session: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        uploads, query = self.registry.uploads, parse_qs(urlsplit(self.path).query)
        place = f"/v2/{repository}/blobs/uploads/"
        if self.command == "POST":
            digest, origin = query.get("mount", [""])[0], query.get("from", [""])[0]
            if self.registry.mounts and digest in self.registry.blobs.get(origin, {}):
                self.registry.blobs.setdefault(repository, {})[digest] = self.registry.blobs[origin][digest]
                return 201, {"Location": f"/v2/{repository}/blobs/{digest}"}, b""
            session = uuid.uuid4().hex
            uploads[session] = bytearray()
            return 202, {"Location": place + session}, b""
        if session not in uploads:
            return _error(404, "BLOB_UPLOAD_UNKNOWN")
        reached = {"Location": place + session, "Range": f"0-{max(0, len(uploads[session]) - 1)}"}
        if self.command == "GET":
            return 204, reached, b""
        if self.command == "DELETE":
            del uploads[session]
            return 204, {}, b""
        if self.command == "PATCH":
            if not self.registry.chunks:
                return _error(405, "UNSUPPORTED")
            start = int(self.headers["Content-Range"].partition("-")[0])
            if start != len(uploads[session]):
                return 416, reached, b""
            uploads[session] += body
            return 202, {"Location": place + session, "Range": f"0-{len(uploads[session]) - 1}"}, b""
        whole = bytes(uploads.pop(session)) + body
        digest = query["digest"][0]
        if digest != f"sha256:{hashlib.sha256(whole).hexdigest()}":
            return _error(400, "DIGEST_INVALID")
        self.registry.blobs.setdefault(repository, {})[digest] = whole
        return 201, {"Docker-Content-Digest": digest}, b""


def _error(status: int, message: str) -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps({"errors": [{"code": message, "message": message.lower()}]}).encode()


def _basic(login: tuple[str, str]) -> str:
    return "Basic " + base64.b64encode(":".join(login).encode()).decode()


@contextmanager
def serve(registry: StandIn) -> Iterator[StandIn]:
    """Serve a registry on a free port for as long as the block runs."""
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    registry.host = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

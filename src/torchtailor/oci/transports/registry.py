"""Images in registries, by the API of the OCI distribution specification."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urljoin

from torchtailor.core.errors import BadInputError, NetworkError, NoMatchError, TorchtailorError, UsageError
from torchtailor.core.trust import whole_number
from torchtailor.fetch.client import (
    Answer,
    ContentRange,
    StatusError,
    UnreachableError,
    read_pieces,
    wait_before,
    worth_retrying,
)
from torchtailor.oci.descriptor import Descriptor, MediaType
from torchtailor.oci.imagespec import digest_of
from torchtailor.oci.manifests import (
    DOCUMENT_TYPES,
    MANIFEST_LIMIT,
    check_document,
    make_document,
    too_large,
)
from torchtailor.oci.reference import ImageReference
from torchtailor.oci.referrers import COSIGN_TAGS, Proofs, Referrer, listed_in, listing, tag_of
from torchtailor.oci.transports.base import Document, ImageSource
from torchtailor.oci.transports.content import (
    PIECE,
    checked,
    file_pieces,
    open_plain,
    read_document,
    short,
)
from torchtailor.oci.transports.server import RETRIES, RegistryServer

_ACCEPT = ", ".join((*DOCUMENT_TYPES, "application/vnd.docker.distribution.manifest.v1+json;q=0.5", "*/*;q=0.1"))
_CHUNK = 16 << 20  # bytes that are sent at once, and again where a connection breaks
_LARGEST_CHUNK = 128 << 20  # an upload takes at most four times that much memory
_UPLOADS = 4  # times that a file is sent whole, where a registry forgets uploads that were interrupted
_BYTES = "application/octet-stream"
_NO_CHUNKS = (400, 404, 405, 411, 415, 501)  # what registries answer that take a blob only in one piece
_AGAIN = "Try again later."


class RegistrySource:
    """An image of a registry."""

    is_remote = True

    def __init__(self, reference: ImageReference, *, insecure: bool = False) -> None:
        assert reference.image is not None
        self._reference, self.image = reference, reference.image
        self._server = RegistryServer(self.image, insecure=insecure)

    @property
    def name(self) -> str:
        return str(self._reference)

    def root(self) -> Document:
        answer = self._manifest(self.image.digest or self.image.tag or "latest")
        document = make_document(answer.body, answer.headers.get("content-type", ""), self.name)
        promised = self.image.digest or answer.headers.get("docker-content-digest", "")
        if promised.startswith("sha256:") and promised != document.descriptor.digest:
            raise BadInputError(f"{self.name} is damaged: its manifest does not have the digest it should.", _AGAIN)
        if promised.startswith("sha512:"):
            return self.document(Descriptor(document.descriptor.media_type, promised, len(answer.body)))
        return document

    def document(self, descriptor: Descriptor) -> Document:
        if descriptor.size > MANIFEST_LIMIT:
            raise too_large(self.name)
        data = read_document([self._manifest(descriptor.digest).body], descriptor, self.name)
        return check_document(data, descriptor, self.name)

    @contextmanager
    def blob(self, descriptor: Descriptor) -> Iterator[Iterator[bytes]]:
        pieces = self._pieces(descriptor)
        try:
            yield checked(pieces, descriptor, self.name)
        finally:
            pieces.close()

    def referrers(self, descriptor: Descriptor) -> tuple[Mapping[str, Any], ...]:
        listed = self._server.call("GET", self._server.address(f"referrers/{descriptor.digest}"), accept=_ANY)
        if listed.status != 200:
            listed = self._tagged(tag_of(descriptor))
        return listed_in(_index_of(listed), self.name) if listed.status == 200 else ()

    def proofs(self, descriptor: Descriptor) -> Proofs:
        tags = [end for end in COSIGN_TAGS if self._tagged(tag_of(descriptor) + end, "HEAD").status == 200]
        return Proofs.of(self.referrers(descriptor)) + Proofs.of_tags(tags)

    def _tagged(self, tag: str, method: str = "GET") -> Answer:
        return _listed(self._server, tag, method)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _manifest(self, name: str) -> Answer:
        answer = self._server.call(
            "GET",
            self._server.address(f"manifests/{name}"),
            {"Accept": _ACCEPT},
            accept=(200, 404),
            limit=MANIFEST_LIMIT,
        )
        if answer.status == 404:
            raise NoMatchError(f"There is no image {self.name}.", "Check the name and the tag.")
        if answer.headers.get("content-type", "").startswith("text/html"):
            raise _web_page(self._server.name)
        return answer

    def _pieces(self, descriptor: Descriptor) -> Generator[bytes]:
        """All bytes, over as many connections as it takes; attempts that bring next to nothing are counted."""
        done = fruitless = 0
        while True:
            before = done
            try:
                for piece in self._receive(descriptor, done):
                    done += len(piece)
                    yield piece
                self._check_end(descriptor, done)
            except (StatusError, UnreachableError) as error:
                fruitless = 0 if done - before >= PIECE else fruitless + 1
                if not worth_retrying(error) or fruitless > RETRIES:
                    raise
                time.sleep(wait_before(fruitless, error))
            else:
                return

    def _check_end(self, descriptor: Descriptor, done: int) -> None:
        if done < descriptor.size:
            raise UnreachableError(
                f"{self._server.name} broke off {short(descriptor)} after {done} of {descriptor.size} bytes.", _AGAIN
            )

    def _receive(self, descriptor: Descriptor, start: int) -> Iterator[bytes]:
        """What one connection brings, from `start` on."""
        url = self._server.address(f"blobs/{descriptor.digest}")
        wanted = {"Range": f"bytes={start}-"} if start else {}
        with self._server.open("GET", url, wanted, accept=(200, 206, 404)) as response:
            if response.status == 404:
                elsewhere = (
                    " (its manifest names other places for it, which are never asked)" if descriptor.urls else ""
                )
                raise BadInputError(f"{self.name} lacks the blob {short(descriptor)}{elsewhere}.", "Push it again.")
            if response.headers.get("content-type", "").startswith("text/html"):
                raise _web_page(self._server.name)
            skip = 0 if response.status == 206 else start
            if response.status == 206 and ContentRange.of(response.headers).first != start:
                raise UnreachableError(
                    f"{self._server.name} sent another part of a blob than it was asked for.", _AGAIN
                )
            for piece in read_pieces(response, f"{short(descriptor)} of {self._server.name}"):
                rest = piece[skip:]
                skip = max(0, skip - len(piece))
                if rest:
                    yield rest


class RegistryDestination:
    """A name in a registry: blobs and manifests are there by digest first, and the tag moves last."""

    takes_index = True
    takes_referrers = True
    wants_oci = False
    staging = None

    def __init__(self, reference: ImageReference, *, insecure: bool = False) -> None:
        assert reference.image is not None
        if reference.image.digest:
            raise UsageError(f"{reference} is a digest, which is known only afterwards.", "Write a tag instead.")
        self._reference, self._image = reference, reference.image
        self._server = RegistryServer(self._image, push=True, insecure=insecure)
        self._begun: dict[str, str] = {}  # uploads that a refused mount began, by digest
        self._unfinished: set[str] = set()

    @property
    def name(self) -> str:
        return str(self._reference)

    @property
    def is_local(self) -> bool:
        return self._image.is_local

    def has(self, descriptor: Descriptor) -> bool:
        answer = self._server.call("HEAD", self._server.address(f"blobs/{descriptor.digest}"), accept=(200, 404))
        length = whole_number(answer.headers.get("content-length", ""))
        return answer.status == 200 and length in {None, descriptor.size}

    def take(self, descriptor: Descriptor, source: ImageSource) -> bool:
        if self.has(descriptor):
            return True
        if not isinstance(source, RegistrySource) or not source.image.shares_registry(self._image):
            return False
        origin = source.image.repository
        if origin == self._image.repository:
            return False
        self._server.also_pull(origin)
        url = self._server.address(f"blobs/uploads/?mount={descriptor.digest}&from={origin}")
        try:
            answer = self._server.call("POST", url, _EMPTY, b"", accept=(201, 202))
        except StatusError as error:
            if error.temporary:
                raise
            return False
        if answer.status == 202:
            self._begun[descriptor.digest] = self._location(url, answer)
        return answer.status == 201

    def put(self, descriptor: Descriptor, chunks: Iterator[bytes]) -> None:
        pieces = checked(chunks, descriptor, self.name)
        location, size = self._begin(descriptor)
        with closing(_ahead(_grouped(pieces, size))) as buffers:
            first = next(buffers, b"")
            if len(first) == descriptor.size:
                self._send_whole(descriptor, location, first)
            else:
                self._send_chunks(descriptor, location, first, buffers)

    def put_file(self, descriptor: Descriptor, path: Path) -> None:
        def once() -> None:
            with open_plain(path) as file:
                self.put(descriptor, file_pieces(file, str(path)))

        if not self.has(descriptor):
            self._server.retrying(once, _UPLOADS - 1)

    def put_document(self, document: Document) -> None:
        self._put_manifest(document, document.descriptor.digest)

    def attach(self, referrer: Referrer) -> None:
        for blob, data in referrer.blobs:
            if not self.has(blob):
                self.put(blob, iter((data,)))
        answer = self._put_manifest(referrer.document, referrer.document.descriptor.digest)
        if answer.headers.get("oci-subject"):  # the registry lists it itself
            return
        tag = tag_of(referrer.subject)
        found = _listed(self._server, tag)
        rows = listed_in(_index_of(found), self.name) if found.status == 200 else ()
        if all(row.get("digest") != referrer.document.descriptor.digest for row in rows):
            self._put_manifest(listing([*rows, referrer.row]), tag)

    def commit(self, root: Document) -> None:
        self._put_manifest(root, self._image.tag or "latest")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for location in self._unfinished:
            with suppress(TorchtailorError):  # registries clean up by themselves too, only later
                self._server.abandon(location)
        self._unfinished.clear()

    def _put_manifest(self, document: Document, name: str) -> Answer:
        answer = self._server.call(
            "PUT",
            self._server.address(f"manifests/{name}"),
            {"Content-Type": document.descriptor.media_type},
            document.data,
            accept=(200, 201, 202),
        )
        self._check_stored(answer, document.descriptor)
        return answer

    def _check_stored(self, answer: Answer, descriptor: Descriptor) -> None:
        stored = answer.headers.get("docker-content-digest", descriptor.digest)
        if stored.partition(":")[0] == descriptor.algorithm and stored != descriptor.digest:
            raise NetworkError(f"{self._server.name} stored {short(descriptor)} under another digest.", _AGAIN)

    # Uploads

    def _begin(self, descriptor: Descriptor) -> tuple[str, int]:
        """The address of an upload, and how many bytes are sent at once."""
        if (begun := self._begun.pop(descriptor.digest, None)) is not None:
            return begun, _CHUNK
        url = self._server.address("blobs/uploads/")
        answer = self._server.call("POST", url, _EMPTY, b"", accept=(202,))
        location = self._location(url, answer)
        least = whole_number(answer.headers.get("oci-chunk-min-length", ""))
        return location, min(max(_CHUNK, least or 0), _LARGEST_CHUNK)

    def _location(self, url: str, answer: Answer, before: str = "") -> str:
        """Where an upload goes on: where the registry says, or else where it was."""
        said = answer.headers.get("location", "") or before
        location = urljoin(url, said)
        if not said or not location.startswith(("http://", "https://")):
            raise NetworkError(f"{self._server.name} does not say where to upload to.", "Is it a registry?")
        if location.startswith("http:") and url.startswith("https:"):
            location = "https:" + location.removeprefix("http:")  # a proxy ends TLS, and the registry does not know
        self._unfinished.discard(before)
        self._unfinished.add(location)
        return location

    def _send_whole(self, descriptor: Descriptor, location: str, data: bytes) -> None:
        """A blob that is in memory: sent again as a whole if need be."""
        for attempt in itertools.count():
            try:
                self._finish(descriptor, location, data, retries=0)
            except (StatusError, UnreachableError) as error:
                self._unfinished.discard(location)
                if attempt == RETRIES or not worth_retrying(error):
                    raise
                time.sleep(wait_before(attempt, error))
                if self.has(descriptor):
                    return
                location, _ = self._begin(descriptor)
            else:
                return

    def _send_chunks(self, descriptor: Descriptor, location: str, first: bytes, rest: Iterator[bytes]) -> None:
        try:
            location = self._patch(location, 0, first)
        except StatusError as error:
            if error.status not in _NO_CHUNKS:
                raise
            self._unfinished.discard(location)
            self._send_stream(descriptor, itertools.chain((first,), rest))
            return
        done = len(first)
        for data in rest:
            location = self._patch(location, done, data)
            done += len(data)
        try:
            self._finish(descriptor, location, b"", retries=RETRIES)
        except (StatusError, UnreachableError):
            if not self.has(descriptor):  # else only the answer was lost
                raise
            self._unfinished.discard(location)

    def _send_stream(self, descriptor: Descriptor, pieces: Iterator[bytes]) -> None:
        """A blob in one request, for registries that know no other way; it cannot be taken up again."""
        location, _ = self._begin(descriptor)
        headers = {"Content-Type": _BYTES, "Content-Length": str(descriptor.size)}
        with self._server.open("PUT", _with_digest(location, descriptor), headers, pieces, accept=(200, 201, 204)):
            self._unfinished.discard(location)

    def _patch(self, location: str, start: int, data: bytes) -> str:
        """Send one chunk; after a failure, ask how much of it came, and send the rest."""
        begin, fruitless = start, 0
        while True:
            part = data if begin == start else data[begin - start :]
            try:
                headers = {"Content-Type": _BYTES, "Content-Range": f"{begin}-{begin + len(part) - 1}"}
                answer = self._server.call("PATCH", location, headers, part, accept=(201, 202, 204), retries=0)
                return self._location(location, answer, location)
            except (StatusError, UnreachableError) as error:
                lost = isinstance(error, StatusError) and error.status == 416
                if not (worth_retrying(error) or lost) or fruitless == RETRIES:
                    raise
                time.sleep(wait_before(fruitless, error))
                location, come = self._progress(location, error)
                fruitless = 0 if come > begin else fruitless + 1
                begin = come
                if not start <= begin <= start + len(data):
                    raise
                if begin == start + len(data):
                    return location

    def _progress(self, location: str, problem: NetworkError) -> tuple[str, int]:
        """How many bytes of an upload the registry has."""
        answer = self._server.call("GET", location, accept=(200, 202, 204, 404))
        found = re.fullmatch(r"(?:bytes=)?0-([0-9]{1,18})", answer.headers.get("range", ""))
        if answer.status == 404:
            raise problem
        after = self._location(location, answer, location)
        # Nothing at all is written as 0-0, as is one byte; a chunk never is one byte.
        come = int(found[1]) + 1 if found else 0
        return after, come if come > 1 else 0

    def _finish(self, descriptor: Descriptor, location: str, data: bytes, retries: int) -> None:
        headers = {"Content-Type": _BYTES, "Content-Length": str(len(data))}
        url = _with_digest(location, descriptor)
        answer = self._server.call("PUT", url, headers, data, accept=(200, 201, 204), retries=retries)
        self._unfinished.discard(location)
        self._check_stored(answer, descriptor)


_EMPTY = {"Content-Length": "0"}
_ANY = tuple(range(200, 600))  # what a registry may say that does not know the question


def _listed(server: RegistryServer, tag: str, method: str = "GET") -> Answer:
    """What lies under a tag for referrers; that there is none is no error, however a registry says so."""
    asked = {"Accept": _ACCEPT}
    return server.call(method, server.address(f"manifests/{tag}"), asked, accept=_ANY, limit=MANIFEST_LIMIT)


def _index_of(answer: Answer) -> Document:
    return Document(answer.body, Descriptor(MediaType.OCI_INDEX.value, digest_of(answer.body), len(answer.body)))


def _grouped(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Pieces joined to buffers of about this size."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if len(buffer) >= size:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


def _ahead(buffers: Iterator[bytes]) -> Generator[bytes]:
    """The same buffers; while one is sent, the next is read and hashed."""
    with ThreadPoolExecutor(1, thread_name_prefix="upload") as pool:
        coming = pool.submit(next, buffers, None)
        while (data := coming.result()) is not None:
            coming = pool.submit(next, buffers, None)
            yield data


def _with_digest(location: str, descriptor: Descriptor) -> str:
    return f"{location}{'&' if '?' in location else '?'}digest={descriptor.digest}"


def _web_page(name: str) -> NetworkError:
    return NetworkError(
        f"{name} answered with a web page: a login page, or not a registry.", "Check the host and the network's proxy."
    )

"""HTTP for indexes and files: certificates, credentials, timeouts, retries with back-off, clear errors."""

from __future__ import annotations

import logging
import math
import netrc
import os
import random
import re
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit, urlunsplit

import urllib3

from torchtailor.core.disk import expand_home
from torchtailor.core.errors import BadInputError, NetworkError, UsageError
from torchtailor.core.trust import Limit, read_limited, whole_number
from torchtailor.core.urls import redact
from torchtailor.core.version import __version__
from torchtailor.fetch.locations import is_this_machine
from torchtailor.fetch.settings import IndexSettings

_RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 30.0
_FIRST_WAIT = 0.25
_LOOKUPS = 2  # of a name that nobody knows
_log = logging.getLogger(__name__)
_PAGE_LIMIT = 64 << 20
_STEP = 1 << 20
_SMALL_RESPONSE = 60.0  # seconds
_SLOWEST = 1000  # bytes a second of a download, over this many seconds
_WINDOW = 60.0
_PROXY = "Check the proxy and its login in PIP_PROXY, http_proxy or https_proxy: http://USER:PASSWORD@HOST:PORT."
_NETWORK = "Check the network and the index settings of pip or uv; --offline uses the cache alone."
_SLOW = "Try again later, or use another index."


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole response to a small request."""

    url: str  # where redirects led to, without a login
    status: int
    headers: Mapping[str, str]
    body: bytes


@contextmanager
def worker_threads(number: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for requests; after an error or Ctrl-C nobody waits for those that a slow server still holds."""
    pool = ThreadPoolExecutor(number, thread_name_prefix="fetch")
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


class StatusError(NetworkError):
    """The server responded with an error status."""

    def __init__(
        self, message: str, hint: str, status: int, retry_after: float | None = None, *, logged_in: bool = False
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.retry_after = retry_after
        self.logged_in = logged_in

    @property
    def temporary(self) -> bool:
        """Whether a retry can help."""
        return self.status in _RETRY_STATUS

    @property
    def may_mean_absent(self) -> bool:
        """Whether it may be that of a static server, some of which answer 403 for what they do not have."""
        return self.status == HTTPStatus.FORBIDDEN and not self.logged_in


class UnreachableError(NetworkError):
    """No response, or one that broke off; `lasting` where a retry will hardly help."""

    def __init__(self, message: str, hint: str = "", *, lasting: bool = False) -> None:
        super().__init__(message, hint)
        self.lasting = lasting


class TooSlowError(UnreachableError):
    """A response that would go on for days."""


class _HeadInTime:
    """A connection on which the head of a response comes in time: a server that drips it would hold us for ever."""

    sock: Any
    timeout: Any

    def getresponse(self) -> Any:
        late = threading.Event()

        def end() -> None:
            late.set()
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(max(_SMALL_RESPONSE, 2 * (self.timeout or 0)), end)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()  # type: ignore[misc]
        finally:
            timer.cancel()
            if late.is_set():  # what came of the head may pass for a whole one
                raise TimeoutError


_STANDARD: dict[str, Any] = urllib3.poolmanager.pool_classes_by_scheme
_POOLS = {
    scheme: type("_Pool", (pool,), {"ConnectionCls": type("_Connection", (_HeadInTime, pool.ConnectionCls), {})})
    for scheme, pool in _STANDARD.items()
}


class Client:
    """Requests with the user's certificates, proxy and credentials; safe for several threads."""

    def __init__(self, settings: IndexSettings) -> None:
        self.settings = settings
        self._pools: dict[tuple[bool, str | None], urllib3.PoolManager] = {}
        self._lock = threading.Lock()
        self._netrc = _read_netrc()
        self._open: set[urllib3.BaseHTTPResponse] = set()
        self._unknown: dict[str, int] = {}  # how often the lookup of a host's name failed
        self.received = 0  # bytes of small responses, ranges and streams; downloads count their own

    def get(self, url: str, headers: Mapping[str, str] | None = None, *, retries: int | None = None) -> Answer:
        """A small response, whole; retried when that can help. 304 and 404 are returned, not raised."""

        def once() -> Answer:
            with self.open(url, headers, accept=(200, 206, 304, 404, 410)) as response:
                body = self.counted(read_some(response, _PAGE_LIMIT, url, self._patience))
                return _answer(url, response, body)

        answer: Answer = self.retrying(once, retries=retries)
        return answer

    def get_range(self, url: str, wanted: str, limit: int) -> Answer:
        """A part of a file; refuses a server that would send the whole file."""

        def once() -> Answer:
            with self.open(url, {"Range": wanted}, accept=(200, 206, 416)) as response:
                length = whole_number(response.headers.get("content-length", ""))
                if response.status != 206 or (length or 0) > limit:
                    raise NetworkError(f"The server of {redact(url)} does not support range requests.")
                body = self.counted(read_some(response, limit, url, self._patience))
                return _answer(url, response, body)

        answer: Answer = self.retrying(once)
        return answer

    @property
    def _patience(self) -> float:
        """Seconds that a small response may take in all: a server that drips would hold us for ever."""
        return max(_SMALL_RESPONSE, 2 * self.settings.timeout)

    def abort(self) -> None:
        """Break off all responses that are being read, so that no thread waits for a slow server."""
        with self._lock:
            responses = list(self._open)
        for response in responses:
            with suppress(Exception):  # one that has just ended
                response.shutdown()

    def counted(self, body: bytes) -> bytes:
        """The same bytes, added to those received."""
        with self._lock:
            self.received += len(body)
        return body

    def size(self, url: str) -> int | None:
        """The size of a file, by a HEAD request."""

        def once() -> int | None:
            with self.open(url, method="HEAD", accept=(200,)) as response:
                return whole_number(response.headers.get("content-length", ""))

        size: int | None = self.retrying(once)
        return size

    @contextmanager
    def open(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        accept: Container[int] = (200,),
        body: bytes | Iterable[bytes] | None = None,
        follow: bool = True,
        login: bool = True,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """One request, not retried, its body not yet read; raises for statuses that are not accepted.

        Who logs in and follows redirects in another way turns `login` and `follow` off.
        """
        host = re.sub(r"^[^/]*//([^/]*).*", r"\1", url)
        if self._unknown.get(host, 0) >= _LOOKUPS:  # asked again for every release, it would take minutes
            raise UnreachableError(f"{redact(url)} cannot be reached: DNS lookup failed.", _NETWORK, lasting=True)
        began = time.monotonic()
        sent = {"User-Agent": f"torchtailor/{__version__}", "Accept-Encoding": "identity"}
        if "\\" in url:  # urllib3 ends the host there, urllib does not: a login would go to another one
            raise NetworkError(f"{redact(url)} is not a valid address: it has a backslash.", "Check it.")
        try:
            address, credentials = self._login(url) if login else (url, {})
            sent |= credentials | dict(headers or {})
            response = self._pool(url).request(
                method, address, headers=sent, body=body, preload_content=False, redirect=follow
            )
        except (ValueError, HTTPException) as error:
            if not isinstance(error, urllib3.exceptions.HTTPError):
                raise NetworkError(f"{redact(url)} is not a valid address: {_reason(error)}.", "Check it.") from error
            raise UnreachableError(f"{redact(url)} cannot be reached: {_reason(error)}.", _hint(error)) from error
        except urllib3.exceptions.HTTPError as error:
            if lasting := isinstance(getattr(error, "reason", error), urllib3.exceptions.NameResolutionError):
                with self._lock:
                    self._unknown[host] = self._unknown.get(host, 0) + 1
            raise UnreachableError(
                f"{redact(url)} cannot be reached: {_reason(error)}.", _hint(error), lasting=lasting
            ) from error
        try:
            with self._lock:
                self._open.add(response)
            _log.info("%s %s: %s in %.2f s", method, redact(url), response.status, time.monotonic() - began)
            if response.status not in accept:
                raise _status_problem(response, url, logged_in=bool(credentials))
            yield response
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"The connection to {redact(url)} broke: {_reason(error)}.", _hint(error)) from error
        finally:
            with self._lock:
                self._open.discard(response)
            response.close()

    def retrying(self, once: Any, *, retries: int | None = None) -> Any:
        """Call until it succeeds; wait longer each time, or as long as the server asks for."""
        attempts = (self.settings.retries if retries is None else retries) + 1
        for attempt in range(attempts):
            try:
                return once()
            except (StatusError, UnreachableError) as error:
                unknown_name = isinstance(error, UnreachableError) and error.lasting and attempt > 0
                if attempt + 1 == attempts or unknown_name or not worth_retrying(error):
                    raise
                _log.info("again, after: %s", error.message)
                time.sleep(wait_before(attempt, error))
        raise AssertionError("unreachable")

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        trusted = bool({parts.hostname, parts.netloc} & self.settings.trusted_hosts)
        proxy = self.settings.proxy or _environment_proxy(parts.scheme, parts.hostname or "")
        with self._lock:
            if (trusted, proxy) not in self._pools:
                self._pools[trusted, proxy] = self._make_pool(trusted=trusted, proxy=proxy)
            return self._pools[trusted, proxy]

    def _make_pool(self, *, trusted: bool, proxy: str | None) -> urllib3.PoolManager:
        try:
            return self._pool_of(trusted=trusted, proxy=proxy)
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            raise UsageError(
                f"The certificates or the proxy of pip's configuration cannot be used: {_reason(error)}.",
                "Check PIP_CERT, PIP_CLIENT_CERT, PIP_PROXY, SSL_CERT_FILE and the proxy variables.",
            ) from error

    def _pool_of(self, *, trusted: bool, proxy: str | None) -> urllib3.PoolManager:
        settings = self.settings
        context = ssl.create_default_context(
            cafile=str(settings.ca_bundle) if settings.ca_bundle and settings.ca_bundle.is_file() else None,
            capath=str(settings.ca_bundle) if settings.ca_bundle and settings.ca_bundle.is_dir() else None,
        )
        if settings.ca_folder:
            context.load_verify_locations(capath=str(settings.ca_folder))
        if settings.client_cert:
            context.load_cert_chain(settings.client_cert)
        if trusted:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        options: dict[str, Any] = {
            "ssl_context": context,
            "timeout": urllib3.Timeout(connect=min(settings.timeout, 15.0), read=settings.timeout),
            "retries": urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=10),
            "maxsize": 16,
        }
        manager = urllib3.PoolManager(**options)
        if proxy:
            address, login = _proxy_login(proxy)
            manager = urllib3.ProxyManager(address, proxy_headers=login, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def _login(self, url: str) -> tuple[str, dict[str, str]]:
        """The URL without its credentials, and the header that carries them."""
        parts = urlsplit(url)
        if (own := _login_in(parts)) is not None:
            return _bare(url), {"Authorization": own}
        known = self._netrc.authenticators(parts.hostname) if self._netrc and parts.hostname else None
        return url, {"Authorization": basic_login(known[0].encode(), (known[2] or "").encode())} if known else {}


def _bare(url: str) -> str:
    """A URL without its login."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def basic_login(user: bytes, password: bytes) -> str:
    """The value of an Authorization header."""
    return "Basic " + b64encode(user + b":" + password).decode("ascii")


def _login_in(parts: SplitResult) -> str | None:
    """The login of a URL, as it is sent."""
    if parts.username is None:
        return None
    return basic_login(_unquoted(parts.username), _unquoted(parts.password or ""))


def _unquoted(text: str) -> bytes:
    """A part of a URL as bytes: UTF-8, or what else was percent-encoded or is in the environment."""
    return unquote_to_bytes(text.encode("utf-8", "surrogateescape"))


def _answer(url: str, response: urllib3.BaseHTTPResponse, body: bytes) -> Answer:
    final = _bare(url)
    for step in response.retries.history if response.retries else ():
        final = urljoin(final, step.redirect_location or "")
    return Answer(final, response.status, {name.lower(): value for name, value in response.headers.items()}, body)


def read_some(
    response: urllib3.BaseHTTPResponse,
    limit: int,
    url: str,
    seconds: float = math.inf,
    hint: str = "Check the index URL.",
) -> bytes:
    """The whole body, up to a limit and within a time."""
    give_up = time.monotonic() + seconds
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_STEP, decode_content=True):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise NetworkError(f"The response of {redact(url)} is larger than {limit >> 20} MiB.", hint)
        if time.monotonic() > give_up:
            raise UnreachableError(f"{redact(url)} sends too slowly: {size} bytes in {seconds:.0f} seconds.", _SLOW)
    return b"".join(parts)


def read_pieces(response: urllib3.BaseHTTPResponse, shown: str) -> Iterator[bytes]:
    """A body of any size as it comes; a server that sends next to nothing for a minute is given up."""
    began, size = time.monotonic(), 0
    while part := response.read1(_STEP, decode_content=False):
        yield part
        size += len(part)
        now = time.monotonic()
        if now - began > _WINDOW:
            if size < _SLOWEST * _WINDOW:
                raise TooSlowError(f"{shown} comes too slowly: {size} bytes in {now - began:.0f} seconds.", _SLOW)
            began, size = now, 0


def is_slow(error: NetworkError) -> bool:
    """Whether the server sent next to nothing, and not even broke off."""
    return isinstance(error, TooSlowError) or isinstance(error.__cause__, urllib3.exceptions.TimeoutError)


_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-([0-9]{1,18})|\*)(?:/(?:([0-9]{1,18})|\*))?")


@dataclass(frozen=True, slots=True)
class ContentRange:
    """Which bytes of a file a response has, the last one included, and the size of the file, as far as it says so."""

    first: int | None = None
    last: int | None = None
    size: int | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> ContentRange:
        found = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        return cls(*(int(part) if part else None for part in found.groups())) if found else cls()

    @classmethod
    def part(cls, start: int, end: int, size: int) -> ContentRange:
        return cls(start, end - 1, size)


def worth_retrying(error: NetworkError) -> bool:
    return error.temporary if isinstance(error, StatusError) else isinstance(error, UnreachableError)


def wait_before(attempt: int, error: NetworkError) -> float:
    """Seconds until the next attempt: the server's Retry-After, or exponential back-off with jitter."""
    if isinstance(error, StatusError) and error.retry_after is not None:
        return min(error.retry_after, _LONGEST_WAIT)
    return float(min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT) * random.uniform(0.75, 1.25))


def _status_problem(response: urllib3.BaseHTTPResponse, url: str, *, logged_in: bool) -> StatusError:
    status = response.status
    hint = {
        401: "Put credentials into the URL or into ~/.netrc.",
        403: "The server refuses these credentials or this machine.",
        404: "The file is gone from the index; try again without --offline, or choose another release.",
        407: _PROXY,
        429: "The server limits the request rate; try again in a minute.",
    }.get(status, "Try again later." if status in _RETRY_STATUS else "Check the URL.")
    return StatusError(
        f"{redact(url)} answered {status} {response.reason or ''}".rstrip() + ".",
        hint,
        status,
        retry_after(response.headers.get("retry-after")),
        logged_in=logged_in,
    )


def retry_after(text: str | None) -> float | None:
    """Seconds that a server asks to wait."""
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _reason(error: BaseException) -> str:
    """The innermost cause, in a few words."""
    if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason is not None:
        return _reason(error.reason)
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "DNS lookup failed"
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return str(error).rsplit(": ", 1)[-1]
    if isinstance(error, urllib3.exceptions.ProxyError):
        return f"the proxy failed: {_reason(error.original_error)}"
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return "timed out"
    return " ".join(str(error).split()).rstrip(".")


def _hint(error: BaseException) -> str:
    cause = getattr(error, "reason", error)
    if isinstance(cause, urllib3.exceptions.SSLError):
        return "Set PIP_CERT or SSL_CERT_FILE to the certificates of your network."
    if isinstance(cause, urllib3.exceptions.ProxyError):
        return _PROXY
    return _NETWORK


def _environment_proxy(scheme: str, host: str) -> str | None:
    from urllib.request import getproxies, proxy_bypass

    # Another machine's localhost is never meant, whether or not no_proxy says so.
    return None if is_this_machine(host) or proxy_bypass(host) else getproxies().get(scheme)


def _proxy_login(proxy: str) -> tuple[str, dict[str, str]]:
    """A proxy's address without its credentials, and the header that carries them; without a scheme it is http."""
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        login = _login_in(parts)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # it quotes the address, which may hold a password
        usable = False
    if not usable:
        raise UsageError(
            "The proxy cannot be used: its address is not http://HOST:PORT or https://HOST:PORT.",
            "Check PIP_PROXY, pip.conf and the proxy variables; write special characters of a password as %XX.",
        )
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return address, {"Proxy-Authorization": login} if login else {}


def _read_netrc() -> netrc.netrc | None:
    named = os.environ.get("NETRC") or None
    try:
        read_limited(expand_home(named or "~/.netrc"), Limit.CONFIGURATION)  # a pipe there would be waited for
        return netrc.netrc(named)
    except (OSError, BadInputError, UnicodeDecodeError, netrc.NetrcParseError):
        return None

"""Requests to a registry: TLS or not, logins, redirects, retries, and one sentence for whatever goes wrong."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec
import urllib3

from torchtailor.core.errors import NetworkError
from torchtailor.core.shapes import shaped
from torchtailor.core.urls import redact
from torchtailor.fetch.client import Answer, Client, StatusError, UnreachableError, basic_login, read_some, retry_after
from torchtailor.fetch.settings import IndexSettings, certificates
from torchtailor.oci.reference import RepositoryName
from torchtailor.oci.transports.challenge import Challenge, parse_challenges
from torchtailor.oci.transports.login import RegistryLogin, find_login

RETRIES = 5
_TIMEOUT = 60.0  # seconds without a byte
_UPLOAD_TIMEOUT = 300.0  # a registry that stores in a bucket copies gigabytes before it answers
_PARTING = 3.0
_REDIRECTS = 6
_SMALL = 1 << 20  # bytes of answers that are not manifests
_PATIENCE = 120.0  # seconds that a small answer may take in all
_ALL = range(100, 600)
_MOVED = (301, 302, 303, 307, 308)
# Before a country's two letters, these are under nobody's control: registry.co.uk and evil.co.uk are strangers.
_OF_MANY = frozenset(("ac", "co", "com", "edu", "go", "gob", "gov", "ne", "net", "or", "org"))
_LOG_IN = "Log in with docker login, podman login or skopeo login."

Result = TypeVar("Result")


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class _Said(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Errors(msgspec.Struct):
    errors: tuple[_Said, ...] = ()


class RegistryServer:
    """One repository of a registry, for reading or also for writing."""

    def __init__(self, image: RepositoryName, *, push: bool = False, insecure: bool = False) -> None:
        self.image, self._insecure = image, insecure
        if insecure:  # the user knows, and has said so
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._scopes = [f"repository:{image.repository}:{'pull,push' if push else 'pull'}"]
        self._authorization = ""
        self._challenges: tuple[Challenge, ...] = ()
        self._clients: dict[bool, Client] = {}
        self._timeout = _UPLOAD_TIMEOUT if push else _TIMEOUT

    @property
    def name(self) -> str:
        return self.image.host

    def address(self, path: str) -> str:
        """The address of something in the repository."""
        return f"{self._base}/v2/{self.image.repository}/{path}"

    def also_pull(self, repository: str) -> None:
        """Ask for the right to read another repository too, when the next login is needed."""
        scope = f"repository:{repository}:pull"
        if scope not in self._scopes:
            self._scopes.append(scope)
            if self._authorization.startswith("Bearer"):
                self._authorization = ""

    def call(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        accept: tuple[int, ...] = (200,),
        limit: int = _SMALL,
        retries: int = RETRIES,
    ) -> Answer:
        """A whole answer, after as many attempts as can help."""

        def once() -> Answer:
            with self.open(method, url, headers, body, accept=accept) as response:
                data = b"" if method == "HEAD" else self._small(response, limit)
                return Answer(url, response.status, _lower(response.headers), data)

        return self.retrying(once, retries)

    def retrying(self, once: Callable[[], Result], retries: int = RETRIES) -> Result:
        result: Result = self._client(self.image.server).retrying(once, retries=retries)
        return result

    def abandon(self, url: str) -> None:
        """Tell the registry that an upload will not go on; whoever pressed Ctrl-C does not wait long for it."""
        self._timeout = _PARTING
        self._clients.clear()
        self.call("DELETE", url, accept=(200, 202, 204, 404), retries=0)

    @contextmanager
    def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
        *,
        accept: tuple[int, ...] = (200,),
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """One request, with as many logins and redirects as it takes; raises for statuses that are not accepted."""
        tries = 0
        redirects = 0
        while True:
            own = self._is_own(url)
            if own and not self._authorization and self._challenges:
                self._log_in()
            login = {"Authorization": self._authorization} if own and self._authorization else {}
            with self._send(method, url, dict(headers or {}) | login, body) as response:
                status = response.status
                if status == HTTPStatus.UNAUTHORIZED and own and tries < 2 and not _is_stream(body):
                    asked = parse_challenges(response.headers.get("www-authenticate", ""))
                    self._challenges = asked or self._challenges
                    tries += 1
                    if self._challenges:
                        self._log_in()
                        continue
                if status in _MOVED and method in {"GET", "HEAD"} and status not in accept:
                    redirects += 1
                    url = self._next(url, response.headers.get("location", ""), redirects)
                    continue
                if status not in accept:
                    raise self._problem(response)
                yield response
                return

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | Iterable[bytes] | None
    ) -> AbstractContextManager[urllib3.BaseHTTPResponse]:
        return _said_of_registry(self._client(urlsplit(url).netloc), method, url, headers, body, self.name)

    def _client(self, host: str) -> Client:
        """Connections to the registry, which may have certificates of its own, or to any other host."""
        own = host == self.image.server
        if own not in self._clients:
            bundle, folder = certificates(os.environ)
            self._clients[own] = Client(
                IndexSettings(
                    sources=(),
                    ca_bundle=(_host_certificate(host) if own else None) or bundle,
                    ca_folder=folder,
                    trusted_hosts=frozenset({self.image.server} if self._insecure else ()),
                    timeout=self._timeout,
                    retries=RETRIES,
                )
            )
        return self._clients[own]

    @cached_property
    def _base(self) -> str:
        """Where the registry answers. Plain HTTP is tried on this machine, and elsewhere only when asked for."""
        plain = self._insecure or self.image.is_on_this_machine
        for scheme in ("https", "http") if plain else ("https",):
            base = f"{scheme}://{self.image.server}"
            try:
                return self._greet(base, retries=(0 if scheme == "https" else 1) if plain else RETRIES)
            except UnreachableError as error:
                if _is_about_certificate(error) or not plain or scheme == "http":
                    raise
        raise AssertionError("unreachable")

    def _greet(self, base: str, retries: int) -> str:
        def once() -> str:
            with self._send("GET", f"{base}/v2/", {}, None) as response:
                if response.status in _MOVED:  # a web server that moves everything to another address
                    raise NetworkError(f"{self.name} answers with another address.", "Give the registry's own host.")
                if response.status not in {200, 401}:
                    raise self._problem(response, "the registry's API")
                self._challenges = parse_challenges(response.headers.get("www-authenticate", ""))
                if response.status == HTTPStatus.UNAUTHORIZED and not self._challenges:
                    raise NetworkError(f"{self.name} wants a login and does not say which.", "Is it a registry?")
            return base

        return self.retrying(once, retries)

    def _is_own(self, url: str) -> bool:
        """Whether an address is the registry's: nobody else gets its login."""
        return url.startswith(f"{self._base}/")

    def _next(self, url: str, location: str, redirects: int) -> str:
        target = urljoin(url, location)
        parts = urlsplit(target)
        if redirects > _REDIRECTS or not location or not parts.hostname or parts.scheme not in {"http", "https"}:
            raise NetworkError(f"{self.name} redirects without an end.", "Try again later.")
        if parts.scheme == "http" and url.startswith("https:") and not self._insecure:
            raise NetworkError(f"{self.name} redirects to an address without TLS.", "Its operator must correct that.")
        return target

    def _log_in(self) -> None:
        bearer = next(
            (
                challenge
                for challenge in self._challenges
                if challenge.scheme == "bearer" and challenge.values.get("realm")
            ),
            None,
        )
        basic = any(challenge.scheme == "basic" for challenge in self._challenges)
        login = find_login(self.image)
        if bearer:
            self._authorization = f"Bearer {self._token(bearer.values, login)}"
        elif basic and login and login.user and not login.identity_token:
            self._authorization = basic_login(login.user.encode(), login.password.encode())
        elif basic:
            raise NetworkError(f"{self.name} wants a login, and there is none.", _LOG_IN)
        else:
            raise NetworkError(f"{self.name} wants a login of a kind that is not known.", "Use another registry.")

    def _token(self, asked: Mapping[str, str], login: RegistryLogin | None) -> str:
        realm = asked["realm"]
        if not realm.startswith("https://") and not (realm.startswith("http://") and self._base.startswith("http:")):
            raise NetworkError(
                f"{self.name} wants its login sent to an address without TLS.", "Its operator must correct that."
            )
        if login and not _is_of(urlsplit(realm).hostname or "", urlsplit(self._base).hostname or ""):
            raise NetworkError(
                f"{self.name} wants the login of {login.origin} sent to another host, {urlsplit(realm).hostname}.",
                "Nothing was sent. Log out to read public images, or copy the image to an oci: folder with skopeo.",
            )
        scopes = [*self._scopes, *([asked["scope"]] if asked.get("scope") else [])]
        fields = [("service", asked.get("service", "")), *(("scope", scope) for scope in dict.fromkeys(scopes))]

        def once() -> Answer:
            if login and login.identity_token:
                form = [("grant_type", "refresh_token"), ("client_id", "torchtailor"), fields[0]]
                form += [("scope", " ".join(dict.fromkeys(scopes))), ("refresh_token", login.identity_token)]
                kind = {"Content-Type": "application/x-www-form-urlencoded"}
                opened = self._send("POST", realm, kind, urlencode(form).encode())
            else:
                own = basic_login(login.user.encode(), login.password.encode()) if login else ""
                sent = {"Authorization": own} if own else {}
                query = urlencode([field for field in fields if field[1]])
                opened = self._send("GET", f"{realm}{'&' if '?' in realm else '?'}{query}", sent, None)
            with opened as response:
                if response.status in {401, 403} and login:
                    raise NetworkError(
                        f"{self.name} refuses the login of {login.user or 'the identity token'} ({login.origin}).",
                        "Log in again, with docker login, podman login or skopeo login.",
                    )
                if response.status != HTTPStatus.OK:
                    raise self._problem(response, "a token")
                return Answer(realm, response.status, {}, self._small(response, _SMALL))

        answer = self.retrying(once)
        try:
            token = msgspec.json.decode(answer.body, type=shaped(_Token))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise NetworkError(f"The login server of {self.name} gave no token.", "Try again later.") from error
        found = token.token or token.access_token
        if not found or not found.isascii() or not found.isprintable():
            raise NetworkError(f"The login server of {self.name} gave no token.", "Try again later.")
        return found

    def _small(self, response: urllib3.BaseHTTPResponse, limit: int) -> bytes:
        return read_some(response, limit, self.name, _PATIENCE, "Is it a registry?")

    def _problem(self, response: urllib3.BaseHTTPResponse, wanted: str = "") -> StatusError:
        status = response.status
        hint = {
            401: f"{_LOG_IN} The name may also be wrong: many registries hide what does not exist.",
            403: f"The login lacks the right, or there is none. {_LOG_IN}",
            404: "Check the name." if not wanted else "Is it a registry, with API version 2?",
            413: "The registry, or a proxy before it, limits the size of requests.",
            429: "The registry limits how often it is asked; log in, or try again later.",
        }.get(status, "Try again later." if status >= 500 else "")
        said = self._said(response)
        about = f" for {wanted}" if wanted else ""
        return StatusError(
            f"{self.name} answered {status} {_phrase(status)}{about}".rstrip() + (f": {said}." if said else "."),
            hint,
            status,
            retry_after(response.headers.get("retry-after")),
        )

    def _said(self, response: urllib3.BaseHTTPResponse) -> str:
        """What the registry says itself, in a few printable words."""
        try:
            found = msgspec.json.decode(self._small(response, _SMALL), type=shaped(_Errors)).errors
        except (msgspec.MsgspecError, UnicodeDecodeError, NetworkError, RecursionError, urllib3.exceptions.HTTPError):
            return ""
        text = "; ".join(one.message or one.code for one in found)
        return "".join(letter for letter in text if letter.isprintable())[:200].strip().rstrip(".")


@contextmanager
def _said_of_registry(
    client: Client,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | Iterable[bytes] | None,
    name: str,
) -> Iterator[urllib3.BaseHTTPResponse]:
    """A request whose failures speak of the registry, not of indexes of packages."""
    try:
        with client.open(url, headers, method=method, accept=_ALL, body=body, follow=False, login=False) as response:
            yield response
    except UnreachableError as error:
        hint = "Check the host, the port and the network."
        if _is_about_certificate(error):
            hint = "Set SSL_CERT_FILE to the certificates of your network, or allow it with --insecure."
        elif isinstance(getattr(error.__cause__, "reason", error.__cause__), urllib3.exceptions.SSLError):
            hint = "If the registry has no TLS, allow that with --insecure."
        raise UnreachableError(
            error.message.replace(redact(url), name), hint, lasting=error.lasting
        ) from error.__cause__


def _is_about_certificate(error: BaseException | None) -> bool:
    """Whether a certificate was not trusted, however deep urllib3 has wrapped that."""
    for _ in range(10):
        if error is None or isinstance(error, ssl.SSLCertVerificationError):
            break
        inner = getattr(error, "reason", None) or (error.args[0] if error.args else None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
    return isinstance(error, ssl.SSLCertVerificationError)


def _host_certificate(host: str) -> Path | None:
    """The certificate that docker or podman was given for a registry."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for folder in (config / "containers/certs.d", Path("/etc/containers/certs.d"), Path("/etc/docker/certs.d")):
        try:
            found = sorted((folder / host).glob("*.crt"))
        except OSError:
            continue
        if found:
            return found[0]
    return None


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _is_stream(body: object) -> bool:
    return body is not None and not isinstance(body, bytes)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _is_of(host: str, registry: str) -> bool:
    """Whether a login server belongs to a registry: the same host, or one of the same domain, as auth.docker.io."""
    if host == registry:
        return True
    if registry.replace(".", "").isdigit() or ":" in registry:  # an address has no domain
        return False
    ours, theirs = registry.split("."), host.split(".")
    shared = next(
        (at for at, pair in enumerate(zip(ours[::-1], theirs[::-1], strict=False)) if pair[0] != pair[1]), None
    )
    shared = min(len(ours), len(theirs)) if shared is None else shared
    if shared == 2 and len(ours[-1]) == 2 and ours[-2] in _OF_MANY:
        return False
    return shared >= 2 and shared >= max(len(ours), len(theirs)) - 1

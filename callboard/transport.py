"""Sends the requests of `calls.py` with httpx: a base class, and a subclass for each client.

Making a TLS context takes 40 ms, because it reads every certificate authority. So each process
makes only one context. httpx is told not to read the environment (proxies, certificates).
Reference: http.md (Authentication).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import httpx

from callboard.calls import ATTEMPTS_MAX, Attempts, Call, NoReply, Reply, Steps, with_retries
from callboard.event_streams import Connections
from callboard.location import DidKey, locate
from callboard.replies import AuditEntry
from core.records.api.record import Page, Record
from core.records.api.shape import Json
from core.trust.requests.request_signature import signature_headers

R = TypeVar("R", bound=Record)
H = TypeVar("H", httpx.Client, httpx.AsyncClient)

REQUEST_TIMEOUT_S = 30.0
_LOG = logging.getLogger("callboard")


class Connection(Generic[H]):
    """A client's address, credential and HTTP client."""

    # The class of the HTTP client that is made if the caller gives none.
    _open: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        did: str | None = None,
        private_key: str | Path | None = None,
        reason: str | None = None,
        home: Path | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        attempts_max: int = ATTEMPTS_MAX,
        on_wait: Callable[[float], object] | None = None,
        proxy: str | None = None,
        http: H | None = None,
    ) -> None:
        given = None if private_key is None else DidKey.read(private_key, did)
        location = locate(url, api_key, home, given)
        self.url = location.url.rstrip("/")
        self._api_key = location.api_key
        self._did_key = location.did_key
        self._auth = None if location.did_key is None else SignsRequests(location.did_key)
        self._reason = reason
        self._timeout_s = timeout_s
        self._attempts_max = attempts_max
        self._on_wait = on_wait
        self._is_own = http is None
        self._http: H = http or self._open(
            proxy=proxy, verify=tls_context_for(self.url), trust_env=False
        )

    def _attempts(self, steps: Steps) -> Attempts:
        return with_retries(steps, attempts_max=self._attempts_max)

    def _announce(self, call: Call) -> None:
        """If the pause before this call is for a rate limit, log it and call `on_wait`."""
        if call.is_limited:
            said = "rate limit: waiting %.1f s before %s %s is sent again"
            _LOG.warning(said, call.pause_s, call.method, call.path)
            if self._on_wait is not None:
                self._on_wait(call.pause_s)

    def _arguments(self, call: Call) -> dict[str, Any]:
        headers: dict[str, str | bytes] = dict(call.headers)
        if self._reason is not None and call.method != "GET":
            headers["x-callboard-reason"] = self._reason.encode()
        auth: dict[str, Any] = {}
        # A call with its own credential is sent without the client's credential.
        if "Authorization" not in headers:
            if self._api_key:
                headers["x-api-key"] = self._api_key
            if self._auth is not None:
                auth["auth"] = self._auth
        return {
            **auth,
            "method": call.method,
            "url": self.url + call.path,
            "params": dict(call.query),
            "json": call.body,
            "headers": headers,
            "timeout": self._timeout_s + call.wait_s,
            # httpx would send the API key to the target of a redirect. The option is set for each
            # request, because the caller's httpx client may follow redirects by default.
            "follow_redirects": False,
        }

    def _failed(self, error: httpx.HTTPError) -> NoReply:
        reason = f"no answer from {self.url}: {error or type(error).__name__}"
        unsent = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
        return NoReply(reason, sent=not isinstance(error, unsent))


class Blocking(Connection[httpx.Client]):
    """Sends requests and waits for each reply."""

    _open = httpx.Client

    def close(self) -> None:
        """Close the connections, unless the httpx client is the caller's."""
        if self._is_own:
            self._http.close()

    def _run(self, steps: Steps, record: Callable[[Json], R]) -> R:
        """Run an operation to its end, and return the reply's record."""
        attempts = self._attempts(steps)
        try:
            call = next(attempts)
            while True:
                call = attempts.send(self._send(call))
        except StopIteration as end:
            return record(end.value)

    def _send(self, call: Call) -> Reply | NoReply:
        self._announce(call)
        time.sleep(call.pause_s)
        try:
            return read_reply(self._http.request(**self._arguments(call)))
        except httpx.HTTPError as error:
            return self._failed(error)

    def _rows(
        self, build: Callable[..., Steps], page: type[Page[R]], given: Mapping[str, Any]
    ) -> Iterator[R]:
        """Yield the rows of all pages of a list.

        Args:
            build: returns the steps that read one page.
            page: the class of the pages.
            given: the caller's arguments. The later pages use them too, except `offset`.
        """
        place: Json | None = {}
        while place is not None:
            read = self._run(build(**{**given, **place}), page)
            yield from read.rows
            place = read.next_place()
            given = {name: value for name, value in given.items() if name != "offset"}

    def _entries(self, steps: Steps) -> Iterator[AuditEntry]:
        """Yield the entries of a stream, and reconnect when a connection ends."""
        connections = Connections(self._attempts(steps))
        while (call := connections.next_call()) is not None:
            self._announce(call)
            time.sleep(call.pause_s)
            try:
                with self._http.stream(**self._arguments(call)) as response:
                    connections.open(response.status_code, response.headers)
                    for part in response.iter_bytes():
                        yield from connections.read(part)
            except httpx.HTTPError as error:
                connections.fail(self._failed(error))


class Asynchronous(Connection[httpx.AsyncClient]):
    """`Blocking` for asyncio programs."""

    _open = httpx.AsyncClient

    async def aclose(self) -> None:
        """Close the connections, unless the httpx client is the caller's."""
        if self._is_own:
            await self._http.aclose()

    async def _run(self, steps: Steps, record: Callable[[Json], R]) -> R:
        """Run an operation to its end, and return the reply's record."""
        attempts = self._attempts(steps)
        try:
            call = next(attempts)
            while True:
                call = attempts.send(await self._send(call))
        except StopIteration as end:
            return record(end.value)

    async def _send(self, call: Call) -> Reply | NoReply:
        self._announce(call)
        await asyncio.sleep(call.pause_s)
        try:
            return read_reply(await self._http.request(**self._arguments(call)))
        except httpx.HTTPError as error:
            return self._failed(error)

    async def _rows(
        self, build: Callable[..., Steps], page: type[Page[R]], given: Mapping[str, Any]
    ) -> AsyncIterator[R]:
        """Yield the rows of all pages of a list; see `Blocking._rows`."""
        place: Json | None = {}
        while place is not None:
            read = await self._run(build(**{**given, **place}), page)
            for row in read.rows:
                yield row
            place = read.next_place()
            given = {name: value for name, value in given.items() if name != "offset"}

    async def _entries(self, steps: Steps) -> AsyncIterator[AuditEntry]:
        """Yield the entries of a stream; see `Blocking._entries`."""
        connections = Connections(self._attempts(steps))
        while (call := connections.next_call()) is not None:
            self._announce(call)
            await asyncio.sleep(call.pause_s)
            try:
                async with self._http.stream(**self._arguments(call)) as response:
                    connections.open(response.status_code, response.headers)
                    async for part in response.aiter_bytes():
                        for entry in connections.read(part):
                            yield entry
            except httpx.HTTPError as error:
                connections.fail(self._failed(error))


class SignsRequests(httpx.Auth):
    """Signs each request with the key of a DID; a repeated request gets a new signature."""

    requires_request_body = True

    def __init__(self, key: DidKey) -> None:
        self._key = key

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the signature headers to a request before it is sent."""
        url = request.url
        signed = signature_headers(
            request.method,
            f"{url.scheme}://{url.netloc.decode()}{url.raw_path.decode()}",
            request.content,
            did=self._key.did,
            private_key=self._key.seed,
            created_s=int(time.time()),
            nonce=secrets.token_urlsafe(16),
        )
        request.headers.update(signed)
        yield request


def read_reply(response: httpx.Response) -> Reply:
    """Convert a response of httpx, whose body is read, to a `Reply`.

    A successful text/plain body becomes `{"note": text}`; a body that is not JSON becomes None.
    """
    try:
        is_text = response.headers.get("content-type", "").startswith("text/plain")
        body = {"note": response.text} if is_text and response.is_success else response.json()
    except ValueError:
        body = None
    return Reply(response.status_code, {k.lower(): v for k, v in response.headers.items()}, body)


@cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context with which this process verifies servers."""
    return httpx.create_ssl_context(trust_env=False)


def tls_context_for(url: str) -> ssl.SSLContext:
    """Return the TLS context for requests to an address.

    For plain HTTP this is a context that trusts no authority. It is quick to make. If it were used
    by mistake, it would accept no server.
    """
    return tls_context() if url.lower().startswith("https:") else _trusting_none()


@cache
def _trusting_none() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

"""Serves a request of any operation: authentication, permission, body, rate limit, handler, reply.

This module is plain ASGI under a Starlette route. FastAPI's dependency and response models are not
used: they cost more than the rest of a publish (decision http-edge). The steps, in this order:
1. Choose the request id.
2. Refuse an unknown method, and an Accept header that no reply satisfies.
3. Recognise the caller from cached credentials.
4. Admit the request: take one of the replica's places, counted under the caller.
5. Verify a credential that is not cached; take a place that counts under the verified caller.
6. Check the permission.
7. Read the body.
8. Count the call against the caller's rate limit.
9. Parse the path, the query and the body.
10. Call the handler, once per idempotency key. Audit a read that needed a single right.
11. Send the reply.
12. Release the places and bytes that the request holds.
Reference: http.md (Authentication, Errors, Request limits).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from typing import Any

from actors.dispatch.ticket import DEFAULT_LIMITS
from core.errors import ErrorCode, ServiceError
from core.json_text import write_json
from core.records.bounds import AGENT_REPLY_BYTES_MAX
from core.trust.access import BY_ADDRESS, PEER
from serve_app.callers.admission import Place
from serve_app.callers.auth import Pending, Unproven
from serve_app.callers.limits import Headers, RateClass
from serve_app.callers.signed_requests import SignedRequest
from serve_app.http.bodies import (
    ClientGone,
    Pace,
    check_media_type,
    coded_body,
    held_bytes,
    is_uncoded,
    parse_json,
    read_body,
)
from serve_app.http.calls import NO_CONTENT, Call, Operation, Repeats, Reply, reason_in
from serve_app.http.errors import (
    PROBLEM_TYPE,
    STATUS,
    UNKNOWN_METHOD,
    problem,
    problem_headers,
)
from serve_app.http.idempotency import once, repeat_key
from serve_app.http.paths import path_text, path_texts
from serve_app.http.worker_thread import in_thread
from serve_app.services import Services

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LOG = logging.getLogger("callboard.api")
_REQUEST_ID_MAX = 128
_WITH_BODY = ("POST", "PATCH", "PUT")
# Bodies up to this size do not count against the caller's share of body bytes. HAProxy buffers
# this many bytes of every request anyway.
_UNCOUNTED_BYTES = 16 * 1024
# The size of the parts in which a larger reply is passed to the HTTP server.
_PART_BYTES = 64 * 1024
_CLOSE = (b"connection", b"close")
_ACCEPTED_CODING = (b"accept-encoding", b"identity")


class Endpoint:
    """Serves every operation of one path.

    Args:
        operations: at most one per method.
        services: the objects that the handlers use.
    """

    def __init__(self, operations: Iterable[Operation], services: Services) -> None:
        self._operations = {operation.method: operation for operation in operations}
        self._services = services
        self._pace = Pace()
        if "GET" in self._operations:
            self._operations["HEAD"] = self._operations["GET"]
        self._allowed = ", ".join(sorted(self._operations)).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        place = Place(self._services.admission)
        try:
            await self._serve(scope, headers, place, receive, send)
        finally:
            place.leave()

    async def _serve(
        self,
        scope: Scope,
        headers: Mapping[bytes, bytes],
        place: Place,
        receive: Receive,
        send: Send,
    ) -> None:
        request_id = request_id_of(headers)
        # `x-request-id` is not set here, because Ray Serve adds it to every reply.
        sent_headers: Headers = []
        counters = self._services.counters
        try:
            call = self._call(scope, headers, request_id)
            reply = rendered(await self._answer(scope, call, place, receive, sent_headers))
            if reply.is_stream:
                stock, what = place.admission.streams, "exports are open"
                if reply.is_lasting:
                    place.leave()  # An event stream does not count as an open request.
                    stock, what = place.admission.event_streams, "event streams are open"
                # Any client can create DIDs. So a DID that the ledger does not store counts under
                # the client's address (`call.account`). Else one client could take every place.
                place.take(stock, 1, what, call.account)
                if scope["method"] == "HEAD":
                    reply = replace(reply, body=b"", is_stream=False)
            elif call.method == "GET" and place.holder and len(reply.body) > _PART_BYTES:
                # Only replies to reads count: the reply to a write is always sent. A request that
                # took no place has no holder; its reply is a fixed text, which all requests share.
                place.take(place.admission.reply_bytes, len(reply.body), "bytes of replies wait")
        except ServiceError as error:
            reply = refused(error, request_id)
            counters["callboard_refusals", error.code.value] += 1
            if error.code is ErrorCode.METHOD_NOT_ALLOWED:
                sent_headers.append((b"allow", self._allowed))
        except ClientGone:
            return
        except Exception:
            # Process edge: an unforeseen error becomes a 500 that discloses no details.
            _LOG.exception("request failed request_id=%s path=%s", request_id, path_text(scope))
            inside = ServiceError(ErrorCode.INTERNAL_ERROR, "the request failed inside the service")
            reply = refused(inside, request_id)
            counters["callboard_refusals", inside.code.value] += 1
        counters["callboard_requests", self._class_of(scope), str(reply.status)] += 1
        if reply.is_stream:
            await send_stream(send, reply, sent_headers, pace=self._pace)
        else:
            await send_reply(send, reply, sent_headers, pace=self._pace)

    def _class_of(self, scope: Scope) -> str:
        operation = self._operations.get(scope["method"])
        return "unknown" if operation is None else operation.rate.value

    def _call(self, scope: Scope, headers: Mapping[bytes, bytes], request_id: str) -> Call:
        operation = self._operations.get(scope["method"])
        if operation is None:
            method = scope["method"][:20]
            got = "an unknown method" if method == UNKNOWN_METHOD else f"the method {method}"
            detail = f"got {got}, expected {self._allowed.decode().replace(', ', ' or ')}"
            raise ServiceError(ErrorCode.METHOD_NOT_ALLOWED, detail)
        _check_acceptable(headers.get(b"accept"), operation)
        return Call(
            services=self._services,
            method=operation.method,
            path_texts=path_texts(scope, operation.path),
            headers=headers,
            query_string=scope.get("query_string", b""),
            raw_path=scope.get("raw_path") or b"",
            request_id=request_id,
            right=operation.scope,
        )

    async def _answer(
        self, scope: Scope, call: Call, place: Place, receive: Receive, sent_headers: Headers
    ) -> Reply:
        services = self._services
        operation = self._operations[scope["method"]]
        address = call.address = services.client_addresses.address_of(scope, call.headers)
        if operation.scope is not None or operation.rate is not RateClass.EXEMPT:
            await self._recognise(scope, call, address, place)
        elif operation.method in _WITH_BODY:
            place.enter(address)
        # Exempt operations that need no scope and take no body serve health checks and fixed texts.
        # They take no place and verify no credential. So they answer while Postgres is down, and
        # while all places are taken.
        if operation.single_right is not None and call.holds(operation.single_right):
            call.right = operation.single_right
        if call.right is not None:
            call.require(call.right)
            if operation.method != "GET":
                reason_in(call.headers)  # Refuse an invalid reason even if no right needs a reason.
        if operation.method in _WITH_BODY:
            await self._read(call, operation, place, receive, sent_headers)
        rate = operation.rate if operation.rate_of is None else operation.rate_of(call)
        standing = await services.limiter.take(call.principal, address, rate, services.clock_ms())
        if standing is not None:
            sent_headers.extend(standing.headers(services.now_ms()))
            if not standing.is_allowed:
                if rate is operation.class_by_method and _is_known_to_haproxy(call):
                    sent_headers.append(standing.spent_header(services.now_ms()))
                raise standing.refusal()
        if _may_wait(call.headers, operation):
            place.take(place.admission.waits, 1, "requests wait")
        has_body = operation.method in _WITH_BODY and (call.body or not operation.is_body_optional)
        if has_body and not operation.is_parsed_by_handler:
            depth_max = services.bounds.json_depth_max
            parse = partial(parse_json, call.body, depth_max=depth_max)
            call.json = await in_thread(call.account, len(call.body), parse)
            if operation.check is not None:
                operation.check(call)
        parsed_bytes = len(call.body) if operation.parsed_body is not None else 0
        await in_thread(call.account, parsed_bytes, partial(call.parse, operation))
        # A POST that only reads (a dry run) stores nothing, so its idempotency key is ignored.
        if operation.repeats is not Repeats.IGNORED and rate is not RateClass.READ:
            call.repeats, call.repeat_key = operation.repeats, await repeat_key(call)
            if operation.repeats in (Repeats.BY_REPLY, Repeats.BY_REPLY_ALONE):
                caller = call.caller
                return await once(
                    call, caller.did, partial(Call.handle, operation=operation), maker=caller
                )
        reply = await call.handle(operation)
        if call.used_right is not None and rate is RateClass.READ:
            await self._note_reading(call, operation, address)
        return reply

    async def _note_reading(self, call: Call, operation: Operation, address: str) -> None:
        """Audit that the caller used a single right for a read.

        Raises:
            ServiceError: RATE_LIMITED; INVALID_REQUEST: the reason header is invalid.
        """
        services, authority = self._services, call.authority
        assert authority is not None, operation.path
        name = f"{operation.method} {operation.path}"
        note = services.audited_reads.new(call.caller, authority, name, services.now_ms())
        if note is None:
            return
        standing = await services.limiter.take(
            call.principal, address, RateClass.WRITE, services.clock_ms()
        )
        if standing is not None and not standing.is_allowed:
            raise standing.refusal()
        services.audited_reads.give(note)

    async def _recognise(self, scope: Scope, call: Call, address: str, place: Place) -> None:
        """Authenticate the caller, and take a place in the caller's name.

        While a credential that is not cached is verified, the request counts under the client's
        address, and in a separate group of places. Otherwise a flood of unknown credentials could
        take the places of callers with cached keys. While a cached key is looked up again, the
        request counts under the key's last known owner.
        """
        authenticator = self._services.authenticator
        now_ms, clock_ms = self._services.now_ms(), self._services.clock_ms()
        found = authenticator.recognise(scope, call.headers, now_ms, clock_ms)
        if isinstance(found, Pending):
            call.signed = found if isinstance(found, SignedRequest) else None
            known_did = found.did if isinstance(found, Unproven) else None
            place.enter(known_did or address, place.admission.lookups)
            found = await authenticator.prove(found, address, now_ms, clock_ms)
        is_owners = found is not None and found.rate_class != BY_ADDRESS
        place.enter(found.did if found is not None and is_owners else address)
        call.principal = found

    async def _read(
        self,
        call: Call,
        operation: Operation,
        place: Place,
        receive: Receive,
        sent_headers: Headers,
    ) -> None:
        bounds = self._services.bounds
        bytes_max = bounds.body_bytes_max
        if operation.is_bulk_body:
            bytes_max = bounds.bulk_body_bytes_max
        elif operation.is_agent_reply:
            bytes_max = AGENT_REPLY_BYTES_MAX
        elif call.principal is not None and call.principal.rate_class == PEER:
            # A peer publishes the inputs of one node, which may be as large as a dispatch.
            bytes_max = DEFAULT_LIMITS.body_bytes_max
        admission = place.admission
        declared = call.headers.get(b"content-length")
        size = held_bytes(declared, bytes_max)
        if size > _UNCOUNTED_BYTES:
            place.take(admission.body_bytes, size, "bytes of bodies are held")
        is_slow = False

        def on_slow() -> None:
            nonlocal is_slow
            is_slow = True
            sent_headers.append(_CLOSE)
            place.take(admission.incomplete_bodies, 1, "bodies are incomplete")

        call.body = await read_body(receive, declared, bytes_max, pace=self._pace, on_slow=on_slow)
        if is_slow:
            sent_headers.remove(_CLOSE)
            place.give_back(admission.incomplete_bodies)
        if call.signed is not None:
            await call.signed.check_body(call.body)
        if call.body:
            check_media_type(call.headers.get(b"content-type"))
            if not is_uncoded(call.headers.get(b"content-encoding", b"")):
                sent_headers.append(_ACCEPTED_CODING)
                raise coded_body()


def _is_known_to_haproxy(call: Call) -> bool:
    """Return whether HAProxy counts the call under the same caller as this replica.

    Reference: `haproxy_rate_limits.py`.
    """
    is_owners = call.principal is None or call.principal.rate_class != BY_ADDRESS
    return call.signed is None and is_owners


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the id in the `X-Request-ID` header if it is valid, else a new id.

    The header comes from the client, or from Ray Serve if the client sent none.
    """
    given = headers.get(b"x-request-id", b"")
    if 0 < len(given) <= _REQUEST_ID_MAX and given.isascii():
        text = given.decode("ascii")
        if text.isprintable():
            return text
    return os.urandom(16).hex()


def refused(error: ServiceError, request_id: str) -> Reply:
    """Return the problem-details reply of a refusal."""
    return Reply(
        problem(error, request_id),
        status=STATUS[error.code],
        headers=tuple(problem_headers(error)),
        content_type=PROBLEM_TYPE,
    )


def rendered(reply: Reply) -> Reply:
    """Return the reply with its body serialized to JSON bytes. A stream is returned unchanged."""
    if isinstance(reply.body, bytes) or reply.is_stream:
        return reply
    return Reply(write_json(reply.body), reply.status, reply.headers, reply.content_type)


async def send_reply(
    send: Send, reply: Reply, more_headers: Headers, *, pace: Pace | None = None
) -> None:
    """Send the head of a reply, then its body.

    A large body is sent in parts. Each part is sent when the server's write buffer has space, so
    the client sets the pace.

    Args:
        pace: the slowest permitted transfer of a large body; the connection of a slower client is
            closed. None: the body is sent in one part.
    """
    body = rendered(reply).body
    of_body = [(b"content-type", reply.content_type), (b"content-length", b"%d" % len(body))]
    headers = [*(of_body if reply.status != NO_CONTENT else ()), *more_headers, *reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if len(body) <= _PART_BYTES or pace is None:
        await send({"type": "http.response.body", "body": body})
        return
    began, sent = asyncio.get_running_loop().time(), 0
    try:
        while sent < len(body):
            part = body[sent : sent + _PART_BYTES]
            sent += len(part)
            async with asyncio.timeout_at(pace.end(began, sent)):
                await send(
                    {"type": "http.response.body", "body": part, "more_body": sent < len(body)}
                )
    except TimeoutError:
        # Returning early makes the HTTP server close the connection: the reply is incomplete.
        _LOG.info("a reply was taken too slowly sent=%d of=%d", sent, len(body))


async def send_stream(send: Send, reply: Reply, more_headers: Headers, *, pace: Pace) -> None:
    """Send a reply whose body is generated while it is sent.

    The next page is read when the HTTP server has accepted the previous page. The server accepts no
    page while its write buffer is full. If the client receives too slowly, or a page cannot be
    read, the stream ends early and the server closes the connection. If the client disconnects, Ray
    Serve cancels this coroutine.
    """
    clock = asyncio.get_running_loop().time
    headers = [(b"content-type", reply.content_type), *more_headers, *reply.headers]
    sent, sending_s = 0, 0.0
    try:
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        async for page in reply.body:
            for at in range(0, len(page), _PART_BYTES):
                part = page[at : at + _PART_BYTES]
                sent += len(part)
                began = clock()
                async with asyncio.timeout(pace.end(0.0, sent) - sending_s):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                sending_s += clock() - began
        await send({"type": "http.response.body", "body": b""})
    except TimeoutError:
        _LOG.info("a reply was taken too slowly sent=%d", sent)
    except ServiceError as error:
        _LOG.warning("a reply was cut sent=%d code=%s: %s", sent, error.code, error.detail)
    finally:
        await reply.body.aclose()


def _may_wait(headers: Mapping[bytes, bytes], operation: Operation) -> bool:
    preferences = headers.get(b"prefer")
    return preferences is not None and operation.may_wait and b"wait" in preferences.lower()


def _check_acceptable(accept: bytes | None, operation: Operation) -> None:
    if accept is None or b"*/*" in accept or b"application/*" in accept or b"json" in accept:
        return
    if operation.media_type.encode() in accept:
        return
    if operation.other_media_type is not None and operation.other_media_type.encode() in accept:
        return
    raise ServiceError(
        ErrorCode.NOT_ACCEPTABLE,
        f"got Accept {accept.decode('ascii', 'replace')[:100]!r}, expected {operation.media_type}",
    )

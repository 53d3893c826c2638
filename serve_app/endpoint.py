"""The way of a request: identity, permission, body, rate, handler, reply; the same for all.

Plain ASGI under a Starlette route, without FastAPI's dependency and response models, which cost
more than the rest of a publish (docs/decisions/0010). The order is fixed:
1. name the request; 2. refuse a method, or a reply nobody wants; 3. who calls; 4. may they;
5. read the body; 6. count the call; 7. parse; 8. handle, once per idempotency key; 9. answer.
Spec: Authentication, Errors, Limits; contract.md sections 1–3.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

import orjson

from core.errors import ErrorCode, ServiceError
from core.trust.access import Need
from serve_app.bodies import ClientGone, check_media_type, parse_json, read_body
from serve_app.calls import Call, Operation, Repeats, Reply
from serve_app.errors import PROBLEM_TYPE, STATUS, problem, problem_headers
from serve_app.limits import Headers, RateClass
from serve_app.paths import path_text, path_values
from serve_app.repeats import once, repeat_key
from serve_app.services import Services

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LOG = logging.getLogger("callboard.api")
_REQUEST_ID_MAX = 128
_WITH_BODY = ("POST", "PATCH", "PUT")


class Endpoint:
    """Serves every operation of one path.

    Args:
        operations: one per method.
        services: what their handlers work with.
    """

    def __init__(self, operations: Iterable[Operation], services: Services) -> None:
        self._operations = {operation.method: operation for operation in operations}
        self._services = services
        self._allowed = ", ".join(sorted(self._operations)).encode()
        if "GET" in self._operations:
            self._operations["HEAD"] = self._operations["GET"]

    def __repr__(self) -> str:
        return f"<Endpoint {self._allowed.decode()}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        request_id = request_id_of(headers)
        # Not x-request-id: Serve echoes that header, made up when the client sent none, by itself.
        sent_headers: Headers = []
        try:
            reply = await self._answer(scope, headers, request_id, receive, sent_headers)
        except ServiceError as error:
            reply = refused(error, request_id, self._services.settings.unreachable_retry_after_s)
            if error.code is ErrorCode.METHOD_NOT_ALLOWED:
                sent_headers.append((b"allow", self._allowed))
        except ClientGone:
            return
        except Exception:
            # The edge of the process: what nobody foresaw becomes a 500 that only names itself.
            _LOG.exception("request failed request_id=%s path=%s", request_id, path_text(scope))
            inside = ServiceError(ErrorCode.INTERNAL_ERROR, "the request failed inside the service")
            reply = refused(inside, request_id, 1)
        await send_reply(send, reply, sent_headers)

    async def _answer(
        self,
        scope: Scope,
        headers: Mapping[bytes, bytes],
        request_id: str,
        receive: Receive,
        sent_headers: Headers,
    ) -> Reply:
        services = self._services
        operation = self._operations.get(scope["method"])
        if operation is None:
            raise ServiceError(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"got {scope['method'][:20]}, expected {self._allowed.decode()}",
            )
        _check_acceptable(headers.get(b"accept"), operation)
        call = Call(
            services=services,
            method=operation.method,
            path_values=path_values(scope),
            headers=headers,
            query_string=scope.get("query_string", b""),
            raw_path=scope.get("raw_path") or b"",
            request_id=request_id,
        )
        now_ms = services.now_ms()
        if operation.scope is not None or operation.rate is not RateClass.EXEMPT:
            # Health answers also while nobody can be recognised, because Postgres is away.
            call.principal = await services.authenticator.principal(headers, now_ms)
        if operation.scope is not None:
            call.require(Need(operation.scope, narrow_scope=operation.narrow_scope))
        if operation.method in _WITH_BODY:
            await self._read(call, operation, receive)
        rate = operation.rate if operation.rate_of is None else operation.rate_of(call)
        standing = await services.limiter.take(call.principal, rate, now_ms)
        if standing is not None:
            sent_headers.extend(standing.headers(now_ms))
            if not standing.is_allowed:
                raise standing.refusal(now_ms)
        has_body = operation.method in _WITH_BODY and (call.body or not operation.is_body_optional)
        if has_body and not operation.is_bulk_body:  # items of those are parsed one by one
            call.json = parse_json(call.body, depth_max=services.settings.json_depth_max)
        # A read that comes as a POST (a dry run) stores nothing, so there is nothing to repeat.
        if operation.repeats is not Repeats.IGNORED and rate is not RateClass.READ:
            call.repeats, call.repeat_key = operation.repeats, await repeat_key(call)
            if operation.repeats is Repeats.BY_REPLY:
                return await once(call, call.caller.did, operation.handler)
        return await operation.handler(call)

    async def _read(self, call: Call, operation: Operation, receive: Receive) -> None:
        settings = self._services.settings
        bytes_max = settings.body_bytes_max
        if operation.is_bulk_body:
            bytes_max = settings.bulk_body_bytes_max
        elif operation.is_agent_reply:
            bytes_max = settings.agent_reply_bytes_max
        call.body = await read_body(receive, call.headers.get(b"content-length"), bytes_max)
        if call.body:
            check_media_type(call.headers.get(b"content-type"))


def request_id_of(headers: Mapping[bytes, bytes]) -> str:
    """Return the request's id, as the caller or Serve named it, else a new one."""
    given = headers.get(b"x-request-id", b"")
    if 0 < len(given) <= _REQUEST_ID_MAX and given.isascii():
        text = given.decode("ascii")
        if text.isprintable():
            return text
    return os.urandom(16).hex()


def refused(error: ServiceError, request_id: str, retry_after_s: int) -> Reply:
    """Return the reply of a refusal."""
    return Reply(
        problem(error, request_id),
        status=STATUS[error.code],
        headers=tuple(problem_headers(error, retry_after_s=retry_after_s)),
        content_type=PROBLEM_TYPE,
    )


async def send_reply(send: Send, reply: Reply, more_headers: Headers) -> None:
    """Write a reply: one start, one body."""
    body = reply.body if isinstance(reply.body, bytes) else orjson.dumps(reply.body)
    headers = [
        (b"content-type", reply.content_type),
        (b"content-length", b"%d" % len(body)),
        *more_headers,
        *reply.headers,
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _check_acceptable(accept: bytes | None, operation: Operation) -> None:
    if accept is None or b"*/*" in accept or b"application/*" in accept or b"json" in accept:
        return
    if operation.media_type.encode() in accept:
        return
    raise ServiceError(
        ErrorCode.NOT_ACCEPTABLE,
        f"got Accept {accept.decode('ascii', 'replace')[:100]!r}, expected {operation.media_type}",
    )

"""Reads request bodies with a size limit, and parses JSON with a depth limit.

This module knows ASGI's `receive` and JSON, but not the meaning of a body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from core.errors import ErrorCode, ServiceError
from core.json_bounds import find_nul_at, is_deeper_than
from core.json_text import (
    DOUBLED,
    NotJson,
    UnreadNumber,
    duplicate_member,
    may_have_duplicates,
    read_foreign_json,
)
from core.records.api.shape import invalid
from core.records.bounds import BULK_ITEMS_MAX


@dataclass(frozen=True, slots=True)
class Pace:
    """The slowest permitted transfer: `timeout_s`, plus 1 s per `rate_min` bytes transferred."""

    timeout_s: float = 10.0
    rate_min: int = 64 * 1024

    def end(self, began: float, moved: int) -> float:
        """Return the deadline of a transfer, on the clock of `began`, in seconds.

        Args:
            began: the time at which the transfer began, in seconds.
            moved: bytes transferred so far.
        """
        return began + self.timeout_s + moved / self.rate_min


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """The size and depth limits of request bodies.

    Attributes:
        body_bytes_max: bytes of a body, or of an item of a bulk request.
        bulk_body_bytes_max: bytes of the body of a bulk request.
        bulk_items_max: manifests or agent cards in one bulk request.
        json_depth_max: nested levels of objects and arrays.
    """

    body_bytes_max: int = 512 * 1024
    bulk_body_bytes_max: int = 16 * 1024 * 1024
    bulk_items_max: int = BULK_ITEMS_MAX
    json_depth_max: int = 64


Receive = Callable[[], Awaitable[Mapping[str, Any]]]

# The bytes of an oversized body that are read and discarded, so that the client receives the 413
# instead of a connection reset. If the body is longer, the connection is closed.
_DISCARDED_BYTES_MAX = 64 * 1024 * 1024
# Bodies usually arrive within milliseconds. A body that is incomplete after this time is slow.
SLOW_AFTER_S = 1.0


class ClientGone(Exception):
    """The client disconnected before its request was complete, so no reply can be sent."""


async def read_body(
    receive: Receive,
    declared: bytes | None,
    bytes_max: int,
    *,
    pace: Pace,
    on_slow: Callable[[], None] = lambda: None,
) -> bytes:
    """Return the complete body of a request.

    Args:
        receive: the ASGI channel of this request.
        declared: the Content-Length header, None when absent.
        bytes_max: the largest accepted body.
        pace: the slowest permitted transfer.
        on_slow: called once when the body is incomplete after `SLOW_AFTER_S`. It may raise a
            refusal.

    Raises:
        ServiceError: PAYLOAD_TOO_LARGE, REQUEST_TIMEOUT, or the refusal of `on_slow`.
        ClientGone: the client disconnected first.
    """
    is_oversized = declared is not None and declared.isdigit() and int(declared) > bytes_max
    # BytesIO grows in place. Joining 16 MiB of chunks at the end would block the loop for 10 ms.
    text = BytesIO()
    size = 0
    began = asyncio.get_running_loop().time()
    is_slow = False
    end = began + SLOW_AFTER_S
    while True:
        try:
            async with asyncio.timeout_at(end):
                message = await receive()
        except TimeoutError:
            if is_slow:
                raise _too_slow(size, began) from None
            is_slow = True
            on_slow()
            end = pace.end(began, size)
            continue
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if is_slow:
            end = pace.end(began, size)
        if not is_oversized and size > bytes_max:
            is_oversized = True
            text = BytesIO()
        if not is_oversized:
            text.write(chunk)
        if not message.get("more_body", False) or size > _DISCARDED_BYTES_MAX:
            break
    if is_oversized:
        got = declared.decode("ascii", "replace") if declared is not None else f"{size} or more"
        raise ServiceError(
            ErrorCode.PAYLOAD_TOO_LARGE, f"the body has {got} bytes, at most {bytes_max} are read"
        )
    return text.getvalue()


def held_bytes(declared: bytes | None, bytes_max: int) -> int:
    """Return the most bytes that `read_body` may hold in memory for a body.

    Args:
        declared: the Content-Length header, None when absent.
        bytes_max: the largest accepted body.
    """
    if declared is None or not declared.isdigit():
        return bytes_max
    size = int(declared)
    return size if size <= bytes_max else 0  # `read_body` discards an oversized body.


def _too_slow(size: int, began: float) -> ServiceError:
    took_s = asyncio.get_running_loop().time() - began
    return ServiceError(
        ErrorCode.REQUEST_TIMEOUT, f"{size} bytes of the body have arrived in {took_s:.0f} s"
    )


def check_media_type(content_type: bytes | None) -> None:
    """Refuse a body whose Content-Type is not JSON. Without a Content-Type, JSON is assumed.

    Raises:
        ServiceError: UNSUPPORTED_MEDIA_TYPE.
    """
    if content_type is None:
        return
    essence = content_type.split(b";", 1)[0].strip().lower()
    if essence == b"application/json" or (
        essence.startswith(b"application/") and essence.endswith(b"+json")
    ):
        return
    raise ServiceError(
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        f"got a body of type {essence.decode('ascii', 'replace')!r}, expected application/json",
    )


def is_uncoded(codings: bytes) -> bool:
    """Return whether a Content-Encoding header names no coding except `identity`."""
    return all(one.strip().lower() in (b"", b"identity") for one in codings.split(b","))


def coded_body() -> ServiceError:
    """Return the refusal of a body that has a content coding."""
    return ServiceError(
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        "the body has a Content-Encoding: send it without encoding",
    )


def parse_json(body: bytes, *, depth_max: int) -> Any:
    """Return the value of a JSON body.

    Args:
        body: the received bytes.
        depth_max: the most nested levels of objects and arrays.

    Raises:
        ServiceError: INVALID_REQUEST: the body is not JSON, nests too deeply, repeats a member, or
            has U+0000 in a text.
    """
    value = load_json(body)
    # Counting brackets is much cheaper than walking the value, and most bodies have few brackets.
    if body.count(b"{") + body.count(b"[") > depth_max:
        check_depth(value, depth_max)
    if may_have_duplicates(body, value) and (path := duplicate_member(body)) is not None:
        raise invalid(path, *DOUBLED)
    check_nul(body)
    return value


def load_json(body: bytes) -> Any:
    """Return the value of a JSON text.

    A text with a lone surrogate, a number that exceeds a double, or bytes that are not UTF-8 is not
    JSON. An integer of more than 128 digits is refused.

    Raises:
        ServiceError: INVALID_REQUEST: the body is empty, is not JSON, or has a refused integer.
    """
    if not body:
        raise invalid("$", "no body", "a JSON object")
    try:
        return read_foreign_json(body)
    except UnreadNumber as error:
        problem = error.problem
        raise invalid(problem.path or "$", problem.got, problem.expected) from None
    except NotJson as error:
        raise not_json(error) from None


def not_json(error: Exception) -> ServiceError:
    """Return the refusal of a body that the JSON parser rejects."""
    return invalid("$", f"a body that is not JSON ({error})", "a JSON object")


def check_nul(text: bytes, path: str = "$") -> None:
    """Refuse a JSON text that has U+0000 in one of its strings.

    Args:
        text: the JSON text.
        path: the path of its value, for the refusal.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    at = find_nul_at(text)
    if at is not None:
        raise invalid(path, f"text with U+0000 (byte {at})", "text without U+0000")


def check_depth(value: Any, depth_max: int) -> None:
    """Refuse a value that has more than `depth_max` nested levels of objects and arrays.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    if is_deeper_than(value, depth_max):
        got, expected = f"more than {depth_max} levels of nesting", f"at most {depth_max}"
        raise invalid("$", got, expected)

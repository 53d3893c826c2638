"""Request bodies: read with their size measured on the way in, parsed with their depth bounded.

It knows ASGI's `receive` and JSON, not what a body means.
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
    doubled_member,
    may_double,
    read_foreign_json,
)
from core.records.api.shape import invalid
from core.records.bounds import BULK_ITEMS_MAX


@dataclass(frozen=True, slots=True)
class Pace:
    """`timeout_s` for any transfer, and one second more for every `rate_min` bytes of it."""

    timeout_s: float = 10.0
    rate_min: int = 64 * 1024

    def end(self, began: float, moved: int) -> float:
        """Return when a transfer is too slow, by the clock of `began`, in seconds.

        Args:
            moved: bytes so far.
        """
        return began + self.timeout_s + moved / self.rate_min


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """How large a request's body may be, and how deeply it may nest.

    Attributes:
        body_bytes_max: of a body, or of an item of a bulk request.
        bulk_body_bytes_max: of the body of a bulk request.
        bulk_items_max: manifests or cards in one bulk request.
        json_depth_max: levels of objects and arrays.
    """

    body_bytes_max: int = 512 * 1024
    bulk_body_bytes_max: int = 16 * 1024 * 1024
    bulk_items_max: int = BULK_ITEMS_MAX
    json_depth_max: int = 64


Receive = Callable[[], Awaitable[Mapping[str, Any]]]

# What is read and thrown away of an oversized body, so that its sender reads the 413 instead of a
# reset connection; beyond it the connection is closed.
_DISCARDED_BYTES_MAX = 64 * 1024 * 1024
# Bodies arrive within milliseconds; what is incomplete after this time is counted as slow.
SLOW_AFTER_S = 1.0


class ClientGone(Exception):
    """The client left before its request was complete; no reply can reach it."""


async def read_body(
    receive: Receive,
    declared: bytes | None,
    bytes_max: int,
    *,
    pace: Pace,
    on_slow: Callable[[], None] = lambda: None,
) -> bytes:
    """Read a request body whole.

    Args:
        receive: the ASGI channel of this request.
        declared: the Content-Length header, None when absent.
        bytes_max: the largest body accepted.
        pace: how slowly it may arrive.
        on_slow: called once when the body is incomplete after `SLOW_AFTER_S`; may refuse.

    Raises:
        ServiceError: PAYLOAD_TOO_LARGE, REQUEST_TIMEOUT, or what `on_slow` refuses.
        ClientGone: the connection ended first.
    """
    is_oversized = declared is not None and declared.isdigit() and int(declared) > bytes_max
    # Grows in place: joining 16 MiB of chunks at the end would hold the event loop for 10 ms.
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
    """Return how many bytes reading a body may come to hold.

    Args:
        declared: the Content-Length header, None when absent.
        bytes_max: the largest body accepted.
    """
    if declared is None or not declared.isdigit():
        return bytes_max
    size = int(declared)
    return size if size <= bytes_max else 0  # an oversized one is thrown away as it arrives


def _too_slow(size: int, began: float) -> ServiceError:
    took_s = asyncio.get_running_loop().time() - began
    return ServiceError(
        ErrorCode.REQUEST_TIMEOUT, f"{size} bytes of the body have arrived in {took_s:.0f} s"
    )


def check_media_type(content_type: bytes | None) -> None:
    """Refuse a body of another type than JSON; one that names no type is taken as JSON.

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
    """Say whether a body is as its Content-Encoding header found it: identity, or none."""
    return all(one.strip().lower() in (b"", b"identity") for one in codings.split(b","))


def coded_body() -> ServiceError:
    """Return the refusal of a body with a content coding."""
    return ServiceError(
        ErrorCode.UNSUPPORTED_MEDIA_TYPE,
        "the body has a Content-Encoding: send it without encoding",
    )


def parse_json(body: bytes, *, depth_max: int) -> Any:
    """Return the value of a JSON body.

    Args:
        body: the bytes as received.
        depth_max: how deeply objects and arrays may nest.

    Raises:
        ServiceError: INVALID_REQUEST; not JSON, too deep, or with a NUL in a text.
    """
    value = load_json(body)
    # Counting brackets is far cheaper than walking, and most bodies never come near the bound.
    if body.count(b"{") + body.count(b"[") > depth_max:
        check_depth(value, depth_max)
    if may_double(body, value) and (path := doubled_member(body)) is not None:
        raise invalid(path, *DOUBLED)
    check_nul(body)
    return value


def load_json(body: bytes) -> Any:
    """Return what the text says.

    A lone surrogate, a number beyond a double and bytes that are not UTF-8 are no JSON; an integer
    of more than 128 digits is refused.

    Raises:
        ServiceError: INVALID_REQUEST; it is empty or not JSON.
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
    """Return the refusal of a text that a parser cannot read."""
    return invalid("$", f"a body that is not JSON ({error})", "a JSON object")


def check_nul(text: bytes, path: str = "$") -> None:
    """Refuse a JSON text with a NUL in one of its texts.

    Args:
        path: of the text's value.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    at = find_nul_at(text)
    if at is not None:
        raise invalid(path, f"text with U+0000 (byte {at})", "text without U+0000")


def check_depth(value: Any, depth_max: int) -> None:
    """Refuse a value nested deeper than allowed.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    if is_deeper_than(value, depth_max):
        got, expected = f"more than {depth_max} levels of nesting", f"at most {depth_max}"
        raise invalid("$", got, expected)

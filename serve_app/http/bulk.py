"""Parses bulk bodies item by item, and yields to the event loop between items.

Parsing a body of 16 MiB at once would block the event loop too long. A parser in another thread
would block it as long, because the parser holds the interpreter lock. So `cut` scans the body for
the brackets of its items and cuts the items out. The outline is the body without its items. It is
small and is parsed at once. Then each item is parsed separately.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from actors.process.slices import Slices
from core.errors import ErrorCode, Problem, ServiceError
from core.wording import kind_of
from serve_app.http.bodies import parse_json
from serve_app.http.calls import Call, Reply, invalid
from serve_app.http.errors import problem

_LOG = logging.getLogger("callboard.api")

T = TypeVar("T")
R = TypeVar("R")

# The bytes that are scanned without yielding. A scan takes much less time than a slice of the loop.
WINDOW: Final = 128 * 1024
# Matches text without brackets, and complete strings with any content.
_PLAIN: Final = re.compile(rb'(?>[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_QUOTE, _OPEN, _CLOSE, _LIST = b'"'[0], b"{[", b"}]", b"["[0]
# The nesting depth of an item: the body has depth 1, and the array of items has depth 2. Only
# objects and arrays at this depth are cut out.
_ITEM_DEPTH: Final = 3


@dataclass(slots=True)
class BulkItems(Generic[T]):
    """The results of the items of a bulk request.

    `results`: for each item its result or its problem details; None for an accepted item that has
    no result yet. `accepted`: the accepted items. `positions`: the indexes of the accepted items in
    `results`.
    """

    results: list[Any]
    accepted: list[T] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def refuse(self, call: Call, refused: list[ServiceError | None]) -> None:
        """Refuse some of the accepted items.

        Args:
            call: the bulk request.
            refused: the refusal of each accepted item; None: the item stays accepted.
        """
        kept = [index for index, error in enumerate(refused) if error is None]
        for position, error in zip(self.positions, refused, strict=True):
            if error is not None:
                self.results[position] = refusal(call, error)
        self.accepted = [self.accepted[index] for index in kept]
        self.positions = [self.positions[index] for index in kept]

    async def answer(self, replies: list[R], result: Callable[[T, R], Any]) -> Reply:
        """Return the reply to the bulk request; it is a refusal if every item is refused.

        Args:
            replies: the reply to each accepted item, in order. This method empties `replies` and
                `accepted`.
            result: makes an item's result from the accepted item and its reply.
        """
        slices = Slices()
        while self.accepted:
            # The items are freed one by one: freeing 1,000 compiled workflows at once would block
            # the event loop too long.
            made = result(self.accepted.pop(), replies.pop())
            self.results[self.positions.pop()] = made
            await slices.pause()
        is_refusal = all("code" in one for one in self.results)
        return Reply({"results": self.results}, is_refusal=is_refusal)


async def judged(
    call: Call, plural: str, judge: Callable[[int, Any, int], Awaitable[T]]
) -> BulkItems[T]:
    """Parse and check the items of a bulk body. An invalid item does not refuse the other items.

    Args:
        call: the request; its body is read but not parsed.
        plural: the member of the body that holds the items.
        judge: receives the index of an item, the item, and the bytes of its text (0 if the item is
            not an object or an array). Returns the accepted item, or raises its refusal.

    Raises:
        ServiceError: INVALID_REQUEST or PAYLOAD_TOO_LARGE: the body is not a JSON object with 1 to
            `bulk_items_max` items, or is too large without its items.
    """
    bounds = call.services.bounds
    slices = Slices()
    outline, parts = await cut(call.body, bounds.body_bytes_max, slices)
    body = parse_json(outline, depth_max=bounds.json_depth_max)
    items = body.get(plural) if isinstance(body, dict) else None
    if not isinstance(items, list):
        raise invalid(plural, kind_of(items), f"an array of 1 to {bounds.bulk_items_max}")
    if not 0 < len(items) <= bounds.bulk_items_max:
        raise invalid(plural, f"{len(items)} items", f"1 to {bounds.bulk_items_max} items")
    found: BulkItems[T] = BulkItems([None] * len(items))
    for index, item in enumerate(items):
        value, part = item, b""
        if isinstance(item, list):  # `[n]` is the placeholder of part n.
            part = parts[item[0]]
        try:
            if part:
                value = _parsed_item(call, part, index)
            found.accepted.append(await judge(index, value, len(part)))
            found.positions.append(index)
        except ServiceError as error:
            found.results[index] = refusal(call, error)
        except Exception:
            # Edge of one item: its unforeseen error must not refuse the other items.
            _LOG.exception("item failed request_id=%s index=%d", call.request_id, index)
            inside = ServiceError(ErrorCode.INTERNAL_ERROR, "the item failed inside the service")
            found.results[index] = refusal(call, inside)
        await slices.pause()
    return found


def refusal(call: Call, error: ServiceError) -> dict[str, Any]:
    """Return the problem details of a refused item."""
    return problem(error, call.request_id)


async def cut(
    body: bytes, outline_max: int, slices: Slices, *, window: int = WINDOW
) -> tuple[bytes, list[bytes]]:
    """Cut the items out of a bulk body: each object or array in an array of the body's object.

    Returns the outline, in which `[n]` replaces part n, and the parts (the texts of the items).
    The outline and the parts may be invalid JSON.

    Args:
        body: the bytes of the body.
        outline_max: the largest permitted outline, in bytes.
        slices: yields to the event loop when a slice of time is used.
        window: bytes that are scanned without yielding.

    Raises:
        ServiceError: INVALID_REQUEST or PAYLOAD_TOO_LARGE.
    """
    outline: list[bytes] = []
    parts: list[bytes] = []
    size = copied = position = depth = item_at = 0
    is_list = False
    while position < len(body):
        found = _PLAIN.match(body, position, position + window)
        assert found is not None, "the pattern matches nothing, too"
        position = found.end()
        await slices.pause()
        if position >= len(body):
            break
        byte = body[position]
        if byte == _QUOTE:
            position = _after_string(body, position)
            continue
        if byte in _OPEN:
            depth += 1
            if depth == _ITEM_DEPTH - 1:
                is_list = byte == _LIST
            elif depth == _ITEM_DEPTH and is_list:
                item_at = position
        elif byte in _CLOSE:
            if depth == _ITEM_DEPTH and is_list:
                outline += (body[copied:item_at], b"[%d]" % len(parts))
                size += item_at - copied
                parts.append(body[item_at : position + 1])
                copied = position + 1
            depth -= 1
        else:  # The window ended within plain text.
            continue
        position += 1
    outline.append(body[copied:])
    if size + len(outline[-1]) > outline_max:
        raise ServiceError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"the body has more than {outline_max} bytes besides its items",
        )
    return b"".join(outline), parts


def _after_string(body: bytes, opening: int) -> int:
    """Return the position after a string that exceeds the window; the body's end if unterminated.

    Args:
        body: the bytes of the body.
        opening: the position of the opening quote.
    """
    # Searching 16 MiB for quotes takes 1 ms, so this search needs no window.
    position = opening + 1
    while (quote := body.find(b'"', position)) >= 0:
        before = body[position:quote]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return quote + 1
        position = quote + 1
    return len(body)


def _parsed_item(call: Call, part: bytes, index: int) -> Any:
    """Parse one item. It has the same size and depth limits as the body of a single request.

    Raises:
        ServiceError: PAYLOAD_TOO_LARGE or INVALID_REQUEST.
    """
    bounds = call.services.bounds
    most = bounds.body_bytes_max
    if len(part) > most:
        raise ServiceError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"item {index} has {len(part)} bytes, at most {most} are read",
            (Problem(f"[{index}]", f"{len(part)} bytes", f"{most} bytes"),),
        )
    return parse_json(part, depth_max=bounds.json_depth_max)

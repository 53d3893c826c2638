"""Bulk bodies: their items are cut out, parsed and judged one by one, in slices of the event loop.

A body of 16 MiB takes longer to parse than a handler may hold the loop, and a parser in another
thread holds the interpreter just as long. So the text is only scanned for the brackets of its
items; what is left of it without them is small, and each item is parsed by itself.
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

# Scanned in one go: well below a slice.
WINDOW: Final = 128 * 1024
# Text without brackets, and whole strings, whatever is in them.
_PLAIN: Final = re.compile(rb'(?>[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_QUOTE, _OPEN, _CLOSE, _LIST = b'"'[0], b"{[", b"}]", b"["[0]
# body, its array, an item: only containers there are cut out.
_ITEM_DEPTH: Final = 3


@dataclass(slots=True)
class Judged(Generic[T]):
    """What became of the items of a bulk: replies or problems in order, None where accepted."""

    results: list[Any]
    accepted: list[T] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def refuse(self, call: Call, refused: list[ServiceError | None]) -> None:
        """Refuse items that were accepted.

        Args:
            refused: why, for each accepted item; None: it stays.
        """
        kept = [index for index, error in enumerate(refused) if error is None]
        for position, error in zip(self.positions, refused, strict=True):
            if error is not None:
                self.results[position] = refusal(call, error)
        self.accepted = [self.accepted[index] for index in kept]
        self.positions = [self.positions[index] for index in kept]

    async def answer(self, replies: list[R], result: Callable[[T, R], Any]) -> Reply:
        """Return the reply of the bulk; it is a refusal where every item is refused.

        Args:
            replies: one for each accepted item.
            result: makes an item's result of it.
        """
        slices = Slices()
        while self.accepted:
            # Let go of one by one: to free a thousand compiled workflows takes long, too.
            made = result(self.accepted.pop(), replies.pop())
            self.results[self.positions.pop()] = made
            await slices.pause()
        is_refusal = all("code" in one for one in self.results)
        return Reply({"results": self.results}, is_refusal=is_refusal)


async def judged(
    call: Call, plural: str, judge: Callable[[int, Any, int], Awaitable[T]]
) -> Judged[T]:
    """Parse and judge the items of a bulk body; what is wrong with one concerns that one alone.

    Args:
        call: its body is read, not parsed.
        plural: the member that holds the items.
        judge: gets the index, the item and its text's bytes (0 of one that is no container), and
            returns what is to be done.

    Raises:
        ServiceError: INVALID_REQUEST or PAYLOAD_TOO_LARGE; what stands around the items is no JSON
            object, or not with 1 to `bulk_items_max` items.
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
    found: Judged[T] = Judged([None] * len(items))
    for index, item in enumerate(items):
        value, part = item, b""
        if isinstance(item, list):  # it names the part that was cut out there
            part = parts[item[0]]
        try:
            if part:
                value = _parsed_item(call, part, index)
            found.accepted.append(await judge(index, value, len(part)))
            found.positions.append(index)
        except ServiceError as error:
            found.results[index] = refusal(call, error)
        except Exception:
            # The edge of one item: what is unforeseen about it must not refuse the others.
            _LOG.exception("item failed request_id=%s index=%d", call.request_id, index)
            inside = ServiceError(ErrorCode.INTERNAL_ERROR, "the item failed inside the service")
            found.results[index] = refusal(call, inside)
        await slices.pause()
    return found


def refusal(call: Call, error: ServiceError) -> dict[str, Any]:
    """Return the refusal of one item."""
    return problem(error, call.request_id)


async def cut(
    body: bytes, outline_max: int, slices: Slices, *, window: int = WINDOW
) -> tuple[bytes, list[bytes]]:
    """Cut the items out of a bulk body: every container in an array in the body's object.

    Returns the text in which `[n]` stands for the n-th of them, and their texts. Neither is known
    to be JSON yet.

    Args:
        outline_max: bytes that may be left without the items.
        window: bytes that are scanned in one go.

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
        else:  # the window's end, within plain text
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
    """Return where a string ends that does not fit into the window; the body's end if it does not.

    Found by searching quotes, which takes a millisecond for 16 MiB.
    """
    position = opening + 1
    while (quote := body.find(b'"', position)) >= 0:
        before = body[position:quote]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return quote + 1
        position = quote + 1
    return len(body)


def _parsed_item(call: Call, part: bytes, index: int) -> Any:
    """Parse one item, held to the bounds that a body of its own would have.

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

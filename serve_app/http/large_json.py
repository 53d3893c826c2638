"""Large JSON texts are parsed in pieces, between which the event loop turns.

A parser in C builds all values of a text in one go, during which nothing else runs in the process,
in no other thread either: 512 KiB of nested arrays take 20 ms, freeing them half as long. So a
text of many containers is split, level by level, into the texts of its members, which costs a
tenth, and small ones are parsed together. The values of each piece are freed piece by piece, too.
Texts of few containers are parsed at once: that is quicker than splitting them.
design.md section 3 (no long loop turn); contract.md section 2 (Limits); decision 0170.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import msgspec

from actors.process.slices import Slices
from core.json_bounds import is_deeper_than
from core.json_text import may_double
from serve_app.http.bodies import (
    bracket_count,
    check_doubled,
    check_nul,
    load_json,
    not_json,
    parse_json,
    too_deep,
)
from serve_app.http.compiling import IN_LOOP_BYTES_MAX, in_thread

# Members are parsed together up to so many bytes; a larger one is split if it is dense.
PIECE_BYTES: Final = 8 * 1024
# Fewer containers are built and freed within a few milliseconds.
CONTAINERS_AT_ONCE_MAX: Final = 16 * 1024
# One call after a slice may take twice as long.
PARSE_SLICE_MS: Final = 2

_BLANK: Final = b" \t\n\r"


class Pieces:
    """The values that a text was parsed into; they are freed a few at each turn of the loop.

    Kept by who keeps the whole value. That may end in a background task whose client has left, by
    an exception or in another thread, so it is the end of this object that begins the freeing.
    """

    __slots__ = ("_loop", "_values")

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: Any) -> None:
        """Take a value that was parsed in one go."""
        self._values.append(value)

    def __del__(self) -> None:
        if self._values and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_free, self._values, self._loop)


async def parse_large_json(
    caller: str, text: bytes, *, depth_max: int
) -> tuple[Any, Pieces | None]:
    """Parse a JSON text of any size; a small one at once, as `parse_json` does.

    Returns: its value, and what has to be kept as long as that; None of a small one.

    Raises:
        ServiceError: INVALID_REQUEST as of `parse_json`.
    """
    if len(text) <= IN_LOOP_BYTES_MAX:
        return parse_json(text, depth_max=depth_max), None
    parser = _Parser(caller, depth_max)
    value = await parser.parse(text, 0)
    if parser.is_suspect:
        await in_thread(caller, len(text), partial(check_doubled, text))
    check_nul(value, text)
    return value, parser.pieces


class _Parser:
    """Parses one text, into `pieces`. `is_suspect`: a member may stand in it twice."""

    __slots__ = ("_caller", "_depth_max", "_slices", "is_suspect", "pieces")

    def __init__(self, caller: str, depth_max: int) -> None:
        self._caller = caller
        self._depth_max = depth_max
        self._slices = Slices(PARSE_SLICE_MS)
        self.pieces = Pieces()
        self.is_suspect = False

    async def parse(self, text: bytes, above: int) -> Any:
        """Return the value of a text.

        Args:
            above: levels that it is nested in.
        """
        if _is_dense(text):
            return await self._parse_members(text, above)
        return await self._parse_piece(text, above)

    async def _parse_piece(self, text: bytes, above: int) -> Any:
        value = load_json(text)
        self.pieces.add(value)
        await self._slices.pause()
        left = self._depth_max - above
        # Looking takes 20 ms for 512 KiB, but in Python's steps: the loop goes on meanwhile.
        if bracket_count(text) > left and await in_thread(
            self._caller, len(text), partial(is_deeper_than, value, left)
        ):
            raise too_deep(self._depth_max)
        self.is_suspect |= may_double(text, value)
        return value

    async def _parse_members(self, text: bytes, above: int) -> Any:
        """Return the value of an object or array; small members are parsed together."""
        if above == self._depth_max:
            raise too_deep(self._depth_max)
        await self._slices.pause()
        names, members = self._members(text)
        await self._slices.pause()
        values: list[Any] = []
        group: list[msgspec.Raw] = []
        size = 0
        members.reverse()  # taken from the end, and let go of one by one
        while members:
            length = memoryview(members[-1]).nbytes
            if group and size + length > PIECE_BYTES:
                values += await self._parse_piece(_array(group), above)
                group, size = [], 0
            member = members.pop()
            if length > PIECE_BYTES:
                values.append(await self.parse(bytes(member), above + 1))
            else:
                group.append(member)
                size += length
        if group:
            values += await self._parse_piece(_array(group), above)
        return values if names is None else dict(zip(names, values, strict=True))

    def _members(self, text: bytes) -> tuple[list[str] | None, list[msgspec.Raw]]:
        """Return the names of an object's members, None of an array's, and the members' texts.

        Raises:
            ServiceError: INVALID_REQUEST; not JSON, or far too deep.
        """
        try:
            if text.lstrip(_BLANK).startswith(b"["):
                return None, msgspec.json.decode(text, type=list[msgspec.Raw])
            members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except RecursionError:
            raise too_deep(self._depth_max) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise not_json(error) from None
        self.is_suspect |= may_double(text, members)
        return list(members), list(members.values())


def _is_dense(text: bytes) -> bool:
    """Say whether building a text's values at once takes longer than splitting it first."""
    brackets = bracket_count(text)
    if brackets <= CONTAINERS_AT_ONCE_MAX or 2 * brackets <= text.count(b","):
        return False
    return text.lstrip(_BLANK).startswith((b"{", b"["))


def _array(members: list[msgspec.Raw]) -> bytes:
    return b"[" + b",".join(members) + b"]"


def _free(values: list[Any], loop: asyncio.AbstractEventLoop) -> None:
    ends = loop.time() + PARSE_SLICE_MS / 1_000
    values.pop()
    while values and loop.time() < ends:
        values.pop()
    if values:
        loop.call_soon(_free, values, loop)

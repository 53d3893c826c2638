"""Repeats a batch of reads in halves, so that a value which the database refuses fails alone.

Callers' values are checked at the API, so the database should not refuse any. But a batch has
values of many callers, and a value that passed unchecked must not fail the reads of all others.
Decision ledger-writer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import psycopg
from sqlalchemy.exc import DataError

Requested = TypeVar("Requested")
Found = TypeVar("Found")

# Errors for a value that its column cannot have: U+0000, a lone surrogate, an invalid UUID.
_REFUSED_VALUE: Final = (psycopg.DataError, DataError, UnicodeError)


def in_halves(
    read: Callable[[list[Requested]], Awaitable[Sequence[Found]]],
) -> Callable[[list[Requested]], Awaitable[Sequence[Found | BaseException]]]:
    """Return a batch read that is repeated in halves if the database refuses a value.

    Args:
        read: reads a batch and changes nothing.

    Returns: a function that reads a batch; for a refused value it returns the error in its place.
    """

    async def halved(asked: list[Requested]) -> Sequence[Found | BaseException]:
        try:
            return await read(asked)
        except _REFUSED_VALUE as error:
            if len(asked) == 1:
                return [error]
        middle = len(asked) // 2
        return [*await halved(asked[:middle]), *await halved(asked[middle:])]

    return halved

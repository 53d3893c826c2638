"""A batch of reads whose values come from callers: one that the database refuses fails alone.

What a caller sends is judged where it enters, and nothing that it says should be refused here. But
the values of a batch are those of many callers: one that passed unjudged must not be the failure of
all others. Decision ledger-writer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import psycopg
from sqlalchemy.exc import DataError

Asked = TypeVar("Asked")
Found = TypeVar("Found")

# What is raised for a value that is no value of its column: U+0000, a lone surrogate, no UUID.
_REFUSED_VALUE: Final = (psycopg.DataError, DataError, UnicodeError)


def in_halves(
    read: Callable[[list[Asked]], Awaitable[Sequence[Found]]],
) -> Callable[[list[Asked]], Awaitable[Sequence[Found | BaseException]]]:
    """Return a read of a batch that is repeated in halves where the database refuses a value.

    Args:
        read: of a batch; changes nothing.

    Returns: what reads a batch; of a value that is refused, the refusal stands in its place.
    """

    async def halved(asked: list[Asked]) -> Sequence[Found | BaseException]:
        try:
            return await read(asked)
        except _REFUSED_VALUE as error:
            if len(asked) == 1:
                return [error]
        middle = len(asked) // 2
        return [*await halved(asked[:middle]), *await halved(asked[middle:])]

    return halved

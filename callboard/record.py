"""A JSON object whose members have names and types.

Theory of operation: a `Record` is the dict that the service sent, so that it prints, compares and
travels as it came, unknown members included. Its annotations name members in Python's spelling; an
attribute is read from the dict when asked for, nested objects as records too. A member that may be
absent or null reads as None; one that must be there and is not raises AttributeError.
contract.md section 2.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

Json = dict[str, Any]
# The specification's own spelling; every other member is in camel case.
_VERBATIM = frozenset({"price_cents", "latency_ms"})


class Record(dict[str, Any]):
    """A JSON object with typed members."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            member = _members(type(self)).get(name)
            if member is None:
                raise AttributeError(f"{type(self).__name__} has no member {name!r}")
            value = self.get(member.json_name)
            if value is None:
                if member.is_optional:
                    return None
                raise AttributeError(f"this {type(self).__name__} came without {name!r}")
            return member.read(value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict.__repr__(self)})"


R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class _Member:
    """How an attribute is read."""

    json_name: str
    is_optional: bool
    read: Callable[[Any], Any]


@cache
def _members(kind: type[Record]) -> dict[str, _Member]:
    hints = typing.get_type_hints(kind)
    return {
        name: _Member(json_name(name), *_reading(hint))
        for name, hint in hints.items()
        if typing.get_origin(hint) is not ClassVar
    }


def described_members(kind: type[Record]) -> dict[str, bool]:
    """Return the JSON names of a record's members, and whether each may be absent or null."""
    return {member.json_name: member.is_optional for member in _members(kind).values()}


def json_name(name: str) -> str:
    """Return the JSON spelling of a member's Python name."""
    if name in _VERBATIM:
        return name
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _reading(hint: Any) -> tuple[bool, Callable[[Any], Any]]:
    """Return whether a member of this type may be absent, and how its value is read."""
    arms = typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else (hint,)
    is_optional = hint is Any or type(None) in arms
    kind = next((arm for arm in arms if arm is not type(None)), hint)
    inner = typing.get_args(kind)[-1:] or (None,)
    item = inner[0]
    if isinstance(kind, type) and issubclass(kind, Record):
        return is_optional, kind
    if isinstance(item, type) and issubclass(item, Record):
        if typing.get_origin(kind) is list:
            return is_optional, lambda values: [item(value) for value in values]
        return is_optional, lambda values: {name: item(value) for name, value in values.items()}
    return is_optional, lambda value: value


class Page(Record, Generic[R]):
    """A page of a list; `rows` are its records. `client.iterate_…` reads all pages."""

    plural: ClassVar[str]
    row: ClassVar[type[Record]]

    limit: int | None
    offset: int | None
    next_cursor: str | None

    @property
    def rows(self) -> list[R]:
        """The records of this page."""
        return [typing.cast(R, self.row(member)) for member in self[self.plural]]

    def next_place(self, *, has_cursor: bool) -> Json | None:
        """Return where the next page begins, as arguments of the list; None after the last page.

        Args:
            has_cursor: whether the list takes a cursor; else it takes an offset.
        """
        if has_cursor:
            return None if self.next_cursor is None else {"cursor": self.next_cursor}
        count = len(self[self.plural])
        if not count or (self.limit is not None and count < self.limit):
            return None
        return {"offset": (self.offset or 0) + count}

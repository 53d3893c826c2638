"""The base class of reply records: a JSON object whose members have names and types.

Theory of operation: a `Record` is the dict that the service sent, unknown members included. So it
is printed, compared and sent like that dict. The annotations of a subclass declare its members,
with Python names (`core/records/api/shape.py`). An attribute is read from the dict at each access;
a nested object is returned as a record. An optional member that is absent or null is returned as
None. A required member that is absent raises AttributeError.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

from core.errors import ErrorCode
from core.records.api.kinds import Count, Cursor, Limit, Offset, Yes, words
from core.records.api.shape import Body, Json, Maybe, Member, Schema, Schemas, members_of


class Record(dict[str, Any]):
    """A JSON object with typed members.

    A subclass made with `is_open=True` may have members that it does not name.
    """

    is_open: ClassVar[bool] = False

    def __init_subclass__(cls, *, is_open: bool | None = None) -> None:
        super().__init_subclass__()
        if is_open is not None:
            cls.is_open = is_open

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            found = _readings(type(self)).get(name)
            if found is None:
                raise AttributeError(f"{type(self).__name__} has no member {name!r}")
            member, read = found
            value = self.get(member.json_name)
            if value is None:
                if member.may_be_absent or member.may_be_null or member.hint is Any:
                    return None
                raise AttributeError(f"this {type(self).__name__} came without {name!r}")
            return read(value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict.__repr__(self)})"


R = TypeVar("R", bound=Record)
Read = Callable[[Any], Any]


@cache
def _readings(kind: type[Record]) -> dict[str, tuple[Member, Read]]:
    return {member.name: (member, _reading(member.hint)) for member in members_of(kind)}


def _reading(hint: Any) -> Read:
    """Return the function that reads a value of this type; it turns objects into records."""
    inner = typing.get_args(hint)[-1:] or (None,)
    item = inner[0]
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint
    if isinstance(item, type) and issubclass(item, Record):
        if typing.get_origin(hint) is list:
            return lambda values: [item(value) for value in values]
        return lambda values: {name: item(value) for name, value in values.items()}
    return lambda value: value


class Done(Record):
    """A request that was carried out."""

    success: Yes


class Removed(Done):
    """A record that was removed."""

    id: Annotated[str, "Id of the record."]


class PageQuery(Body):
    """The page of a list that a request asks for."""

    limit: Annotated[Maybe[Limit], "Maximum number of rows, 1 to 100. Default 50."] = None
    offset: Annotated[
        Maybe[Offset], "Number of rows to skip. Default 0; large lists are read with `cursor`."
    ] = None
    cursor: Annotated[Maybe[Cursor], "The `nextCursor` of the previous page."] = None


class Page(Record, Generic[R]):
    """A page of a list; `rows` are its records. `client.iterate_…` reads all pages.

    A subclass names the record of its rows, and the member that holds them.
    """

    plural: ClassVar[str]
    row: ClassVar[type[Record]]

    def __init_subclass__(cls, *, plural: str) -> None:
        super().__init_subclass__()
        cls.plural = plural
        (cls.row,) = typing.get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]

    limit: Count
    offset: Count
    next_cursor: str | None

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a page. The member `plural` has the rows."""
        rows = {
            "type": "array",
            "items": schemas.of(cls.row),
            "description": "The rows of this page.",
        }
        others = {one.json_name: schemas.of_member(one) for one in members_of(cls)}
        properties = {cls.plural: rows, **others}
        return {"type": "object", "properties": properties, "required": list(properties)}

    @property
    def rows(self) -> list[R]:
        """The records of this page."""
        return [typing.cast(R, self.row(member)) for member in self[self.plural]]

    def next_place(self) -> Json | None:
        """Return the arguments with which the list returns the next page; None after the last page.

        A page that is not the last page may have fewer rows than its limit, because rows may be
        large.
        """
        return None if self.next_cursor is None else {"cursor": self.next_cursor}


Code = Annotated[str, words(ErrorCode)]


class Defect(Record):
    """One defect of a request."""

    path: Annotated[str, "Member that is wrong, such as `nodes.a.timeoutMs`."]
    got: Annotated[str, "Value that was sent."]
    expected: Annotated[str, "Value that was expected."]


class Problem(Record):
    """Why a request was refused (RFC 9457)."""

    type: Annotated[str, "URI of the kind of problem."]
    title: Annotated[str, "The code in words."]
    status: Annotated[int, "HTTP status."]
    detail: Annotated[str, "One sentence with the values got and expected."]
    code: Annotated[Code, "Error code."]
    error: Annotated[Code, "The same as `code`."]
    message: Annotated[str, "The same as `detail`."]
    request_id: Annotated[str, "Id of the request in the service's logs."]
    errors: Annotated[Maybe[list[Defect]], "The defects of the request, at most 20."]

"""How an operation becomes a method of either client, declared once.

Theory of operation: a method is declared by what it sends (a generator of `Call`s, see `calls.py`)
and by the record that comes back. The descriptor drives the generator with the client that it is
read from: `Client` returns the record, `AsyncClient` an awaitable of it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial, update_wrapper, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from callboard.calls import Call, Steps, keyed, segment, single
from callboard.replies import AuditEntry
from callboard.transport import Asynchronous, Blocking
from core.records.api.record import Page, Record
from core.records.api.shape import json_name

P = ParamSpec("P")
R = TypeVar("R", bound=Record)
R_co = TypeVar("R_co", bound=Record, covariant=True)
Build = Callable[Concatenate[Any, P], Steps]


class Operation(Generic[P, R_co]):
    """An operation as a method of either client, with its own signature.

    Args:
        build: returns what is sent; its first argument is the client.
        record: what the operation returns.
        is_handle: whether a record takes the client, too.
    """

    def __init__(
        self,
        build: Callable[Concatenate[Any, P], Steps],
        record: type[R_co],
        *,
        is_handle: bool = False,
    ) -> None:
        self.build = build
        self.record = record
        self._is_handle = is_handle
        self.__doc__ = build.__doc__

    # Of the class it is a function, so that `help` shows its arguments.
    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Steps]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, R_co]: ...
    @overload
    def __get__(self, client: Asynchronous, owner: type) -> Callable[P, Awaitable[R_co]]: ...
    def __get__(self, client: Blocking | Asynchronous | None, owner: type) -> Any:
        made = partial(self.record, client=client) if self._is_handle else self.record

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            steps = self.build(client, *args, **kwargs)
            return steps if client is None else client._run(steps, made)

        return _shown(call, self.build)


class Iteration(Generic[P, R]):
    """A list as a method that gives the records of all its pages.

    The arguments are those of the list; pages are read as they are needed.
    """

    def __init__(self, listed: Operation[P, Page[R]]) -> None:
        self._listed = listed
        self.__doc__ = f"{listed.__doc__} Reads all pages, one after the other."

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, Iterator[R]]: ...
    @overload
    def __get__(self, client: Asynchronous, owner: type) -> Callable[P, AsyncIterator[R]]: ...
    def __get__(self, client: Blocking | Asynchronous | None, owner: type) -> Any:
        if client is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client._rows(
                partial(self._listed.build, client, *args), self._listed.record, kwargs
            )

        return _shown(call, self._listed.build)


class Stream(Generic[P]):
    """A method that iterates over the entries of a stream, and reconnects when needed."""

    def __init__(self, build: Callable[Concatenate[Any, P], Steps]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, Iterator[AuditEntry]]: ...
    @overload
    def __get__(
        self, client: Asynchronous, owner: type
    ) -> Callable[P, AsyncIterator[AuditEntry]]: ...
    def __get__(self, client: Blocking | Asynchronous | None, owner: type) -> Any:
        if client is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client._entries(self._build(client, *args, **kwargs))

        return _shown(call, self._build)


def _shown(call: Callable[..., Any], build: Callable[..., Steps]) -> Any:
    """Return a method with the name, text and arguments that `help` shows."""
    signature = inspect.signature(build)
    own = list(signature.parameters.values())[1:]
    update_wrapper(call, build).__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return call


def operation(
    record: type[R],
) -> Callable[[Callable[Concatenate[Any, P], Steps]], Operation[P, R]]:
    """Return a decorator that makes a function that returns `Steps` an operation."""
    return lambda build: Operation(build, record)


def sending(
    method: str, path: str, record: type[R], **names: str
) -> Callable[[Callable[Concatenate[Any, P], None]], Operation[P, R]]:
    """Return a decorator that makes a function's arguments an operation; its body is not run.

    Arguments that the path has in braces stand in it. The others are members of the body, of a GET
    or DELETE the query; None is left out. A POST or PATCH carries an idempotency key, so that it
    may be repeated: the argument `idempotency_key`, if it has that, or a new one.

    Args:
        names: of members whose name is not the argument's in camel case.
    """

    def made(declared: Callable[Concatenate[Any, P], None]) -> Operation[P, R]:
        signature = inspect.signature(declared)

        @wraps(declared)
        def build(client: object, /, *args: P.args, **kwargs: P.kwargs) -> Steps:
            bound = signature.bind(client, *args, **kwargs)
            bound.apply_defaults()
            _, *given = bound.arguments.items()
            key, placed, members = None, {}, {}
            for name, value in given:
                if name == "idempotency_key":
                    key = value
                elif f"{{{name}}}" in path:
                    placed[name] = segment(value)
                elif value is not None:
                    sent = dict(value) if isinstance(value, Mapping) else value
                    members[names.get(name) or json_name(name)] = sent
            full_path = path.format(**placed)
            if method in ("GET", "DELETE"):
                return _queried(method, full_path, members)
            headers = {} if method == "PUT" else keyed(key)
            return single(Call(method, full_path, body=members, headers=headers))

        return Operation(build, record)

    return made


def reading(path: str, record: type[R]) -> Operation[[str], R]:
    """Return the operation that reads one record by its id; the record's text is its own.

    Args:
        path: of the record, `{}` for the id.
    """

    def read(client: object, record_id: str) -> Steps:
        return single(Call("GET", path.format(segment(record_id))))

    read.__doc__ = f"Read {_small(record)}"
    return Operation(read, record)


def removing(path: str, record: type[R], *twins: str, **others: Any) -> Operation[[str], R]:
    """Return the operation that removes one record by its id.

    Args:
        path: of the record, `{}` for the id.
        twins: the members of the reply that are the id, too.
        others: further members of the reply.
    """

    def remove(client: object, record_id: str) -> Steps:
        ids = dict.fromkeys(("id", *twins), record_id)
        done = {"success": True, **ids, **others}
        return single(Call("DELETE", path.format(segment(record_id)), done=done))

    remove.__doc__ = f"Remove one by its id. Returns {_small(record)}"
    return Operation(remove, record)


def listing(
    path: str, query: Callable[P, object], page: type[R], **defaults: Any
) -> Operation[P, R]:
    """Return the operation that reads a page of a list; its arguments are the query's members.

    Args:
        path: of the list.
        query: the class of its query.
        page: the class of its pages.
        defaults: of arguments that are not given.
    """

    def read(client: object, *args: P.args, **kwargs: P.kwargs) -> Steps:
        query(*args, **kwargs)  # refuses an argument that is no member
        given = defaults | kwargs
        members = {json_name(name): _sent(name, value) for name, value in given.items()}
        return _queried("GET", path, members)

    return _of_query(read, query, page)


def listing_of(
    path: str, query: Callable[P, object], page: type[R]
) -> Operation[Concatenate[str, P], R]:
    """Return the operation that reads a page of a list that belongs to one record.

    Args:
        path: of the list, `{}` for the record's id.
        query: the class of its query.
        page: the class of its pages.
    """

    def read(client: object, record_id: str, /, *args: P.args, **kwargs: P.kwargs) -> Steps:
        return listing(path.format(segment(record_id)), query, page).build(client, *args, **kwargs)

    return _of_query(read, query, page, "record_id")


def _of_query(
    read: Callable[..., Steps], query: Callable[..., object], page: type[R], *ids: str
) -> Operation[Any, R]:
    """Return the operation of a list, with the query's members as the arguments `help` shows."""
    own = inspect.signature(query)
    first = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("client", *ids)
    ]
    shown = own.replace(parameters=[*first, *own.parameters.values()])
    read.__signature__ = shown  # type: ignore[attr-defined]
    read.__doc__ = f"Read {_small(page)}"
    return Operation(read, page)


def _small(record: type[Record]) -> str:
    """Return the text of a record, for the middle of a sentence."""
    what = record.__doc__ or ""
    return what[:1].lower() + what[1:]


def _queried(method: str, path: str, members: Mapping[str, Any]) -> Steps:
    given = {name: value for name, value in members.items() if value is not None}
    flags = {name: str(value).lower() for name, value in given.items() if isinstance(value, bool)}
    return single(Call(method, path, query=given | flags))


def _sent(name: str, value: Any) -> Any:
    """Return a filter as it is sent; times are given in Unix milliseconds."""
    if name.endswith("_time") and isinstance(value, int):
        return datetime.fromtimestamp(value / 1_000, UTC).isoformat()
    return value

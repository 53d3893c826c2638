"""Descriptors that turn one declaration of an operation into a method of both clients.

Theory of operation: a declaration consists of a generator of `Call`s (see `calls.py`) and of the
class of the reply's record. The descriptor runs the generator on the client whose attribute was
read. The method of `Client` returns the record; the method of `AsyncClient` returns an awaitable of
the record.
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
    """A descriptor that offers an operation as a method of both clients.

    Args:
        build: returns the steps of the operation; its first argument is the client. The method has
            the signature of `build` without that argument.
        record: the class of the record that the method returns.
        is_handle: whether `record` also takes the argument `client`.
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

    # If the attribute is read from the class, it is a function, so that `help` shows its arguments.
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
    """A descriptor for a method that iterates over the records of all pages of a list.

    The method's arguments are those of the list operation. The method reads a page only when the
    iteration reaches this page.
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
    """A descriptor for a method that iterates over a stream's entries and reconnects as needed."""

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
    """Give a method the name, docstring and arguments of `build`, which `help` shows; return it."""
    signature = inspect.signature(build)
    own = list(signature.parameters.values())[1:]
    update_wrapper(call, build).__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return call


def operation(
    record: type[R],
) -> Callable[[Callable[Concatenate[Any, P], Steps]], Operation[P, R]]:
    """Return a decorator that turns a function that returns `Steps` into an operation."""
    return lambda build: Operation(build, record)


def sending(
    method: str, path: str, record: type[R], **names: str
) -> Callable[[Callable[Concatenate[Any, P], None]], Operation[P, R]]:
    """Return a decorator that derives an operation from a function's signature.

    The function's body is not run. An argument whose name is in braces in the path replaces that
    part of the path. The other arguments become members of the body, or of the query if the method
    is GET or DELETE; None is omitted. A POST or PATCH carries an idempotency key, so that it can be
    repeated: the value of the argument `idempotency_key`, if there is one, or a new key.

    Args:
        names: by argument name, each JSON name that is not the argument's name in camel case.
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
    """Return the operation that reads one record by its id.

    The operation's docstring is derived from the record's docstring.

    Args:
        path: the record's path, with `{}` in place of the id.
    """

    def read(client: object, record_id: str) -> Steps:
        return single(Call("GET", path.format(segment(record_id))))

    read.__doc__ = f"Read {_small(record)}"
    return Operation(read, record)


def removing(path: str, record: type[R], *twins: str, **others: Any) -> Operation[[str], R]:
    """Return the operation that removes one record by its id.

    Args:
        path: the record's path, with `{}` in place of the id.
        twins: members of the reply, besides `id`, whose value is the id. `id`, `twins` and `others`
            form the result if an earlier attempt has removed the record; see `Call.done`.
        others: further members of the reply, with their values.
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
        path: the list's path.
        query: the class of the list's query.
        page: the class of the list's pages.
        defaults: default values of the arguments.
    """

    def read(client: object, *args: P.args, **kwargs: P.kwargs) -> Steps:
        query(*args, **kwargs)  # raises a TypeError for an argument that is no member
        given = defaults | kwargs
        members = {json_name(name): _sent(name, value) for name, value in given.items()}
        return _queried("GET", path, members)

    return _of_query(read, query, page)


def listing_of(
    path: str, query: Callable[P, object], page: type[R]
) -> Operation[Concatenate[str, P], R]:
    """Return the operation that reads a page of a list that belongs to one record.

    Args:
        path: the list's path, with `{}` in place of the record's id.
        query: the class of the list's query.
        page: the class of the list's pages.
    """

    def read(client: object, record_id: str, /, *args: P.args, **kwargs: P.kwargs) -> Steps:
        return listing(path.format(segment(record_id)), query, page).build(client, *args, **kwargs)

    return _of_query(read, query, page, "record_id")


def _of_query(
    read: Callable[..., Steps], query: Callable[..., object], page: type[R], *ids: str
) -> Operation[Any, R]:
    """Return the operation of a list; `help` shows the query's members as its arguments."""
    own = inspect.signature(query)
    first = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("client", *ids)
    ]
    shown = own.replace(parameters=[*first, *own.parameters.values()])
    read.__signature__ = shown  # type: ignore[attr-defined]
    read.__doc__ = f"Read {_small(page)}"
    return Operation(read, page)


def _small(record: type[Record]) -> str:
    """Return a record's docstring with a lower-case first letter, to continue a sentence."""
    what = record.__doc__ or ""
    return what[:1].lower() + what[1:]


def _queried(method: str, path: str, members: Mapping[str, Any]) -> Steps:
    given = {name: value for name, value in members.items() if value is not None}
    flags = {name: str(value).lower() for name, value in given.items() if isinstance(value, bool)}
    return single(Call(method, path, query=given | flags))


def _sent(name: str, value: Any) -> Any:
    """Return a filter's value in the form that the service reads.

    A time that the caller gives in Unix milliseconds becomes an ISO 8601 text.
    """
    if name.endswith("_time") and isinstance(value, int):
        return datetime.fromtimestamp(value / 1_000, UTC).isoformat()
    return value

"""One request as a handler sees it, one reply as it gives it, one operation as it is declared.

A file of `operations` ends in a list of `Operation`s; what they have in common (identity,
permission, rate, body, errors) is done by `serve_app/http/endpoint.py` from what they declare.
contract.md sections 1–3.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from core.canonical import canonical
from core.errors import ErrorCode, Problem, ServiceError
from core.ids import composed_key
from core.records.api import shape
from core.records.api.shape import Body, kind_of
from core.records.bounds import text_defect
from core.trust.access import Principal, may
from serve_app.callers.limits import RateClass
from serve_app.services import Services

B = TypeVar("B", bound=Body)

QUERY_BYTES_MAX = 8_192
REPLAYED = (b"idempotency-replayed", b"true")


class Repeats(StrEnum):
    """What an operation does with an `Idempotency-Key` (docs/decisions/0014)."""

    # It changes nothing, or the newest call is what counts.
    IGNORED = "ignored"
    # The key is that of its one command, and the reply is made from that command's stored result.
    BY_COMMAND = "by_command"
    # The reply itself is kept under the key.
    BY_REPLY = "by_reply"
    # As by_reply, but only the handler finds out whose key it is.
    BY_HANDLER = "by_handler"


@dataclass(frozen=True, slots=True)
class RepeatKey:
    """The caller's idempotency key with the hash of the request it was sent with."""

    text: str
    request_hash: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler answers. `body`: anything orjson writes, or bytes that are sent as such."""

    body: Any
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"


@dataclass(slots=True)
class Call:
    """One request: who asks, from which address, for what, with which body.

    `right`: that the operation takes.
    """

    services: Services
    method: str
    path_values: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    query_string: bytes
    raw_path: bytes
    request_id: str
    right: str | None = None
    address: str = ""
    principal: Principal | None = None
    body: bytes = b""
    json: Any = None
    repeat_key: RepeatKey | None = None
    repeats: Repeats = Repeats.IGNORED
    _query: dict[str, str] | None = field(default=None, repr=False)
    _parsed: dict[type[Body], Body] = field(default_factory=dict, repr=False)

    @property
    def caller(self) -> Principal:
        """The caller of an operation that declared a scope."""
        assert self.principal is not None, "an operation with a scope was called by nobody"
        return self.principal

    @property
    def query(self) -> Mapping[str, str]:
        """The query parameters; of a repeated one the last counts.

        Raises:
            ServiceError: INVALID_REQUEST; the query is too long, is not UTF-8, or holds U+0000.
        """
        if self._query is None:
            self._query = _query_of(self.query_string) if self.query_string else {}
        return self._query

    def parse(self, operation: Operation) -> None:
        """Parse query and body as the operation declares them.

        Raises:
            ServiceError: INVALID_REQUEST with every problem of both.
        """
        problems: list[Problem] = []
        if operation.query is not None:
            self._parsed[operation.query] = shape.read(operation.query, self.query, problems)
        is_parsed_here = not operation.is_agent_reply  # its handler counts the call first
        if is_parsed_here and isinstance(operation.body, type) and issubclass(operation.body, Body):
            raw = self.json if self.body or not operation.is_body_optional else {}
            self._parsed[operation.body] = shape.read(operation.body, raw, problems)
        if problems:
            raise shape.refused(problems)

    def given(self, declared: type[B]) -> B:
        """Return the body, or the query, of an operation that declares this class."""
        value = self._parsed[declared]
        assert isinstance(value, declared)
        return value

    def uuid_in_path(self, name: str, what: str) -> str:
        """Return an id of the path in its usual spelling.

        Args:
            name: as the operation's path has it in braces.
            what: the name of what has the id, for the refusal.

        Raises:
            ServiceError: NOT_FOUND; no id has this form.
        """
        given = self.path_values[name]
        try:
            return str(uuid.UUID(given))
        except ValueError:
            raise not_found(f"{what} {given[:64]}") from None

    def raw_segment(self, position: int) -> str:
        """A part of the path as it was sent, percent signs and all; 0 is the `v1`."""
        parts = self.raw_path.partition(b"?")[0].split(b"/")
        return parts[position + 1].decode("ascii", "replace")

    def require(self, right: str | None, *parties: str) -> None:
        """Refuse unless the caller has the right and is one of the parties, where there are any.

        Raises:
            ServiceError: UNAUTHORIZED, INSUFFICIENT_SCOPE or FORBIDDEN.
        """
        code = may(self.principal, right, parties or None)
        if code is not None:
            raise ServiceError(code, _refusal_text(code, right, parties))

    def may(self, parties: Collection[str | None]) -> bool:
        """Say whether the caller may do this to what is these parties' business."""
        known = [did for did in parties if did is not None]
        return may(self.principal, self.right, known) is None

    def require_party(self, parties: Collection[str | None], what: str) -> None:
        """Refuse unless the caller may know of what is these parties' business.

        Args:
            what: the name of it, for the refusal: that it exists is not disclosed.

        Raises:
            ServiceError: NOT_FOUND.
        """
        if not self.may(parties):
            raise not_found(what)

    def is_party(self, parties: Collection[str | None]) -> bool:
        """Say whether the caller itself is one of these, administrator or not."""
        return self.caller.did in parties

    def holds(self, right: str) -> bool:
        """Say whether the caller has a right that the operation does not always take."""
        return may(self.principal, right) is None

    @property
    def party_did(self) -> str | None:
        """Whose things a list shows: the caller's, None for everybody's."""
        return None if self.may(()) else self.caller.did

    def object_body(self) -> dict[str, Any]:
        """Return a body that the handler parses itself, which must be a JSON object.

        Raises:
            ServiceError: INVALID_REQUEST.
        """
        if not isinstance(self.json, dict):
            raise invalid("$", kind_of(self.json), "a JSON object")
        return self.json

    def command_key(self, fallback: str) -> str:
        """Return the ledger key of this POST's command: by the caller's key, else `fallback`.

        A command that holds the request's hash refuses another request under its key by itself; of
        the others the hash is a part of the key.
        """
        key = self.repeat_key
        if key is None:
            return fallback
        parts = ["http", self.caller.did, key.text]
        if self.repeats is not Repeats.BY_COMMAND:
            parts.append(key.request_hash.hex())
        return composed_key(*parts)

    @property
    def request_hash(self) -> bytes:
        """What a repeat under the same idempotency key must equal; nothing without one."""
        return b"" if self.repeat_key is None else self.repeat_key.request_hash


Handler = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path, whole: what it needs, what it counts as, how it is described.

    `scope`: one of `core.trust.access.RIGHTS`, None for a public one. `single_right`: an operator's
    right that opens it as well. `query`, `body` and `reply`: classes of `core/records/api`, or
    others that describe their schema and that the handler parses; a tuple of replies means one of
    them. `errors`: the refusals it can answer besides those that every operation has. `repeats`:
    what an idempotency key means to it. `may_wait`: it heeds `Prefer: wait`. `is_health`: it
    answers 503 with its usual reply.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    scope: str | None
    single_right: str | None = None
    rate: RateClass
    tag: str
    reply: Any
    query: type[Body] | None = None
    body: Any = None
    errors: tuple[ErrorCode, ...] = ()
    is_bulk_body: bool = False
    is_agent_reply: bool = False
    is_body_optional: bool = False
    is_health: bool = False
    may_wait: bool = False
    rate_of: Callable[[Call], RateClass] | None = None
    repeats: Repeats = Repeats.IGNORED
    media_type: str = "application/json"


def invalid(path: str, got: str, expected: str) -> ServiceError:
    """Return the refusal of one wrong value."""
    detail = f"{path}: got {got[:200]}, expected {expected}"
    return ServiceError(ErrorCode.INVALID_REQUEST, detail, (Problem(path, got, expected),))


def not_found(what: str) -> ServiceError:
    """Return the refusal that also hides what exists but is not the caller's."""
    return ServiceError(ErrorCode.NOT_FOUND, f"{what} is not known")


def canonical_object(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a body that is to be hashed.

    Raises:
        ServiceError: INVALID_REQUEST; it has no canonical form.
    """
    try:
        canonical(value)
    except ValueError as error:
        raise invalid(name, str(error)[:200], "canonical JSON") from None
    return value


@cache
def path_parameters(path: str) -> tuple[str, ...]:
    """Return the names in braces of an operation's path, in their order."""
    return tuple(part[1:-1] for part in path.split("/") if part.startswith("{"))


def _query_of(query_string: bytes) -> dict[str, str]:
    if len(query_string) > QUERY_BYTES_MAX:
        got = f"{len(query_string)} bytes"
        raise invalid("query", got, f"at most {QUERY_BYTES_MAX} bytes")
    try:
        pairs = parse_qsl(query_string.decode(), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise invalid("query", "bytes that are not UTF-8", "UTF-8 text") from None
    for name, value in pairs:
        if (defect := text_defect(value)) is not None:
            raise invalid(name.replace("\0", "\\u0000"), defect, "text without U+0000")
    return dict(pairs)


def _refusal_text(code: ErrorCode, right: str | None, parties: Collection[str]) -> str:
    if code is ErrorCode.UNAUTHORIZED:
        return "no valid API key or access token was given"
    if code is ErrorCode.INSUFFICIENT_SCOPE:
        return f"the credential lacks the scope {right}"
    return f"only {' or '.join(parties)} or an administrator may do this"

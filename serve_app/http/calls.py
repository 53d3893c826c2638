"""Defines `Call` (a request), `Reply` (a handler's reply) and `Operation` (a declared endpoint).

A module of `serve_app/operations` declares each operation in a decorator of its handler
(`Operations.add`). `serve_app/http/endpoint.py` reads these declarations and does what all
operations share: authentication, permission, rate limit, body, errors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any, ParamSpec, Protocol, TypeVar
from urllib.parse import parse_qsl

from msgspec import structs

from core.canonical import canonical
from core.errors import ErrorCode, Problem, ProblemList, ServiceError
from core.ids import CALLERS_KEY, composed_key
from core.message import Message
from core.records.api import shape
from core.records.api.shape import Body, json_name, read_value
from core.records.api.shape import Json as Json
from core.records.api.shape import invalid as invalid
from core.records.bounds import DID_CHARS_MAX, text_defect
from core.trust.access import (
    ADMIN,
    BY_ADDRESS,
    FREE_TIER,
    JWT_KEY_ID,
    Principal,
    authority_used,
    denial,
)
from core.wording import kind_of
from ledger.authority import Authority, AuthorizedCommand, OpenedBy, OwnersCommand, SignedBy
from ledger.commands import Command, Outcome, OutcomeStatus
from serve_app.callers.limits import RateClass
from serve_app.callers.signed_requests import SignedRequest
from serve_app.http.paths import PATH_VALUES, PUBLIC_FORMATS, names_in, path_problem, thing_named
from serve_app.services import Services

B = TypeVar("B", bound=Body)
T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound=Message)

# The names of the query and body fields that identify an agent.
_AGENT_NAMES = ("did", "agent_did")

QUERY_BYTES_MAX = 8_192
REASON_HEADER = b"x-callboard-reason"
REASON_CHARS_MAX = 512
REPLAYED = (b"idempotency-replayed", b"true")
NO_CONTENT = 204
EVENT_STREAM = "text/event-stream"


class Repeats(StrEnum):
    """How an operation treats an `Idempotency-Key` (decision idempotent-requests)."""

    # The key is ignored: the operation changes nothing, or each call overwrites the previous one.
    IGNORED = "ignored"
    # The operation sends one command, which carries the key. The reply is made from the command's
    # stored result.
    BY_COMMAND = "by_command"
    # The reply is stored under the key.
    BY_REPLY = "by_reply"
    # As BY_REPLY, but no command of the operation detects a repeat. A repeat with another
    # credential is therefore refused.
    BY_REPLY_ALONE = "by_reply_alone"
    # As BY_REPLY, but the handler stores the reply, because only the handler identifies the caller.
    BY_HANDLER = "by_handler"


@dataclass(frozen=True, slots=True)
class RepeatKey:
    """The caller's idempotency key, and the hash of the request that carried the key."""

    text: str
    request_hash: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a handler.

    Attributes:
        body: a value that `write_json` serializes, or bytes that are sent unchanged, or an async
            generator of bytes.
        status: the HTTP status.
        headers: the headers besides Content-Type and Content-Length.
        content_type: the media type of the body.
        is_refusal: the request changed nothing. The reply is not stored under an idempotency key.
        is_stream: the body is an async generator of bytes, read at the client's pace.
        is_lasting: the stream ends only when the client disconnects.
    """

    body: Any
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"
    is_refusal: bool = False
    is_stream: bool = False
    is_lasting: bool = False


@dataclass(slots=True)
class Call:
    """One request with its caller, address, path, query and body.

    `path_texts`: the variable parts of the path, keyed by the names in the path template.
    `path_values`: the parsed values of these parts. `right`: the right that the operation requires;
    None for a public operation. `signed`: the signed request; None for other credentials.
    """

    services: Services
    method: str
    path_texts: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    query_string: bytes
    raw_path: bytes
    request_id: str
    right: str | None = None
    address: str = ""
    principal: Principal | None = None
    signed: SignedRequest | None = None
    body: bytes = b""
    json: Any = None
    repeat_key: RepeatKey | None = None
    repeats: Repeats = Repeats.IGNORED
    path_values: dict[str, Any] = field(default_factory=dict)
    # The single right that permitted this call. None while resource scopes suffice.
    used_right: str | None = None
    _parsed: dict[type[Body], Body] = field(default_factory=dict, repr=False)

    @property
    def caller(self) -> Principal:
        """The authenticated caller of an operation that declares a scope."""
        assert self.principal is not None, "an operation with a scope was called without a caller"
        return self.principal

    @property
    def account(self) -> str:
        """The caller's DID or the client's address, under which this call's resources count.

        The address is used for a call without a credential, for a DID that the ledger does not
        store, and for a credential of the rate class `BY_ADDRESS`.
        """
        known = self.principal
        is_by_address = known is None or known.is_stranger or known.rate_class == BY_ADDRESS
        return self.address if known is None or is_by_address else known.did

    def parse(self, operation: Operation) -> None:
        """Parse the path, the query and the body as the operation declares them.

        Raises:
            ServiceError: INVALID_REQUEST with all problems of the three. NOT_FOUND if all problems
                are in the path, and the service chooses the format of the first invalid value.
        """
        problems = ProblemList()
        missing = self._parse_path(problems)
        in_path = len(problems)
        if operation.query is not None:
            values = query_values(self.query_string, problems) if self.query_string else {}
            self._parsed[operation.query] = shape.read(operation.query, values, problems)
        if (model := operation.parsed_body) is not None:
            raw = self.json if self.body or not operation.is_body_optional else {}
            self._parsed[model] = shape.read(model, raw, problems)
        if missing and len(problems) == in_path:
            raise not_found(missing)
        if problems:
            raise shape.refused(problems)

    def _parse_path(self, problems: ProblemList) -> str:
        """Parse the path. Return the object that cannot exist, because its id is invalid.

        "": all values are valid, or a problem of the path gives INVALID_REQUEST.
        """
        missing = ""
        unreadable = path_problem(self.raw_path) if self.path_texts else None
        if unreadable is not None:
            problems.append(unreadable)
            return missing
        for name, text in self.path_texts.items():
            before = len(problems)
            self.path_values[name] = read_value(PATH_VALUES[name], text, json_name(name), problems)
            if len(problems) > before == 0 and name not in PUBLIC_FORMATS:
                missing = f"{thing_named(name)} {text[:100]}"
        return missing

    def given(self, declared: type[B]) -> B:
        """Return the parsed query or body of a type that the operation declares."""
        value = self._parsed[declared]
        assert isinstance(value, declared)
        return value

    def require(self, right: str | None, *parties: str) -> None:
        """Refuse unless the caller has the right and is one of the parties.

        An administrator is always permitted.

        Args:
            right: one of `core.trust.access.RIGHTS`; None: no right is required.
            parties: the DIDs of the parties; none given: the caller need not be a party.

        Raises:
            ServiceError: UNAUTHORIZED, INSUFFICIENT_SCOPE or FORBIDDEN.
        """
        code = self._denial(right, parties or None)
        if code is not None:
            raise ServiceError(code, _refusal_text(code, right, parties))

    def may(self, parties: Collection[str | None]) -> bool:
        """Return whether the caller has the operation's right and is one of the parties.

        Always true for an administrator.
        """
        known = [did for did in parties if did is not None]
        return self._denial(self.right, known) is None

    def require_party(self, parties: Collection[str | None], what: str) -> None:
        """Refuse unless the caller is one of the parties, or an administrator.

        Args:
            parties: the DIDs of the parties of an object.
            what: the name of the object, for the refusal.

        Raises:
            ServiceError: NOT_FOUND, so that the refusal does not disclose that the object exists.
        """
        if not self.may(parties):
            raise not_found(what)

    def is_party(self, parties: Collection[str | None]) -> bool:
        """Return whether the caller's DID is one of the parties, even for an administrator."""
        return self.caller.did in parties

    def holds(self, right: str) -> bool:
        """Return whether the caller has a right. Handlers call it for rights that only some calls
        need."""
        return self._denial(right) is None

    @property
    def party_did(self) -> str | None:
        """The caller's DID, to list only the caller's objects. None for an administrator, who sees
        all objects."""
        return None if self.may(()) else self.caller.did

    @property
    def viewer_did(self) -> str | None:
        """The caller's DID, which decides which agents of private subnets are visible.

        "" for a call without a credential. None for an administrator, who sees all agents.
        """
        if self.may(()):
            return None
        return "" if self.principal is None else self.principal.did

    async def is_hidden(self, did: str) -> bool:
        """Return whether an agent is hidden from the caller, because it is in a private subnet."""
        return await self.services.reader.is_hidden(did, self.viewer_did)

    async def handle(self, operation: Operation) -> Reply:
        """Return the handler's reply.

        A refusal that would disclose that a hidden agent exists becomes NOT_FOUND.

        Raises:
            ServiceError: the refusal of the handler.
        """
        try:
            made = await operation.handler(self)
        except ServiceError as error:
            is_telling = error.code in (ErrorCode.FORBIDDEN, ErrorCode.INVALID_SIGNATURE)
            if is_telling and operation.is_about_agent:
                given = [getattr(one, n, "") for one in self._parsed.values() for n in _AGENT_NAMES]
                for did in filter(None, (self.path_values.get("did"), *given)):
                    if await self.is_hidden(did):
                        raise not_found(f"the agent {did[:DID_CHARS_MAX]}") from None
            raise
        return made if isinstance(made, Reply) else Reply(made)

    def _denial(
        self, right: str | None, parties: Collection[str] | None = None
    ) -> ErrorCode | None:
        """Return the code of a refusal, or None. Set `used_right` if a single right permits."""
        code = denial(self.principal, right, parties)
        if code is None:
            self.used_right = authority_used(self.principal, right, parties) or self.used_right
        return code

    async def commit(
        self, command: Command, *, done: ServiceError | None = None, until_known: bool = False
    ) -> Outcome:
        """Send a command to the ledger with the caller's authority, and return its outcome.

        The commit continues if the client disconnects.

        Args:
            command: the command.
            done: the refusal to raise if another request has already done this one-time action. The
                command must carry `act_hash`.
            until_known: wait until every owner process has read the change.

        Raises:
            ServiceError: the refusal of the ledger, `done`, or LEDGER_UNAVAILABLE.
        """
        gateway = self.services.gateway
        try:
            outcome = await self.services.to_the_end(gateway.commit(self.authorized(command)))
        except ServiceError as error:
            if done is None or error.code is not ErrorCode.KEY_REUSED:
                raise
            raise done from None
        if until_known:
            await gateway.owners.refresh()
        return outcome

    def authorized(self, command: C) -> C:
        """Return a command with the caller's fields filled in.

        The fields are the key (if the command has none), the caller's DID, the credential, and the
        single right that permitted the call, if any.
        """
        if not isinstance(command, AuthorizedCommand):
            return command
        new_id, authority = self.services.new_id(), self.authority
        as_admin = isinstance(command, OwnersCommand) and self.caller.is_admin
        if as_admin and authority is None:
            # The ledger decides whether ownership or this right permits the command.
            authority = Authority(ADMIN, self.reason)
        filled = structs.replace(
            command,
            key=command.key or self.command_key(f"{type(command).__name__}:{new_id}"),
            actor_did=self.caller.did,
            authority=authority,
            credential=self._credential,
        )
        return structs.replace(filled, is_admin=True) if as_admin else filled

    @property
    def authority(self) -> Authority | None:
        """The single right that permitted the call, with the caller's reason.

        None if resource scopes sufficed in all checks so far.

        Raises:
            ServiceError: INVALID_REQUEST: the reason header is invalid.
        """
        return None if self.used_right is None else Authority(self.used_right, self.reason)

    @property
    def _credential(self) -> SignedBy | OpenedBy | None:
        """The caller's credential, which the ledger's writer checks again.

        None for a credential that cannot be revoked: an access token, or the free-tier key.
        """
        caller = self.caller
        if caller.signing_key is not None:
            return SignedBy(caller.did, caller.signing_key)
        return (
            None
            if caller.key_id in (JWT_KEY_ID, FREE_TIER)
            else OpenedBy(caller.key_id, caller.key_hash, caller.did)
        )

    @property
    def reason(self) -> str:
        """The caller's reason for using a single right; "" if the caller gives none.

        Raises:
            ServiceError: INVALID_REQUEST: the reason header is invalid.
        """
        return reason_in(self.headers)

    @property
    def traceparent(self) -> bytes | None:
        """The bytes of the `traceparent` header; None without the header."""
        return self.headers.get(b"traceparent")

    def object_body(self) -> dict[str, Any]:
        """Return the JSON body as an object, for a handler that parses the body itself.

        Raises:
            ServiceError: INVALID_REQUEST: the body is not a JSON object.
        """
        if not isinstance(self.json, dict):
            raise invalid("$", kind_of(self.json), "a JSON object")
        return self.json

    def command_key(self, fallback: str) -> str:
        """Return the ledger key of this POST's command.

        The ledger key is derived from the caller's idempotency key. For a `BY_COMMAND` operation
        the ledger stores the request hash, and refuses a different request under the same key. For
        other operations the request hash is a part of the ledger key.

        Args:
            fallback: the key of the command if the request has no idempotency key.
        """
        key = self.repeat_key
        if key is None:
            return fallback
        hashes = () if self.repeats is Repeats.BY_COMMAND else (key.request_hash.hex(),)
        return self.key_of(key.text, *hashes)

    def key_of(self, text: str, *parts: str) -> str:
        """Return the ledger key for an idempotency key of this caller.

        Args:
            text: the idempotency key.
            parts: further texts that the ledger key must depend on.
        """
        return composed_key(CALLERS_KEY, self.caller.did, text, *parts)

    @property
    def act_hash(self) -> bytes:
        """The request hash of an action that can be done only once: the hash of the command's key.

        A repeat under the same idempotency key has the same hash. Each request without an
        idempotency key has a new hash.
        """
        return hashlib.sha256(self.command_key(self.services.new_id()).encode()).digest()

    @property
    def request_hash(self) -> bytes:
        """The hash that a repeat under the same idempotency key must have; empty without a key."""
        return b"" if self.repeat_key is None else self.repeat_key.request_hash


def replayed(outcome: Outcome) -> tuple[tuple[bytes, bytes], ...]:
    """Return the `Idempotency-Replayed` header if the command was a repeat, else no headers."""
    return (REPLAYED,) if outcome.status is OutcomeStatus.REPEATED else ()


# A handler returns a JSON value, or a `Reply` to set more than the body.
Handler = Callable[[Call], Awaitable[Reply | Json]]
H = TypeVar("H", bound=Handler)


# The default of a field that `Operations.add` fills in.
_BY_ADD: Any = None


@dataclass(frozen=True, slots=True)
class Operation:
    """The declaration of one method on one path.

    Attributes:
        method, path: the HTTP method, and the path template with names in braces.
        handler, summary: the handler, and the first line of its docstring.
        scope: one of `core.trust.access.RIGHTS`; None for a public operation. Default: see
            `Operations`.
        single_right: an operator's right that permits the operation instead of `scope`.
        rate, rate_of: the rate class, or the function that chooses the rate class of a call.
        tag: the group of the operation in the OpenAPI document.
        query, body, reply: classes of `core/records/api`. A `body` that is no subclass of `Body`
            only describes the schema, and the handler parses the body. A tuple of classes in
            `reply` means that a reply has one of these classes.
        errors: the refusals besides those that scope, path and method imply. NOT_FOUND is listed
            only for objects that the body names.
        is_bulk_body: the body is a bulk body; the handler parses it item by item.
        is_agent_reply: the body is an agent's result; the handler parses it.
        is_body_optional: the request may have no body.
        is_health: a reply with the status 503 has the class `reply`, not problem details.
        may_wait: the operation supports `Prefer: wait`.
        check: refuses an invalid JSON body as a whole, before its members are parsed.
        repeats: the meaning of an idempotency key.
        media_type: the media type of the reply.
        other_media_type: a second media type, in which the operation replies if the caller
            accepts it.
        empty: a text that says when the operation replies 204.
    """

    method: str
    path: str
    _: KW_ONLY
    reply: Any
    handler: Handler = _BY_ADD
    summary: str = ""
    scope: str | None = ""
    single_right: str | None = None
    rate: RateClass = _BY_ADD
    tag: str = ""
    query: type[Body] | None = None
    body: Any = None
    errors: tuple[ErrorCode, ...] = ()
    is_bulk_body: bool = False
    is_agent_reply: bool = False
    is_body_optional: bool = False
    is_health: bool = False
    may_wait: bool = False
    rate_of: Callable[[Call], RateClass] | None = None
    check: Callable[[Call], None] | None = None
    repeats: Repeats = _BY_ADD
    media_type: str = "application/json"
    other_media_type: str | None = None
    empty: str = ""

    @property
    def class_by_method(self) -> RateClass:
        """The rate class by the method alone, as HAProxy counts (`haproxy_rate_limits.py`)."""
        return RateClass.READ if self.method == "GET" else RateClass.WRITE

    @property
    def is_about_agent(self) -> bool:
        """Whether the path or the body may name an agent that does not exist."""
        return ErrorCode.NOT_FOUND in self.errors or "{did}" in self.path

    @property
    def is_parsed_by_handler(self) -> bool:
        """Whether the handler parses the body: a bulk body item by item, an agent's reply after
        the handler has identified the agent."""
        return self.is_bulk_body or self.is_agent_reply

    @property
    def parsed_body(self) -> type[Body] | None:
        """The class of a body that is parsed before the handler is called; None without one."""
        if self.is_parsed_by_handler or not isinstance(self.body, type):
            return None
        return self.body if issubclass(self.body, Body) else None

    def __post_init__(self) -> None:
        assert PATH_VALUES.keys() >= set(names_in(self.path)), self.path


class _Decorator(Protocol):
    def __call__(self, handler: H) -> H: ...


def _declaring(
    make: Callable[P, Operation], add: Callable[[Operation, Handler], None]
) -> Callable[P, _Decorator]:
    """Return a function with the parameters of `make`. It returns a decorator that calls `add`."""

    def declare(*args: P.args, **kwargs: P.kwargs) -> _Decorator:
        declared = make(*args, **kwargs)

        def decorate(handler: H) -> H:
            add(declared, handler)
            return handler

        return decorate

    return declare


class Operations(list[Operation]):
    """The operations of one module.

    `add(method, path, reply=…, …)`, with the fields of `Operation`, returns a decorator that adds
    the decorated handler as an operation. The summary is the first line of the handler's docstring.
    By default a GET requires the read scope of the resource and has the rate class READ. Other
    methods require the write scope and have the rate class WRITE. By default the reply of a POST
    that writes is stored under its `Idempotency-Key`.

    Args:
        tag: the group of these operations in the OpenAPI document.
        resource: the resource whose read or write scope an operation requires unless the operation
            declares another scope. Default: the tag.
    """

    def __init__(self, tag: str, resource: str | None = None) -> None:
        super().__init__()
        self._tag = tag
        self._resource = resource or tag
        self.add = _declaring(Operation, self._add)

    def _add(self, declared: Operation, handler: Handler) -> None:
        is_read = declared.method == "GET"
        rate = declared.rate or (RateClass.READ if is_read else RateClass.WRITE)
        is_kept = declared.method == "POST" and rate in (RateClass.WRITE, RateClass.BULK)
        scope = f"{self._resource}:{'read' if is_read else 'write'}"
        operation = replace(
            declared,
            handler=handler,
            summary=(handler.__doc__ or "").partition("\n")[0].removesuffix("."),
            tag=declared.tag or self._tag,
            scope=scope if declared.scope == "" else declared.scope,
            rate=rate,
            repeats=declared.repeats or (Repeats.BY_REPLY if is_kept else Repeats.IGNORED),
            is_body_optional=declared.is_body_optional or declared.body is None,
        )
        self.append(operation)


def not_found(what: str) -> ServiceError:
    """Return NOT_FOUND. Handlers also raise it to hide an object from a caller without access.

    Args:
        what: the name of the object, for the text.
    """
    return ServiceError(ErrorCode.NOT_FOUND, f"{what} is not known")


def found(record: T | None, what: str) -> T:
    """Return the record of a look-up, which must have found one.

    Args:
        record: the result of the look-up.
        what: the name of the record, for the refusal.

    Raises:
        ServiceError: NOT_FOUND: the record is None.
    """
    if record is None:
        raise not_found(what)
    return record


def canonical_object(name: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a body unchanged after checking that it can be hashed.

    Args:
        name: the path of the object in the body, for the refusal.
        value: the object.

    Raises:
        ServiceError: INVALID_REQUEST: the object has no canonical form.
    """
    try:
        canonical(value)
    except ValueError as error:
        raise invalid(name, str(error)[:200], "canonical JSON") from None
    return value


def query_values(query_string: bytes, problems: ProblemList) -> dict[str, str]:
    """Return the parameters of a query. If a parameter is repeated, the last value is returned.

    Args:
        query_string: the query as received, without `?`.
        problems: receives a problem for each value with U+0000. The parameter is omitted.

    Raises:
        ServiceError: INVALID_REQUEST: the query is too long, or not UTF-8.
    """
    if len(query_string) > QUERY_BYTES_MAX:
        got = f"{len(query_string)} bytes"
        raise invalid("query", got, f"at most {QUERY_BYTES_MAX} bytes")
    try:
        pairs = parse_qsl(query_string.decode(), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise invalid("query", "bytes that are not UTF-8", "UTF-8 text") from None
    values = dict(pairs)
    for name, value in pairs:
        if (defect := text_defect(value)) is not None:
            shown = name.replace("\0", "\\u0000")
            problems.append(Problem(shown, defect, "text without U+0000"))
            values.pop(name, None)
    return values


def _refusal_text(code: ErrorCode, right: str | None, parties: Collection[str]) -> str:
    if code is ErrorCode.UNAUTHORIZED:
        return "no valid API key, access token or signature was given"
    if code is ErrorCode.INSUFFICIENT_SCOPE:
        return f"the credential lacks the scope {right}"
    return f"only {' or '.join(parties)} or an administrator may do this"


def reason_in(headers: Mapping[bytes, bytes]) -> str:
    """Return the caller's reason for using a single right; "" if the caller gives none.

    Raises:
        ServiceError: INVALID_REQUEST: the reason is too long, not printable or not UTF-8.
    """
    given = headers.get(REASON_HEADER, b"")
    try:
        text = given.decode().strip()
    except UnicodeDecodeError:
        text = "\0"
    if len(text) > REASON_CHARS_MAX or not (text.isprintable() or not text):
        expected = f"at most {REASON_CHARS_MAX} printable characters, UTF-8"
        raise invalid(REASON_HEADER.decode(), f"{len(given)} bytes", expected)
    return text

"""One request as a handler sees it, one reply as it gives it, one operation as it is declared.

A file of `operations` declares each of its operations above the handler (`Operations.add`); what
they have in common (identity, permission, rate, body, errors) is done by
`serve_app/http/endpoint.py` from what they declare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypedDict, TypeVar, Unpack
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
from serve_app.http.paths import PATH_VALUES, names_in, path_problem
from serve_app.services import Services

B = TypeVar("B", bound=Body)
T = TypeVar("T")
C = TypeVar("C", bound=Message)

# The members of bodies that name an agent.
_AGENT_NAMES = ("did", "agent_did")

QUERY_BYTES_MAX = 8_192
REASON_HEADER = b"x-callboard-reason"
REASON_CHARS_MAX = 512
REPLAYED = (b"idempotency-replayed", b"true")
NO_CONTENT = 204
EVENT_STREAM = "text/event-stream"


class Repeats(StrEnum):
    """What an operation does with an `Idempotency-Key` (decision idempotent-requests)."""

    # It changes nothing, or the newest call is what counts.
    IGNORED = "ignored"
    # The key is that of its one command, and the reply is made from that command's stored result.
    BY_COMMAND = "by_command"
    # The reply itself is kept under the key.
    BY_REPLY = "by_reply"
    # As by_reply, but no command recognises a repeat: another credential does not do it again.
    BY_REPLY_ALONE = "by_reply_alone"
    # As by_reply, but only the handler finds out whose key it is.
    BY_HANDLER = "by_handler"


@dataclass(frozen=True, slots=True)
class RepeatKey:
    """The caller's idempotency key with the hash of the request it was sent with."""

    text: str
    request_hash: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler answers. `body`: what `write_json` writes, or bytes that are sent as such.

    `is_refusal`: it says that nothing was changed, so it is not kept under an idempotency key.
    `is_stream`: the body is an async generator of bytes, which goes on as the client takes them.
    `is_lasting`: a stream that goes on for as long as the client stays.
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
    """One request: who asks, from which address, for what, with which body.

    `path_texts`: the texts in its path, by their names in braces; `path_values`: the same, parsed.
    `right`: that the operation takes. `signed`: its signature, where it is the credential.
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
    # The right beyond a usual key's that the call was permitted by; None so far.
    used_right: str | None = None
    _parsed: dict[type[Body], Body] = field(default_factory=dict, repr=False)

    @property
    def caller(self) -> Principal:
        """The caller of an operation that declared a scope."""
        assert self.principal is not None, "an operation with a scope was called without a caller"
        return self.principal

    @property
    def account(self) -> str:
        """Whom costs are counted for: the caller, by its address where nothing is stored of it."""
        known = self.principal
        is_by_address = known is None or known.is_stranger or known.rate_class == BY_ADDRESS
        return self.address if known is None or is_by_address else known.did

    def parse(self, operation: Operation) -> None:
        """Parse path, query and body as the operation declares them.

        Raises:
            ServiceError: INVALID_REQUEST with every problem of the three; NOT_FOUND where all that
                is wrong is a path that names nothing (`PathValue.looked_up`).
        """
        problems = ProblemList()
        looked_up = self._parse_path(problems)
        in_path = len(problems)
        if operation.query is not None:
            values = query_values(self.query_string, problems) if self.query_string else {}
            self._parsed[operation.query] = shape.read(operation.query, values, problems)
        if (model := operation.parsed_body) is not None:
            raw = self.json if self.body or not operation.is_body_optional else {}
            self._parsed[model] = shape.read(model, raw, problems)
        if looked_up is not None and 0 < len(problems) == in_path:
            raise not_found(f"{looked_up} {'/'.join(self.path_texts.values())[:100]}")
        if problems:
            raise shape.refused(problems)

    def _parse_path(self, problems: ProblemList) -> str | None:
        """Parse the path; return what is not known where its values are of another form."""
        looked_up = None
        if not self.path_texts:
            return None
        unreadable = path_problem(self.raw_path)
        if unreadable is not None:
            problems.append(unreadable)
            return None
        for name, text in self.path_texts.items():
            declared = PATH_VALUES[name]
            value = read_value(declared.hint, text, json_name(name), problems)
            self.path_values[name] = value
            looked_up = declared.looked_up
        return looked_up

    def given(self, declared: type[B]) -> B:
        """Return the query or the body of an operation that declares this."""
        value = self._parsed[declared]
        assert isinstance(value, declared)
        return value

    def require(self, right: str | None, *parties: str) -> None:
        """Refuse unless the caller has the right and is one of the parties, where there are any.

        Raises:
            ServiceError: UNAUTHORIZED, INSUFFICIENT_SCOPE or FORBIDDEN.
        """
        code = self._denial(right, parties or None)
        if code is not None:
            raise ServiceError(code, _refusal_text(code, right, parties))

    def may(self, parties: Collection[str | None]) -> bool:
        """Say whether the caller may do this to what is these parties' business."""
        known = [did for did in parties if did is not None]
        return self._denial(self.right, known) is None

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
        return self._denial(right) is None

    @property
    def party_did(self) -> str | None:
        """Whose things a list shows: the caller's, None for everybody's."""
        return None if self.may(()) else self.caller.did

    @property
    def viewer_did(self) -> str | None:
        """The DID to which agents in private subnets are shown: the caller's, "" without a caller;
        None for an administrator, who sees all."""
        if self.may(()):
            return None
        return "" if self.principal is None else self.principal.did

    async def is_hidden(self, did: str) -> bool:
        """Say whether the caller may not know of an agent: its card is in a private subnet."""
        return await self.services.reader.is_hidden(did, self.viewer_did)

    async def handle(self, operation: Operation) -> Reply:
        """Return the handler's reply. A refusal that tells of a hidden agent becomes NOT_FOUND.

        Raises:
            ServiceError: what the handler refused.
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
        """Return why the caller is denied; note by which single right it is permitted."""
        code = denial(self.principal, right, parties)
        if code is None:
            self.used_right = authority_used(self.principal, right, parties) or self.used_right
        return code

    async def commit(
        self, command: Command, *, done: ServiceError | None = None, until_known: bool = False
    ) -> Outcome:
        """Give a command to the ledger, with the right that permits it; it goes on to its end.

        Args:
            until_known: return when every owner knows what has changed.
            done: the refusal where another request has done before what can be done once; its
                command has the `act_hash`.

        Raises:
            ServiceError: what the ledger refused, or LEDGER_UNAVAILABLE.
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
        """Return a command with what follows the caller: a key of its own where it has none, who
        gives it and with which credential, and by which single right it was permitted, if by any.
        """
        if not isinstance(command, AuthorizedCommand):
            return command
        new_id, authority = self.services.new_id(), self.authority
        as_admin = isinstance(command, OwnersCommand) and self.caller.is_admin
        if as_admin and authority is None:
            # The ledger decides whether it replaces ownership.
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
        """The right beyond a usual key's that the call was permitted by so far, with its reason.

        Raises:
            ServiceError: INVALID_REQUEST; the reason is none.
        """
        return None if self.used_right is None else Authority(self.used_right, self.reason)

    @property
    def _credential(self) -> SignedBy | OpenedBy | None:
        """The caller's credential, where it may end before the writer decides."""
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
        """Why the caller uses a single right, in the caller's words; "" where nothing is said.

        Raises:
            ServiceError: INVALID_REQUEST.
        """
        return reason_in(self.headers)

    @property
    def traceparent(self) -> bytes | None:
        """The caller's `traceparent` as it was sent, None without one."""
        return self.headers.get(b"traceparent")

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
        hashes = () if self.repeats is Repeats.BY_COMMAND else (key.request_hash.hex(),)
        return self.key_of(key.text, *hashes)

    def key_of(self, text: str, *parts: str) -> str:
        """Return the ledger key of what this caller asks for with an idempotency key."""
        return composed_key(CALLERS_KEY, self.caller.did, text, *parts)

    @property
    def act_hash(self) -> bytes:
        """What a repeat of an act that can be done once must equal: the hash of its idempotency
        key; each request without a key is another."""
        return hashlib.sha256(self.command_key(self.services.new_id()).encode()).digest()

    @property
    def request_hash(self) -> bytes:
        """What a repeat under the same idempotency key must equal; nothing without one."""
        return b"" if self.repeat_key is None else self.repeat_key.request_hash


def replayed(outcome: Outcome) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that say whether a command was a repeat."""
    return (REPLAYED,) if outcome.status is OutcomeStatus.REPEATED else ()


# It returns JSON, or a `Reply` where more than the body is to be said.
Handler = Callable[[Call], Awaitable[Reply | Json]]
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path, whole: what it needs, what it counts as, how it is described.

    `scope`: one of `core.trust.access.RIGHTS`, None for a public one. `single_right`: an operator's
    right that opens it as well. `query`, `body` and `reply` are classes of
    `core/records/api`; a body or reply may be another that describes its schema, and that the
    handler parses. A tuple of replies means one of them. `errors`: the refusals it can answer
    besides those that its scope, path and method imply; NOT_FOUND only of what the body names.
    `repeats`: what an idempotency key means to it.
    `check`: refuses a parsed body as a whole, before its members are read.
    `may_wait`: it heeds `Prefer: wait`. `is_health`: it answers 503 with its usual reply.
    `other_media_type`: of its reply, for a caller who accepts that. `empty`: when it answers 204.
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
    check: Callable[[Call], None] | None = None
    repeats: Repeats = Repeats.IGNORED
    media_type: str = "application/json"
    other_media_type: str | None = None
    empty: str = ""

    @property
    def class_by_method(self) -> RateClass:
        """What HAProxy takes it to count as, which knows methods (spent_callers.py)."""
        return RateClass.READ if self.method == "GET" else RateClass.WRITE

    @property
    def is_about_agent(self) -> bool:
        """Whether its path or its body may name an agent that is not known."""
        return ErrorCode.NOT_FOUND in self.errors or "{did}" in self.path

    @property
    def is_parsed_by_handler(self) -> bool:
        """Whether its handler parses the body: item by item, or once it knows who sends it."""
        return self.is_bulk_body or self.is_agent_reply

    @property
    def parsed_body(self) -> type[Body] | None:
        """The model of a body that is parsed before the handler has it; None without one."""
        if self.is_parsed_by_handler or not isinstance(self.body, type):
            return None
        return self.body if issubclass(self.body, Body) else None

    def __post_init__(self) -> None:
        assert PATH_VALUES.keys() >= set(names_in(self.path)), self.path


class Declared(TypedDict, total=False):
    """What an operation declares besides method, path and reply, as `Operation` has it."""

    scope: str | None
    single_right: str
    rate: RateClass
    rate_of: Callable[[Call], RateClass]
    tag: str
    query: type[Body]
    body: Any
    check: Callable[[Call], None]
    errors: tuple[ErrorCode, ...]
    is_bulk_body: bool
    is_agent_reply: bool
    is_body_optional: bool
    is_health: bool
    may_wait: bool
    repeats: Repeats
    media_type: str
    other_media_type: str
    empty: str


class Operations(list[Operation]):
    """The operations of one file.

    Args:
        tag: under which the description lists them.
        resource: whose rights they need unless they declare another scope; default: the tag.
    """

    def __init__(self, tag: str, resource: str | None = None) -> None:
        super().__init__()
        self._tag = tag
        self._resource = resource or tag

    def add(
        self, method: str, path: str, *, reply: Any, **declared: Unpack[Declared]
    ) -> Callable[[H], H]:
        """Return a decorator that adds its handler as an operation.

        The summary is the first line of the handler's docstring. Unless declared, a GET needs the
        right to read and counts as a read, all else needs the right to write and counts as a write,
        and the reply of a POST that writes is kept under its `Idempotency-Key`.
        """
        rate = declared.setdefault("rate", RateClass.READ if method == "GET" else RateClass.WRITE)
        is_kept = method == "POST" and rate in (RateClass.WRITE, RateClass.BULK)
        declared.setdefault("repeats", Repeats.BY_REPLY if is_kept else Repeats.IGNORED)
        declared.setdefault("is_body_optional", "body" not in declared)
        declared.setdefault("tag", self._tag)
        declared.setdefault("scope", f"{self._resource}:{'read' if method == 'GET' else 'write'}")

        def decorate(handler: H) -> H:
            summary = (handler.__doc__ or "").partition("\n")[0].removesuffix(".")
            self.append(
                Operation(
                    method=method,
                    path=path,
                    handler=handler,
                    summary=summary,
                    reply=reply,
                    **declared,
                )
            )
            return handler

        return decorate


def not_found(what: str) -> ServiceError:
    """Return the refusal that also hides what exists but is not the caller's."""
    return ServiceError(ErrorCode.NOT_FOUND, f"{what} is not known")


def found(record: T | None, what: str) -> T:
    """Return a record that was looked up.

    Args:
        what: the name of it, for the refusal.

    Raises:
        ServiceError: NOT_FOUND; there is none.
    """
    if record is None:
        raise not_found(what)
    return record


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


def query_values(query_string: bytes, problems: ProblemList) -> dict[str, str]:
    """Return the parameters of a query; of a repeated one the last counts.

    Args:
        problems: gets those of values that hold U+0000, which are left out.

    Raises:
        ServiceError: INVALID_REQUEST; the query is too long, or not UTF-8.
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
    """Return why a single right is used, in the caller's words; "" where nothing is said.

    Raises:
        ServiceError: INVALID_REQUEST.
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

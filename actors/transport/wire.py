"""Encodes and decodes the messages between processes: msgpack of a closed set of types.

Each request, command and reply is encoded separately, so a batch is a list of bytes, and the length
of a message is its weight. A message that cannot be decoded is refused without an effect on the
other messages. `core/message.py` says which versions understand each other. No process trusts
received bytes: decoding can produce only these messages. Decision messages-and-large-values.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from actors.transport.messages import (
    Moved,
    NotYet,
    OwnerAnswer,
    OwnerReply,
    OwnerRequest,
    PackedPublish,
    PublishRequest,
    WorkflowEnd,
)
from core.errors import ErrorCode, Problem, ServiceError
from core.json_bounds import INTEGER_DIGITS_MAX
from core.message import Message
from core.shards.lease_messages import Lease, Renewal
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.registry import ANY_COMMAND

log = logging.getLogger("callboard.wire")

Value = TypeVar("Value")
Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Unencodable(Exception):
    """A value that cannot be encoded, such as a text with half of a surrogate pair."""


class Undecodable(Exception):
    """Bytes that are not a message of the expected kind."""


class NewerMessage(Undecodable):
    """Bytes with a type name or an enum value that this version does not know.

    The message is not damaged, but comes from a newer version. The receiver refuses the message and
    stores nothing, so a process of the newer version can still process the message.
    """


class Refusal(Message, frozen=True, kw_only=True):
    """The message for a `ServiceError`, or for its subclass `NotYet` or `Moved`."""

    code: ErrorCode
    detail: str
    problems: tuple[Problem, ...] = ()
    retry_after_s: int | None = None
    is_not_yet: bool = False
    is_moved: bool = False

    @classmethod
    def of(cls, error: ServiceError) -> Refusal:
        """Return the message for an error."""
        return cls(
            code=error.code,
            detail=error.detail,
            problems=error.problems,
            retry_after_s=error.retry_after_s,
            is_not_yet=isinstance(error, NotYet),
            is_moved=isinstance(error, Moved),
        )

    def error(self) -> ServiceError:
        """Return the error that this message represents."""
        kind = Moved if self.is_moved else NotYet if self.is_not_yet else ServiceError
        return kind(self.code, self.detail, self.problems, self.retry_after_s)


_ENCODER: Final = msgspec.msgpack.Encoder()
# The msgpack extension type of integers beyond 64 bits, encoded as decimal text. Msgpack itself has
# no such integers.
_INTEGER: Final = 1
# Matches msgspec's error messages for an unknown enum member and for an unknown type name.
_UNKNOWN_NAME: Final = re.compile(
    r"Invalid enum value '|Invalid value '\w+' - at `\$(\.|.*\.)type`", re.DOTALL
)


class Wire(Generic[Value]):
    """Encodes and decodes one kind of message.

    Args:
        kind: the message type, or a union of message types.
    """

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Value] = msgspec.msgpack.Decoder(
            kind, ext_hook=_extension
        )

    def encode(self, value: Value) -> bytes:
        """Return the encoded message. Raises `Unencodable`."""
        try:
            try:
                return _ENCODER.encode(value)
            except OverflowError:
                plain = msgspec.to_builtins(value, builtin_types=(bytes,))
                return _ENCODER.encode(_with_extensions(plain))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Unencodable(str(error)) from None

    def decode(self, body: bytes) -> Value:
        """Return the decoded message.

        Raises:
            NewerMessage: the message is of a newer version.
            Undecodable: the bytes are not a message of this kind.
        """
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            kind = NewerMessage if _UNKNOWN_NAME.match(str(error)) else Undecodable
            raise kind(f"{len(body)} bytes: {error}") from None
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Undecodable(f"{len(body)} bytes: {error}") from None


def _with_extensions(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_extensions(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_with_extensions(member) for member in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return msgspec.msgpack.Ext(_INTEGER, str(value).encode())
    return value


def _extension(code: int, content: memoryview) -> int:
    if code != _INTEGER or len(content) > 1 + INTEGER_DIGITS_MAX:
        raise ValueError(f"got an extension of type {code}, expected an integer")
    return int(bytes(content))


class Crash(Message, frozen=True):
    """The text of an exception that is not a `ServiceError`."""

    text: str


COMMANDS: Final = Wire[Command](ANY_COMMAND)
OUTCOMES: Final = Wire[Outcome](Outcome)
REQUESTS: Final = Wire[OwnerRequest](OwnerRequest)
ENDS: Final = Wire[WorkflowEnd](WorkflowEnd)
RENEWALS: Final = Wire[Renewal](Renewal)
LEASES: Final = Wire[Lease](Lease)
_REPLIES: Final = Wire[OwnerAnswer | Refusal](OwnerAnswer | Refusal)
_FAILURES: Final = Wire[Refusal | Crash](Refusal | Crash)


def packed(request: PublishRequest) -> PackedPublish:
    """Return the encoded form of a publish request. Raises `Unencodable`."""
    return PackedPublish(
        request.workflow_id,
        request.payer_did,
        request.is_dry_run,
        REQUESTS.encode(request),
        request.webhook_url,
    )


def with_workflow_id(
    request: PublishRequest | PackedPublish, workflow_id: str
) -> PublishRequest | PackedPublish:
    """Return a publish request with another workflow id and the same command key.

    A packed request is decoded and encoded again, which takes longer for a large workflow.
    """
    if isinstance(request, PublishRequest):
        return replace(request, workflow_id=workflow_id)
    publish = REQUESTS.decode(request.body)
    assert isinstance(publish, PublishRequest), publish
    return packed(replace(publish, workflow_id=workflow_id))


def encode_failure(error: Exception) -> bytes:
    """Encode the exception of a call: a `ServiceError` with all fields, others only as text."""
    if isinstance(error, ServiceError):
        return _FAILURES.encode(Refusal.of(error))
    return _FAILURES.encode(Crash(repr(error).encode(errors="replace").decode()))


def decode_failure(body: bytes) -> Exception:
    """Return the decoded exception of a call. Raises `Undecodable`."""
    failure = _FAILURES.decode(body)
    return failure.error() if isinstance(failure, Refusal) else RuntimeError(failure.text)


def decode_reply(body: bytes) -> OwnerReply:
    """Return the decoded reply of an owner. Raises `Undecodable`."""
    reply = _REPLIES.decode(body)
    return reply.error() if isinstance(reply, Refusal) else reply


async def answer_commands(
    commit: Callable[[list[Command]], Awaitable[Sequence[Outcome]]], bodies: Sequence[bytes]
) -> list[bytes]:
    """Decode and commit commands; return their encoded outcomes in order.

    Raises: the errors of `commit`.
    """
    outcomes = await _answered(COMMANDS, bodies, commit, _unread_command)
    return [OUTCOMES.encode(outcome) for outcome in outcomes]


async def answer_requests(
    handle: Callable[[list[OwnerRequest]], Awaitable[Sequence[OwnerReply]]],
    bodies: Sequence[bytes],
) -> list[bytes]:
    """Decode and handle requests; return their encoded replies in order.

    Raises: the errors of `handle`.
    """
    replies = await _answered(REQUESTS, bodies, handle, _unread_request)
    return [encode_reply(reply) for reply in replies]


def answer_renewals(
    renew: Callable[[list[Renewal]], Sequence[Lease]], bodies: Sequence[bytes]
) -> list[bytes]:
    """Decode renewals and renew their leases; return the encoded leases in order.

    Raises:
        Undecodable: a renewal cannot be decoded. A lease has no field for this error.
        ServiceError: the error of `renew`.
    """
    return [LEASES.encode(lease) for lease in renew([RENEWALS.decode(body) for body in bodies])]


def encode_reply(reply: OwnerReply) -> bytes:
    """Return the encoded reply of an owner."""
    return _REPLIES.encode(Refusal.of(reply) if isinstance(reply, ServiceError) else reply)


async def _answered(
    wire: Wire[Request],
    bodies: Sequence[bytes],
    answer: Callable[[list[Request]], Awaitable[Sequence[Reply]]],
    refused: Callable[[Undecodable], Reply],
) -> list[Reply]:
    """Return answers in order: from `refused` for undecodable bodies, else from `answer`."""
    read: list[Request] = []
    unread: dict[int, Reply] = {}
    for position, body in enumerate(bodies):
        try:
            read.append(wire.decode(body))
        except Undecodable as error:  # the other messages of the batch are still processed
            log.error("undecodable message reason=%s", error)
            unread[position] = refused(error)
    answers = list(await answer(read)) if read else []
    for position, reply in unread.items():
        answers.insert(position, reply)
    return answers


def _unread_command(error: Undecodable) -> Outcome:
    if isinstance(error, NewerMessage):
        return newer_outcome(error)
    detail = f"the command cannot be read: {error}"
    return Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.INTERNAL_ERROR, detail)


def newer_outcome(error: NewerMessage) -> Outcome:
    """Return the outcome of a command when the command or its outcome is of a newer version."""
    detail = f"the command or its outcome is of a newer version: {error}"
    return Outcome(OutcomeStatus.REJECTED, {"retryAfterS": 1}, ErrorCode.OVERLOADED, detail)


def _unread_request(error: Undecodable) -> ServiceError:
    if isinstance(error, NewerMessage):
        message = f"the request is of a newer version: {error}"
        return ServiceError(ErrorCode.OVERLOADED, message, retry_after_s=1)
    return ServiceError(ErrorCode.INTERNAL_ERROR, f"the request cannot be read: {error}")

"""Sends commands from one process to the ledger: in batches, in order, with idempotent retries.

If the outcome of a commit is unknown (the ledger actor ended, Postgres is down), the commit is
retried until its outcome is known. Keys make retries idempotent. Commands keep their order: at most
one call is in flight, and a retry precedes the next batch. Each retry halves the batch, so a
command that cannot be sent does not block the others. If the caller of a command was cancelled, the
command is not retried.
Reference: money.md (Commands and keys). Decision messages-and-large-values.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import Struct

from actors.transport.channel import Channel
from actors.transport.messages import CALL_BYTES_MAX
from actors.transport.wire import (
    COMMANDS,
    OUTCOMES,
    NewerMessage,
    Undecodable,
    Unencodable,
    newer_outcome,
)
from core.errors import ErrorCode, ServiceError
from ledger.commands import Command, Outcome, OutcomeStatus

log = logging.getLogger("callboard.ledger_client")

RETRY_DELAY_S_MIN = 0.05
RETRY_DELAY_S_MAX = 2.0
# The weight of a command is its length plus this number, for the minimum work of a transaction.
COMMAND_WEIGHT: Final = 512
_CALLER_LEFT: Final = Outcome(
    OutcomeStatus.REJECTED,
    {},
    ErrorCode.LEDGER_UNAVAILABLE,
    "the caller stopped waiting for the outcome",
)


class _PendingCommand(Struct, eq=False):
    """An encoded command.

    `unsent`: the outcome of a command that cannot be encoded. The command stays in the queue, so
    the outcomes keep their order. `is_wanted`: the caller still waits for the outcome.
    """

    key: str
    body: bytes
    unsent: Outcome | None = None
    is_wanted: bool = True


class LedgerClient:
    """Sends the commands of a workflow owner, a replica or the timekeeper to the ledger.

    Args:
        call: sends a batch of encoded commands to the ledger actor and returns their encoded
            outcomes; raises when the outcomes are unknown.
        is_unknown: says whether an exception of `call` means "retry with the same keys".
        on_lost: receives the reason why the outcome of a submitted command stays unknown.
        capacity: the maximum number of waiting commands.
        batch_size: the maximum number of commands in one call.
    """

    def __init__(
        self,
        call: Callable[[list[bytes]], Awaitable[Sequence[bytes]]],
        is_unknown: Callable[[BaseException], bool],
        *,
        on_lost: Callable[[str], None] = log.critical,
        capacity: int,
        batch_size: int,
    ) -> None:
        self._call = call
        self._is_unknown = is_unknown
        self._on_lost = on_lost
        # True while a failed call to the ledger is being retried.
        self.is_down = False
        self._channel: Channel[_PendingCommand, Outcome] = Channel(
            "the ledger",
            self._call_until_known,
            capacity=capacity,
            batch_size=batch_size,
            weight_of=lambda pending: COMMAND_WEIGHT + len(pending.body),
            batch_weight=CALL_BYTES_MAX,
        )

    def has_room(self, payer: str) -> bool:
        """Say whether a payer's share of the queue has room for the commands of new work."""
        return self._channel.has_room(payer)

    @property
    def queued(self) -> int:
        """The number of commands that wait for the next call."""
        return self._channel.queued

    def submit(self, command: Command, done: Callable[[Outcome], None], payer: str = "") -> None:
        """Queue a command without a timeout; call `done` when its outcome is known.

        The command is never refused, because it follows from accepted work of a payer that had
        room. Payers are served round robin; the commands of one payer keep their order.
        """

        def handle_outcome(outcome: Outcome | BaseException) -> None:
            if isinstance(outcome, BaseException):
                self._on_lost(f"{command.key}: {outcome!r}")
            else:
                done(outcome)

        self._channel.submit_always(_encode_command(command), handle_outcome, payer)

    async def commit(self, command: Command, *, timeout_s: float) -> Outcome:
        """Commit one command and return its outcome.

        There is a queue per `actor_did`, and the queues are served round robin.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when the outcome is unknown after `timeout_s`. The
                command may still be applied later, and a retry with its key returns its outcome.
                OVERLOADED when too many commands wait.
        """
        self.raise_when_down()
        pending = _encode_command(command)
        try:
            payer = getattr(command, "actor_did", "")
            async with asyncio.timeout(timeout_s):
                return await self._channel.request(pending, payer)
        except TimeoutError:
            raise ledger_unavailable_error() from None
        finally:
            pending.is_wanted = False

    def raise_when_down(self) -> None:
        """Raise LEDGER_UNAVAILABLE while the ledger is unreachable."""
        if self.is_down:
            raise ledger_unavailable_error()

    async def _call_until_known(self, batch: list[_PendingCommand]) -> Sequence[Outcome]:
        """Send a batch until every outcome is known; after a failure send smaller parts."""
        outcomes: list[Outcome] = []
        delay_s, size = RETRY_DELAY_S_MIN, len(batch)
        while len(outcomes) < len(batch):
            part = batch[len(outcomes) : len(outcomes) + size]
            wanted = [pending for pending in part if pending.is_wanted and pending.unsent is None]
            try:
                bodies = await self._call([pending.body for pending in wanted]) if wanted else ()
                assert len(bodies) == len(wanted), f"{len(bodies)} outcomes of {len(wanted)}"
                found = [_decode_outcome(*pair) for pair in zip(wanted, bodies, strict=True)]
            except Exception as error:  # the edge to another process
                size = max(1, len(part) // 2)
                if self._is_unknown(error):
                    # A full ledger is not down: only this call is retried.
                    self.is_down = not _is_overloaded(error)
                    await asyncio.sleep(delay_s)
                    delay_s = min(delay_s * 2, RETRY_DELAY_S_MAX)
                    continue
                if len(wanted) > 1:
                    continue
                found = [_rejected_outcome(wanted[0].key, error)]
            self.is_down = False
            size, delay_s = 2 * size, RETRY_DELAY_S_MIN
            known = dict(zip(map(id, wanted), found, strict=True))
            outcomes += [known.get(id(pending), pending.unsent or _CALLER_LEFT) for pending in part]
        return outcomes


def ledger_unavailable_error() -> ServiceError:
    """Return the error for a ledger that cannot be reached."""
    return ServiceError(
        ErrorCode.LEDGER_UNAVAILABLE,
        "the ledger cannot be reached; repeat the request with the same Idempotency-Key",
        retry_after_s=1,
    )


def _is_overloaded(error: BaseException) -> bool:
    return isinstance(error, ServiceError) and error.code is ErrorCode.OVERLOADED


def _encode_command(command: Command) -> _PendingCommand:
    try:
        return _PendingCommand(command.key, COMMANDS.encode(command))
    except Unencodable as error:
        return _PendingCommand(command.key, b"", _rejected_outcome(command.key, error))


def _decode_outcome(pending: _PendingCommand, body: bytes) -> Outcome:
    try:
        return OUTCOMES.decode(body)
    except NewerMessage as error:
        log.error("outcome of a newer version key=%s reason=%s", pending.key, error)
        return newer_outcome(error)
    except Undecodable as error:  # the other outcomes of the batch are still valid
        return _rejected_outcome(pending.key, error)


def _rejected_outcome(key: str, error: Exception) -> Outcome:
    """Return the outcome of a command that cannot be sent to the ledger."""
    log.error("command cannot be sent key=%s", key, exc_info=error)
    detail = f"the command cannot be sent to the ledger: {type(error).__name__}"
    return Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.INTERNAL_ERROR, detail)

"""Commands to the ledger from one process: batched, in order, repeated with the same keys.

A commit whose outcome is unknown (the ledger actor died, Postgres is away) is repeated until it is
known: keys make repeats harmless. Order is kept because one call is in flight and a repeat happens
before the next batch leaves. Each repeat is half as large, so that one command that cannot be
carried does not hold up the others; a command whose caller has left is not repeated at all.
design.md section 3; money.md section 4. Decision 0094.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from actors.transport.channel import Channel, ChannelStatistics
from actors.transport.wire import COMMANDS, OUTCOMES, Undecodable, Unencodable
from core.errors import ErrorCode, ServiceError
from ledger.commands import Command, Outcome, OutcomeStatus

log = logging.getLogger("callboard.ledger_client")

RETRY_DELAY_S_MIN = 0.05
RETRY_DELAY_S_MAX = 2.0
# So much is read and committed while another payer's command waits for its turn.
CALL_BYTES_MAX: Final = 128 * 1024
_LEFT: Final = Outcome(
    OutcomeStatus.REJECTED, {}, ErrorCode.LEDGER_UNAVAILABLE, "its caller has left"
)


@dataclass(slots=True, eq=False)
class _Asked:
    """A command as it travels; `is_wanted` until its caller has left without its outcome.

    `unsent`: the outcome, in its turn, of one that does not travel.
    """

    key: str
    body: bytes
    unsent: Outcome | None = None
    is_wanted: bool = True


class LedgerClient:
    """The ledger as seen from a workflow owner or a Serve replica.

    Args:
        call: carries a batch of encoded commands to the ledger actor and returns their encoded
            outcomes; raises when these are unknown.
        is_unknown: whether an exception of `call` means "repeat with the same keys".
        capacity: most commands that may wait.
        batch_size: most commands in one call.
    """

    def __init__(
        self,
        call: Callable[[list[bytes]], Awaitable[Sequence[bytes]]],
        is_unknown: Callable[[BaseException], bool],
        *,
        capacity: int,
        batch_size: int,
    ) -> None:
        self._call = call
        self._is_unknown = is_unknown
        self._is_down = False
        self._channel: Channel[_Asked, Outcome] = Channel(
            "the ledger",
            self._call_until_known,
            capacity=capacity,
            batch_size=batch_size,
            weight_of=lambda asked: len(asked.body),
            batch_weight=CALL_BYTES_MAX,
        )

    @property
    def is_down(self) -> bool:
        """Whether the last attempt to reach the ledger failed and it is being repeated."""
        return self._is_down

    def has_room(self, payer: str) -> bool:
        """Return whether a payer may begin new work, whose commands wait behind those it has."""
        return self._channel.has_room(payer)

    def statistics(self) -> ChannelStatistics:
        """Return the counters of the channel below."""
        return self._channel.statistics()

    def submit(
        self, command: Command, done: Callable[[Outcome | BaseException], None], payer: str = ""
    ) -> None:
        """Queue a command; `done` gets its outcome once that is known, however long it takes.

        Never refused: it follows from work that was accepted while its payer had room. Payers take
        turns; order is kept among the commands of one.
        """
        self._channel.submit_always(_asked(command), done, payer)

    async def wait_room(self, most: int) -> None:
        """Return when at most so many commands wait."""
        await self._channel.wait_room(most)

    async def commit(self, command: Command, *, timeout_s: float) -> Outcome:
        """Commit one command for a waiting caller; those on whose behalf commands come take turns.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when the outcome is not known after `timeout_s`; the
                command may still be applied later, the same key tells. OVERLOADED when too many
                commands wait.
        """
        self.refuse_when_down()
        asked = _asked(command)
        try:
            payer = getattr(command, "actor_did", "")
            return await asyncio.wait_for(self._channel.request(asked, payer), timeout_s)
        except TimeoutError:
            raise unavailable() from None
        finally:
            asked.is_wanted = False

    def refuse_when_down(self) -> None:
        """Raise LEDGER_UNAVAILABLE while the ledger is known to be away."""
        if self._is_down:
            raise unavailable()

    async def _call_until_known(self, batch: list[_Asked]) -> Sequence[Outcome]:
        """Carry a batch, in parts when it cannot be carried whole, until each outcome is known."""
        outcomes: list[Outcome] = []
        delay_s, size = RETRY_DELAY_S_MIN, len(batch)
        while len(outcomes) < len(batch):
            part = batch[len(outcomes) : len(outcomes) + size]
            wanted = [asked for asked in part if asked.is_wanted and asked.unsent is None]
            try:
                bodies = await self._call([asked.body for asked in wanted]) if wanted else ()
                assert len(bodies) == len(wanted), f"{len(bodies)} outcomes of {len(wanted)}"
                found = [_outcome(*pair) for pair in zip(wanted, bodies, strict=True)]
            except Exception as error:  # the edge to another process
                size = max(1, len(part) // 2)
                if self._is_unknown(error):
                    # One that is full is there: it is asked again, others may be answered.
                    self._is_down = not _is_overloaded(error)
                    await asyncio.sleep(delay_s)
                    delay_s = min(delay_s * 2, RETRY_DELAY_S_MAX)
                    continue
                if len(wanted) > 1:
                    continue
                found = [_refused(wanted[0].key, error)]
            self._is_down = False
            size, delay_s = 2 * size, RETRY_DELAY_S_MIN
            known = dict(zip(map(id, wanted), found, strict=True))
            outcomes += [known.get(id(asked), asked.unsent or _LEFT) for asked in part]
        return outcomes


def unavailable() -> ServiceError:
    """Return the error for a ledger that cannot be reached."""
    return ServiceError(
        ErrorCode.LEDGER_UNAVAILABLE,
        "the ledger cannot be reached; repeat the request with the same Idempotency-Key",
        retry_after_s=1,
    )


def _is_overloaded(error: BaseException) -> bool:
    return isinstance(error, ServiceError) and error.code is ErrorCode.OVERLOADED


def _asked(command: Command) -> _Asked:
    try:
        return _Asked(command.key, COMMANDS.encode(command))
    except Unencodable as error:
        return _Asked(command.key, b"", _refused(command.key, error))


def _outcome(asked: _Asked, body: bytes) -> Outcome:
    try:
        return OUTCOMES.decode(body)
    except Undecodable as error:  # the others of its batch have been read
        return _refused(asked.key, error)


def _refused(key: str, error: Exception) -> Outcome:
    """Return the outcome of a command that the ledger's process cannot even be asked for."""
    log.error("command cannot be carried key=%s", key, exc_info=error)
    detail = f"the command cannot be carried to the ledger: {type(error).__name__}"
    return Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.INTERNAL_ERROR, detail)

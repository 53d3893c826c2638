"""The live owners as one replica knows them: who they are, their channels, asking one of them.

Requests go to owners by rendezvous hash, or to the owner that a workflow's row names. One whose
outcome is unknown, after an owner's end, is asked again with the same key until the caller's
deadline. Waiting for workflows costs one long poll per owner, not one call per workflow. design.md
section 3; contract.md section 6 (`Prefer: wait`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from actors.cluster.runtime import ensure_timekeeper
from actors.transport.actor_calls import BatchCall, actor_call, is_unknown_outcome
from actors.transport.channel import Channel
from actors.transport.late_replies import LatePoll
from actors.transport.ledger_client import ledger_unavailable_error
from actors.transport.messages import (
    CALL_BYTES_MAX,
    Late,
    NotYet,
    OwnerAnswer,
    OwnerRequest,
    PackedPublish,
    WorkflowEnd,
)
from actors.transport.names import TIMEKEEPER, pooled_owner
from actors.transport.wire import ENDS, REQUESTS, Undecodable, decode_reply
from core.errors import ServiceError
from core.settings import Settings

log = logging.getLogger("callboard.gateway")

REQUEST_TIMEOUT_S = 15.0
RETRY_DELAY_S = 0.1
OWNERS_REFRESH_S = 1.0
PING_TIMEOUT_S = 2.0
# An owner that says nothing for that long is replaced meanwhile, and reads everything as it starts.
REFRESH_TIMEOUT_S = 10.0
# Requests of a replica that may wait for an owner to know what they have stored.
REFRESHES_MAX = 100_000
# A larger request uses the bulk channel.
LARGE_BYTES = 16 * 1024


class Asked(NamedTuple):
    """A request, the live owner that gets it, if there is one, and in whose turn it is sent.

    `payer`: "" for the service's own.
    """

    request: OwnerRequest | PackedPublish
    owner: str | None
    payer: str


class _OwnerChannels:
    """The channels to one owner: for single requests, for bulks and large requests, for refreshes.

    A call is answered when all of its requests are committed, so requests that are slow to store or
    to read do not share a call with fast ones.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self._single = _owner_channel(name, settings, "handle")
        self._bulk = _owner_channel(name, settings, "handle_bulk")
        self._late = LatePoll(BatchCall(settings, name, "late"))
        refresh = BatchCall(settings, name, "refresh")
        # Who asks during a call shares the next one.
        self._refreshes: Channel[None, None] = Channel(
            f"owner {name}, refreshes",
            refresh,
            capacity=REFRESHES_MAX,
            batch_size=REFRESHES_MAX,
            on_close=refresh.close,
        )

    async def request(self, request: OwnerRequest | PackedPublish, payer: str = "") -> OwnerAnswer:
        """Return the owner's answer. Raises the `ServiceError` that it answers with."""
        if isinstance(request, PackedPublish):
            reply = decode_reply(await self._bulk.request(request.body, payer))
        else:
            body = REQUESTS.encode(request)
            lane = self._bulk if len(body) > LARGE_BYTES else self._single
            reply = decode_reply(await lane.request(body, payer))
            if isinstance(reply, Late):
                reply = await self._late.reply(reply)
        if isinstance(reply, ServiceError):
            raise reply
        return reply

    async def refresh(self) -> None:
        await self._refreshes.request(None)

    def close(self) -> None:
        self._single.close()
        self._bulk.close()
        self._refreshes.close()
        self._late.close()


def _owner_channel(name: str, settings: Settings, method: str) -> Channel[bytes, bytes]:
    call = BatchCall(settings, name, method)
    return Channel(
        f"owner {name}",
        call,
        capacity=settings.replica_requests_max + settings.bulk_items_max,
        batch_size=settings.batch_commands_max,
        weight_of=len,
        batch_weight=CALL_BYTES_MAX,
        on_close=call.close,
    )


def _told(body: bytes) -> WorkflowEnd | None:
    try:
        return ENDS.decode(body)
    except Undecodable as error:  # of another version: the workflow's rows are read
        log.info("got an end that cannot be read reason=%s", error)
        return None


class LiveOwners:
    """The owners that live, and the way to them.

    Args:
        settings: the deployment's.
        on_finished: receives each workflow whose end an owner tells of, and what it tells.
    """

    def __init__(
        self, settings: Settings, on_finished: Callable[[str, WorkflowEnd | None], None]
    ) -> None:
        self._settings = settings
        self._on_finished = on_finished
        self.watcher = os.urandom(8).hex()
        self._timekeeper_owners = actor_call(TIMEKEEPER, "owners")
        self._owners: dict[str, _OwnerChannels] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<LiveOwners {sorted(self._owners)}>"

    def __len__(self) -> int:
        return len(self._owners)

    def follow(self) -> None:
        """Keep the list of owners fresh, until `close`."""
        self._following = asyncio.create_task(self._follow_owners())

    def close(self) -> None:
        """End every task."""
        for task in [self._following, *self._polls.values()]:
            if task is not None:
                task.cancel()

    def choose(self, key: str, owner: str = "") -> str | None:
        """Return a live owner, None when there is none.

        Args:
            key: without that owner, the one with the highest hash for it (rendezvous hashing).
            owner: the name of the owner that is preferred.
        """
        home = pooled_owner(owner)
        if home in self._owners:
            return home
        if len(self._owners) <= 1:
            return next(iter(self._owners), None)
        return max(
            self._owners,
            key=lambda name: hashlib.blake2b(f"{name}|{key}".encode(), digest_size=8).digest(),
        )

    async def request(
        self,
        asked: Callable[[], Awaitable[Asked | None]],
        deadline: float,
        delay_s_max: float = RETRY_DELAY_S,
    ) -> OwnerAnswer:
        """Ask an owner until an outcome is known or the deadline has passed.

        Args:
            asked: called before each try; returns what is asked of which owner. None: nothing is.
            deadline: of `time.monotonic()`.
            delay_s_max: the longest delay between two tries.

        Raises:
            ServiceError: the owner's refusal; its last `NotYet`, or LEDGER_UNAVAILABLE, when the
                deadline has passed.
        """
        refusal = ledger_unavailable_error()
        delay_s = RETRY_DELAY_S
        while True:
            question = await asked()
            if question is None:
                return None
            if question.owner is not None:
                owner = self._owners[question.owner]
                try:
                    async with asyncio.timeout(max(0.01, deadline - time.monotonic())):
                        reply = await owner.request(question.request, question.payer)
                    if reply is not None:
                        return reply
                except NotYet as error:
                    refusal = error
                except ServiceError:
                    raise
                except Exception as error:  # the edge to another process
                    if not (is_unknown_outcome(error) or isinstance(error, TimeoutError)):
                        raise
            if time.monotonic() + delay_s >= deadline:
                raise refusal
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, delay_s_max)

    async def refresh(self) -> None:
        """Let every owner read the changes of agents, health, prices and stakes.

        So a client that registers an agent and publishes at once finds it, although the notice may
        not have arrived. An owner that does not answer reads the change at its next poll.
        """
        asked = [channels.refresh() for channels in self._owners.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_TIMEOUT_S):
                await asyncio.gather(*asked, return_exceptions=True)

    def set_names(self, names: Sequence[str]) -> None:
        """Know these owners as live, and no others."""
        for name in set(self._owners) - set(names):
            self._owners.pop(name).close()
            self._polls.pop(name).cancel()
        for name in set(names) - set(self._owners):
            self._owners[name] = _OwnerChannels(name, self._settings)
            self._polls[name] = asyncio.create_task(self._poll(name))

    async def _follow_owners(self) -> None:
        while True:
            try:
                await self._follow_once()
            except Exception as error:  # the edge to another process; the old list stays in use
                log.info("timekeeper did not answer error=%s", type(error).__name__)
            await asyncio.sleep(OWNERS_REFRESH_S if self._owners else RETRY_DELAY_S)

    async def _follow_once(self) -> None:
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                owners = await self._timekeeper_owners()
            self.set_names(owners)
        except Exception as error:  # the edge to another process
            if is_unknown_outcome(error):
                # It has ended and Ray restarts it, or it died for good and this call creates one.
                await asyncio.to_thread(ensure_timekeeper, self._settings)
            raise

    async def _poll(self, name: str) -> None:
        """Long-poll one owner for the watched workflows that have finished."""
        with contextlib.closing(BatchCall(self._settings, name, "finished")) as call:
            while True:
                try:
                    finished = await call(self.watcher)
                except Exception as error:  # the edge to another process; waiters poll the rows
                    log.info("poll failed owner=%s error=%s", name, type(error).__name__)
                    await asyncio.sleep(RETRY_DELAY_S)
                    continue
                # An owner of an older version tells ids alone.
                ends = finished if isinstance(finished, dict) else dict.fromkeys(finished)
                for workflow_id, body in ends.items():
                    self._on_finished(workflow_id, None if body is None else _told(body))

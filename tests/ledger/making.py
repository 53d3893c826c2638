"""Commands as the actors make them, for a workflow of one or more nodes in a row."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, LiteralString

import psycopg

from core.errors import ErrorCode
from core.ids import uuid7
from core.shards.shard import SHARDS
from core.workflow.events import AttemptFinished, NodeChanged, NodePaid, Record, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import Command, Outcome
from ledger.features.accounts import Deposit
from ledger.features.agents import DeregisterAgent, RegisterAgent
from ledger.features.head_row import WRITER_LOCK
from ledger.features.keys import CreateKey
from ledger.features.shards import GiveShards, JoinCluster, TakeShards
from ledger.features.trust import RevokeAgent, UnrevokeAgent
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow
from ledger.reads.stored import RowDict
from ledger.registry import kind_of
from ledger.tables.write_function import WRITES
from ledger.writer.batch import Batch
from ledger.writer.group_commit import GroupCommit
from ledger.writer.store import Genesis, LedgerStore

AT = 1_700_000_000_000
CREDIT = 1_000_000
GENESIS = Genesis("test", 500)
PAYER = "did:test:payer"
AGENT = "did:test:agent"
MEMBER = "member-1"

NextWriter = Callable[[], Awaitable[LedgerStore]]

_numbers = count(1)


def new_id() -> str:
    """Return a fresh UUID."""
    return uuid7(at_ms=AT, entropy=os.urandom(10))


def new_key() -> str:
    """Return a fresh idempotency key."""
    return f"key:{next(_numbers)}:{new_id()}"


class ToldLives:
    """Leases as a test says: every member lives but those that it has named."""

    def __init__(self, *ended: str) -> None:
        self.ended = set(ended)

    def is_live(self, member: str) -> bool:
        """Say whether the test has not named it."""
        return member not in self.ended

    def may_take(self, member: str) -> bool:
        """Say whether the test has named it."""
        return member in self.ended


class CheckedWriter(LedgerStore):
    """A writer that fails when a row has a member that is no column of its table's description.

    JSON would let such a member pass, and nothing would be stored of it.
    """

    def _statement(self, batch: Batch) -> tuple[LiteralString, Sequence[Any]]:
        for write in WRITES:
            known = {*(column.name for column in write.given), write.lines}
            for row in batch.rows(write):
                assert row.keys() <= known, (write.name, row.keys() - known)
        return super()._statement(batch)

    async def commit(
        self, commands: Sequence[Command], now_ms: int, **options: float
    ) -> list[Outcome]:
        """Commit commands in order, as the group commit does: what goes alone has its own batch."""
        outcomes: list[Outcome] = []
        batch: list[Command] = []
        for command in commands:
            is_alone = kind_of(command).is_barrier(command)
            if batch and (is_alone or kind_of(batch[-1]).is_barrier(batch[-1])):
                outcomes += await super().commit(batch, now_ms, **options)
                batch = []
            batch.append(command)
        return [*outcomes, *await super().commit(batch, now_ms, **options)]


async def open_store(
    url: str,
    writer: type[LedgerStore] = CheckedWriter,
    *,
    lives: ToldLives | None = None,
    genesis: Genesis = GENESIS,
) -> LedgerStore:
    """Open a ledger as its one writer; the session of the writer before is ended."""
    leases = ToldLives() if lives is None else lives
    await end_writer(url)
    store = await writer.open(url, genesis=genesis, now_ms=AT, leases=leases)
    # It has no event loop of a ledger that sends a statement every second.
    await store._connection.execute("SET idle_session_timeout = 0")
    return store


async def end_writer(url: str) -> None:
    """End the session of the writer, if there is one; those that wait for the lock wait on."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(l.pid, 60000) FROM pg_locks l JOIN pg_database d"
            " ON d.oid = l.database AND d.datname = current_database()"
            " WHERE (l.classid::bigint << 32 | l.objid::bigint) = %s AND l.granted",
            (WRITER_LOCK,),
        )


async def open_with_member(
    url: str,
    *,
    micro: int = 100 * CREDIT,
    writer: type[LedgerStore] = CheckedWriter,
    lives: ToldLives | None = None,
) -> LedgerStore:
    """Open a ledger with a payer who has money and a member that holds every shard."""
    store = await open_store(url, writer, lives=lives)
    await begin(store, micro)
    return store


async def begin(store: LedgerStore, micro: int = 100 * CREDIT) -> None:
    """Give a payer money, and a member every shard."""
    await store.commit([join(), take(), deposit(micro)], AT)


def join(member: str = MEMBER, *, address: str = "") -> JoinCluster:
    """Register a member, at an address of its own unless it is said."""
    return JoinCluster(
        key=f"join:{member}",
        member=member,
        machine="machine",
        address=address or f"address of {member}",
        version="1",
    )


def take(
    member: str = MEMBER, *, epoch: int = 0, shards: Iterable[int] = range(SHARDS)
) -> TakeShards:
    """Take shards, all of them unless they are named, that are under this epoch."""
    wanted = tuple((shard, epoch) for shard in shards)
    return TakeShards(key=new_key(), member=member, shards=wanted)


async def hold_all(commits: GroupCommit, member: str = MEMBER) -> int:
    """Register a member that takes every shard; return the epoch that it holds them under."""
    await commits.submit([join(member)])
    # Only a member that is committed lives.
    (outcome,) = await commits.submit([take(member)])
    return int(outcome.result["taken"]["0"])


def give(
    to: str, *, member: str = MEMBER, epoch: int = 1, shards: Iterable[int] = range(SHARDS)
) -> GiveShards:
    """Give shards, all of them unless they are named, that are held under this epoch."""
    given = tuple((shard, epoch) for shard in shards)
    return GiveShards(key=new_key(), member=member, shards=given, to=to)


def deposit(micro: int, *, owner_did: str = PAYER, key: str = "", body: bytes = b"d") -> Deposit:
    """Credit a wallet."""
    return Deposit(
        key=key or new_key(),
        request_hash=body,
        actor_did=owner_did,
        owner_did=owner_did,
        amount_micro=micro,
        description="a deposit",
    )


@dataclass
class Flow:
    """A workflow in the making: each method returns the next command about it.

    `epoch`: of its shard, 1 where a member has taken all shards once.
    """

    epoch: int = 1
    hold: int = 10 * CREDIT
    estimate: int = 5 * CREDIT
    payer: str = PAYER
    member: str = MEMBER
    fee_bps: int = 500
    id: str = field(default_factory=new_id)
    steps: int = 0

    def publish(
        self, *, key: str = "", records: tuple[Record, ...] | None = None, has_hold: bool = True
    ) -> PublishWorkflow:
        """Publish it with its node `a` dispatched."""
        started = (
            WorkflowChanged(WorkflowStatus.RUNNING, AT),
            NodeChanged("a", NodeStatus.DISPATCHED, attempt=1, agent_did=AGENT, price_micro=CREDIT),
        )
        return PublishWorkflow(
            key=key or f"publish:{self.id}",
            request_hash=b"p",
            actor_did=self.payer,
            member=self.member,
            shard_epoch=self.epoch,
            workflow_id=self.id,
            task_id=new_id(),
            payer_did=self.payer,
            intent="test",
            manifest_json='{"nodes":{"a":{"capabilityId":"cap.test.echo.v1"}}}',
            created_ms=AT,
            deadline_ms=AT + 60_000,
            estimate_micro=self.estimate,
            hold_micro=self.hold if has_hold else 0,
            reserved_json="{}",
            fee_bps=self.fee_bps,
            has_hold=has_hold,
            records=started if records is None else records,
        )

    def advance(
        self, *records: Record, key: str = "", epoch: int | None = None, bps: int = 0
    ) -> AdvanceWorkflow:
        """Store one step of it; `bps`: what a failed node costs of its locked stake."""
        self.steps += 1
        return AdvanceWorkflow(
            key=key or f"advance:{self.id}:{self.steps}",
            member=self.member,
            shard_epoch=self.epoch if epoch is None else epoch,
            workflow_id=self.id,
            actor_did=AGENT,
            records=records,
            slash_bps=bps,
        )

    def pay(
        self, micro: int, *, node: str = "a", agent: str = AGENT, key: str = ""
    ) -> AdvanceWorkflow:
        """A node succeeds and is paid."""
        return self.advance(*succeeded(node, micro, agent=agent), key=key)

    def end(self, status: WorkflowStatus = WorkflowStatus.SUCCESS) -> AdvanceWorkflow:
        """It ends; what is left in its escrow returns."""
        return self.advance(WorkflowChanged(status, AT + 100))


def succeeded(node: str, micro: int, *, agent: str = AGENT) -> tuple[Record, ...]:
    """Return the records of a node that succeeded."""
    return (
        AttemptFinished(
            node,
            1,
            agent,
            "success",
            AT,
            AT + 5,
            input_hash="sha256:" + "1" * 64,
            output_hash="sha256:" + "2" * 64,
        ),
        NodeChanged(
            node,
            NodeStatus.SUCCESS,
            attempt=1,
            agent_did=agent,
            price_micro=micro,
            result_json='{"ok":true}',
            started_ms=AT,
            completed_ms=AT + 5,
            cost_micro=micro,
            metrics={"latency_ms": 5},
            counts_as="successful",
        ),
        NodePaid(node, agent, micro),
    )


def card(did: str = AGENT, *, owner_did: str = PAYER, **changes: object) -> RegisterAgent:
    """Register an agent's card."""
    fields: dict[str, object] = {
        "key": new_key(),
        "actor_did": owner_did,
        "owner_did": owner_did,
        "is_admin": False,
        "is_signed": False,
        "did": did,
        "card_json": '{"did":"x"}',
        "endpoint": "http://127.0.0.1:9",
        "capability_ids": ("cap.test.echo.v1",),
        "public_key": None,
        "secret_encrypted": None,
    }
    return RegisterAgent(**{**fields, **changes})  # type: ignore[arg-type]


def revoke(did: str = AGENT, **changes: object) -> RevokeAgent:
    """Revoke an agent, as itself."""
    fields: dict[str, object] = {
        "key": new_key(),
        "request_hash": b"r",
        "actor_did": did,
        "is_admin": False,
        "did": did,
        "reason": "it leaks",
        "evidence_json": '{"seen":1}',
        "expires_ms": None,
    }
    return RevokeAgent(**{**fields, **changes})  # type: ignore[arg-type]


def unrevoke(did: str = AGENT, *, actor: str = "", is_admin: bool = False) -> UnrevokeAgent:
    """Take a revoked agent back, as itself."""
    return UnrevokeAgent(key=new_key(), actor_did=actor or did, is_admin=is_admin, did=did)


def api_key(key_id: str, key_hash: bytes, *, owner_did: str = PAYER) -> CreateKey:
    """Store an API key."""
    return CreateKey(
        key=new_key(),
        actor_did=owner_did,
        key_id=key_id,
        key_hash=key_hash,
        owner_did=owner_did,
        name="a key",
        scopes=("ledger:read", "ledger:write"),
        rate_class="standard",
        rate_limits_json='{"read":5}',
        expires_ms=None,
    )


def leave(did: str = AGENT, *, owner_did: str = PAYER, is_admin: bool = False) -> DeregisterAgent:
    """Deregister an agent."""
    return DeregisterAgent(
        key=new_key(), actor_did=owner_did, owner_did=owner_did, is_admin=is_admin, did=did
    )


async def errors(store: LedgerStore, *commands: Command, at: int = AT) -> list[ErrorCode | None]:
    """Commit commands; return what each is refused for."""
    return [outcome.error for outcome in await store.commit(commands, at)]


async def all_of(pages: AsyncIterator[list[RowDict]]) -> list[RowDict]:
    """Return the rows of all pages."""
    return [row async for page in pages for row in page]

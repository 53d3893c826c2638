"""Rules of who acts: members that start anew, writers that are lost, repeats.

Any earlier command may come again at any time, among others or after the writer was lost.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from core.errors import ErrorCode
from core.shards.lease_messages import HeldShard
from core.shards.shard import SHARDS, shard_of
from ledger.commands import Command, OutcomeStatus
from ledger.errors import LedgerUnavailable
from ledger.features.accounts import Deposit
from ledger.features.agents import DeregisterAgent
from ledger.features.auctions import EndBidding, PlaceBid
from ledger.features.invoices import SettleInvoice
from ledger.features.shards import TakeShards
from ledger.features.stakes import DepositStake, SlashStake, WithdrawStake
from ledger.features.trust import RevokeAgent
from ledger.features.workflow_commands import (
    AdvanceWorkflow,
    PublishWorkflow,
    QuarantineWorkflow,
    ResumeWorkflow,
)
from tests.ledger.machine.base import MoneyMachine, few, four
from tests.ledger.making import Flow, card, deposit, join, new_key

# Losing the writer costs as much as thirty other steps.
STEPS_BETWEEN_LOSSES = 60
# What is always possible would else be done most of the time.
STEPS_BETWEEN_CHANGES = 12
# Between two commands; together they pass midnight in most histories.
PAUSES_MS = (0, 300, 5_000, 1_000_000, 4_000_000)


class MemberRules(MoneyMachine):
    """Members, agents' registrations, lost writers, repeats, the time."""

    def begin_with_members(self, name: str) -> None:
        # At these addresses: so those of before have ended, and are GONE with their last shard.
        self.lives.ended = set(self.store.cluster.members)
        self.holders = list(self.store.cluster.shards)
        self.name, self.starts = name, 0
        self.members = [self.joined(number) for number in range(2)]
        for number, member in enumerate(self.members):
            self.takes(member, [shard for shard in range(SHARDS) if shard % 2 == number])

    def joined(self, number: int) -> str:
        """Start a process at an address; return the member that it is."""
        self.starts += 1
        member = f"member:{self.name}:{self.starts}"
        self.applies(join(member, address=f"address:{number}"))
        return member

    def takes(self, member: str, shards: list[int]) -> None:
        """Take shards whose holder has ended: each is the member's then, under the next epoch."""
        wanted = tuple((shard, self.holders[shard].epoch) for shard in shards)
        taken = self.applies(TakeShards(key=new_key(), member=member, shards=wanted))["taken"]
        assert taken == {str(shard): epoch + 1 for shard, epoch in wanted}
        self.are_moved(member, shards)

    def are_moved(self, member: str, shards: list[int]) -> None:
        moved = [flow for flow in self.flows if shard_of(flow.id) in shards]
        for shard in shards:
            self.holders[shard] = HeldShard(member, self.holders[shard].epoch + 1)
        if moved:
            self.are_fenced_off(moved)
        for flow in moved:
            self.follow_shard(flow)

    def shards_of(self, member: str) -> list[int]:
        return [shard for shard, held in enumerate(self.holders) if held.member == member]

    @precondition(lambda self: self.is_due("member", STEPS_BETWEEN_CHANGES))
    @rule(number=st.integers(0, 1))
    def member_starts_anew(self, number: int) -> None:
        """What it has sent before, and not been answered, must not be taken any more."""
        self.done_now("member")
        ended = self.members[number]
        self.members[number] = self.joined(number)
        self.lives.ended.add(ended)
        if owned := self.shards_of(ended):
            self.takes(self.members[number], owned)
        assert self.state_of(ended) == "gone"

    def state_of(self, member: str) -> str:
        return str(self.auditor.one("SELECT state FROM member WHERE id = %s", member))

    def are_fenced_off(self, flows: list[Flow]) -> None:
        late = [flow.pay(1, node="late", key=new_key()) for flow in flows]
        assert all(one.status is OutcomeStatus.STALE for one in self.commit(*late))

    @precondition(lambda self: self.is_due("agent", STEPS_BETWEEN_CHANGES))
    @rule(number=few, by_owner=st.booleans())
    def leave_or_return(self, number: int, by_owner: bool) -> None:
        """An agent is taken out of service, or comes back; its money stays where it is."""
        self.done_now("agent")
        did = self.agents[number]
        asking = self.owner_of(did) if by_owner else self.payers[2]
        if self.active[did]:
            command: Command = DeregisterAgent(
                key=new_key(), actor_did=asking, owner_did=asking, is_admin=False, did=did
            )
        else:
            command = card(did, owner_did=asking)
        if not by_owner:
            self.refuses(command, ErrorCode.FORBIDDEN)
            return
        self.applies(command)
        self.active[did] = not self.active[did]

    @precondition(lambda self: self.is_due("time", STEPS_BETWEEN_CHANGES))
    @rule(pause=st.sampled_from(PAUSES_MS))
    def time_passes(self, pause: int) -> None:
        self.done_now("time")
        self.now += pause

    # -- repeats and lost writers -----------------------------------------------------------------

    @precondition(lambda self: self.history)
    @rule(indexes=st.lists(st.integers(0, 999), max_size=4), payer=four)
    def repeat(self, indexes: list[int], payer: int) -> None:
        """Earlier commands come again, with a new one behind them."""
        chosen = [self.history[index % len(self.history)] for index in indexes]
        micro = 7 if self.model.room(self.payers[payer]) >= 7 else 0
        new = [deposit(micro, owner_did=self.payers[payer])] if micro else []
        outcomes = self.commit(*(command for command, _ in chosen), *new)
        self.model.wallets[self.payers[payer]] += micro
        for (command, first), outcome in zip(chosen, outcomes, strict=False):
            if self.is_stale(command):
                assert outcome.status is OutcomeStatus.STALE
                continue
            assert outcome.status is OutcomeStatus.REPEATED, (command, outcome)
            assert (outcome.result, outcome.error) == (first.result, first.error)

    @precondition(lambda self: self.is_due("another", STEPS_BETWEEN_CHANGES))
    @rule(index=st.integers(0, 999))
    def key_comes_with_another_request(self, index: int) -> None:
        self.done_now("another")
        hashed = [command for command, _ in self.history if _is_hashed(command)]
        command = replace(hashed[index % len(hashed)], request_hash=b"another")
        outcome = self.one(command)
        if self.is_stale(command):
            assert outcome.status is OutcomeStatus.STALE
        else:
            assert outcome.error is ErrorCode.KEY_REUSED

    def is_stale(self, command: Command) -> bool:
        """Say whether the member that sent a command has lost the workflow's shard since."""
        fenced = PublishWorkflow | AdvanceWorkflow | QuarantineWorkflow | ResumeWorkflow
        if isinstance(command, fenced | EndBidding):
            held = HeldShard(command.member, command.shard_epoch)
            return self.holders[shard_of(command.workflow_id)] != held
        return False

    @precondition(lambda self: self.is_due("loss", STEPS_BETWEEN_LOSSES))
    @rule()
    def crash(self) -> None:
        """The writer's connection dies; a new writer takes over."""
        self.done_now("loss")
        self.auditor.one(
            "SELECT pg_terminate_backend(%s, 5000)", self.store._connection.info.backend_pid
        )
        lost = deposit(1, owner_did=self.payers[0])
        with pytest.raises(LedgerUnavailable):
            self.run(self.store.commit([lost], self.now))
        self.run(self.store.close())
        self.store = self.reopened()

    @precondition(lambda self: self.is_due("loss", STEPS_BETWEEN_LOSSES))
    @rule(slow_ms=st.sampled_from((0, 0, 2_000)))
    def take_over(self, slow_ms: int) -> None:
        """A second writer gets the lock when the session of the first, which lives, has ended: the
        first can write nothing more.

        `slow_ms`: how far its clock is behind.
        """
        self.done_now("loss")
        old = self.store
        self.store = self.reopened()
        with pytest.raises(LedgerUnavailable):
            self.run(old.commit([deposit(1, owner_did=self.payers[0])], self.now))
        self.run(old.close())
        before_ms = self.store.cache.head.latest_ms
        self.run(self.store.commit([], self.now - slow_ms))
        assert self.store.cache.head.latest_ms >= before_ms, "time does not go back"


def _is_hashed(command: Command) -> bool:
    """Say whether a key answers only the very request it was first used for."""
    return isinstance(
        command,
        PublishWorkflow
        | Deposit
        | DepositStake
        | WithdrawStake
        | PlaceBid
        | SettleInvoice
        | SlashStake
        | RevokeAgent,
    )

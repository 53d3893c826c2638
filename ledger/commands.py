"""The commands of the audited write path, as one union, and what becomes of one.

A command is a plain value that the one writer turns into rows. It carries its idempotency key; the
same key twice returns the first outcome, a rejection included. Each is declared in the room of its
feature, and `ledger/registry.py` says how it is handled. Nothing here knows SQL or Ray. Spec:
Settlement rules; money.md (Rules that the database enforces, Commands and keys).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import field

from core.errors import ErrorCode
from core.message import Message
from ledger.accounts.account_commands import CollectCredits, Deposit
from ledger.agents.agent_commands import DeregisterAgent, RebuildReputation, RegisterAgent
from ledger.auctions.auction_commands import EndBidding, KeepBid, PlaceBid
from ledger.capabilities.version_commands import DeprecateVersion, PublishVersion
from ledger.disputes.dispute_commands import GiveFeedback, OpenDispute, ResolveDispute
from ledger.identity.agent_key_commands import RotateAgentKey
from ledger.identity.inheritance_commands import (
    CancelInheritance,
    RunInheritance,
    SetInheritance,
)
from ledger.identity.name_commands import RegisterName, ReleaseName, RenewName, TransferName
from ledger.identity.recovery_commands import (
    CancelRecovery,
    CompleteRecovery,
    RequestRecovery,
    SetGuardians,
)
from ledger.invoices.invoice_commands import CreateInvoice, SettleInvoice
from ledger.keys.key_commands import CreateKey, RevokeKey, RotateKey
from ledger.prices.price_commands import SetPrice
from ledger.quotas.quota_commands import SetQuota
from ledger.shards.shard_commands import ChangeMember, GiveShards, JoinCluster, TakeShards
from ledger.stakes.stake_commands import DepositStake, SlashStake, WithdrawStake
from ledger.tasks.task_commands import SettleTask
from ledger.trust.trust_commands import NoteReading, RevokeAgent, UnrevokeAgent
from ledger.workflows.workflow_commands import (
    AdvanceWorkflow,
    PublishWorkflow,
    QuarantineWorkflow,
    ResumeWorkflow,
)

Command = (
    JoinCluster
    | ChangeMember
    | TakeShards
    | GiveShards
    | PublishWorkflow
    | AdvanceWorkflow
    | QuarantineWorkflow
    | ResumeWorkflow
    | Deposit
    | CollectCredits
    | RegisterAgent
    | DeregisterAgent
    | RebuildReputation
    | CreateKey
    | RevokeKey
    | RotateKey
    | RevokeAgent
    | UnrevokeAgent
    | NoteReading
    | RotateAgentKey
    | RegisterName
    | RenewName
    | TransferName
    | ReleaseName
    | SetInheritance
    | CancelInheritance
    | RunInheritance
    | SetGuardians
    | RequestRecovery
    | CancelRecovery
    | CompleteRecovery
    | SetPrice
    | PublishVersion
    | DeprecateVersion
    | SetQuota
    | DepositStake
    | WithdrawStake
    | SlashStake
    | PlaceBid
    | KeepBid
    | EndBidding
    | CreateInvoice
    | SettleInvoice
    | OpenDispute
    | ResolveDispute
    | GiveFeedback
    | SettleTask
)
# Those that look at stored rows which other commands may change.
BarrierCommand = CollectCredits | CreateInvoice | ResolveDispute | SlashStake


class OutcomeStatus(StrEnum):
    """How a command ended. `stale`: its member does not hold the shard under its epoch
    (nothing stored, never retried)."""

    APPLIED = "applied"
    REPEATED = "repeated"
    REJECTED = "rejected"
    STALE = "stale"


class Outcome(Message, frozen=True):
    """What became of a command. `error` and `detail` are set when it was rejected; a repeat returns
    the first outcome's `result`, `error` and `detail`."""

    status: OutcomeStatus
    result: dict[str, Any] = field(default_factory=dict)
    error: ErrorCode | None = None
    detail: str = ""

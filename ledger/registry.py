"""Every command of the ledger and how it is handled: the one place where features are joined.

A new command: its class and its plan in the room of its feature, its type in `commands.py`, its
line here, a migration for its rows. Decision ledger-writer.
"""

from __future__ import annotations

from typing import Any, Final

from ledger.accounts.account_commands import CollectCredits, Deposit
from ledger.accounts.account_plan import (
    add_deposit_reads,
    plan_collect,
    plan_deposit,
)
from ledger.agents.agent_commands import DeregisterAgent, RebuildReputation, RegisterAgent
from ledger.agents.agent_plan import add_agent_reads, plan_deregister_agent, plan_register_agent
from ledger.agents.reputation import plan_rebuild, weight_of_rebuild
from ledger.auctions.auction_commands import EndBidding, KeepBid, PlaceBid
from ledger.auctions.auction_plan import (
    add_bid_reads,
    add_end_bidding_reads,
    add_kept_bid_reads,
    plan_end_bidding,
    plan_keep_bid,
    plan_place_bid,
)
from ledger.capabilities.version_commands import DeprecateVersion, PublishVersion
from ledger.capabilities.version_plan import (
    add_version_reads,
    plan_deprecate_version,
    plan_publish_version,
)
from ledger.commands import BarrierCommand, Command, Outcome
from ledger.disputes.dispute_commands import GiveFeedback, OpenDispute, ResolveDispute
from ledger.disputes.dispute_plan import (
    plan_give_feedback,
    plan_open_dispute,
    plan_resolve_dispute,
)
from ledger.identity.agent_key_commands import RotateAgentKey
from ledger.identity.agent_key_plan import add_rotate_agent_key_reads, plan_rotate_agent_key
from ledger.identity.inheritance_commands import (
    CancelInheritance,
    RunInheritance,
    SetInheritance,
)
from ledger.identity.inheritance_plan import (
    add_inheritance_reads,
    plan_cancel_inheritance,
    plan_run_inheritance,
    plan_set_inheritance,
)
from ledger.identity.name_commands import RegisterName, ReleaseName, RenewName, TransferName
from ledger.identity.name_plan import (
    add_name_reads,
    plan_register_name,
    plan_release_name,
    plan_renew_name,
    plan_transfer_name,
)
from ledger.identity.recovery_commands import (
    CancelRecovery,
    CompleteRecovery,
    RequestRecovery,
    SetGuardians,
)
from ledger.identity.recovery_plan import (
    add_guardian_reads,
    add_recovery_reads,
    plan_cancel_recovery,
    plan_complete_recovery,
    plan_request_recovery,
    plan_set_guardians,
)
from ledger.invoices.invoice_commands import CreateInvoice, SettleInvoice
from ledger.invoices.invoice_plan import (
    plan_create_invoice,
    plan_settle_invoice,
    weight_of_create_invoice,
)
from ledger.keys.key_commands import CreateKey, RevokeKey, RotateKey
from ledger.keys.key_plan import (
    add_create_key_reads,
    add_ended_key_reads,
    plan_create_key,
    plan_revoke_key,
    plan_rotate_key,
)
from ledger.prices.price_commands import SetPrice
from ledger.prices.price_plan import plan_set_price
from ledger.quotas.quota_commands import SetQuota
from ledger.quotas.quota_plan import add_quota_reads, plan_set_quota
from ledger.shards.shard_commands import ChangeMember, GiveShards, JoinCluster, TakeShards
from ledger.shards.shard_plan import (
    add_member_reads,
    plan_change_member,
    plan_give,
    plan_join,
    plan_take,
    weight_of_move,
)
from ledger.stakes.stake_commands import DepositStake, SlashStake, WithdrawStake
from ledger.stakes.stake_plan import add_stake_reads, plan_deposit_stake, plan_withdraw_stake
from ledger.stakes.stake_risk import plan_slash_stake
from ledger.tasks.task_commands import SettleTask
from ledger.tasks.task_plan import plan_settle_task
from ledger.trust.trust_commands import NoteReading, RevokeAgent, UnrevokeAgent
from ledger.trust.trust_plan import (
    add_revoke_reads,
    add_unrevoke_reads,
    plan_note_reading,
    plan_revoke_agent,
    plan_unrevoke_agent,
)
from ledger.workflows.quarantine_plan import add_quarantine_reads, plan_quarantine, plan_resume
from ledger.workflows.workflow_commands import (
    PUBLISH_KEY,
    AdvanceWorkflow,
    PublishWorkflow,
    QuarantineWorkflow,
    ResumeWorkflow,
)
from ledger.workflows.workflow_plan import (
    add_advance_reads,
    add_publish_reads,
    plan_advance,
    plan_publish,
    weight_of_advance,
    weight_of_publish,
)
from ledger.writer.batch import Batch
from ledger.writer.command_kind import CommandKind
from ledger.writer.read_set import ReadSet


def _add_barrier(command: BarrierCommand, read_set: ReadSet) -> None:
    read_set.barrier = command


def _refuse_unknown(command: Any, batch: Batch) -> Outcome:
    raise TypeError(f"a {type(command).__name__} is no command")


KINDS: Final[dict[type, CommandKind]] = {
    JoinCluster: CommandKind(plan_join, add_member_reads, is_asked_again=True),
    ChangeMember: CommandKind(plan_change_member, add_member_reads, is_asked_again=True),
    TakeShards: CommandKind(plan_take, weight=weight_of_move, is_asked_again=True),
    GiveShards: CommandKind(plan_give, weight=weight_of_move, is_asked_again=True),
    PublishWorkflow: CommandKind(
        plan_publish,
        add_publish_reads,
        weight_of_publish,
        may_repeat=lambda command: not command.key.startswith(PUBLISH_KEY),
        is_hashed=True,
        is_fenced=True,
    ),
    AdvanceWorkflow: CommandKind(
        plan_advance,
        add_advance_reads,
        weight_of_advance,
        may_repeat=lambda command: not command.records,
        is_fenced=True,
    ),
    QuarantineWorkflow: CommandKind(plan_quarantine, add_quarantine_reads, is_fenced=True),
    ResumeWorkflow: CommandKind(plan_resume, add_quarantine_reads, is_fenced=True),
    Deposit: CommandKind(plan_deposit, add_deposit_reads, is_hashed=True),
    CollectCredits: CommandKind(plan_collect, _add_barrier, is_barrier=True),
    RegisterAgent: CommandKind(plan_register_agent, add_agent_reads, outlives_credential=True),
    DeregisterAgent: CommandKind(plan_deregister_agent, add_agent_reads, outlives_credential=True),
    RebuildReputation: CommandKind(plan_rebuild, weight=weight_of_rebuild),
    CreateKey: CommandKind(plan_create_key, add_create_key_reads, outlives_credential=True),
    RevokeKey: CommandKind(plan_revoke_key, add_ended_key_reads, outlives_credential=True),
    RotateKey: CommandKind(plan_rotate_key, add_ended_key_reads, outlives_credential=True),
    RevokeAgent: CommandKind(
        plan_revoke_agent, add_revoke_reads, is_hashed=True, outlives_credential=True
    ),
    UnrevokeAgent: CommandKind(plan_unrevoke_agent, add_unrevoke_reads, outlives_credential=True),
    NoteReading: CommandKind(plan_note_reading),
    RotateAgentKey: CommandKind(
        plan_rotate_agent_key, add_rotate_agent_key_reads, outlives_credential=True
    ),
    RegisterName: CommandKind(plan_register_name, add_name_reads, outlives_credential=True),
    RenewName: CommandKind(plan_renew_name, add_name_reads, outlives_credential=True),
    TransferName: CommandKind(plan_transfer_name, add_name_reads, outlives_credential=True),
    ReleaseName: CommandKind(
        plan_release_name, add_name_reads, is_asked_again=True, outlives_credential=True
    ),
    SetInheritance: CommandKind(
        plan_set_inheritance, add_inheritance_reads, outlives_credential=True
    ),
    CancelInheritance: CommandKind(
        plan_cancel_inheritance, add_inheritance_reads, outlives_credential=True
    ),
    RunInheritance: CommandKind(plan_run_inheritance, add_inheritance_reads, is_asked_again=True),
    SetGuardians: CommandKind(plan_set_guardians, add_guardian_reads, outlives_credential=True),
    RequestRecovery: CommandKind(
        plan_request_recovery, add_recovery_reads, outlives_credential=True
    ),
    CancelRecovery: CommandKind(plan_cancel_recovery, add_recovery_reads, outlives_credential=True),
    CompleteRecovery: CommandKind(plan_complete_recovery, add_recovery_reads, is_asked_again=True),
    SetPrice: CommandKind(plan_set_price, outlives_credential=True),
    PublishVersion: CommandKind(plan_publish_version, add_version_reads, outlives_credential=True),
    DeprecateVersion: CommandKind(
        plan_deprecate_version, add_version_reads, outlives_credential=True
    ),
    SetQuota: CommandKind(plan_set_quota, add_quota_reads, outlives_credential=True),
    DepositStake: CommandKind(plan_deposit_stake, add_stake_reads, is_hashed=True),
    WithdrawStake: CommandKind(plan_withdraw_stake, add_stake_reads, is_hashed=True),
    SlashStake: CommandKind(plan_slash_stake, _add_barrier, is_hashed=True, is_barrier=True),
    PlaceBid: CommandKind(plan_place_bid, add_bid_reads, is_hashed=True),
    KeepBid: CommandKind(plan_keep_bid, add_kept_bid_reads, is_hashed=True, is_asked_again=True),
    EndBidding: CommandKind(
        plan_end_bidding, add_end_bidding_reads, is_asked_again=True, is_fenced=True
    ),
    CreateInvoice: CommandKind(
        plan_create_invoice, _add_barrier, weight_of_create_invoice, is_barrier=True
    ),
    SettleInvoice: CommandKind(plan_settle_invoice, is_hashed=True, is_asked_again=True),
    OpenDispute: CommandKind(plan_open_dispute),
    ResolveDispute: CommandKind(plan_resolve_dispute, _add_barrier, is_barrier=True),
    SettleTask: CommandKind(plan_settle_task, is_hashed=True, is_asked_again=True),
    GiveFeedback: CommandKind(plan_give_feedback, is_hashed=True, is_asked_again=True),
}
_UNKNOWN: Final = CommandKind(_refuse_unknown)


def kind_of(command: Command) -> CommandKind:
    """Return how a command is handled; what is no command is refused by its plan."""
    return KINDS.get(type(command), _UNKNOWN)

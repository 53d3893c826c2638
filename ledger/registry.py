"""Every type of command of the ledger and how it is handled.

A new command: its class and its plan, decorated with `@plans(…)`, in the folder of its feature, a
migration for its rows, and the plan's module in the imports here. Decision ledger-writer.
"""

# ruff: noqa: F401 (each module registers its plans when it is imported)
from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, Final

import ledger.accounts.account_plan
import ledger.agents.agent_plan
import ledger.agents.reputation
import ledger.auctions.auction_plan
import ledger.capabilities.version_plan
import ledger.disputes.dispute_plan
import ledger.identity.agent_key_plan
import ledger.identity.inheritance_plan
import ledger.identity.name_plan
import ledger.identity.recovery_plan
import ledger.invoices.invoice_plan
import ledger.keys.key_plan
import ledger.peers.peer_money
import ledger.peers.peers
import ledger.prices.price_plan
import ledger.proofs.signing_keys
import ledger.proofs.submitted_receipts
import ledger.quotas.quota_plan
import ledger.shards.shard_plan
import ledger.stakes.stake_plan
import ledger.stakes.stake_risk
import ledger.subnets.subnet_plan
import ledger.tasks.task_plan
import ledger.triggers.run_plan
import ledger.triggers.trigger_plan
import ledger.trust.trust_plan
import ledger.workflows.quarantine_plan
import ledger.workflows.workflow_plan
from ledger.commands import Command
from ledger.writer.batch import Batch, Result
from ledger.writer.command_kind import KINDS, CommandKind

# The union of all types, for the decoder.
ANY_COMMAND: Final[Any] = reduce(or_, KINDS)


def _refuse_unknown(command: Any, batch: Batch) -> Result:
    raise TypeError(f"a {type(command).__name__} is no command")


_UNKNOWN: Final = CommandKind(_refuse_unknown)


def kind_of(command: Command) -> CommandKind:
    """Return how a command is handled; what is no command is refused by its plan."""
    return KINDS.get(type(command), _UNKNOWN)

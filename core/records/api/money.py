"""Money as its owner reads it: balances, accounts, entries, deposits.

Reference: money.md (Entries, Accounts).
"""

from __future__ import annotations

from typing import Annotated

from core.records.api.kinds import (
    Credits,
    Did,
    PositiveCredits,
    ShortText,
    Timestamp,
    Uuid,
    Yes,
)
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Maybe


class Balance(Record):
    """Balance of a wallet."""

    owner_did: Annotated[str, "DID of the wallet's owner, as asked for."]
    balance: Annotated[Credits, "Free credits in the wallet."]
    credits: Annotated[Credits, "The same as `balance`."]
    currency: str
    pending: Annotated[Credits, "Credits held in escrows of unfinished workflows."]


class BalanceQuery(Body):
    """The wallet whose balance is read."""

    owner_did: Annotated[
        Maybe[str],
        "DID of the wallet: the caller or one of its agents; administrators: any. Default: the"
        " caller.",
    ] = None


class Account(Record):
    """Account of a wallet."""

    id: Annotated[int, "Number of the account."]
    owner_did: Did
    balance: Annotated[Credits, "Free credits in the wallet."]
    currency: str
    created_at: Timestamp


class Entry(Record):
    """One transfer of credits."""

    id: Annotated[int, "Number of the entry."]
    debit_account_id: Annotated[int, "Number of the account that pays."]
    credit_account_id: Annotated[int, "Number of the account that receives."]
    amount: Credits
    kind: str
    description: Annotated[str, "Description in words."]
    workflow_id: Annotated[Maybe[Uuid], "Id of the workflow that the transfer belongs to."]
    node_id: Annotated[Maybe[str], "Name of the node that the transfer belongs to."]
    created_at: Timestamp


class EntryPage(Page[Entry]):
    """A page of a wallet's entries, newest first."""

    plural = "transactions"
    row = Entry


class EntriesQuery(PageQuery):
    """Filters of the list of entries."""

    owner_did: Annotated[
        Maybe[str],
        "DID of the wallet: the caller or one of its agents; administrators: any. Default: the"
        " caller.",
    ] = None
    workflow_id: Annotated[Maybe[Uuid], "Only entries of this workflow."] = None


class HistoryEvent(Entry):
    """A ledger entry, seen from one owner."""

    owner_did: Annotated[Did, "DID of the wallet's owner."]
    currency: str
    event_type: Annotated[str, "The same as `kind`."]
    workflow_id: Annotated[Uuid | None, "Id of the workflow; null without one."]
    node_name: Annotated[str | None, "The same as `nodeId`; null without one."]
    change: Annotated[Credits, "Change of the wallet; 0 for transfers within the stake."]


class HistoryPage(Page[HistoryEvent]):
    """A page of the transfers of a wallet and its stake, newest first."""

    plural = "events"
    row = HistoryEvent


class DepositRequest(Body, is_closed=True):
    """Credits that enter the system."""

    amount: Annotated[PositiveCredits, "Amount to deposit."]
    owner_did: Annotated[Maybe[Did], "DID of the wallet. Default: the caller."] = None
    description: Annotated[ShortText, "Description of the entry."] = "deposit"


class Deposited(Record):
    """A deposit's entry and the new balance."""

    success: Yes
    id: Annotated[int, "Number of the entry."]
    owner_did: Did
    entry: Entry
    balance: Credits
    currency: str


class CollectRequest(Body, is_closed=True):
    """What an owner moves from its agent's wallet to its own."""

    amount: Annotated[
        Maybe[PositiveCredits], "Amount to move. Default: the whole free balance."
    ] = None


class Collected(Record):
    """The entry of the transfer, and both balances after it."""

    success: Yes
    id: Annotated[int, "Number of the entry."]
    agent_did: Did
    owner_did: Did
    amount: Annotated[Credits, "Amount that was moved."]
    entry: Entry
    balance: Annotated[Credits, "Balance of the agent."]
    owner_balance: Annotated[Credits, "Balance of the owner."]
    currency: str

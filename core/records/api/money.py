"""Money as its owner reads it: balances, accounts, entries, deposits.

Spec: Ledger records, Balance response; contract.md section 6 (Ledger).
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
    """A wallet; `pending` is held in escrows of running workflows."""

    owner_did: Annotated[str, "as it was asked for"]
    balance: Credits
    credits: Credits
    currency: str
    pending: Credits


class BalanceQuery(Body):
    """Whose balance."""

    owner_did: Annotated[
        Maybe[str], "DID of the account: the caller or one of its agents; administrators: any"
    ] = None


class Account(Record):
    """An owner's account."""

    id: int
    owner_did: Did
    balance: Credits
    currency: str
    created_at: Timestamp


class Entry(Record):
    """One transfer of credits."""

    id: int
    debit_account_id: int
    credit_account_id: int
    amount: Credits
    kind: str
    description: str
    workflow_id: Maybe[Uuid]
    node_id: Maybe[str]
    created_at: Timestamp


class EntryPage(Page[Entry]):
    """A page of a wallet's entries, newest first."""

    plural = "transactions"
    row = Entry


class EntriesQuery(PageQuery):
    """Which entries a list shows."""

    owner_did: Annotated[
        Maybe[str], "DID of the account: the caller or one of its agents; administrators: any"
    ] = None
    workflow_id: Annotated[Maybe[Uuid], "only of this workflow"] = None


class HistoryEvent(Entry):
    """An entry as an event of its owner's history; `change` is what it did to the wallet.

    Spec: contract.md section 7.
    """

    owner_did: Did
    currency: str
    event_type: Annotated[str, "as `kind`"]
    workflow_id: Uuid | None
    node_name: Annotated[str | None, "as `nodeId`"]
    change: Annotated[Credits, "what it did to the wallet; 0 within the stake"]


class HistoryPage(Page[HistoryEvent]):
    """A page of what moved a wallet and a stake, newest first."""

    plural = "events"
    row = HistoryEvent


class DepositRequest(Body, is_closed=True):
    """Credits that come in from outside."""

    amount: PositiveCredits
    owner_did: Maybe[Did] = None
    description: ShortText = "deposit"


class Deposited(Record):
    """A deposit's entry and the new balance."""

    success: Yes
    id: int
    owner_did: Did
    entry: Entry
    balance: Credits
    currency: str


class CollectRequest(Body, is_closed=True):
    """What an owner collects from an agent."""

    amount: Annotated[Maybe[PositiveCredits], "all that is free where it is absent"] = None


class Collected(Record):
    """A collection's entry, with the balances of the agent and of its owner after it."""

    success: Yes
    id: int
    agent_did: Did
    owner_did: Did
    amount: Credits
    entry: Entry
    balance: Annotated[Credits, "the agent's"]
    owner_balance: Credits
    currency: str

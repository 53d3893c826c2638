"""Money as its owner reads it: accounts, balances, history; what a workflow holds and has spent.

Reference: money.md (Accounts, Entries, Escrow).
"""

from __future__ import annotations

from typing import Any

from core.money import CURRENCY, MICRO_PER_CENT, cents_ceil, credits_number
from core.records.api.market import Account, Balance, HistoryEvent, HistoryPage
from core.records.api.record import PageQuery
from core.records.api.workflows import Budget, Escrow
from core.records.manifest import read_stored_manifest
from ledger.accounts.account_reads import account_row, history
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call, Json, Operations, found, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import shown
from serve_app.operations.views_market import balance_record
from serve_app.operations.whose import money_did_in_path, paid_workflow

OPERATIONS = Operations("ledger")


@OPERATIONS.add("GET", "/v1/ledger/accounts/{did}", reply=Account)
async def get_account(call: Call) -> Json:
    """Read a wallet's account."""
    did = await money_did_in_path(call, "the account")
    row = found(await account_row(call.services.reader, did), f"the account of {did[:255]}")
    return shown(Account, row, balance=credits_number(row["balance"]))


@OPERATIONS.add("GET", "/v1/balances/{did}", reply=Balance)
async def get_balance(call: Call) -> Json:
    """Read a balance."""
    did = await money_did_in_path(call, "the balance")
    return balance_record(did, await call.services.reader.balance(did))


@OPERATIONS.add("GET", "/v1/ledger/{did}/history", query=PageQuery, reply=HistoryPage)
async def get_history(call: Call) -> Json:
    """List the transfers of a wallet and its stake, newest first."""
    did = await money_did_in_path(call, "the history")
    page = page_of(call, call.given(PageQuery))
    rows = await history(call.services.reader, did, before_id=number_after(page), **page.rows)

    def form(row: RowDict) -> dict[str, Any]:
        """Return an entry as an event of its owner's history, with its sign for the wallet."""
        return shown(
            HistoryEvent,
            row,
            amount=credits_number(row["amount"]),
            owner_did=did,
            currency=CURRENCY,
            event_type=row["kind"],
            node_name=row["node_id"],
            change=credits_number(row["change"]),
        )

    return listed("events", rows, page, lambda row: row["id"], form=form)


@OPERATIONS.add(
    "GET",
    "/v1/workflows/{workflow_id}/escrow",
    scope="workflows:read",
    reply=Escrow,
    tag="workflows",
)
async def get_escrow(call: Call) -> Json:
    """Read the escrow of a workflow."""
    stored = await paid_workflow(call, call.path_values["workflow_id"])
    row = await call.services.reader.escrow(stored.id)
    if row is None:
        # Its estimate exceeded its budget: nothing was ever held.
        raise not_found(f"an escrow of the workflow {stored.id}")
    amount = credits_number(row["amount"])
    return shown(Escrow, row, amount=amount, currency=CURRENCY)


@OPERATIONS.add(
    "GET",
    "/v1/workflows/{workflow_id}/budget",
    scope="workflows:read",
    reply=Budget,
    tag="workflows",
)
async def get_budget(call: Call) -> Json:
    """Read a workflow's budget.

    It is the payer's own, else what the estimate held.
    """
    stored = await paid_workflow(call, call.path_values["workflow_id"])
    escrow = await call.services.reader.escrow(stored.id)
    row = await call.services.reads.row(stored.id)
    assert row is not None, stored.id
    budget_micro = read_stored_manifest(row["manifest"]).budget_micro
    most = stored.row["hold_micro"] if budget_micro is None else budget_micro
    spent = stored.row["spent_micro"]
    # What may be and what is left is rounded down, what is spent rounded up.
    return shown(
        Budget,
        stored.row,
        workflow_id=stored.id,
        max_cents=most // MICRO_PER_CENT,
        spent_cents=cents_ceil(spent),
        remaining_cents=max(0, most - spent) // MICRO_PER_CENT,
        held_credits=credits_number(escrow["remaining_micro"] if escrow is not None else 0),
    )

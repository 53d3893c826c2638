"""Money as its owner reads it: accounts, balances, history; what a workflow holds and has spent.

Spec: Account, Entry, Escrow, Balance response.
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.money import MICRO_PER_CENT, cents_ceil, credits_number
from core.records.api.money import Account, Balance, HistoryPage
from core.records.api.path_values import WorkflowPath
from core.records.api.record import PageQuery
from core.records.api.workflows import Budget, Escrow
from core.records.stored_manifest import read_stored_manifest
from ledger.accounts.account_reads import account_row, history
from serve_app.http.calls import Call, Operations, Reply, found, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import shown
from serve_app.operations.views_market import (
    account_record,
    balance_record,
    escrow_record,
    history_record,
)
from serve_app.operations.whose import money_did_in_path, paid_workflow

OPERATIONS = Operations("ledger")


@OPERATIONS.add(
    "GET",
    "/v1/ledger/accounts/{did}",
    reply=Account,
    errors=(ErrorCode.NOT_FOUND,),
)
async def get_account(call: Call) -> Reply:
    """Read a wallet's account."""
    did = await money_did_in_path(call, "the account")
    row = found(await account_row(call.services.reader, did), f"the account of {did[:255]}")
    return Reply(account_record(row))


@OPERATIONS.add("GET", "/v1/balances/{did}", reply=Balance, errors=(ErrorCode.NOT_FOUND,))
async def get_balance(call: Call) -> Reply:
    """Read a balance."""
    did = await money_did_in_path(call, "the balance")
    return Reply(balance_record(did, await call.services.reader.balance(did)))


@OPERATIONS.add(
    "GET",
    "/v1/ledger/{did}/history",
    query=PageQuery,
    reply=HistoryPage,
    errors=(ErrorCode.NOT_FOUND,),
)
async def get_history(call: Call) -> Reply:
    """List the transfers of a wallet and its stake, newest first."""
    did = await money_did_in_path(call, "the history")
    page = page_of(call, call.given(PageQuery))
    rows = await history(
        call.services.reader,
        did,
        limit=page.limit + 1,
        offset=page.offset,
        before_id=number_after(page),
    )
    events = [history_record(row, did) for row in rows]
    return Reply(listed("events", events, page, lambda row: row["id"]))


@OPERATIONS.add(
    "GET",
    "/v1/workflows/{workflow_id}/escrow",
    scope="workflows:read",
    reply=Escrow,
    tag="workflows",
)
async def get_escrow(call: Call) -> Reply:
    """Read the escrow of a workflow."""
    stored = await paid_workflow(call, call.given(WorkflowPath).workflow_id)
    row = await call.services.reader.escrow(stored.id)
    if row is None:
        # Its estimate exceeded its budget: nothing was ever held.
        raise not_found(f"an escrow of the workflow {stored.id}")
    return Reply(escrow_record(row))


@OPERATIONS.add(
    "GET",
    "/v1/workflows/{workflow_id}/budget",
    scope="workflows:read",
    reply=Budget,
    tag="workflows",
)
async def get_budget(call: Call) -> Reply:
    """Read a workflow's budget.

    It is the payer's own, else what the estimate held.
    """
    stored = await paid_workflow(call, call.given(WorkflowPath).workflow_id)
    escrow = await call.services.reader.escrow(stored.id)
    row = await call.services.reads.row(stored.id)
    assert row is not None, stored.id
    budget_micro = read_stored_manifest(row["manifest"]).budget_micro
    most = stored.row["hold_micro"] if budget_micro is None else budget_micro
    spent = stored.row["spent_micro"]
    # What may be and what is left is rounded down, what is spent rounded up.
    return Reply(
        shown(
            Budget,
            stored.row,
            workflow_id=stored.id,
            max_cents=most // MICRO_PER_CENT,
            spent_cents=cents_ceil(spent),
            remaining_cents=max(0, most - spent) // MICRO_PER_CENT,
            held_credits=credits_number(escrow["remaining_micro"] if escrow is not None else 0),
        )
    )

"""Money as its owner reads it: accounts, balances, history; what a workflow holds and has spent.

Spec: Account, Entry, Escrow, Balance response.
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.money import MICRO_PER_CENT, cents_ceil, credits_number
from core.records.api.money import Account, Balance, HistoryPage
from core.records.api.path_values import AnyDidPath, WorkflowPath
from core.records.api.record import PageQuery
from core.records.api.workflows import Budget, Escrow
from core.records.stored_manifest import read_stored_manifest
from ledger.accounts.account_reads import account_row, history
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Operation, Reply, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import shown
from serve_app.operations.views_market import (
    account_record,
    balance_record,
    escrow_record,
    history_record,
)
from serve_app.operations.whose import money_did_in_path, paid_workflow


async def get_account(call: Call) -> Reply:
    """Read a wallet's account; there is none until something came in."""
    did = await money_did_in_path(call, "the account")
    row = await account_row(call.services.reader, did)
    if row is None:
        raise not_found(f"the account of {did[:255]}")
    return Reply(account_record(row))


async def get_balance(call: Call) -> Reply:
    """Read what a DID can spend, and what is held for its running workflows."""
    did = await money_did_in_path(call, "the balance")
    return Reply(balance_record(did, await call.services.reader.balance(did)))


async def get_history(call: Call) -> Reply:
    """List what moved a DID's wallet and stake, newest first."""
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


async def get_escrow(call: Call) -> Reply:
    """Read what a workflow holds in escrow."""
    stored = await paid_workflow(call, call.given(WorkflowPath).workflow_id)
    row = await call.services.reader.escrow(stored.id)
    if row is None:
        # Its estimate exceeded its budget: nothing was ever held.
        raise not_found(f"an escrow of the workflow {stored.id}")
    return Reply(escrow_record(row))


async def get_budget(call: Call) -> Reply:
    """Read a workflow's budget: the payer's own, else what its estimate held."""
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


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/ledger/accounts/{did}",
        path_values=AnyDidPath,
        handler=get_account,
        summary="Read a wallet's account",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="ledger",
        reply=Account,
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        method="GET",
        path="/v1/ledger/{did}/history",
        path_values=AnyDidPath,
        handler=get_history,
        summary="List the transfers of a wallet and its stake, newest first",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="ledger",
        reply=HistoryPage,
        query=PageQuery,
        errors=(ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST),
    ),
    Operation(
        method="GET",
        path="/v1/balances/{did}",
        path_values=AnyDidPath,
        handler=get_balance,
        summary="Read a balance",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="ledger",
        reply=Balance,
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        method="GET",
        path="/v1/workflows/{workflow_id}/escrow",
        path_values=WorkflowPath,
        handler=get_escrow,
        summary="Read the escrow of a workflow",
        scope="workflows:read",
        rate=RateClass.READ,
        tag="workflows",
        reply=Escrow,
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        method="GET",
        path="/v1/workflows/{workflow_id}/budget",
        path_values=WorkflowPath,
        handler=get_budget,
        summary="Read a workflow's budget",
        scope="workflows:read",
        rate=RateClass.READ,
        tag="workflows",
        reply=Budget,
        errors=(ErrorCode.NOT_FOUND,),
    ),
)

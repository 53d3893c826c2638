"""Accounts, balances, entries, deposits, escrows, budgets, and the check of the books.

Reference: money.md (Accounts, Entries, Escrow, Checking the books).
"""

from __future__ import annotations

from typing import Any

from actors.cluster.reporting.books_watch import BooksResult
from core.errors import ErrorCode
from core.money import CURRENCY, MICRO_PER_CENT, cents_ceil, credits_number
from core.records.api.market import (
    Account,
    Balance,
    BalanceQuery,
    Collected,
    CollectRequest,
    Deposited,
    DepositRequest,
    EntriesQuery,
    EntryPage,
    HistoryEvent,
    HistoryPage,
)
from core.records.api.operators import BooksChecked, BooksRequested, WrongRow
from core.records.api.record import PageQuery
from core.records.api.workflows import Budget, Escrow
from core.records.bounds import DID_CHARS_MAX
from core.records.manifest import read_stored_manifest
from core.timestamps import iso_ms
from core.trust.access import ADMIN, DEPOSIT
from ledger.features.accounts import (
    CollectCredits,
    Deposit,
    account_row,
    history,
    money_owner,
    wallet_entries,
)
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call, Json, Operations, Repeats, Reply, found, not_found, replayed
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import balance_record, entry_record, shown, shown_result
from serve_app.operations.visibility import check_money_party, money_did_in_path, paid_workflow

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
        """Return an entry as a history event. `change` has the entry's sign for the wallet."""
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
        # The estimate exceeded the budget, so no escrow was made.
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

    If the manifest has no budget, the hold counts as the budget.
    """
    stored = await paid_workflow(call, call.path_values["workflow_id"])
    escrow = await call.services.reader.escrow(stored.id)
    row = await call.services.reads.row(stored.id)
    assert row is not None, stored.id
    budget_micro = read_stored_manifest(row["manifest"]).budget_micro
    most = stored.row["hold_micro"] if budget_micro is None else budget_micro
    spent = stored.row["spent_micro"]
    # The maximum and the remaining amount are rounded down to cents. The spent amount is rounded
    # up.
    return shown(
        Budget,
        stored.row,
        workflow_id=stored.id,
        max_cents=most // MICRO_PER_CENT,
        spent_cents=cents_ceil(spent),
        remaining_cents=max(0, most - spent) // MICRO_PER_CENT,
        held_credits=credits_number(escrow["remaining_micro"] if escrow is not None else 0),
    )


@OPERATIONS.add(
    "GET", "/v1/ledger/balance", query=BalanceQuery, reply=Balance, errors=(ErrorCode.NOT_FOUND,)
)
async def balance(call: Call) -> Json:
    """Read the caller's balance."""
    did = await _whose(call, call.given(BalanceQuery).owner_did)
    return balance_record(did, await call.services.reader.balance(did))


@OPERATIONS.add(
    "POST",
    "/v1/ledger/deposit",
    scope=DEPOSIT,
    body=DepositRequest,
    reply=Deposited,
    repeats=Repeats.BY_COMMAND,
)
async def deposit(call: Call) -> Reply:
    """Add credits to a wallet.

    Without an Idempotency-Key every call is a new deposit.
    """
    body = call.given(DepositRequest)
    owner_did = body.owner_did or call.caller.did
    call.require(call.right, owner_did)
    command = Deposit(
        request_hash=call.request_hash,
        owner_did=owner_did,
        amount_micro=body.amount,
        description=body.description,
    )
    outcome = await call.commit(command)
    entry = entry_record(outcome.result["entry"])
    others = {"id": entry["id"], "owner_did": owner_did, "entry": entry, "currency": CURRENCY}
    return Reply(shown_result(Deposited, outcome, **others), headers=replayed(outcome))


@OPERATIONS.add(
    "POST",
    "/v1/agents/{did}/collect",
    scope="agents:write",
    body=CollectRequest,
    is_body_optional=True,
    reply=Collected,
)
async def collect(call: Call) -> Json:
    """Move free credits from an agent's wallet to its owner's."""
    did = call.path_values["did"]
    owner = found(await money_owner(call.services.reader, did), f"the agent {did[:DID_CHARS_MAX]}")
    call.require(call.right, owner.owner_did)
    amount_micro = call.given(CollectRequest).amount
    outcome = await call.commit(CollectCredits(agent_did=did, amount_micro=amount_micro))
    entry = entry_record(outcome.result["entry"])
    others = {"id": entry["id"], "agent_did": did, "entry": entry, "currency": CURRENCY}
    return shown_result(Collected, outcome, amount=entry["amount"], **others)


@OPERATIONS.add(
    "GET",
    "/v1/ledger/transactions",
    query=EntriesQuery,
    reply=EntryPage,
    errors=(ErrorCode.NOT_FOUND,),
)
async def transactions(call: Call) -> Json:
    """List the caller's ledger entries, newest first."""
    query = call.given(EntriesQuery)
    page = page_of(call, query)
    rows = await wallet_entries(
        call.services.reader,
        await _whose(call, query.owner_did),
        workflow_id=query.workflow_id,
        before_id=number_after(page),
        **page.rows,
    )
    return listed("transactions", rows, page, lambda row: row["id"], form=entry_record)


async def _whose(call: Call, asked: str | None) -> str:
    """Return the requested DID, or the caller's DID by default.

    Raises:
        ServiceError: NOT_FOUND if the caller may not see the DID's money.
    """
    did = call.caller.did if asked is None else asked
    await check_money_party(call, (did,), f"the account {did[:255]}")
    return did


@OPERATIONS.add("GET", "/v1/ledger/check", scope=ADMIN, reply=BooksChecked)
async def read_check(call: Call) -> Json:
    """Read the newest result of the check of the books."""
    found: BooksResult = await call.services.gateway.ask_timekeeper("books")
    wrong = None if found.problem is None else shown(WrongRow, found.problem._asdict())
    return shown(BooksChecked, found._asdict(), problem=wrong)


@OPERATIONS.add(
    "POST", "/v1/ledger/check", scope=ADMIN, reply=BooksRequested, repeats=Repeats.IGNORED
)
async def request_check(call: Call) -> Json:
    """Request a check of the books; it starts when the running check has ended."""
    requested_ms = await call.services.gateway.ask_timekeeper("check_books")
    return {"success": True, "requestedAt": iso_ms(requested_ms)}

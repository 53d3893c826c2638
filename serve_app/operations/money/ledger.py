"""The ledger: balance, deposit, transactions of the caller, and what owners collect.

Reference: money.md (Entries, Accounts).
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.money import CURRENCY
from core.records.api.market import (
    Balance,
    BalanceQuery,
    Collected,
    CollectRequest,
    Deposited,
    DepositRequest,
    EntriesQuery,
    EntryPage,
)
from core.records.bounds import DID_CHARS_MAX
from core.trust.access import DEPOSIT
from ledger.accounts.account_commands import CollectCredits, Deposit
from ledger.accounts.agent_money import money_owner
from serve_app.http.calls import Call, Json, Operations, Repeats, Reply, found, replayed
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import entry_record, shown_result
from serve_app.operations.views_market import balance_record
from serve_app.operations.whose import check_money_party

OPERATIONS = Operations("ledger")


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
    rows = await call.services.reader.transactions(
        await _whose(call, query.owner_did),
        workflow_id=query.workflow_id,
        before_id=number_after(page),
        **page.rows,
    )
    return listed("transactions", rows, page, lambda row: row["id"], form=entry_record)


async def _whose(call: Call, asked: str | None) -> str:
    """Return whose money is asked for; whether another's exists is not disclosed."""
    did = call.caller.did if asked is None else asked
    await check_money_party(call, (did,), f"the account {did[:255]}")
    return did

"""The ledger: balance, deposit, transactions of the caller, and what owners collect.

Spec: Ledger records, Balance response; money.md (Accounts).
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.money import CURRENCY, credits_number
from core.records.api.money import (
    Balance,
    BalanceQuery,
    Collected,
    CollectRequest,
    Deposited,
    DepositRequest,
    EntriesQuery,
    EntryPage,
)
from core.records.api.path_values import AnyDidPath
from core.records.bounds import DID_CHARS_MAX
from core.trust.access import DEPOSIT
from ledger.accounts.account_commands import CollectCredits, Deposit
from ledger.accounts.agent_money import money_owner
from ledger.commands import OutcomeStatus
from serve_app.http.calls import REPLAYED, Call, Operations, Repeats, Reply, not_found
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import deposited_entry, entry_record
from serve_app.operations.views_market import balance_record
from serve_app.operations.whose import check_money_party

OPERATIONS = Operations("ledger")


@OPERATIONS.add(
    "GET",
    "/v1/ledger/balance",
    scope="ledger:read",
    query=BalanceQuery,
    reply=Balance,
    errors=(ErrorCode.NOT_FOUND,),
)
async def balance(call: Call) -> Reply:
    """Read the caller's balance."""
    did = await _whose(call, call.given(BalanceQuery).owner_did)
    return Reply(balance_record(did, await call.services.reader.balance(did)))


@OPERATIONS.add(
    "POST",
    "/v1/ledger/deposit",
    scope=DEPOSIT,
    body=DepositRequest,
    reply=Deposited,
    errors=(ErrorCode.FORBIDDEN, ErrorCode.OVERLOADED),
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
        key=call.command_key(f"deposit:{call.services.new_id()}"),
        request_hash=call.request_hash,
        actor_did=call.caller.did,
        owner_did=owner_did,
        amount_micro=body.amount,
        description=body.description,
    )
    outcome = await call.commit(command)
    is_repeat = outcome.status is OutcomeStatus.REPEATED
    entry = deposited_entry(outcome.result)
    return Reply(
        {
            "success": True,
            "id": entry["id"],
            "ownerDid": owner_did,
            "entry": entry,
            "balance": credits_number(int(outcome.result["balanceMicro"])),
            "currency": CURRENCY,
        },
        headers=(REPLAYED,) if is_repeat else (),
    )


@OPERATIONS.add(
    "POST",
    "/v1/agents/{did}/collect",
    scope="agents:write",
    body=CollectRequest,
    is_body_optional=True,
    reply=Collected,
    errors=(ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN, ErrorCode.CONFLICT, ErrorCode.OVERLOADED),
)
async def collect(call: Call) -> Reply:
    """Move free credits from an agent's wallet to its owner's."""
    did = call.given(AnyDidPath).did
    owner = await money_owner(call.services.reader, did)
    if owner is None:
        raise not_found(f"the agent {did[:DID_CHARS_MAX]}")
    call.require(call.right, owner.owner_did)
    command = CollectCredits(
        key=call.command_key(f"collect:{call.services.new_id()}"),
        actor_did=call.caller.did,
        is_admin=call.caller.is_admin,
        agent_did=did,
        amount_micro=call.given(CollectRequest).amount,
    )
    result = (await call.commit(command)).result
    entry = entry_record(result["entry"])
    return Reply(
        {
            "success": True,
            "id": entry["id"],
            "agentDid": did,
            "ownerDid": result["ownerDid"],
            "amount": entry["amount"],
            "entry": entry,
            "balance": credits_number(int(result["balanceMicro"])),
            "ownerBalance": credits_number(int(result["ownerBalanceMicro"])),
            "currency": CURRENCY,
        }
    )


@OPERATIONS.add(
    "GET",
    "/v1/ledger/transactions",
    scope="ledger:read",
    query=EntriesQuery,
    reply=EntryPage,
    errors=(ErrorCode.NOT_FOUND,),
)
async def transactions(call: Call) -> Reply:
    """List the caller's ledger entries, newest first."""
    query = call.given(EntriesQuery)
    page = page_of(call, query)
    rows = await call.services.reader.transactions(
        await _whose(call, query.owner_did),
        workflow_id=query.workflow_id,
        limit=page.limit + 1,
        offset=page.offset,
        before_id=number_after(page),
    )
    shown = [entry_record(row) for row in rows]
    return Reply(listed("transactions", shown, page, lambda row: row["id"]))


async def _whose(call: Call, asked: str | None) -> str:
    """Return whose money is asked for; whether another's exists is not disclosed."""
    did = call.caller.did if asked is None else asked
    await check_money_party(call, (did,), f"the account {did[:255]}")
    return did

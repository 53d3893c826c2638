"""The ledger: balance, deposit, transactions of the caller.

Spec: Ledger records, Balance response; contract.md section 6 (Ledger); money.md cases 31 and 32.
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.money import CURRENCY, credits_number
from core.records.api.money import (
    Balance,
    BalanceQuery,
    Deposited,
    DepositRequest,
    EntriesQuery,
    EntryPage,
)
from core.trust.access import DEPOSIT
from ledger.accounts.account_commands import Deposit
from ledger.commands import OutcomeStatus
from serve_app.callers.limits import RateClass
from serve_app.http.calls import REPLAYED, Call, Operation, Repeats, Reply
from serve_app.http.lists import listed, number_after, page_of
from serve_app.operations.views import deposited_entry, entry_record
from serve_app.operations.views_market import balance_record


async def balance(call: Call) -> Reply:
    """Read what the caller can spend, and what is held for running workflows."""
    did = _whose(call, call.given(BalanceQuery).owner_did)
    return Reply(balance_record(did, await call.services.reader.balance(did)))


async def deposit(call: Call) -> Reply:
    """Credit a wallet from outside; without an Idempotency-Key every call is a new deposit."""
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


async def transactions(call: Call) -> Reply:
    """List the entries that touched the caller's wallet, newest first."""
    query = call.given(EntriesQuery)
    page = page_of(call, query)
    rows = await call.services.reader.transactions(
        _whose(call, query.owner_did),
        workflow_id=query.workflow_id,
        limit=page.limit + 1,
        offset=page.offset,
        before_id=number_after(page),
    )
    shown = [entry_record(row) for row in rows]
    return Reply(listed("transactions", shown, page, lambda row: row["id"]))


def _whose(call: Call, asked: str | None) -> str:
    """Return whose money is asked for; whether another's exists is not disclosed."""
    did = call.caller.did if asked is None else asked
    call.require_party((did,), f"the account {did[:255]}")
    return did


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/ledger/balance",
        handler=balance,
        summary="Read the caller's balance",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="ledger",
        reply=Balance,
        query=BalanceQuery,
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        method="POST",
        path="/v1/ledger/deposit",
        handler=deposit,
        summary="Add credits to a wallet",
        scope=DEPOSIT,
        rate=RateClass.WRITE,
        tag="ledger",
        body=DepositRequest,
        reply=Deposited,
        errors=(ErrorCode.FORBIDDEN, ErrorCode.OVERLOADED),
        repeats=Repeats.BY_COMMAND,
    ),
    Operation(
        method="GET",
        path="/v1/ledger/transactions",
        handler=transactions,
        summary="List the caller's ledger entries, newest first",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="ledger",
        reply=EntryPage,
        query=EntriesQuery,
        errors=(ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST),
    ),
)

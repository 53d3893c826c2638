"""The ledger: balance, deposit, transactions of the caller.

Spec: Ledger records, Balance response; contract.md section 6 (Ledger); money.md cases 31 and 32.
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.money import CURRENCY, credits_number
from core.records.bounds import NAME_CHARS_MAX
from core.trust.access import DEPOSIT
from ledger.accounts.account_commands import Deposit
from ledger.commands import OutcomeStatus
from serve_app.calls import REPLAYED, Call, Operation, Repeats, Reply, text_member
from serve_app.limits import RateClass
from serve_app.lists import id_of, listed, number_after, page_of
from serve_app.views import deposited_entry, entry_record
from serve_app.views_market import balance_record
from serve_app.whose import did_of, positive_micro


async def balance(call: Call) -> Reply:
    """Read what the caller can spend, and what is held for running workflows."""
    did = _whose(call)
    return Reply(balance_record(did, await call.services.reader.balance(did)))


async def deposit(call: Call) -> Reply:
    """Credit a wallet from outside; without an Idempotency-Key every call is a new deposit."""
    body = call.object_body()
    owner_did = did_of("ownerDid", body.get("ownerDid", call.caller.did))
    call.require(call.right, owner_did)
    description = text_member(
        {"description": "deposit", **body}, "description", most=NAME_CHARS_MAX
    )
    command = Deposit(
        key=call.command_key(f"deposit:{call.services.new_id()}"),
        request_hash=call.request_hash,
        actor_did=call.caller.did,
        owner_did=owner_did,
        amount_micro=positive_micro("amount", body.get("amount")),
        description=description,
    )
    outcome = await call.services.to_the_end(call.services.gateway.commit(command))
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
    page = page_of(call)
    rows = await call.services.reader.transactions(
        _whose(call),
        workflow_id=id_of(call, "workflowId"),
        limit=page.limit + 1,
        offset=page.offset,
        before_id=number_after(page),
    )
    shown = [entry_record(row) for row in rows]
    return Reply(listed("transactions", shown, page, lambda row: row["id"]))


def _whose(call: Call) -> str:
    """Return whose money is asked for; whether another's exists is not disclosed."""
    did = call.query.get("ownerDid", call.caller.did)
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
        reply="Balance",
        parameters=("OwnerDid",),
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
        request="DepositRequest",
        reply="Deposited",
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
        reply="Transactions",
        parameters=("OwnerDid", "WorkflowIdQuery", "Limit", "Offset", "Cursor"),
        errors=(ErrorCode.NOT_FOUND, ErrorCode.INVALID_REQUEST),
    ),
)

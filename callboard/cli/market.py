"""The nouns about money: `ledger`, `price`, `stake`, `quota`, `auction`, `invoice`, `task`, …

Reference: money.md (Entries, Checking the books, Prices, Stakes, Reputation, Quotas, Auctions,
Invoices, Disputes and refunds); features.md (Receipts).
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from callboard.cli.method_verbs import calling_verb
from callboard.cli.session import EXIT_UNSUCCESSFUL, Session, noun, object_in, stop, verb
from callboard.cli.workflows import Wait, Watch, warn, watch_workflow

_LOOK_S: Final = 0.5

ledger = noun("ledger", "Balance, deposits and entries, in credits.")

calling_verb(ledger, "balance", "balance", "Show the caller's balance.")
calling_verb(
    ledger, "deposit", "deposit", "Add credits to an account.", "credits", options="owner_did"
)
calling_verb(ledger, "account", "account", "Show an account.", "did")
calling_verb(
    ledger, "transactions", "transactions", "List the caller's ledger entries, newest first.",
    columns="id createdAt debitAccountId creditAccountId amount description",
)  # fmt: skip


@verb(ledger, "history")
def history(
    session: Session,
    did: Annotated[
        str | None,
        typer.Argument(
            help="DID of the account; default: the caller.", metavar="DID", show_default=False
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of results.", min=1, max=100)] = 50,
    cursor: Annotated[str | None, typer.Option(help="nextCursor of the previous page.")] = None,
) -> None:
    """List all changes of a wallet and a stake, newest first."""
    owner = did or str(session.client.balance()["ownerDid"])
    reply = session.client.history(owner, limit=limit, cursor=cursor)
    columns = ("id", "createdAt", "eventType", "change", "workflowId", "nodeName", "description")
    session.show_table(reply, reply["events"], columns)


@verb(ledger, "check")
def check(
    session: Session,
    wait: Annotated[float, typer.Option(help="Longest wait in seconds.", min=0)] = 600.0,
) -> None:
    """Check balances, escrows, stakes and invoices against the entries; exit status 1 if wrong."""
    requested, deadline = session.client.check_books(), time.monotonic() + wait
    reply = session.client.books()
    while reply.started_at is None or reply.started_at < requested.requested_at:
        if time.monotonic() + _LOOK_S > deadline:
            stop(
                EXIT_UNSUCCESSFUL,
                f"the check did not end within {wait:g} s; it continues in the service",
            )
        time.sleep(_LOOK_S)
        reply = session.client.books()
    rows = ", ".join(f"{count} {table}s" for table, count in reply.rows.items())
    text = f"checked at {reply.checked_at}, up to entry {reply.up_to_entry}: {rows}"
    session.show(reply, lambda: print(text))
    if (wrong := reply.problem) is not None:
        where = f"{wrong.table} {wrong.row}: {wrong.column}"
        stop(EXIT_UNSUCCESSFUL, f"{where} got {wrong.got}, expected {wrong.expected}")


prices = noun("price", "Registered prices of capabilities.", "Operate")
stakes = noun("stake", "Stakes of agents.")
reputations = noun("reputation", "Reputation of agents.", "Operate")
quotas = noun("quota", "Quotas of payers.", "Operate")
auctions = noun("auction", "Auctions of nodes.")
bids = noun("bid", "Bids for nodes.")

calling_verb(prices, "show", "price", "Show a capability's price.", "capability")
calling_verb(
    prices, "set", "set_price", "Set a capability's price: --cents, or both rates.", "capability",
    options="price_cents input_rate output_rate",
)  # fmt: skip
calling_verb(stakes, "show", "stake", "Show an agent's stake.", "did")
calling_verb(stakes, "deposit", "deposit_stake", "Deposit stake.", "credits", options="agent_did")
calling_verb(
    stakes, "withdraw", "withdraw_stake", "Withdraw stake that is not locked.", "credits",
    options="agent_did",
)  # fmt: skip
calling_verb(
    stakes, "slash", "slash_stake", "Give the stake locked for a node to its payer.",
    "did workflow node reason",
)  # fmt: skip

calling_verb(reputations, "show", "reputation", "Show an agent's reputation and its parts.", "did")


@verb(reputations, "rebuild")
def rebuild_reputation(
    session: Session,
    check: Annotated[bool, typer.Option(help="Compare without changes.")] = False,
) -> None:
    """Recompute all reputations from history; --check exits 1 on a difference."""
    reply = session.client.rebuild_reputation(check=check)
    session.show_record(reply)
    if check and not reply["isSame"]:
        stop(EXIT_UNSUCCESSFUL, "the stored counts differ from history")


calling_verb(quotas, "show", "quota", "Show a payer's limits.", "did")
calling_verb(
    quotas, "set", "set_quota", "Set a payer's limits; an omitted option means no limit.", "did",
    options="workflows_per_day concurrent_workflows spend_per_day_cents",
)  # fmt: skip
calling_verb(
    quotas, "check", "check_quota", "Check whether a payer can publish now.", "did",
    options="estimated_spend_cents",
)  # fmt: skip
calling_verb(
    auctions, "show", "auction", "Show the auction of a node; bids are visible after it closes.",
    "workflow node",
)  # fmt: skip
calling_verb(
    bids, "place", "bid", "Bid for a node; bids are sealed and final.", "workflow node credits",
    options="eta_ms stake_credits agent_did",
)  # fmt: skip

invoices = noun("invoice", "Invoices for paid work.")
disputes = noun("dispute", "Disputes about work and payment.")
ratings = noun("feedback", "Ratings of agents.")
tasks = noun("task", "Tasks: workflows of one node.")


calling_verb(
    invoices, "create", "create_invoice", "Issue an invoice for a period or a workflow.",
    options="period_start period_end workflow_id payer_did",
)  # fmt: skip
calling_verb(
    invoices, "list", "invoices", "List invoices, newest first.", options="status",
    columns="id status periodStart periodEnd workflowId totalCents",
)  # fmt: skip
calling_verb(invoices, "show", "invoice", "Show an invoice with its lines.", "invoice")
calling_verb(invoices, "pay", "pay_invoice", "Mark a pending invoice as paid.", "invoice")
calling_verb(
    invoices, "void", "void_invoice", "Void a pending invoice; its payments can be invoiced again.",
    "invoice",
)  # fmt: skip
calling_verb(
    disputes, "open", "open_dispute", "Open a dispute about a workflow.", "type description",
    options="workflow_id node_id respondent_did evidence",
)  # fmt: skip
calling_verb(
    disputes, "list", "disputes", "List disputes, newest first.", options="status",
    columns="id status disputeType workflowId nodeId creditsRefunded",
)  # fmt: skip

calling_verb(disputes, "show", "dispute", "Show a dispute.", "dispute")
calling_verb(
    disputes, "resolve", "resolve_dispute", "Resolve a dispute, with or without a refund.",
    "dispute status resolution", options="refund_credits",
)  # fmt: skip
calling_verb(
    ratings, "give", "give_feedback", "Rate an agent's work in a workflow; once per workflow.",
    "workflow agent rating", options="scale comment",
)  # fmt: skip


@verb(tasks, "publish")
def publish_task(
    session: Session,
    description: Annotated[
        str,
        typer.Argument(
            help=r"Description; it may start with a capability: \[cap.x.v1] text.",
            metavar="DESCRIPTION",
        ),
    ],
    budget: Annotated[str | None, typer.Option(help="Budget in credits.")] = None,
    selection: Annotated[str | None, typer.Option(help="Selection: best or auction.")] = None,
    auction_window_ms: Annotated[
        int | None, typer.Option(help="Length of the auction in milliseconds.", min=0)
    ] = None,
    wait: Wait = False,
    watch: Watch = False,
) -> None:
    """Publish a task."""
    reply = session.client.publish_task(
        description,
        budget_credits=budget,
        selection=selection,
        auction_window_ms=auction_window_ms,
    )
    if wait or watch:
        warn(reply)
    if watch:
        if not session.is_json:
            print(f"taskId  {reply['taskId']}", flush=True)
        watch_workflow(session, reply["workflowId"])
    elif wait:
        session.client.wait(reply["workflowId"])
        _show_task(session, session.client.task(reply["taskId"]), is_awaited=True)
    else:
        _show_task(session, reply, is_awaited=False)


calling_verb(tasks, "show", "task", "Show a task.", "task")
calling_verb(
    tasks, "bid", "bid_for_task", "Bid in the auction of a task; bids are sealed and final.",
    "task credits", options="node_id eta_ms stake_credits agent_did",
)  # fmt: skip


def _show_task(session: Session, reply: dict[str, Any], *, is_awaited: bool) -> None:
    session.show_record(reply)
    if reply["status"] != "completed" if is_awaited else reply["status"] == "failed":
        raise typer.Exit(EXIT_UNSUCCESSFUL)


receipts = noun("receipt", "Signed receipts for payments of agents.")
_COLUMNS = "receiptId workflowId nodeId agentDid amountCredits feeCredits completedAt"

calling_verb(
    receipts, "list", "receipts_of", "List the receipts of an agent, newest first.", "agent",
    columns=_COLUMNS,
)  # fmt: skip
calling_verb(
    receipts, "workflow", "receipts_of_workflow", "List the receipts of a workflow, newest first.",
    "workflow", columns=_COLUMNS,
)  # fmt: skip
calling_verb(receipts, "show", "receipt", "Show a receipt.", "receipt")


@verb(receipts, "verify")
def verify(
    session: Session,
    file: Annotated[
        str, typer.Argument(help="Receipt, a JSON file; - reads standard input.", metavar="FILE")
    ],
) -> None:
    """Verify that the service signed a receipt."""
    found = session.client.verify_receipt(object_in(file, "a receipt"))
    session.show_record(found)
    if not found.valid:
        raise typer.Exit(EXIT_UNSUCCESSFUL)

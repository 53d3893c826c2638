"""`invoice`, `dispute`, `feedback`, `task`: what was paid, whether rightly, and work in one step.

Reference: money.md (Invoices, Disputes and refunds).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from callboard.cli.calling import calling_verb
from callboard.cli.session import EXIT_UNSUCCESSFUL, Session, verb
from callboard.cli.workflows import Wait, Watch, warn, watch_workflow

invoice = typer.Typer(help="Invoices for paid work.", no_args_is_help=True)
dispute = typer.Typer(help="Disputes about work and payment.", no_args_is_help=True)
feedback = typer.Typer(help="Ratings of agents.", no_args_is_help=True)
task = typer.Typer(help="Tasks: workflows of one node.", no_args_is_help=True)


calling_verb(
    invoice, "create", "create_invoice", "Issue an invoice for a period or a workflow.",
    options="period_start period_end workflow_id payer_did",
)  # fmt: skip
calling_verb(
    invoice, "list", "invoices", "List invoices, newest first.", options="status limit=50 cursor",
    columns="id status periodStart periodEnd workflowId totalCents",
)  # fmt: skip
calling_verb(invoice, "show", "invoice", "Show an invoice with its lines.", "invoice")
calling_verb(invoice, "pay", "pay_invoice", "Mark a pending invoice as paid.", "invoice")
calling_verb(
    invoice, "void", "void_invoice", "Void a pending invoice; its payments can be invoiced again.",
    "invoice",
)  # fmt: skip
calling_verb(
    dispute, "open", "open_dispute", "Open a dispute about a workflow.", "type description",
    options="workflow_id node_id respondent_did evidence",
)  # fmt: skip
calling_verb(
    dispute, "list", "disputes", "List disputes, newest first.", options="status limit=50 cursor",
    columns="id status disputeType workflowId nodeId creditsRefunded",
)  # fmt: skip

calling_verb(dispute, "show", "dispute", "Show a dispute.", "dispute")
calling_verb(
    dispute, "resolve", "resolve_dispute", "Resolve a dispute, with or without a refund.",
    "dispute status resolution", options="refund_credits",
)  # fmt: skip
calling_verb(
    feedback, "give", "give_feedback", "Rate an agent's work in a workflow; once per workflow.",
    "workflow agent rating", options="scale comment",
)  # fmt: skip


@verb(task, "publish")
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


calling_verb(task, "show", "task", "Show a task.", "task")
calling_verb(
    task, "bid", "bid_for_task", "Bid in the auction of a task; bids are sealed and final.",
    "task credits", options="node_id eta_ms stake_credits agent_did",
)  # fmt: skip


def _show_task(session: Session, reply: dict[str, Any], *, is_awaited: bool) -> None:
    session.show_record(reply)
    if reply["status"] != "completed" if is_awaited else reply["status"] == "failed":
        raise typer.Exit(EXIT_UNSUCCESSFUL)

"""`invoice`, `dispute`, `feedback`, `task`: what was paid, whether rightly, and work in one step.

Spec: Invoice, Dispute.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from callboard.cli.session import (
    EXIT_UNSUCCESSFUL,
    EXIT_USAGE,
    Session,
    json_object,
    reading_verb,
    stop,
    verb,
)
from callboard.cli.workflows import Wait, Watch, warn, watch_workflow

invoice = typer.Typer(help="Invoices for paid work.", no_args_is_help=True)
dispute = typer.Typer(help="Disputes about work and payment.", no_args_is_help=True)
feedback = typer.Typer(help="Ratings of agents.", no_args_is_help=True)
task = typer.Typer(help="Tasks: workflows of one node.", no_args_is_help=True)

_Invoice = Annotated[str, typer.Argument(help="The invoice's ID.", metavar="INVOICE")]
_Dispute = Annotated[str, typer.Argument(help="The dispute's ID.", metavar="DISPUTE")]
_Task = Annotated[str, typer.Argument(help="The task's ID.", metavar="TASK")]
_Status = Annotated[str | None, typer.Option(help="Only results with this status.")]
_Limit = Annotated[int, typer.Option(help="Maximum number of results.", min=1, max=100)]
_Cursor = Annotated[str | None, typer.Option(help="nextCursor of the previous page.")]


@verb(invoice, "create")
def create_invoice(
    session: Session,
    start: Annotated[str | None, typer.Option(help="Start of the period, ISO 8601.")] = None,
    end: Annotated[str | None, typer.Option(help="End of the period (exclusive).")] = None,
    workflow: Annotated[
        str | None, typer.Option(help="The workflow's ID, instead of a period.")
    ] = None,
    payer: Annotated[str | None, typer.Option(help="The payer's DID; default: the caller.")] = None,
) -> None:
    """Issue an invoice for a period or a workflow."""
    if (start is None) is not (end is None) or (start is None) is (workflow is None):
        stop(EXIT_USAGE, "give --start and --end, or --workflow")
    reply = session.client.create_invoice(
        payer_did=payer, period_start=start, period_end=end, workflow_id=workflow
    )
    session.show_record(reply)


@verb(invoice, "list")
def list_invoices(
    session: Session, status: _Status = None, limit: _Limit = 50, cursor: _Cursor = None
) -> None:
    """List invoices, newest first."""
    reply = session.client.invoices(status=status, limit=limit, cursor=cursor)
    columns = ("id", "status", "periodStart", "periodEnd", "workflowId", "totalCents")
    session.show_table(reply, reply["invoices"], columns)


reading_verb(invoice, "show", "invoice", "invoice", "Show an invoice with its lines.")


@verb(invoice, "pay")
def pay_invoice(session: Session, invoice_id: _Invoice) -> None:
    """Mark a pending invoice as paid."""
    session.show_record(session.client.pay_invoice(invoice_id))


@verb(invoice, "void")
def void_invoice(session: Session, invoice_id: _Invoice) -> None:
    """Void a pending invoice; its payments can be invoiced again."""
    session.show_record(session.client.void_invoice(invoice_id))


@verb(dispute, "open")
def open_dispute(
    session: Session,
    dispute_type: Annotated[
        str, typer.Argument(help="Type, such as quality or fraud.", metavar="TYPE")
    ],
    description: Annotated[
        str, typer.Argument(help="Description of the problem.", metavar="DESCRIPTION")
    ],
    workflow: Annotated[str | None, typer.Option(help="The workflow's ID.")] = None,
    node: Annotated[str | None, typer.Option(help="The node's name.")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent's DID.")] = None,
    evidence: Annotated[str | None, typer.Option(help="Evidence, a JSON object.")] = None,
) -> None:
    """Open a dispute about a workflow."""
    reply = session.client.open_dispute(
        dispute_type,
        description,
        workflow_id=workflow,
        node_id=node,
        respondent_did=agent,
        evidence=None if evidence is None else json_object("--evidence", evidence),
    )
    session.show_record(reply)


@verb(dispute, "list")
def list_disputes(
    session: Session, status: _Status = None, limit: _Limit = 50, cursor: _Cursor = None
) -> None:
    """List disputes, newest first."""
    reply = session.client.disputes(status=status, limit=limit, cursor=cursor)
    columns = ("id", "status", "disputeType", "workflowId", "nodeId", "creditsRefunded")
    session.show_table(reply, reply["disputes"], columns)


reading_verb(dispute, "show", "dispute", "dispute", "Show a dispute.")


@verb(dispute, "resolve")
def resolve_dispute(
    session: Session,
    dispute_id: _Dispute,
    status: Annotated[
        str,
        typer.Argument(
            help="Decision: resolved_complainant, resolved_respondent, resolved_split or"
            " dismissed.",
            metavar="STATUS",
        ),
    ],
    resolution: Annotated[
        str, typer.Argument(help="Reason of the decision.", metavar="RESOLUTION")
    ],
    refund: Annotated[str | None, typer.Option(help="Credits to refund.")] = None,
) -> None:
    """Resolve a dispute, with or without a refund."""
    reply = session.client.resolve_dispute(dispute_id, status, resolution, refund_credits=refund)
    session.show_record(reply)


@verb(feedback, "give")
def give_feedback(
    session: Session,
    workflow_id: Annotated[str, typer.Argument(help="The workflow's ID.", metavar="WORKFLOW")],
    agent: Annotated[str, typer.Argument(help="The agent's DID.", metavar="AGENT")],
    rating: Annotated[
        float, typer.Argument(help="Rating, 0 to 1 or 1 to 5.", min=0, max=5, metavar="RATING")
    ],
    scale: Annotated[int | None, typer.Option(help="Highest rating of the scale: 1 or 5.")] = None,
    comment: Annotated[str | None, typer.Option(help="Comment.")] = None,
) -> None:
    """Rate an agent's work in a workflow; once per workflow."""
    reply = session.client.give_feedback(workflow_id, agent, rating, scale=scale, comment=comment)
    session.show_record(reply)


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
        watch_workflow(session, reply["workflowId"], {})
    elif wait:
        session.client.wait(reply["workflowId"])
        _show_task(session, session.client.task(reply["taskId"]), is_awaited=True)
    else:
        _show_task(session, reply, is_awaited=False)


@verb(task, "show")
def show_task(session: Session, task_id: _Task) -> None:
    """Show a task."""
    session.show_record(session.client.task(task_id))


@verb(task, "bid")
def bid_for_task(
    session: Session,
    task_id: _Task,
    amount: Annotated[str, typer.Argument(help="Credits, at most 6 decimals.", metavar="CREDITS")],
    node: Annotated[str | None, typer.Option(help="Node, if the task has several.")] = None,
    eta_ms: Annotated[int | None, typer.Option(help="Estimated milliseconds.", min=0)] = None,
    stake_offered: Annotated[str | None, typer.Option(help="Credits offered as stake.")] = None,
    agent: Annotated[str | None, typer.Option(help="The agent's DID; default: the caller.")] = None,
) -> None:
    """Bid in the auction of a task; bids are sealed and final."""
    reply = session.client.bid_for_task(
        task_id,
        amount,
        node_id=node,
        eta_ms=eta_ms,
        stake_credits=stake_offered,
        agent_did=agent,
    )
    session.show_record(reply)


def _show_task(session: Session, reply: dict[str, Any], *, is_awaited: bool) -> None:
    session.show_record(reply)
    if reply["status"] != "completed" if is_awaited else reply["status"] == "failed":
        raise typer.Exit(EXIT_UNSUCCESSFUL)

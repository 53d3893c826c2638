"""`receipt`: list, show and verify receipts. Reference: features.md (Receipts)."""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.calling import calling_verb
from callboard.cli.session import EXIT_UNSUCCESSFUL, Session, object_in, verb

app = typer.Typer(help="Signed receipts for payments of agents.", no_args_is_help=True)
_COLUMNS = "receiptId workflowId nodeId agentDid amountCredits feeCredits completedAt"

calling_verb(
    app, "list", "receipts_of", "List the receipts of an agent, newest first.", "agent",
    options="limit=50 cursor", columns=_COLUMNS,
)  # fmt: skip
calling_verb(
    app, "workflow", "receipts_of_workflow", "List the receipts of a workflow, newest first.",
    "workflow", options="limit=50 cursor", columns=_COLUMNS,
)  # fmt: skip
calling_verb(app, "show", "receipt", "Show a receipt.", "receipt")


@verb(app, "verify")
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

"""`ledger`: balance, deposits and entries, in credits. Reference: money.md (Entries)."""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.calling import calling_verb
from callboard.cli.session import Session, verb

app = typer.Typer(help="Balance, deposits and entries, in credits.", no_args_is_help=True)

calling_verb(app, "balance", "balance", "Show the caller's balance.")
calling_verb(
    app, "deposit", "deposit", "Add credits to an account.", "credits", options="owner_did"
)
calling_verb(app, "account", "account", "Show an account.", "did")
calling_verb(
    app, "transactions", "transactions", "List the caller's ledger entries, newest first.",
    options="limit=50 cursor",
    columns="id createdAt debitAccountId creditAccountId amount description",
)  # fmt: skip


@verb(app, "history")
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

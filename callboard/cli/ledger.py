"""`ledger`: balance, deposits, entries, and the check of the books.

Reference: money.md (Entries, Checking the books).
"""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from callboard.cli.calling import calling_verb
from callboard.cli.session import EXIT_UNSUCCESSFUL, Session, stop, verb

_LOOK_S: Final = 0.5

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


@verb(app, "check")
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

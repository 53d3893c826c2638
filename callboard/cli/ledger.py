"""`ledger`: balance, deposits and entries, in credits. Spec: Ledger records."""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.session import Session, reading_verb, verb

app = typer.Typer(help="Credits: balance, deposits, entries.", no_args_is_help=True)


@verb(app, "balance")
def balance(session: Session) -> None:
    """Show the caller's balance."""
    session.show_record(session.client.balance())


@verb(app, "deposit")
def deposit(
    session: Session,
    amount: Annotated[str, typer.Argument(help="Credits, at most 6 decimals.", metavar="CREDITS")],
) -> None:
    """Add credits to the caller's account."""
    session.show_record(session.client.deposit(amount))


reading_verb(app, "account", "account", "did", "Show an owner's account.")


@verb(app, "transactions")
def transactions(
    session: Session,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=100)] = 50,
    cursor: Annotated[str | None, typer.Option(help="Where the last page ended.")] = None,
) -> None:
    """List the caller's entries, newest first."""
    reply = session.client.transactions(limit=limit, cursor=cursor)
    columns = ("id", "createdAt", "debitAccountId", "creditAccountId", "amount", "description")
    session.show_table(reply, reply["transactions"], columns)

"""`ledger`: balance, deposits and entries, in credits. Spec: Ledger records."""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.session import Session, reading_verb, verb

app = typer.Typer(help="Balance, deposits and entries, in credits.", no_args_is_help=True)


@verb(app, "balance")
def balance(session: Session) -> None:
    """Show the caller's balance."""
    session.show_record(session.client.balance())


@verb(app, "deposit")
def deposit(
    session: Session,
    amount: Annotated[str, typer.Argument(help="Credits, at most 6 decimals.", metavar="CREDITS")],
    owner: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="DID of the account; default: the caller.",
            metavar="DID",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Add credits to an account."""
    session.show_record(session.client.deposit(amount, owner_did=owner))


reading_verb(app, "account", "account", "did", "Show an account.")


@verb(app, "transactions")
def transactions(
    session: Session,
    limit: Annotated[int, typer.Option(help="Maximum number of results.", min=1, max=100)] = 50,
    cursor: Annotated[str | None, typer.Option(help="nextCursor of the previous page.")] = None,
) -> None:
    """List the caller's ledger entries, newest first."""
    reply = session.client.transactions(limit=limit, cursor=cursor)
    columns = ("id", "createdAt", "debitAccountId", "creditAccountId", "amount", "description")
    session.show_table(reply, reply["transactions"], columns)


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

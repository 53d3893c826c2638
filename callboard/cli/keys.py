"""`key`: API keys. contract.md section 3."""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.session import Session, verb

app = typer.Typer(help="API keys.", no_args_is_help=True)


@verb(app, "create")
def create(
    session: Session,
    owner_did: Annotated[str, typer.Argument(help="Whose key it is.", metavar="DID")],
    name: Annotated[str | None, typer.Option(help="What it is for.", show_default=False)] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="A scope, such as workflows:write; repeatable.")
    ] = None,
) -> None:
    """Make a key; it is shown this once."""
    session.show_record(session.client.create_key(owner_did, name=name, scopes=scope or None))


@verb(app, "list")
def list_keys(session: Session) -> None:
    """List keys, never their secrets."""
    reply = session.client.keys()
    columns = ("id", "ownerDid", "name", "scopes", "createdAt", "expiresAt")
    session.show_table(reply, reply["keys"], columns)


@verb(app, "revoke")
def revoke(
    session: Session, key_id: Annotated[str, typer.Argument(help="The key's id.", metavar="ID")]
) -> None:
    """Revoke a key."""
    session.show_record(session.client.revoke_key(key_id))

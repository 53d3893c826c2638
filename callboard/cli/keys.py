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
    expires_at: Annotated[
        str | None, typer.Option(help="Its end, ISO 8601.", show_default=False)
    ] = None,
    rate_class: Annotated[
        str | None, typer.Option(help="standard or unlimited.", show_default=False)
    ] = None,
) -> None:
    """Make a key; it is shown this once."""
    made = session.client.create_key(
        owner_did,
        name=name,
        scopes=scope or None,
        expires_at=expires_at,
        rate_class=rate_class,
    )
    session.show_record(made)


@verb(app, "list")
def list_keys(session: Session) -> None:
    """List keys, never their secrets."""
    reply = session.client.keys()
    columns = ("id", "ownerDid", "name", "scopes", "createdAt", "expiresAt")
    session.show_table(reply, reply["keys"], columns)


@verb(app, "rotate")
def rotate(
    session: Session,
    key_id: Annotated[str, typer.Argument(help="The key's id.", metavar="ID")],
    overlap: Annotated[
        int, typer.Option(help="How long the secret of now still opens, seconds.")
    ] = 0,
) -> None:
    """Give a key another secret; it is shown this once."""
    session.show_record(session.client.rotate_key(key_id, overlap_s=overlap))


@verb(app, "revoke")
def revoke(
    session: Session, key_id: Annotated[str, typer.Argument(help="The key's id.", metavar="ID")]
) -> None:
    """Revoke a key."""
    session.show_record(session.client.revoke_key(key_id))

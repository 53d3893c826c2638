"""`key`: API keys."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from callboard.cli.session import Session, verb

_SCOPES = (
    "Scope; repeatable. RESOURCE:read or RESOURCE:write, with RESOURCE one of"
    " workflows, agents, capabilities, ledger, trust, identity,"
    " schedules, webhooks, audit, federation, keys; or one of"
    " ledger:deposit, prices:write, disputes:resolve, quotas:write,"
    " trust:revoke, federation:admin, audit:all, agents:heartbeat, admin."
    " Default: read and write of all resources."
)

app = typer.Typer(help="Create, rotate and revoke API keys.", no_args_is_help=True)


@verb(app, "create")
def create(
    session: Session,
    owner_did: Annotated[str, typer.Argument(help="DID of the key's owner.", metavar="DID")],
    name: Annotated[str | None, typer.Option(help="Name of the key.", show_default=False)] = None,
    scope: Annotated[list[str] | None, typer.Option(help=_SCOPES)] = None,
    expires_at: Annotated[
        str | None, typer.Option(help="Expiry, an ISO 8601 time.", show_default=False)
    ] = None,
    rate_class: Annotated[
        str | None,
        typer.Option(help="Rate limit of the key: standard or unlimited.", show_default=False),
    ] = None,
) -> None:
    """Create a key; the secret is shown only once."""
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
    """List keys without their secrets."""
    reply = session.client.keys()
    columns = ("id", "ownerDid", "name", "scopes", "createdAt", "expiresAt")
    session.show_table(reply, map(_key_row, reply["keys"]), columns)


def _key_row(key: dict[str, Any]) -> dict[str, Any]:
    scopes = key.get("scopes") or []
    more = [f"{len(scopes) - 3} more"] if len(scopes) > 3 else []
    return {**key, "scopes": [*scopes[:3], *more]}


@verb(app, "rotate")
def rotate(
    session: Session,
    key_id: Annotated[str, typer.Argument(help="The key's ID.", metavar="ID")],
    overlap: Annotated[
        int, typer.Option(help="Seconds for which the previous secret stays valid.")
    ] = 0,
) -> None:
    """Replace the secret of a key; the new one is shown only once."""
    session.show_record(session.client.rotate_key(key_id, overlap_s=overlap))


@verb(app, "revoke")
def revoke(
    session: Session, key_id: Annotated[str, typer.Argument(help="The key's ID.", metavar="ID")]
) -> None:
    """Revoke a key."""
    session.show_record(session.client.revoke_key(key_id))

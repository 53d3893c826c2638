"""`name`, `heir`, `recovery` and `key`: names and heirs of agents, lost keys, and API keys.

Reference: features.md (Names, Inheritance, Recovery).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from callboard.cli.calling import calling_verb
from callboard.cli.session import Session, verb

app = typer.Typer(help="Names of agents.", no_args_is_help=True)
heir_app = typer.Typer(help="Heirs of agents that stop sending heartbeats.", no_args_is_help=True)
recovery_app = typer.Typer(help="Recovery of lost agent keys.", no_args_is_help=True)
key_app = typer.Typer(help="Create, rotate and revoke API keys.", no_args_is_help=True)

_Did = Annotated[str, typer.Argument(help="The agent's DID.", metavar="DID")]

calling_verb(
    app, "register", "register_name", "Register a name for one of your agents.", "name did",
    options="months",
)  # fmt: skip
calling_verb(app, "show", "name", "Show the agent with this name.", "name")
calling_verb(
    app, "list", "names_of", "List the names of an agent.", "did", options="limit=100 cursor",
    columns="name ownerDid registeredAt expiresAt",
)  # fmt: skip
calling_verb(app, "renew", "renew_name", "Extend the expiry of a name.", "name", options="months")
calling_verb(
    app, "transfer", "transfer_name",
    "Move a name to another agent, offer it to another owner, or accept an offer.", "name did",
)  # fmt: skip
calling_verb(app, "release", "release_name", "Release a name before it expires.", "name")


calling_verb(
    heir_app, "set", "set_inheritance",
    "Name who inherits an agent that stops sending heartbeats.", "did heir",
    options="days! requires_inactivity",
)  # fmt: skip
calling_verb(heir_app, "show", "inheritance", "Show an agent's heir and the date.", "did")
calling_verb(heir_app, "cancel", "cancel_inheritance", "Remove an agent's heir.", "did")


calling_verb(
    recovery_app, "guardians", "set_guardians", "Name who can replace a lost key of an agent.",
    "did", options="guardians threshold custodian_did delay_hours",
)  # fmt: skip


@verb(recovery_app, "request")
def request_recovery(
    session: Session,
    did: _Did,
    kind: Annotated[
        str,
        typer.Argument(
            help="Kind: social_recovery, custodian_recovery or time_lock_recovery.", metavar="KIND"
        ),
    ],
    new_key: Annotated[str, typer.Argument(help="New public key, base64.", metavar="KEY")],
    signature: Annotated[
        list[str] | None, typer.Option(help="DID=SIGNATURE of the recovery message; repeatable.")
    ] = None,
) -> None:
    """Request a new key for an agent, or add signatures to a request."""
    given = dict(text.split("=", 1) for text in signature or [] if "=" in text)
    session.show_record(session.client.request_recovery(did, kind, new_key, signatures=given))


calling_verb(recovery_app, "show", "recovery", "Show a recovery request.", "recovery")
calling_verb(
    recovery_app, "cancel", "cancel_recovery", "Cancel a recovery request.", "recovery",
    options="signature",
)  # fmt: skip


def _key_row(key: dict[str, Any]) -> dict[str, Any]:
    scopes = key.get("scopes") or []
    more = [f"{len(scopes) - 3} more"] if len(scopes) > 3 else []
    return {**key, "scopes": [*scopes[:3], *more]}


calling_verb(
    key_app, "create", "create_key", "Create a key; the secret is shown only once.", "owner",
    options="name scopes expires_at rate_class",
)  # fmt: skip
calling_verb(
    key_app, "list", "keys", "List keys without their secrets.",
    columns="id ownerDid name scopes createdAt expiresAt", row=_key_row,
)  # fmt: skip
calling_verb(
    key_app, "rotate", "rotate_key",
    "Replace the secret of a key; the new one is shown only once.", "key", options="overlap_s",
)  # fmt: skip
calling_verb(key_app, "revoke", "revoke_key", "Revoke a key.", "key")

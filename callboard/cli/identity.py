"""`name`, `heir` and `recovery`: names of agents, who has one that falls silent, and lost keys.

Spec: Name, Inheritance, Recovery request.
"""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.session import Session, reading_verb, verb

app = typer.Typer(help="Names of agents.", no_args_is_help=True)
heir_app = typer.Typer(help="Heirs of agents that stop sending heartbeats.", no_args_is_help=True)
recovery_app = typer.Typer(help="Recovery of lost agent keys.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="The name.", metavar="NAME")]
_Did = Annotated[str, typer.Argument(help="The agent's DID.", metavar="DID")]
_Months = Annotated[int | None, typer.Option(help="Calendar months; default: 12.")]


@verb(app, "register")
def register(session: Session, name: _Name, did: _Did, months: _Months = None) -> None:
    """Register a name for one of your agents."""
    session.show_record(session.client.register_name(name, did, months=months))


reading_verb(app, "show", "name", "name", "Show the agent with this name.")


@verb(app, "list")
def list_names(session: Session, did: _Did) -> None:
    """List the names of an agent."""
    reply = session.client.names_of(did, limit=100)
    session.show_table(reply, reply["names"], ("name", "ownerDid", "registeredAt", "expiresAt"))


@verb(app, "renew")
def renew(session: Session, name: _Name, months: _Months = None) -> None:
    """Extend the expiry of a name."""
    session.show_record(session.client.renew_name(name, months=months))


@verb(app, "transfer")
def transfer(session: Session, name: _Name, did: _Did) -> None:
    """Move a name to another agent, offer it to another owner, or accept an offer."""
    session.show_record(session.client.transfer_name(name, did))


@verb(app, "release")
def release(session: Session, name: _Name) -> None:
    """Release a name before it expires."""
    session.show_record(session.client.release_name(name))


@verb(heir_app, "set")
def set_heir(
    session: Session,
    did: _Did,
    heir: Annotated[str, typer.Argument(help="DID of the new owner.", metavar="HEIR")],
    days: Annotated[int, typer.Option(help="Days without a heartbeat.", min=1)],
    requires_inactivity: Annotated[
        bool, typer.Option(help="The owner's own requests also restart the timer.")
    ] = False,
) -> None:
    """Name who inherits an agent that stops sending heartbeats."""
    session.show_record(
        session.client.set_inheritance(did, heir, days, requires_inactivity=requires_inactivity)
    )


reading_verb(heir_app, "show", "inheritance", "did", "Show an agent's heir and the date.")


@verb(heir_app, "cancel")
def cancel_heir(session: Session, did: _Did) -> None:
    """Remove an agent's heir."""
    session.show_record(session.client.cancel_inheritance(did))


@verb(recovery_app, "guardians")
def set_guardians(
    session: Session,
    did: _Did,
    guardian: Annotated[
        list[str] | None, typer.Option(help="A guardian's DID; repeatable.")
    ] = None,
    threshold: Annotated[int, typer.Option(help="Number of guardians who must sign.", min=0)] = 0,
    custodian: Annotated[
        str | None, typer.Option(help="DID that can replace the key alone.")
    ] = None,
    delay_hours: Annotated[int, typer.Option(help="Hours of the time lock.", min=1)] = 72,
) -> None:
    """Name who can replace a lost key of an agent."""
    reply = session.client.set_guardians(
        did, guardian or [], threshold, custodian_did=custodian, delay_hours=delay_hours
    )
    session.show_record(reply)


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


reading_verb(recovery_app, "show", "recovery", "recovery", "Show a recovery request.")


@verb(recovery_app, "cancel")
def cancel_recovery(
    session: Session,
    recovery_id: Annotated[str, typer.Argument(help="The request's ID.", metavar="RECOVERY")],
    signature: Annotated[
        str | None, typer.Option(help="Signature of cancel:ID by the current key, base64.")
    ] = None,
) -> None:
    """Cancel a recovery request."""
    session.show_record(session.client.cancel_recovery(recovery_id, signature=signature))

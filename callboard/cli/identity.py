"""`name`, `heir` and `recovery`: names of agents, who has one that falls silent, and lost keys.

Spec: Name, Inheritance, Recovery request.
"""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.session import Session, reading_verb, verb

app = typer.Typer(help="Names of agents.", no_args_is_help=True)
heir_app = typer.Typer(help="Who has an agent that falls silent.", no_args_is_help=True)
recovery_app = typer.Typer(help="Keys of agents that are lost.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="The name.", metavar="NAME")]
_Did = Annotated[str, typer.Argument(help="The agent's DID.", metavar="DID")]
_Months = Annotated[int | None, typer.Option(help="Calendar months; 12 when left out.")]


@verb(app, "register")
def register(session: Session, name: _Name, did: _Did, months: _Months = None) -> None:
    """Register a name for an agent of your own."""
    session.show_record(session.client.register_name(name, did, months=months))


reading_verb(app, "show", "name", "name", "Show which agent has a name.")


@verb(app, "list")
def list_names(session: Session, did: _Did) -> None:
    """List the names of an agent."""
    reply = session.client.names_of(did, limit=100)
    session.show_table(reply, reply["names"], ("name", "ownerDid", "registeredAt", "expiresAt"))


@verb(app, "renew")
def renew(session: Session, name: _Name, months: _Months = None) -> None:
    """Let a name expire later."""
    session.show_record(session.client.renew_name(name, months=months))


@verb(app, "transfer")
def transfer(session: Session, name: _Name, did: _Did) -> None:
    """Give a name to another agent, offer it to another owner's, or take what was offered."""
    session.show_record(session.client.transfer_name(name, did))


@verb(app, "release")
def release(session: Session, name: _Name) -> None:
    """End a name before its time."""
    session.show_record(session.client.release_name(name))


@verb(heir_app, "set")
def set_heir(
    session: Session,
    did: _Did,
    heir: Annotated[str, typer.Argument(help="Who shall have it.", metavar="HEIR")],
    days: Annotated[int, typer.Option(help="Days without a heartbeat.", min=1)],
    requires_inactivity: Annotated[
        bool, typer.Option(help="Your own acts start the time again, too.")
    ] = False,
) -> None:
    """Say who shall have an agent of yours that sends no heartbeat."""
    session.show_record(
        session.client.set_inheritance(did, heir, days, requires_inactivity=requires_inactivity)
    )


reading_verb(heir_app, "show", "inheritance", "did", "Show who inherits an agent, and when.")


@verb(heir_app, "cancel")
def cancel_heir(session: Session, did: _Did) -> None:
    """Strike an agent's heir out."""
    session.show_record(session.client.cancel_inheritance(did))


@verb(recovery_app, "guardians")
def set_guardians(
    session: Session,
    did: _Did,
    guardian: Annotated[
        list[str] | None, typer.Option(help="A guardian's DID; repeatable.")
    ] = None,
    threshold: Annotated[int, typer.Option(help="How many must sign.", min=0)] = 0,
    custodian: Annotated[str | None, typer.Option(help="May replace the key alone.")] = None,
    delay_hours: Annotated[int, typer.Option(help="Of a time lock.", min=1)] = 72,
) -> None:
    """Say who may replace an agent's key when it is lost."""
    reply = session.client.set_guardians(
        did, guardian or [], threshold, custodian_did=custodian, delay_hours=delay_hours
    )
    session.show_record(reply)


@verb(recovery_app, "request")
def request_recovery(
    session: Session,
    did: _Did,
    kind: Annotated[str, typer.Argument(help="social_recovery, custodian_recovery, ...")],
    new_key: Annotated[str, typer.Argument(help="The new public key, base64.", metavar="KEY")],
    signature: Annotated[
        list[str] | None, typer.Option(help="DID=SIGNATURE over the message; repeatable.")
    ] = None,
) -> None:
    """Ask for an agent's key to be replaced, or add signatures to such a request."""
    given = dict(text.split("=", 1) for text in signature or [] if "=" in text)
    session.show_record(session.client.request_recovery(did, kind, new_key, signatures=given))


reading_verb(recovery_app, "show", "recovery", "recovery", "Show a request to replace a key.")


@verb(recovery_app, "cancel")
def cancel_recovery(
    session: Session,
    recovery_id: Annotated[str, typer.Argument(help="The request's id.", metavar="ID")],
    signature: Annotated[
        str | None, typer.Option(help="By the current key over cancel:ID, base64.")
    ] = None,
) -> None:
    """Cancel a request to replace an agent's key."""
    session.show_record(session.client.cancel_recovery(recovery_id, signature=signature))

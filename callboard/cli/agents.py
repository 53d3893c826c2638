"""`agent`: the registry, keys, and who is revoked. Spec: Registry, Key rotation, Revocation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from callboard.cli.session import EXIT_REFUSED, EXIT_USAGE, Session, json_object, stop, verb

app = typer.Typer(help="The registry of agents.", no_args_is_help=True)

CARD_PATH = "/.well-known/acard.json"

_Did = Annotated[str, typer.Argument(help="The agent's DID.", metavar="DID")]


@verb(app, "list")
def list_agents(
    session: Session,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=100)] = 50,
    offset: Annotated[int, typer.Option(help="How many to pass over.", min=0)] = 0,
    name: Annotated[str | None, typer.Option(help="Only of this name.")] = None,
    author: Annotated[str | None, typer.Option(help="Only of this author.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
) -> None:
    """List registered agents."""
    reply = session.client.agents(name=name, author=author, model=model, limit=limit, offset=offset)
    session.show_table(
        reply,
        [{**agent, "capabilities": _capability_ids(agent)} for agent in reply["agents"]],
        ("did", "endpoint", "capabilities"),
    )


def _capability_ids(card: dict[str, Any]) -> list[str]:
    return [capability["id"] for capability in card.get("capabilities", [])]


def discover(
    session: Session,
    words: Annotated[str | None, typer.Argument(help="Words; any of them is enough.")] = None,
    capability: Annotated[
        str | None,
        typer.Option(help="A capability's id, its beginning and *, or an id and versions: @>=1.2."),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only agents of this DID.")] = None,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=100)] = 20,
    min_reputation: Annotated[
        float | None, typer.Option(help="From 0 to 1.", min=0, max=1, show_default=False)
    ] = None,
    max_price_cents: Annotated[int | None, typer.Option(help="Whole cents.", min=0)] = None,
    max_latency_ms: Annotated[int | None, typer.Option(help="Of the average.", min=0)] = None,
    region: Annotated[str | None, typer.Option(help="As the card says.")] = None,
    subnet: Annotated[str | None, typer.Option(help="As the card says.")] = None,
    availability: Annotated[str | None, typer.Option(help="Such as available.")] = None,
) -> None:
    """Find agents by words, capability or owner, the best first."""
    if words is None and capability is None and owner is None:
        stop(EXIT_USAGE, "give words, --capability or --owner")
    reply = session.client.discover(
        words,
        capability_id=capability,
        owner_did=owner,
        limit=limit,
        min_reputation=min_reputation,
        max_price_cents=max_price_cents,
        max_latency_ms=max_latency_ms,
        region=region,
        subnet=subnet,
        availability=availability,
    )
    session.show_table(
        reply,
        [{**found, "why": "; ".join(found.why)} for found in reply.results],
        ("score", "capabilityId", "agentDid", "why"),
    )


def add_to(top: typer.Typer) -> None:
    """Add the verb of this file that stands by itself."""
    verb(top, "discover")(discover)


@verb(app, "register")
def register(
    session: Session,
    source: Annotated[
        str, typer.Argument(help="A running agent's address, or a card in a JSON file.")
    ],
    signing_secret: Annotated[
        str | None, typer.Option(help="Sign dispatches to it with this secret.")
    ] = None,
    private_key: Annotated[
        Path | None,
        typer.Option(help="Sign the card with the agent's key in this file.", show_default=False),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            help="The agent's owner, whom a signed card names.", metavar="DID", show_default=False
        ),
    ] = None,
) -> None:
    """Register an agent, or replace its card; signed where CALLBOARD_DID_KEY is its own key."""
    card = read_card(source)
    try:
        registered = session.client.register_agent(
            card, signing_secret=signing_secret, private_key=private_key, owner_did=owner
        )
    except (ValueError, OSError) as error:
        stop(EXIT_USAGE, f"the card is not signed: {error}")
    session.show_record(registered)


def read_card(source: str) -> dict[str, Any]:
    """Read an agent card from a running agent or from a file; ends the process when it cannot."""
    if source.startswith(("http://", "https://")):
        import httpx

        try:
            response = httpx.get(source.rstrip("/") + CARD_PATH, trust_env=False)
            card = response.raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            stop(EXIT_REFUSED, f"no agent card at {source}{CARD_PATH}: {error}")
    else:
        try:
            card = json.loads(Path(source).read_text())
        except (OSError, ValueError) as error:
            stop(EXIT_USAGE, f"cannot read an agent card from {source}: {error}")
    if not isinstance(card, dict):
        stop(EXIT_USAGE, f"{source} holds {type(card).__name__}, expected an agent card")
    return card


@verb(app, "show")
def show(
    session: Session,
    did: _Did,
    include_inactive: Annotated[
        bool, typer.Option(help="Also one of yours that was deregistered.")
    ] = False,
) -> None:
    """Show an agent's card."""
    agent = session.client.agent(did, include_inactive=include_inactive)
    # The card's members are in the record itself; for people once is enough.
    without_card = {name: value for name, value in agent.items() if name != "acard"}
    session.show_record(agent if session.is_json else without_card)


@verb(app, "versions")
def versions(session: Session, did: _Did) -> None:
    """List the lineage of an agent's cards, the newest first."""
    reply = session.client.card_versions(did, limit=100)
    columns = ("number", "cardVersion", "registeredAt", "registeredByDid", "cardHash")
    session.show_table(reply, reply["versions"], columns)


@verb(app, "deregister")
def deregister(session: Session, did: _Did) -> None:
    """Take an agent out of service; registering it again brings it back."""
    session.show_record(session.client.deregister_agent(did))


@verb(app, "rotate-key")
def rotate_key(
    session: Session,
    did: _Did,
    new_key: Annotated[str, typer.Argument(help="The new public key, base64.", metavar="KEY")],
    private_key: Annotated[
        Path, typer.Option(help="A file with the current private key, base64 of 32 bytes.")
    ],
) -> None:
    """Replace an agent's key by another one, for which the current one signs."""
    try:
        current = private_key.read_text().strip()
        reply = session.client.rotate_agent_key(did, new_key, private_key=current)
    except (OSError, ValueError) as error:
        stop(EXIT_USAGE, f"cannot sign with the key in {private_key}: {error}")
    session.show_record(reply)


@verb(app, "keys")
def keys(session: Session, did: _Did) -> None:
    """List the keys that an agent has and had."""
    reply = session.client.key_history(did, limit=100)
    columns = ("keyId", "publicKey", "validFrom", "validUntil")
    session.show_table(reply, reply["keyHistory"], columns)


@verb(app, "revoke")
def revoke(
    session: Session,
    did: _Did,
    reason: Annotated[str, typer.Option(help="Why; everybody can read it.")],
    evidence: Annotated[str, typer.Option(help="What shows it, a JSON object.")] = "{}",
    expires_at: Annotated[
        str | None, typer.Option(help="Until when, an ISO 8601 time; for good when left out.")
    ] = None,
) -> None:
    """Revoke an agent: it gets no work and is paid for none."""
    shown = json_object("--evidence", evidence)
    session.show_record(
        session.client.revoke_agent(did, reason, evidence=shown, expires_at=expires_at)
    )


@verb(app, "collect")
def collect(
    session: Session,
    did: _Did,
    amount: Annotated[str | None, typer.Option(help="Credits, by default all.")] = None,
) -> None:
    """Move free credits from an agent's wallet to yours."""
    session.show_record(session.client.collect(did, amount_credits=amount))


@verb(app, "unrevoke")
def unrevoke(session: Session, did: _Did) -> None:
    """Take a revoked agent back."""
    session.show_record(session.client.unrevoke_agent(did))


@verb(app, "revoked")
def revoked(
    session: Session,
    did: Annotated[
        str | None, typer.Argument(help="Only this one; all when left out.", metavar="DID")
    ] = None,
) -> None:
    """Show who is revoked."""
    if did is not None:
        session.show_record(session.client.revocation(did))
        return
    reply = session.client.revocations(limit=100)
    session.show_table(reply, reply["revocations"], ("did", "revokedAt", "expiresAt", "reason"))

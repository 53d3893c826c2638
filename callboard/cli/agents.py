"""`agent`: registry, keys and revocations of agents. Reference: features.md (Registration, Key
rotation, Revocation)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from callboard.cli.calling import calling_verb, json_object
from callboard.cli.session import EXIT_REFUSED, EXIT_USAGE, Session, object_in, stop, verb
from core.wording import kind_of

app = typer.Typer(help="Register and find agents.", no_args_is_help=True)

CARD_PATH = "/.well-known/acard.json"

_Did = Annotated[str, typer.Argument(help="The agent's DID.", metavar="DID")]


def _agent_row(agent: dict[str, Any]) -> dict[str, Any]:
    live = agent.get("live") or {}
    status = agent.get("status")
    return {
        **agent,
        # An active agent is as it last said it is.
        "status": live.get("status") or status if status == "active" else status,
        "lastHeartbeat": live.get("heartbeatAt"),
        "capabilities": _capability_ids(agent),
    }


def _capability_ids(card: dict[str, Any]) -> list[str]:
    return [capability["id"] for capability in card.get("capabilities", [])]


calling_verb(
    app, "list", "agents", "List registered agents with their status and last heartbeat.",
    options="name author model limit=50 offset=0 cursor",
    columns="did status lastHeartbeat endpoint capabilities", row=_agent_row,
)  # fmt: skip
calling_verb(
    app, "versions", "card_versions", "List all versions of an agent's card, newest first.", "did",
    options="limit=100 cursor",
    columns="number cardVersion registeredAt registeredByDid cardHash",
)  # fmt: skip
calling_verb(
    app, "deregister", "deregister_agent",
    "Deregister an agent; registering it again restores it.", "did",
)  # fmt: skip
calling_verb(
    app, "keys", "key_history", "List the current and former keys of an agent.", "did",
    options="limit=100 cursor", columns="keyId publicKey validFrom validUntil",
)  # fmt: skip
calling_verb(
    app, "collect", "collect", "Move free credits from an agent's wallet to yours.", "did",
    options="amount_credits",
)  # fmt: skip
calling_verb(app, "unrevoke", "unrevoke_agent", "Lift the revocation of an agent.", "did")


def discover(
    session: Session,
    words: Annotated[
        str | None,
        typer.Argument(help="Words to search for; one match is enough.", metavar="WORDS"),
    ] = None,
    capability: Annotated[
        str | None,
        typer.Option(help="Capability ID, prefix with *, or ID with versions: cap.x.v1@>=1.2."),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Only agents of this owner (DID).")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of results.", min=1, max=100)] = 20,
    min_reputation: Annotated[
        float | None,
        typer.Option(help="Lowest reputation, 0 to 1.", min=0, max=1, show_default=False),
    ] = None,
    max_price_cents: Annotated[
        int | None, typer.Option(help="Highest price in cents.", min=0)
    ] = None,
    max_latency_ms: Annotated[
        int | None, typer.Option(help="Highest average latency in milliseconds.", min=0)
    ] = None,
    region: Annotated[str | None, typer.Option(help="Region on the agent's card.")] = None,
    subnet: Annotated[str | None, typer.Option(help="Subnet on the agent's card.")] = None,
    availability: Annotated[
        str | None, typer.Option(help="Availability, such as available.")
    ] = None,
) -> None:
    """Find agents by words, capability or owner, best match first."""
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
    verb(top, "discover", "Use")(discover)


@verb(app, "register")
def register(
    session: Session,
    source: Annotated[
        str,
        typer.Argument(
            help="Address of a running agent, or a JSON file with its card.", metavar="SOURCE"
        ),
    ],
    signing_secret: Annotated[
        str | None, typer.Option(help="Secret that signs dispatches to the agent.")
    ] = None,
    private_key: Annotated[
        Path | None,
        typer.Option(
            help="File with the agent's private key, which signs the card.", show_default=False
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(help="Owner DID in a signed card.", metavar="DID", show_default=False),
    ] = None,
) -> None:
    """Register an agent or replace its card; signs the card if CALLBOARD_DID_KEY is its key."""
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
    if not source.startswith(("http://", "https://")):
        return object_in(source, "an agent card")
    import httpx

    try:
        response = httpx.get(source.rstrip("/") + CARD_PATH, trust_env=False)
        card = response.raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        stop(EXIT_REFUSED, f"no agent card at {source}{CARD_PATH}: {error}")
    if not isinstance(card, dict):
        stop(EXIT_USAGE, f"{source} holds {kind_of(card)}, expected an agent card")
    return card


@verb(app, "show")
def show(
    session: Session,
    did: _Did,
    include_inactive: Annotated[
        bool, typer.Option(help="Also show your own deregistered agents.")
    ] = False,
) -> None:
    """Show an agent's card."""
    agent = session.client.agent(did, include_inactive=include_inactive)
    if session.is_json:
        session.show_record(agent)
        return
    # The card's members are in the record itself; schemas are for programs.
    shown = {n: value for n, value in agent.items() if n not in ("acard", "capabilities")}
    session.show_record({**shown, "capabilities": _capability_ids(agent)})


@verb(app, "rotate-key")
def rotate_key(
    session: Session,
    did: _Did,
    new_key: Annotated[str, typer.Argument(help="New public key, base64.", metavar="KEY")],
    private_key: Annotated[
        Path, typer.Option(help="File with the current private key, base64 of 32 bytes or PEM.")
    ],
) -> None:
    """Replace an agent's key; the current key signs the change."""
    try:
        reply = session.client.rotate_agent_key(did, new_key, private_key=str(private_key))
    except (OSError, ValueError) as error:
        stop(EXIT_USAGE, f"cannot sign with the key in {private_key}: {error}")
    session.show_record(reply)


@verb(app, "revoke")
def revoke(
    session: Session,
    did: _Did,
    reason: Annotated[str, typer.Option(help="Reason; it is public.")],
    evidence: Annotated[
        dict[str, Any] | None, typer.Option(help="Evidence, a JSON object.", parser=json_object)
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(help="End, an ISO 8601 time; default: permanent.")
    ] = None,
) -> None:
    """Revoke an agent: it gets no more work and no more payments."""
    reply = session.client.revoke_agent(did, reason, evidence=evidence or {}, expires_at=expires_at)
    session.show_record(reply)


@verb(app, "revoked")
def revoked(
    session: Session,
    did: Annotated[
        str | None,
        typer.Argument(help="The agent's DID; default: all revoked agents.", metavar="DID"),
    ] = None,
) -> None:
    """List revoked agents, or show the revocation of one."""
    if did is not None:
        session.show_record(session.client.revocation(did))
        return
    reply = session.client.revocations(limit=100)
    session.show_table(reply, reply["revocations"], ("did", "revokedAt", "expiresAt", "reason"))

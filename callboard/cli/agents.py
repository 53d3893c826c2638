"""The nouns `agent`, `capability`, `name`, `heir`, `recovery` and `key`, and the verb `discover`.

Reference: features.md (Registration, Capability versions, Key rotation, Revocation, Names,
Inheritance, Recovery).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callboard.cli.method_verbs import calling_verb
from callboard.cli.session import (
    EXIT_REFUSED,
    EXIT_USAGE,
    Session,
    noun,
    object_in,
    stop,
    top,
    verb,
)
from core.wording import kind_of

if TYPE_CHECKING:
    from callboard.client import Client

agents = noun("agent", "Register and find agents.")

CARD_PATH = "/.well-known/acard.json"

_Did = Annotated[str, typer.Argument(help="The agent's DID.", metavar="DID")]


def _agent_row(agent: dict[str, Any]) -> dict[str, Any]:
    live = agent.get("live") or {}
    status = agent.get("status")
    return {
        **agent,
        # For an active agent, show the status from its last heartbeat, if it has sent any.
        "status": live.get("status") or status if status == "active" else status,
        "lastHeartbeat": live.get("heartbeatAt"),
        "capabilities": _capability_ids(agent),
    }


def _capability_ids(card: dict[str, Any]) -> list[str]:
    return [capability["id"] for capability in card.get("capabilities", [])]


calling_verb(
    agents, "list", "agents", "List registered agents with their status and last heartbeat.",
    options="name author model limit=50 offset=0 cursor",
    columns="did status lastHeartbeat endpoint capabilities", row=_agent_row,
)  # fmt: skip
calling_verb(
    agents, "versions", "card_versions", "List all versions of an agent's card, newest first.",
    "did", columns="number cardVersion registeredAt registeredByDid cardHash",
)  # fmt: skip
calling_verb(
    agents, "deregister", "deregister_agent",
    "Deregister an agent; registering it again restores it.", "did",
)  # fmt: skip
calling_verb(
    agents, "keys", "key_history", "List the current and former keys of an agent.", "did",
    columns="keyId publicKey validFrom validUntil",
)  # fmt: skip
calling_verb(
    agents, "collect", "collect", "Move free credits from an agent's wallet to yours.", "did",
    options="amount_credits",
)  # fmt: skip
calling_verb(agents, "unrevoke", "unrevoke_agent", "Lift the revocation of an agent.", "did")


@verb(top, "discover", "Use")
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


@verb(agents, "register")
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
    """Return an agent card; end the process if it cannot be read.

    Args:
        source: the address of a running agent, or the path of a JSON file.
    """
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


@verb(agents, "show")
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
    # `acard` repeats members of the record, and the schemas in `capabilities` are for programs.
    shown = {n: value for n, value in agent.items() if n not in ("acard", "capabilities")}
    session.show_record({**shown, "capabilities": _capability_ids(agent)})


@verb(agents, "rotate-key")
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


def _revoke(client: Client, did: str, *, evidence: Any = None, **terms: Any) -> Any:
    return client.revoke_agent(did, evidence=evidence or {}, **terms)


calling_verb(
    agents, "revoke", _revoke, "Revoke an agent: it gets no more work and no more payments.", "did",
    options="reason! evidence expires_at",
)  # fmt: skip


@verb(agents, "revoked")
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


capabilities = noun("capability", "Publish and compare capability versions.")

_Capability = Annotated[str, typer.Argument(help="The capability's ID.", metavar="CAPABILITY")]
_Version = Annotated[str, typer.Argument(help="Version, such as 1.4.0.", metavar="VERSION")]


@verb(capabilities, "publish")
def publish(
    session: Session,
    capability: _Capability,
    version: _Version,
    input_schema: Annotated[Path, typer.Option(help="File with the JSON Schema of the inputs.")],
    output_schema: Annotated[Path, typer.Option(help="File with the JSON Schema of the result.")],
    changelog: Annotated[str, typer.Option(help="Description of the changes.")] = "",
    deprecates: Annotated[str | None, typer.Option(help="Version that this one replaces.")] = None,
    owner: Annotated[str | None, typer.Option(help="Owner DID; administrators only.")] = None,
) -> None:
    """Publish a version of a capability that one of your agents offers."""
    reply = session.client.publish_version(
        capability,
        version,
        input_schema=object_in(input_schema, "a JSON Schema"),
        output_schema=object_in(output_schema, "a JSON Schema"),
        changelog=changelog,
        deprecates_version=deprecates,
        owner_did=owner,
    )
    session.show_record(reply)


calling_verb(
    capabilities, "list", "versions_of", "List the versions of a capability, newest first.",
    "capability", columns="version status publishedAt sunsetAt changelog",
)  # fmt: skip
calling_verb(
    capabilities, "show", "version", "Show a version, its schemas and its breaking changes.",
    "capability version",
)  # fmt: skip
calling_verb(
    capabilities, "deprecate", "deprecate_version",
    "Deprecate a version permanently; it is removed after 12 months.", "capability version",
    options="successor",
)  # fmt: skip
calling_verb(
    capabilities, "negotiate", "negotiate_version",
    "Show the version to use and the upgrade path to the latest one.", "capability supported",
    options="preferred",
)  # fmt: skip

names = noun("name", "Names of agents.")
heirs = noun("heir", "Heirs of agents that stop sending heartbeats.")
recoveries = noun("recovery", "Recovery of lost agent keys.")
keys = noun("key", "Create, rotate and revoke API keys.", "Operate")


calling_verb(
    names, "register", "register_name", "Register a name for one of your agents.", "name did",
    options="months",
)  # fmt: skip
calling_verb(names, "show", "name", "Show the agent with this name.", "name")
calling_verb(
    names, "list", "names_of", "List the names of an agent.", "did",
    columns="name ownerDid registeredAt expiresAt",
)  # fmt: skip
calling_verb(names, "renew", "renew_name", "Extend the expiry of a name.", "name", options="months")
calling_verb(
    names, "transfer", "transfer_name",
    "Move a name to another agent, offer it to another owner, or accept an offer.", "name did",
)  # fmt: skip
calling_verb(names, "release", "release_name", "Release a name before it expires.", "name")


calling_verb(
    heirs, "set", "set_inheritance", "Name who inherits an agent that stops sending heartbeats.",
    "did heir", options="days! requires_inactivity",
)  # fmt: skip
calling_verb(heirs, "show", "inheritance", "Show an agent's heir and the date.", "did")
calling_verb(heirs, "cancel", "cancel_inheritance", "Remove an agent's heir.", "did")


calling_verb(
    recoveries, "guardians", "set_guardians", "Name who can replace a lost key of an agent.", "did",
    options="guardians threshold custodian_did delay_hours",
)  # fmt: skip


def _request_recovery(client: Client, *places: str, signatures: Sequence[str] = ()) -> Any:
    given = dict(text.split("=", 1) for text in signatures if "=" in text)
    return client.request_recovery(*places, signatures=given)


calling_verb(
    recoveries, "request", _request_recovery,
    "Request a new key for an agent, or add signatures to a request.", "did kind new_key",
    options="signatures",
)  # fmt: skip
calling_verb(recoveries, "show", "recovery", "Show a recovery request.", "recovery")
calling_verb(
    recoveries, "cancel", "cancel_recovery", "Cancel a recovery request.", "recovery",
    options="signature",
)  # fmt: skip


def _key_row(key: dict[str, Any]) -> dict[str, Any]:
    scopes = key.get("scopes") or []
    more = [f"{len(scopes) - 3} more"] if len(scopes) > 3 else []
    return {**key, "scopes": [*scopes[:3], *more]}


calling_verb(
    keys, "create", "create_key", "Create a key; the secret is shown only once.", "owner",
    options="name scopes expires_at rate_class",
)  # fmt: skip
calling_verb(
    keys, "list", "keys", "List keys without their secrets.",
    columns="id ownerDid name scopes createdAt expiresAt", row=_key_row,
)  # fmt: skip
calling_verb(
    keys, "rotate", "rotate_key", "Replace the secret of a key; the new one is shown only once.",
    "key", options="overlap_s",
)  # fmt: skip
calling_verb(keys, "revoke", "revoke_key", "Revoke a key.", "key")

"""The verbs of `peer`, and `route`: other deployments, and the peer that gets work first.

Reference: features.md (Peers, Routing between regions).
"""

from __future__ import annotations

from typing import Any

import typer

from callboard.cli.calling import calling_verb

app = typer.Typer(help="Other deployments that take work from this one.", no_args_is_help=True)

calling_verb(
    app, "add", "add_peer", "Add a peer; the peer must add this deployment too.",
    "endpoint region public_key", options="peer_id did capabilities",
)  # fmt: skip
calling_verb(
    app, "list", "peers", "List peers.", options="region limit=50 cursor",
    columns="id region endpoint status lastSeenAt agentCount workflowCount offerCount",
)  # fmt: skip
calling_verb(app, "show", "peer", "Show a peer and what it offers.", "peer")
calling_verb(app, "remove", "remove_peer", "Remove a peer; it gets no more work.", "peer")
calling_verb(
    app, "balance", "peer_balance",
    "Show what the clearing account holds, and what this deployment has at the peer.", "peer",
)  # fmt: skip
calling_verb(
    app, "statement", "peer_statement", "List the orders at a peer that ended in a month.", "peer",
    options="month limit=50 cursor",
    columns="orderId nodeId outcome completedAt paidCredits receivedCredits peerWorkflowId",
)  # fmt: skip
calling_verb(
    app, "check", "check_peer", "Compare the orders of a period with the peer's books.", "peer",
    options="month start_time end_time",
)  # fmt: skip
calling_verb(
    app, "settle", "settle_peer", "Move credits from a peer's clearing account to yours.", "peer",
    options="amount_credits",
)  # fmt: skip


def _fund(client: Any, peer: str, credits: str) -> Any:
    return client.deposit(credits, owner_did=client.peer(peer).did)


calling_verb(
    app, "fund", _fund, "Deposit credits with which the peer pays for its orders here.",
    "peer credits",
)  # fmt: skip


def add_to(app: typer.Typer) -> None:
    """Add the verb `route`."""
    calling_verb(
        app, "route", "route", "Show which peer gets work of a capability first.", "capability",
        options="request_region", panel="Operate",
    )  # fmt: skip

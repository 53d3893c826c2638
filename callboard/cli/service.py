"""Commands for operators: `cluster`, `drain`, `rotate-signing-key`, `peer`, `route`, `subnet`,
`policy`.

Reference: features.md (Peers, Routing between regions, Subnets and policies); decision
cluster-and-releases.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from callboard.cli.method_verbs import calling_verb
from callboard.cli.session import (
    EXIT_UNSUCCESSFUL,
    EXIT_USAGE,
    Session,
    noun,
    stop,
    table,
    top,
    verb,
)

if TYPE_CHECKING:
    from callboard.replies import ClusterMember

# Members report their state to the ledger twice a second.
_LOOK_S: Final = 0.5
_COLUMNS: Final = (
    "machine", "id", "version", "state", "isLive", "shards", "load", "openCalls", "isDrained",
)  # fmt: skip


@verb(top, "cluster", "Operate")
def show_cluster(session: Session) -> None:
    """Show the members of the cluster and their shards."""
    reply = session.client.cluster()

    def text() -> None:
        _print_members(reply.members)
        if reply.unheld_shards:
            print(f"{reply.unheld_shards} shards have no live member")

    session.show(reply, text)


@verb(top, "drain", "Operate")
def drain(
    session: Session,
    machine: Annotated[
        str,
        typer.Argument(help="The machine's ID, or a unique prefix of it.", metavar="MACHINE"),
    ],
    wait: Annotated[
        float | None,
        typer.Option(
            help="Longest wait in seconds; default: the service's drain_ms.",
            show_default=False,
            min=0,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="End the drain; the machine takes work again.")
    ] = False,
) -> None:
    """Drain a machine: move its work to others; returns when it can be switched off."""
    if resume:
        if wait is not None:
            stop(EXIT_USAGE, "--wait is for draining, not for --resume")
        resumed = session.client.resume_machine(machine)
        session.show(resumed, lambda: _print_members(resumed.members))
        return
    asked = session.client.drain_machine(machine)
    wait_s = asked.drain_ms / 1_000 if wait is None else wait
    members, deadline, shown = asked.members, time.monotonic() + wait_s, ""
    while not all(map(_has_ended, members)):
        if not session.is_json and (left := _left(members)) != shown:
            print(left, flush=True)
            shown = left
        if time.monotonic() + _LOOK_S > deadline:
            _stop_undrained(session, asked.machine, members, wait_s)
        time.sleep(_LOOK_S)
        members = [one for one in session.client.cluster().members if one.machine == asked.machine]
    session.show(
        {"machine": asked.machine, "isDrained": True, "members": members},
        lambda: print(f"drained: {asked.machine} holds nothing and has no open call"),
    )


calling_verb(
    top, "rotate-signing-key", "rotate_signing_key",
    "Sign receipts and checkpoints with a new key; the audit chain records the change.",
    panel="Operate",
)  # fmt: skip


def _has_ended(member: ClusterMember) -> bool:
    """Say whether a member's process can be ended without losing work.

    A live member must be drained. A member that is not live must hold no shards; its open calls
    were lost when its lease expired.
    """
    return member.is_drained if member.is_live else not member.shards


def _left(members: Sequence[ClusterMember]) -> str:
    shards = sum(one.shards for one in members)
    return f"{shards} shards and {sum(one.open_calls for one in members)} open calls are left"


def _stop_undrained(
    session: Session, machine: str, members: Sequence[ClusterMember], wait_s: float
) -> NoReturn:
    """Show the members of a machine that has not drained in time, and end the process."""
    session.show(
        {"machine": machine, "isDrained": False, "members": members},
        lambda: _print_members(members),
    )
    stop(
        EXIT_UNSUCCESSFUL,
        f"not drained after {wait_s:g} s: {_left(members)} on {machine}, and the drain goes on",
    )


def _print_members(members: Sequence[ClusterMember]) -> None:
    table(_COLUMNS, ([one[column] for column in _COLUMNS] for one in members))


peers = noun("peer", "Other deployments that take work from this one.", "Operate")

calling_verb(
    peers, "add", "add_peer", "Add a peer; the peer must add this deployment too.",
    "endpoint region public_key", options="peer_id did capabilities",
)  # fmt: skip
calling_verb(
    peers, "list", "peers", "List peers.", options="region",
    columns="id region endpoint status lastSeenAt agentCount workflowCount offerCount",
)  # fmt: skip
calling_verb(peers, "show", "peer", "Show a peer and what it offers.", "peer")
calling_verb(peers, "remove", "remove_peer", "Remove a peer; it gets no more work.", "peer")
calling_verb(
    peers, "balance", "peer_balance",
    "Show what the clearing account holds, and what this deployment has at the peer.", "peer",
)  # fmt: skip
calling_verb(
    peers, "statement", "peer_statement", "List the orders at a peer that ended in a month.",
    "peer", options="month",
    columns="orderId nodeId outcome completedAt paidCredits receivedCredits peerWorkflowId",
)  # fmt: skip
calling_verb(
    peers, "check", "check_peer", "Compare the orders of a period with the peer's books.", "peer",
    options="month start_time end_time",
)  # fmt: skip
calling_verb(
    peers, "settle", "settle_peer", "Move credits from a peer's clearing account to yours.", "peer",
    options="amount_credits",
)  # fmt: skip


def _fund(client: Any, peer: str, credits: str) -> Any:
    return client.deposit(credits, owner_did=client.peer(peer).did)


calling_verb(
    peers, "fund", _fund, "Deposit credits with which the peer pays for its orders here.",
    "peer credits",
)  # fmt: skip


calling_verb(
    top, "route", "route", "Show which peer gets work of a capability first.", "capability",
    options="request_region", panel="Operate",
)  # fmt: skip
subnets = noun("subnet", "Groups that share agents and policies.")
policies = noun("policy", "Policies of subnets.")

calling_verb(
    subnets, "create", "create_subnet", "Create a subnet.", "name",
    options="member_dids policy_type description",
)  # fmt: skip
calling_verb(
    subnets, "list", "subnets", "List subnets.", options="member_did limit cursor",
    columns="id name policyType ownerDid",
)  # fmt: skip
calling_verb(subnets, "show", "subnet", "Show a subnet.", "subnet")
calling_verb(
    subnets, "delete", "remove_subnet", "Remove a subnet with its members and policies.", "subnet"
)
calling_verb(subnets, "join", "add_subnet_member", "Join a subnet.", "subnet did")
calling_verb(subnets, "leave", "remove_subnet_member", "Leave a subnet.", "subnet did")
calling_verb(subnets, "add", "add_subnet_member", "List a DID in a subnet.", "subnet did")
calling_verb(subnets, "remove", "remove_subnet_member", "Remove a DID from a subnet.", "subnet did")
calling_verb(
    policies, "create", "create_policy", "Add a policy to a subnet.", "subnet",
    options="policy_type! capability region limit_per_minute",
)  # fmt: skip
calling_verb(
    policies, "list", "policies", "List policies.", options="subnet_id",
    columns="id subnetId policyType capability region limitPerMinute",
)  # fmt: skip
calling_verb(policies, "remove", "remove_policy", "Remove a policy.", "policy")

"""What everybody owns as a simulated run begins, and the proof that stakes are where work is.

Stakes are scarce: most agents can have a few nodes at risk at once, one of them next to nothing.
Reference: money.md (Slashing, Stakes).
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from core.workflow.transitions import NodeStatus
from ledger.commands import Command
from ledger.features.accounts import Deposit
from ledger.features.stakes import DepositStake
from tests.simulation.ledger_model import LedgerModel

PAYERS = ("did:sim:rich", "did:sim:middling", "did:sim:poor")
DEPOSITS_MICRO = (10**12, 30_000_000, 1_000_000)
STAKES_MICRO = (10_000, 300_000, 600_000, 2_000_000, 50_000_000)
_OPEN = (NodeStatus.DISPATCHED, NodeStatus.RUNNING)


def opening(seed: int, stake_bps: int, dids: Iterable[str]) -> list[Command]:
    """Return the commands that give payers their wallets and, where stakes are asked, agents
    theirs."""
    commands: list[Command] = [
        deposit(payer, micro) for payer, micro in zip(PAYERS, DEPOSITS_MICRO, strict=True)
    ]
    chance = random.Random(f"stakes {seed}")
    for did in dids if stake_bps else ():
        micro = chance.choice(STAKES_MICRO)
        commands += staked(did, micro)
    return commands


def staked(did: str, micro: int) -> list[Command]:
    """Return the commands that give an agent a stake."""
    stake = DepositStake(
        key=f"stake:{did}",
        request_hash=b"",
        actor_did=did,
        is_admin=False,
        agent_did=did,
        amount_micro=micro,
    )
    return [deposit(did, micro), stake]


def stake_parts(model: LedgerModel, dids: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return free and locked stakes as the directory reads them."""
    return {
        did: (
            model.balances.get(f"stake:{did}", 0),
            model.balances.get(f"stake_locked:{did}", 0),
        )
        for did in dids
    }


def misplaced_lock(model: LedgerModel, workflow_id: str) -> str | None:
    """Return what is wrong with the stakes of a workflow: locked is what its open attempts say."""
    for name, node in model.nodes.get(workflow_id, {}).items():
        micro = node.get("stake_micro")
        said = (node["attempt"], node["agent_did"], micro) if micro else None
        locked = model.locks.get((workflow_id, name))
        if said != locked:
            return f"the row of {name} says {said}, locked is {locked}"
        if said is not None and node["status"] not in _OPEN:
            return f"{name} has ended, its stake is locked"
    return None


def misplaced_stake(model: LedgerModel) -> str | None:
    """Return what is wrong with the stakes of all: locked is what open attempts and bids say."""
    for workflow_id in model.nodes:
        misplaced = misplaced_lock(model, workflow_id)
        if misplaced is not None:
            return f"{workflow_id}: {misplaced}"
    sums: dict[str, int] = {}
    for (workflow_id, name), (_, did, micro) in model.locks.items():
        if name not in model.nodes[workflow_id]:
            return f"stake is locked for {name} of {workflow_id}, which has no row"
        sums[did] = sums.get(did, 0) + micro
    for (*_, did), micro in model.auctions.locked.items():
        sums[did] = sums.get(did, 0) + micro
    for address, micro in model.balances.items():
        kind, _, did = address.partition(":")
        if kind == "stake_locked" and micro != sums.get(did, 0):
            return f"{did} has {micro} locked, its attempts and bids {sums.get(did, 0)}"
    return None


def deposit(owner: str, micro: int) -> Deposit:
    """Return the command that gives an owner its wallet."""
    return Deposit(
        key=f"deposit:{owner}:{micro}",
        request_hash=b"",
        actor_did=owner,
        owner_did=owner,
        amount_micro=micro,
        description="",
    )

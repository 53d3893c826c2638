"""Draining machines over a ledger's model: every member of the machine, also one that comes late.

The routes' own functions, a gateway with real sockets, and the ledger as its model knows it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.gateway.gateway import Gateway
from actors.transport.names import LEDGER
from actors.transport.wire import answer_commands, answer_renewals
from core.errors import ErrorCode, ServiceError
from core.shards.lease_messages import Lease, MemberState, MemberView, Renewal
from core.shards.shard import SHARDS
from core.trust.access import ADMIN, Principal
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.shards import ChangeMember, JoinCluster, TakeShards
from serve_app.http.calls import Operation
from serve_app.operations.service.cluster import OPERATIONS
from tests.actors.gateway.served import gateway_of
from tests.actors.transport.listening import listening
from tests.serve_app.parts import call_of
from tests.simulation.shard_model import BadMove, ShardModel

BOSS = "did:x:boss"
BIG, SMALL, THIRD = "b16" * 8, "5" * 24, "b16" * 7 + "fff"
GET, DRAIN, RESUME = OPERATIONS


class Ledger:
    """The ledger's members and shards, and what it was asked to change.

    `joining`: members that join after the first change. `is_away`: it answers nothing.
    """

    def __init__(self) -> None:
        self.model = ShardModel()
        self.changes: list[ChangeMember] = []
        self.joining: list[JoinCluster] = []
        self.dead: set[str] = set()
        self.is_away = False
        self.model.is_live = lambda member: member not in self.dead

    def join(self, member: str, machine: str, address: str) -> JoinCluster:
        """Return the command by which a member joins."""
        return JoinCluster(key=member, member=member, machine=machine, address=address, version="1")

    def renewed(self, renewals: list[Renewal]) -> list[Lease]:
        """Tell the map."""
        if self.is_away:
            raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "away")
        views = tuple(
            MemberView(
                member=name,
                machine=known.machine,
                address=known.address,
                version=known.version,
                state=known.state,
                load=2,
                is_live=name not in self.dead,
                open_calls=3,
            )
            for name, known in self.model.members.items()
        )
        shards = tuple(self.model.holders)
        lease = Lease(is_known=True, map_version=1, members=views, shards=shards)
        return [lease] * len(renewals)

    async def submit(self, batch: list[Command]) -> Sequence[Outcome]:
        """Apply commands."""
        return [self._applied(command) for command in batch]

    def _applied(self, command: Command) -> Outcome:
        assert isinstance(command, ChangeMember)
        self.changes.append(command)
        try:
            outcome = Outcome(OutcomeStatus.APPLIED, self.model.apply(command, 0))
        except BadMove as error:
            return replace_detail(error.outcome)
        for late in self.joining:
            self.model.apply(late, 0)
        self.joining.clear()
        return outcome


def replace_detail(outcome: Outcome) -> Outcome:
    """Return a refusal with a text, which the model does not write."""
    return Outcome(outcome.status, outcome.result, outcome.error, "the ledger's reason")


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    """A ledger with two members on a machine, one on another; the first holds everything."""
    made = Ledger()
    for name, machine in (("one", BIG), ("two", BIG), ("three", SMALL)):
        made.model.apply(made.join(name, machine, f"at {name}"), 0)
    shards = tuple((shard, 0) for shard in range(SHARDS))
    made.model.apply(TakeShards(key="t", member="one", shards=shards), 0)

    async def submit(bodies: list[bytes]) -> list[bytes]:
        return await answer_commands(made.submit, bodies)

    async def renew(bodies: list[bytes]) -> list[bytes]:
        return answer_renewals(made.renewed, bodies)

    server = await listening(tmp_path, LEDGER, {"submit": submit, "renew": renew})
    yield made
    await server.close()


@pytest.fixture
async def gateway(tmp_path: Path, ledger: Ledger) -> AsyncIterator[Gateway]:
    """A replica's gateway beside that ledger."""
    async with gateway_of(tmp_path) as made:
        yield made


async def ask(gateway: Gateway, operation: Operation, machine: str = "") -> dict[str, Any]:
    """Call the route's handler as an administrator; return its reply's body."""

    async def to_the_end(work: Any) -> Any:
        return await work

    ids = iter(range(100))
    services = SimpleNamespace(
        gateway=gateway,
        settings=gateway.settings,
        new_id=lambda: str(next(ids)),
        to_the_end=to_the_end,
    )
    call = call_of(
        services,
        method=operation.method,
        path_texts={"machine": machine} if "{machine}" in operation.path else {},
        raw_path=operation.path.encode(),
        principal=Principal(BOSS, "k", frozenset((ADMIN,))),
    )
    call.parse(operation)
    body: dict[str, Any] = (await call.handle(operation)).body
    return body


async def test_members_are_shown_with_what_they_hold(gateway: Gateway, ledger: Ledger) -> None:
    ledger.dead = {"two"}
    shown = await ask(gateway, GET)
    assert shown["unheldShards"] == 0
    assert shown["members"][0] == {
        "id": "one",
        "machine": BIG,
        "address": "at one",
        "version": "1",
        "state": "ready",
        "isLive": True,
        "load": 2,
        "openCalls": 3,
        "shards": SHARDS,
        "isDrained": False,
    }
    assert [(one["id"], one["isLive"], one["shards"]) for one in shown["members"][1:]] == [
        ("two", False, 0), ("three", True, 0)
    ]  # fmt: skip
    ledger.dead = {"one"}
    assert (await ask(gateway, GET))["unheldShards"] == SHARDS


async def test_draining_changes_every_member_of_the_machine_in_the_callers_name(
    gateway: Gateway, ledger: Ledger
) -> None:
    drained = await ask(gateway, DRAIN, BIG[:6])
    assert (drained["success"], drained["machine"]) == (True, BIG)
    assert drained["drainMs"] == gateway.settings.drain_ms
    assert {one["id"]: one["state"] for one in drained["members"]} == {
        "one": "draining",
        "two": "draining",
    }
    assert {(one.member, one.actor_did) for one in ledger.changes} == {("one", BOSS), ("two", BOSS)}
    assert await ask(gateway, DRAIN, BIG) == drained
    assert len(ledger.changes) == 2, "what drains already is left alone"
    resumed = await ask(gateway, RESUME, BIG)
    assert {one["state"] for one in resumed["members"]} == {"ready"}
    assert ledger.model.members["three"].state is MemberState.READY


async def test_member_that_joins_meanwhile_drains_too(gateway: Gateway, ledger: Ledger) -> None:
    ledger.joining = [ledger.join("late", BIG, "at another place")]
    drained = await ask(gateway, DRAIN, BIG)
    assert {one["id"] for one in drained["members"]} == {"one", "two", "late"}
    assert {one["state"] for one in drained["members"]} == {"draining"}


async def test_refusal_of_the_ledger_is_told(gateway: Gateway, ledger: Ledger) -> None:
    """As of two machines that are drained at the same moment."""
    ledger.model.is_live = lambda member: member == "one"
    with pytest.raises(ServiceError) as refused:
        await ask(gateway, DRAIN, BIG)
    assert refused.value.code is ErrorCode.CONFLICT
    assert "the ledger's reason" in refused.value.detail


async def test_ledger_that_is_away_is_said(gateway: Gateway, ledger: Ledger) -> None:
    ledger.is_away = True
    with pytest.raises(ServiceError) as refused:
        await ask(gateway, GET)
    assert refused.value.code is ErrorCode.LEDGER_UNAVAILABLE

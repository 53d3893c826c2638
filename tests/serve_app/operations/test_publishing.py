"""The ids and the key of a publish: where its workflow goes, and what it is stored under once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.gateway.gateway import Gateway
from actors.transport.messages import PublishRequest
from core.records.manifest import parse_manifest
from core.shards.lease_messages import MemberState
from core.shards.shard import shard_of
from core.trust.access import Principal
from ledger.features.workflow_commands import PUBLISH_KEY
from serve_app.operations.work.publishing import publish_request
from tests.actors.gateway.maps import lease, member
from tests.actors.gateway.served import gateway_of
from tests.serve_app.parts import call_of, services_of
from tests.simulation.shapes import CAPABILITIES

CALLER = Principal("did:test:payer", "k", frozenset(("workflows:write",)), "unlimited")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that knows two members, of which one drains."""
    draining = member("draining", state=MemberState.DRAINING)
    async with gateway_of(tmp_path, member("ready"), draining) as made:
        yield made


def made_request(gateway: Gateway, command_key: str = "") -> PublishRequest:
    """Return the request of one caller's publish."""
    call = call_of(services_of(gateway), principal=CALLER)
    manifest = parse_manifest({"nodes": {"a": {"capabilityId": CAPABILITIES[0]}}})
    return publish_request(call, manifest, b"{}", command_key=command_key)


async def test_workflow_goes_to_a_shard_of_a_ready_member(gateway: Gateway) -> None:
    """The members hold the shards in turn: every even one is the ready one's."""
    ids = [made_request(gateway).workflow_id for _ in range(50)]
    assert {shard_of(one) % 2 for one in ids} == {0}
    assert len(set(ids)) == 50


async def test_key_is_the_callers_or_of_the_task(gateway: Gateway) -> None:
    """Of the workflow's id it would change with it, and the money would be held twice."""
    assert made_request(gateway, "http:k:1").command_key == "http:k:1"
    made = made_request(gateway)
    assert made.command_key == f"{PUBLISH_KEY}{made.task_id}"
    assert made.workflow_id not in made.command_key


async def test_without_a_ready_member_an_id_is_made_all_the_same(gateway: Gateway) -> None:
    gateway.owners.use_lease(lease([member("draining", state=MemberState.DRAINING)]))
    assert len({made_request(gateway).workflow_id for _ in range(50)}) == 50

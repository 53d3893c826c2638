"""What `nodeResult` counts and reads, and in which order; run through the endpoint itself.

Decision limits-and-admission.
"""

from __future__ import annotations

from collections import Counter

import orjson
import pytest

from actors.transport.messages import NodeResultReply, NodeResultRequest
from actors.values.handed_in_results import (
    HandedIn,
    JudgedHandIn,
    judge_handed_in,
    result_text,
)
from actors.values.value_process import JUDGED_IN_LOOP_BYTES_MAX, ValueProcessEnded
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.trust.access import agent_holder
from core.trust.deployment_keys import DeploymentKeys
from core.trust.tokens import result_id
from ledger.operational import RateBlock
from ledger.reads.stored import RowDict
from serve_app.callers.admission import Admission
from serve_app.callers.client_address import CLIENT_ADDRESS_HEADER, ClientAddresses, proxy_tokens
from serve_app.callers.limits import RateLimiter
from serve_app.http.endpoint import Endpoint
from serve_app.operations.work.results import OPERATIONS, names_of
from tests.serve_app.parts import request, services_of

KEY = bytes(range(32))
KEYS = DeploymentKeys([(1, KEY)])
# Calls a minute, of each agent and of each address.
RATE = 3
SETTINGS = Settings(deployment_key=KEY.hex(), machine_rate=RATE)
WORKFLOW = "0198c0de-0000-7000-8000-000000000001"
HERE, THERE = "192.0.2.1", "192.0.2.2"


class Rows:
    """A gateway with one workflow; each node is dispatched to the agent of its name.

    Agents "a" and "b" are one owner's, the others are their own.
    """

    settings = SETTINGS

    def __init__(self) -> None:
        self.read: Counter[str] = Counter()
        self.reads = self
        self.judged_in_child: list[str] = []
        self.is_process_broken = False
        self.attempt = 1

    async def dispatched_node(self, workflow_id: str, node: str) -> RowDict | None:
        self.read["node"] += 1
        return {
            "workflow_id": workflow_id,
            "name": node,
            "status": "running",
            "attempt": self.attempt,
            "verify_attempt": 0,
            "agent_did": f"did:net:{node}",
            "verifier_did": None,
            "key_version": 1,
        }

    async def attempt_agent(
        self, workflow_id: str, name: str, number: int, *, is_verification: bool
    ) -> str | None:
        self.read["attempt"] += 1
        return f"did:net:earlier-{name}"

    async def row(self, workflow_id: str) -> RowDict | None:
        self.read["workflow"] += 1
        # JSON to a scan that only looks where a value ends, and to no parser that builds it.
        node = '{"payload":{"x":1e999},"capabilityId":"cap.x.v1"}'
        manifest = f'{{"nodes":{{"a":{node},"b":{node},"c":{node}}}}}'
        return {"id": workflow_id, "status": "running", "manifest": manifest}

    @property
    def value_process(self) -> Rows:
        return self

    async def claim(self, did: str) -> RowDict | None:
        self.read["agent"] += 1
        owner = "did:net:owner" if did in ("did:net:a", "did:net:b") else did
        return {"did": did, "owner_did": owner}

    async def judge_handed_in(self, owner: str, handed_in: HandedIn) -> JudgedHandIn:
        self.judged_in_child.append(owner)
        if self.is_process_broken:
            raise ValueProcessEnded("it broke off")
        return judge_handed_in(handed_in)

    async def node_result(self, request: NodeResultRequest) -> NodeResultReply:
        self.read["taken"] += 1
        return NodeResultReply(status="success")


class Count:
    """The database's count of the calls of each DID."""

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()

    async def take(self, did: str, rate: str, wanted: int, limit: int) -> RateBlock:
        granted = min(wanted, limit - self.used[did])
        self.used[did] += granted
        return RateBlock(granted, self.used[did], 60_000)


class Api:
    """`nodeResult` behind its endpoint."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.count = Count()
        services = services_of(
            self.rows,
            limiter=RateLimiter(SETTINGS, self.count.take),
            heartbeats=self.rows,
            admission=Admission(SETTINGS),
            client_addresses=ClientAddresses(KEYS),
        )
        self._endpoint = Endpoint(OPERATIONS, services)

    async def hand_in(
        self,
        node: str = "a",
        *,
        address: str = HERE,
        after: bytes = b"",
        **members: object,
    ) -> tuple[int, int]:
        """Hand a result in; return the status and how much has been read for it.

        Args:
            after: written behind the body's members.
        """
        token = result_id(KEYS, WORKFLOW, node, 1, is_verification=False, key_version=1)
        ids = {"workflowId": WORKFLOW, "nodeId": node, "resultId": token}
        body = orjson.dumps({**ids, "status": "success", "result": {}, **members})
        body = body[:-1] + after + body[-1:]
        told = proxy_tokens(KEYS)[0].encode() + b" " + address.encode()
        headers = [(CLIENT_ADDRESS_HEADER, told), (b"content-type", b"application/json")]
        before = self.rows.read.total()
        path = "/v1/workflows/nodeResult"
        status, _ = await request(self._endpoint, "POST", path, body, headers=headers)
        return status, self.rows.read.total() - before


async def test_an_agent_above_its_limit_is_refused_before_the_workflow_is_read() -> None:
    api = Api()
    taken = [await api.hand_in() for _ in range(RATE)]
    assert [status for status, _ in taken] == [200] * RATE
    assert api.rows.read == {"node": RATE, "workflow": RATE, "taken": RATE}
    assert await api.hand_in() == (429, 1)
    assert api.rows.read["workflow"] == RATE
    assert (await api.hand_in("b"))[0] == 200, "another agent at the same address"


async def test_calls_above_an_agents_limit_count_for_their_address() -> None:
    """A token that is right opens no way to read without a limit."""

    api = Api()
    for _ in range(RATE):
        await api.hand_in()
    assert [await api.hand_in() for _ in range(RATE)] == [(429, 1)] * RATE
    assert await api.hand_in() == (429, 0)
    assert await api.hand_in("b") == (429, 0)
    assert (await api.hand_in("b", address=THERE))[0] == 200


async def test_wrong_tokens_and_bodies_that_name_nothing_count_for_their_address() -> None:
    api = Api()
    assert await api.hand_in(resultId="guess") == (401, 1)
    assert await api.hand_in(workflowId="w") == (401, 0)
    assert await api.hand_in(nodeId=[]) == (400, 0)
    assert await api.hand_in() == (429, 0)
    assert api.count.used[agent_holder("did:net:a")] == 0
    assert (await api.hand_in(address=THERE))[0] == 200


async def test_results_that_are_taken_leave_their_address_its_calls() -> None:
    """An address may be home to many agents, each of which has the limit of the contract."""

    api = Api()
    for node in "ab" * RATE:
        assert (await api.hand_in(node))[0] == 200
    assert api.count.used == {agent_holder(f"did:net:{node}"): RATE for node in "ab"}


async def test_a_late_result_counts_for_the_agent_of_its_own_attempt() -> None:
    """It counted for the agent of the newest attempt, which could then be refused by its limit."""

    api = Api()
    api.rows.attempt = 2
    for _ in range(RATE):
        assert (await api.hand_in(agentDid="did:net:earlier-a"))[0] == 200
    assert api.count.used == {agent_holder("did:net:earlier-a"): RATE}
    assert (await api.hand_in())[0] == 429
    assert (await api.hand_in("b", agentDid="did:net:b"))[0] == 401


# JSON to a scan that only looks where a value ends, and to no parser that builds it.
NO_VALUE = b',"x":"\\u0000","result":{"a":1e999}'


async def test_of_a_body_without_a_right_token_only_the_token_is_parsed() -> None:
    """1 MiB of nested arrays was built by the loop for anybody, ten at once for three seconds."""

    api = Api()
    assert await api.hand_in(resultId="no token", after=NO_VALUE) == (401, 1)
    assert await api.hand_in(after=NO_VALUE) == (400, 2)


async def test_a_call_is_counted_for_its_address_before_anything_is_parsed() -> None:
    api = Api()
    assert [await api.hand_in(after=b"no JSON") for _ in range(RATE)] == [(400, 0)] * RATE
    assert await api.hand_in(after=b"no JSON") == (429, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"workflowId":"w","nodeId":"a","resultId":{}}',
        b'{"workflowId":"w","nodeId":"a","resultId":"' + b"x" * 20_000 + b'"}',
        b'{"workflowId":"w","nodeId":"a","resultId":"\\ud800"}',
        b'{"workflowId":"w","nodeId":"a\\u0000b","resultId":"x"}',
        b'{"\xff":"w"}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_names_no_dispatch_is_refused(body: bytes) -> None:
    with pytest.raises(ServiceError) as refusal:
        names_of(body)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    assert refusal.value.problems


def test_a_verdict_reaches_its_owner_as_yes_or_no() -> None:
    """The owner would parse it in its loop, up to 1 MiB of it."""
    result = {"approved": True, "why": ["x"] * 10_000}
    assert result_text(result, is_verdict=True) == b'{"approved":true}'
    assert result_text({"approved": "yes"}, is_verdict=True) == b'{"approved":false}'
    assert result_text(result, is_verdict=False) == orjson.dumps(result)


async def test_a_large_result_is_judged_beside_the_loop() -> None:
    """1 MiB of a right token's result held the loop for 50 ms in one call, in a thread too."""

    api = Api()
    large = "x" * JUDGED_IN_LOOP_BYTES_MAX
    assert await api.hand_in(result=large) == (200, 4)
    assert await api.hand_in("b", result={}) == (200, 3)
    assert len(api.rows.judged_in_child) == 1
    assert await api.hand_in("b", result=large, status="what") == (400, 3)
    assert await api.hand_in("b", result=large, resultId="no token") == (401, 1)
    assert len(api.rows.judged_in_child) == 2
    api.rows.is_process_broken = True
    assert await api.hand_in(result=large) == (503, 3)


async def test_large_results_are_judged_in_the_turn_of_the_agents_owner() -> None:
    """50 agents of one owner made another owner's result wait for 10.7 s instead of 0.05."""

    api = Api()
    large = "x" * JUDGED_IN_LOOP_BYTES_MAX
    for node in ("a", "b", "c"):
        assert (await api.hand_in(node, result=large))[0] == 200
    assert api.rows.judged_in_child == ["did:net:owner", "did:net:owner", "did:net:c"]

"""Large results and inputs, and replies beyond the bounds."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from core.canonical import hash_bytes
from tests.contract.conftest import Caller, MakeAgent, MakeCaller, answer, refusal
from tests.contract.test_execution_async import PATH, begin, handed_in, later, one_node

Json = dict[str, Any]
TEXT = "ä" * 40_000  # 80,000 bytes as JSON


def large(dispatch: Json) -> tuple[int, Json]:
    """Reply with more than goes into a row."""
    return 200, {"status": "success", "result": {"text": TEXT, "part": {"n": 7}}}


def sized(kib: int) -> Any:
    """Reply with a result of about this size."""

    def reply(dispatch: Json) -> tuple[int, Json]:
        return 200, {"status": "success", "result": {"text": "x" * (kib * 1024 - 200)}}

    return reply


def test_large_result_is_shown_whole_and_is_its_childrens_input(
    payer: Caller, make_agent: MakeAgent
) -> None:
    source, child = make_agent(large, price_cents=20), make_agent()
    nodes = {
        "a": {"capabilityId": source.capability},
        "b": {
            "capabilityId": child.capability,
            "dependsOn": ["a"],
            "inputMappings": {"n": "$.a.result.part.n"},
        },
        "c": {
            "capabilityId": child.capability,
            "dependsOn": ["b"],
            "inputMappings": {"all": "$.a.result"},
        },
    }
    record = payer.run({"nodes": nodes})
    whole = {"text": TEXT, "part": {"n": 7}}
    assert record["status"] == "success", record
    assert record["nodes"]["a"]["result"] == whole
    assert answer(payer.http.get(f"/v1/workflows/{record['id']}")) == record
    by_name = {dispatch["nodeId"]: dispatch for dispatch in child.stub.dispatches}
    assert by_name["b"]["inputs"] == by_name["b"]["input"] == {"n": 7}
    assert by_name["b"]["parents"] == {"a": {"result": whole}}
    assert by_name["c"]["inputs"] == {"all": whole}
    assert record["nodes"]["c"]["result"]["inputs"] == {"all": whole}


def test_path_absent_from_a_large_result_fails_the_node_for_good(
    payer: Caller, make_agent: MakeAgent
) -> None:
    source = make_agent(large)
    nodes = {
        "a": {"capabilityId": source.capability},
        "b": {
            "capabilityId": source.capability,
            "dependsOn": ["a"],
            "inputMappings": {"n": "$.a.result.part.absent"},
        },
    }
    record = payer.run({"nodes": nodes})
    assert record["nodes"]["b"]["error"]["code"] == "INPUT_MAPPING_FAILED"
    assert record["nodes"]["b"]["attempts"] == 1
    assert len(source.stub.dispatches) == 1


def test_verifier_gets_a_large_result_whole(
    payer: Caller, make_agent: MakeAgent, make_caller: Any
) -> None:
    source = make_agent(large)
    verifier = make_agent(
        lambda _: (200, {"status": "success", "result": {"valid": True}}),
        ownerDid=make_caller().did,
    )
    options = {"requiresVerification": True, "verifierCapabilityId": verifier.capability}
    record = payer.run(one_node(source.capability, **options))
    assert record["status"] == "success", record
    assert verifier.stub.dispatches[0]["inputs"]["result"]["text"] == TEXT
    assert record["nodes"]["a"]["result"]["text"] == TEXT


def test_large_result_may_be_handed_in(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    agent = make_agent(later)
    path = begin(payer, one_node(agent.capability))
    agent.stub.wait_dispatched()
    body = handed_in(agent.stub.dispatches[0], result={"text": "y" * 1_000_000})
    answer(anonymous.post(PATH, json=body))
    assert payer.finished(path)["nodes"]["a"]["result"] == body["result"]


def test_handed_in_body_above_the_reply_limit_is_413_and_the_node_waits_on(
    payer: Caller, make_agent: MakeAgent, anonymous: httpx.Client
) -> None:
    agent = make_agent(later)
    path = begin(payer, one_node(agent.capability))
    agent.stub.wait_dispatched()
    body = handed_in(agent.stub.dispatches[0], result={"text": "y" * 1_100_000})
    refusal(anonymous.post(PATH, json=body), 413, "PAYLOAD_TOO_LARGE")
    answer(anonymous.post(PATH, json=handed_in(agent.stub.dispatches[0])))
    assert payer.finished(path)["status"] == "success"


def test_reply_above_the_limit_is_RESULT_TOO_LARGE(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(sized(10_240))
    record = payer.run(one_node(agent.capability, maxRetries=0))
    node = record["nodes"]["a"]
    assert (node["status"], node["error"]["code"]) == ("failed", "RESULT_TOO_LARGE")


def test_parents_above_the_dispatch_limit_are_INPUT_TOO_LARGE(
    payer: Caller, make_agent: MakeAgent
) -> None:
    source, join = make_agent(sized(1_000)), make_agent()
    names = [f"p{number}" for number in range(9)]
    nodes: Json = {name: {"capabilityId": source.capability} for name in names}
    nodes["join"] = {"capabilityId": join.capability, "dependsOn": names}
    record = payer.run({"nodes": nodes})
    assert record["nodes"]["join"]["error"]["code"] == "INPUT_TOO_LARGE"
    assert not join.stub.dispatches
    assert record["nodes"]["p0"]["result"]["text"].startswith("xxx")


@pytest.mark.parametrize("result", [{"$blob": "sha256:" + "ab" * 32, "size": 1}])
def test_result_that_looks_like_a_reference_is_only_a_result(
    payer: Caller, make_agent: MakeAgent, result: Json
) -> None:
    agent, child = make_agent(lambda _: (200, {"status": "ok", "result": result})), make_agent()
    nodes = {
        "a": {"capabilityId": agent.capability},
        "b": {"capabilityId": child.capability, "dependsOn": ["a"]},
    }
    record = payer.run({"nodes": nodes})
    assert record["nodes"]["a"]["result"] == result
    assert child.stub.dispatches[0]["parents"] == {"a": {"result": result}}


def test_results_beyond_the_records_bound_are_read_by_themselves(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Five results of 1,000 KiB, of which four fit into the 4 MiB of a record."""
    owner = make_caller()
    agent, other = make_agent(sized(1_000)), make_agent(owner=owner)
    names = [f"n{number}" for number in range(5)]
    nodes: Json = {"a": {"capabilityId": other.capability}}
    nodes.update((name, {"capabilityId": agent.capability}) for name in names)
    response = payer.publish({"nodes": nodes}, Prefer="wait=60")
    record = payer.finished(f"/v1/workflows/{answer(response)['workflowId']}")
    assert len(payer.http.get(f"/v1/workflows/{record['id']}").content) <= 4 * 1024 * 1024
    (beyond,) = [name for name in names if "resultRef" in record["nodes"][name]]
    ref = record["nodes"][beyond]["resultRef"]
    whole = payer.http.get(f"/v1/workflows/{record['id']}/nodes/{beyond}/result")
    assert answer(whole)["text"].startswith("xxx")
    assert ref == {"sha256": hash_bytes(whole.content), "size": len(whole.content)}
    small = f"/v1/workflows/{record['id']}/nodes/a/result"
    assert answer(payer.http.get(small)) == record["nodes"]["a"]["result"]
    as_agent = make_caller(ownerDid=other.did).http
    assert answer(as_agent.get(small)) == record["nodes"]["a"]["result"]
    for path in (f"/v1/workflows/{record['id']}/nodes/{beyond}/result", f"{small}x"):
        refusal(as_agent.get(path), 404, "NOT_FOUND")
    refusal(owner.http.get(small), 404, "NOT_FOUND")
    for path in (small.replace("/a/", "/ghost/"), f"/v1/workflows/x/nodes/{beyond}/result"):
        refusal(payer.http.get(path), 404, "NOT_FOUND")

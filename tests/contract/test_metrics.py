"""`/metrics`, for Prometheus: who reads it, what it shows, what it must not.

Reference: operations.md (Metrics).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.conftest import Caller, MakeAgent, MakeCaller, chain_of, refusal, wait
from tests.contract.test_execution_ends import verified
from tests.contract.test_execution_replies import scripted
from tests.contract.test_traces import APPROVED

METRICS = "/metrics"
DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
# As Prometheus 3 asks.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def read(caller: Caller) -> dict[str, Any]:
    """Return the families by name, as Prometheus' own parser reads them."""
    response = caller.http.get(METRICS, headers={"accept": ACCEPT})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {family.name: family for family in text_string_to_metric_families(response.text)}


def value(caller: Caller, sample: str, **labels: str) -> float:
    """Return the value of a series, 0 before it has one."""
    return next(
        (
            found.value
            for family in read(caller).values()
            for found in family.samples
            if found.name == sample and found.labels == labels
        ),
        0.0,
    )


def test_prometheus_needs_one_right_and_nothing_else_opens_with_it(
    make_caller: MakeCaller, admin: Caller, anonymous: httpx.Client
) -> None:
    prometheus = make_caller(scopes=["metrics:read"])
    bearer = {"authorization": f"Bearer {prometheus.key}"}
    assert anonymous.get(METRICS, headers=bearer).is_success
    assert read(prometheus).keys() == read(admin).keys()
    refusal(prometheus.http.get("/v1/ledger/balance"), 403, "INSUFFICIENT_SCOPE")
    refusal(make_caller().http.get(METRICS), 403, "INSUFFICIENT_SCOPE")
    refusal(anonymous.get(METRICS), 401, "UNAUTHORIZED")


def test_a_finished_workflow_moves_the_counters(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    moved = {
        ("callboard_workflows_published_total", ()): 1,
        ("callboard_workflows_finished_total", (("status", "success"),)): 1,
        ("callboard_nodes_finished_total", (("status", "success"),)): 3,
        ("callboard_attempts_total", (("kind", "primary"), ("outcome", "success"))): 3,
        ("callboard_payments_total", ()): 3,
        ("callboard_stage_seconds_count", (("stage", "dispatch"),)): 3,
        ("callboard_stage_seconds_count", (("stage", "settlement"),)): 3,
    }

    def values() -> dict[Any, float]:
        return {one: value(admin, one[0], **dict(one[1])) for one in moved}

    agent, before = make_agent(), values()
    record = payer.run(chain_of(agent.capability))
    assert record["status"] == "success"
    wait(
        lambda: all(now - before[one] >= moved[one] for one, now in values().items()),
        "the counters",
    )
    assert value(admin, "callboard_processes", kind="owner") >= 1
    assert value(admin, "callboard_shards", state="held") == 256


def test_refusals_are_counted_by_code_and_no_tenant_is_named(
    payer: Caller, admin: Caller, make_caller: MakeCaller
) -> None:
    code = {"code": "NOT_FOUND"}
    before = value(admin, "callboard_refusals_total", **code)
    hostile = make_caller(name='"}\n callboard_x 1')
    refusal(hostile.http.get("/v1/tasks/0198c0de-0000-7000-8000-000000000000"), 404, "NOT_FOUND")
    wait(lambda: value(admin, "callboard_refusals_total", **code) > before, "the refusal")
    text = admin.http.get(METRICS).text
    for caller in (payer, admin, hostile):
        assert not [
            part for part in (caller.did, caller.key, caller.key_id) if part and part in text
        ]
    assert "did:" not in text


def test_what_is_documented_is_shown_with_its_labels_and_nothing_else(
    payer: Caller, admin: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """After a verified node, a refusal, a check of the books and a checkpoint all have values."""
    verifier = make_agent(scripted(APPROVED), price_cents=1, ownerDid=make_caller().did)
    assert payer.run(verified(make_agent().capability, verifier.capability))["status"] == "success"
    refusal(payer.http.get("/v1/ledger/check"), 403, "INSUFFICIENT_SCOPE")
    heartbeat = "/v1/federation/peers/heartbeat"
    refusal(payer.http.post(heartbeat, json={"signature": "AAAA"}), 400, "INVALID_REQUEST")
    assert admin.http.post("/v1/ledger/check").is_success
    rows = re.findall(
        r"^\| `(callboard_\w+)(?:\{([a-z, ]+)\})?` \| (\w+) \|", DOCUMENT.read_text(), re.M
    )
    documented = {
        (name, kind): set(filter(None, labels.split(", "))) for name, labels, kind in rows
    }
    assert len(documented) >= 30
    stages = {"queue", "dispatch", "verification", "settlement"}

    def shown() -> tuple[dict[tuple[str, str], set[str] | None], set[str]]:
        found = {}
        families = read(admin)
        for family in families.values():
            labels = {label for one in family.samples for label in one.labels} - {"le"}
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name, family.type] = labels if family.samples else None
        timed = families["callboard_stage_seconds"].samples
        return found, {one.labels["stage"] for one in timed if one.value}

    wait(lambda: shown() == (documented, stages), "a value of each series")

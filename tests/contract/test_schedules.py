"""Schedules and triggers, row by row: made, read, changed, run by hand and when due, ended.

A schedule whose due times lie in the past, as after an outage, is a copy of one that a caller has
made; the timekeeper then takes them at once. Spec: Schedule, trigger.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    refusal,
    unique,
    wait,
)
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
SCHEDULES, TRIGGERS = "/v1/schedules", "/v1/triggers"
YEARLY = "30 3 1 1 *"
MINUTE_MS = 60_000


def schedule(capability: str = "cap.test.nobody.v1", **more: Any) -> Json:
    """Return a schedule that is due once a year."""
    template = {"capability": capability, "input": {"a": 1}}
    return {"name": "yearly", "cronExpression": YEARLY, "workflowTemplate": template, **more}


def priced(capability: str, **settings: Any) -> Json:
    """Return the manifest of one node with a budget."""
    node = {"capabilityId": capability, "payload": {"a": 1}}
    return {"nodes": {"task": node}, "settings": {"maxBudgetCredits": 1, **settings}}


def made(caller: Caller, **more: Any) -> Json:
    """Create a schedule."""
    return answer(caller.http.post(SCHEDULES, json=schedule(**more)))


def runs_of(caller: Caller, schedule_id: str) -> list[Json]:
    """Return the runs of a schedule, the oldest first."""
    page = answer(caller.http.get(f"{SCHEDULES}/{schedule_id}/runs"))
    return list(reversed(page["runs"]))


class Overdue:
    """Makes copies of schedules that came due some minutes ago."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def copy(self, schedule_id: str, minutes: int) -> str:
        """Return the id of a copy whose oldest due time is so many minutes ago."""
        row = self._connection.execute(
            "INSERT INTO trigger SELECT (json_populate_record(t, json_build_object("
            " 'id', %s::text, 'status', 'active', 'reason', NULL, 'due_ms',"
            " due.ms))).* FROM trigger t, (SELECT"
            " (extract(epoch FROM now())::bigint / 60 - %s) * 60000 AS ms) AS due"
            " WHERE t.id = %s RETURNING id",
            (str(uuid.uuid4()), minutes, schedule_id),
        ).fetchone()
        assert row is not None
        return str(row[0])

    def multiply(self, schedule_id: str, copies: int) -> None:
        """Add copies of a schedule."""
        self._connection.execute(
            "INSERT INTO trigger SELECT (json_populate_record(t, json_build_object("
            " 'id', gen_random_uuid()))).* FROM trigger t, generate_series(1, %s)"
            " WHERE t.id = %s",
            (copies, schedule_id),
        )


@pytest.fixture
def overdue(deployment: RunningDeployment) -> Iterator[Overdue]:
    """A hand in the database."""
    with psycopg.connect(superuser_url(deployment), autocommit=True) as connection:
        connection.execute("SET search_path = callboard")
        yield Overdue(connection)


def test_a_schedule_is_created_read_listed_and_ended(
    payer: Caller, make_caller: MakeCaller
) -> None:
    """Another tenant learns of none of it."""
    record = made(payer, timezone="Asia/Kathmandu", maxRuns=3, dailyBudgetCredits=0.5)
    schedule_id, other = record["scheduleId"], make_caller()
    assert record["success"] and record["id"] == record["triggerId"] == schedule_id
    assert record["nextRunAt"].endswith("-12-31T21:45:00.000Z"), "03:30 at UTC+5:45"
    assert record["workflowTemplate"] == {
        "intent": "yearly",
        "nodes": {"task": {"capabilityId": "cap.test.nobody.v1", "payload": {"a": 1}}},
    }
    expected = {
        "kind": "scheduled", "name": "yearly", "ownerDid": payer.did, "status": "active",
        "reason": None, "version": 1, "maxRuns": 3, "dailyBudgetCredits": 0.5, "runs": 0,
        "refusals": 0, "cronExpression": YEARLY, "timezone": "Asia/Kathmandu",
        "overlapPolicy": "skip", "catchUpWindowMs": 3_600_000, "jitterMs": 0,
    }  # fmt: skip
    assert {name: record[name] for name in expected} == expected
    second = made(payer, name="second")["scheduleId"]
    for root, plural in ((SCHEDULES, "schedules"), (TRIGGERS, "triggers")):
        read = answer(payer.http.get(f"{root}/{schedule_id}"))
        assert read == {name: one for name, one in record.items() if name != "success"}
        page = answer(payer.http.get(root, params={"limit": 1}))
        rest = answer(payer.http.get(root, params={"cursor": page["nextCursor"]}))
        assert [one["id"] for one in (*page[plural], *rest[plural])] == [second, schedule_id]
        assert answer(other.http.get(root))[plural] == []
        for path in (f"{root}/{schedule_id}", f"{root}/{schedule_id}/runs"):
            refusal(other.http.get(path), 404, "NOT_FOUND")
        refusal(other.http.patch(f"{root}/{schedule_id}", json={}), 404, "NOT_FOUND")
        refusal(other.http.delete(f"{root}/{schedule_id}"), 404, "NOT_FOUND")
        refusal(payer.http.get(f"{root}/{uuid.uuid4()}"), 404, "NOT_FOUND")
        refusal(payer.http.get(f"{root}/x"), 404, "NOT_FOUND")
    refusal(other.http.post(f"{SCHEDULES}/{schedule_id}/trigger"), 404, "NOT_FOUND")
    refusal(other.http.get(f"{SCHEDULES}/{schedule_id}/next"), 404, "NOT_FOUND")
    ended = answer(payer.http.delete(f"{SCHEDULES}/{schedule_id}"))
    assert (ended["success"], ended["id"], ended["status"]) == (True, schedule_id, "ended")
    assert answer(payer.http.delete(f"{TRIGGERS}/{schedule_id}"))["status"] == "ended"
    gone = answer(payer.http.get(f"{SCHEDULES}/{schedule_id}"))
    assert gone == {name: ended[name] for name in ended if name not in ("success", "updatedAt")} | {
        "updatedAt": gone["updatedAt"]
    }
    assert (gone["status"], gone["reason"], gone["nextRunAt"]) == ("ended", "deleted", None)
    assert [one["id"] for one in answer(payer.http.get(SCHEDULES))["schedules"]] == [second]
    listed = answer(payer.http.get(SCHEDULES, params={"status": "ended"}))["schedules"]
    assert [one["id"] for one in listed] == [schedule_id]
    refusal(payer.http.patch(f"{SCHEDULES}/{schedule_id}", json={}), 409, "CONFLICT")
    refusal(payer.http.post(f"{SCHEDULES}/{schedule_id}/trigger"), 409, "CONFLICT")
    assert answer(payer.http.get(f"{SCHEDULES}/{schedule_id}/next"))["next"] == []


@pytest.mark.parametrize(
    ("changed", "code", "paths"),
    [
        ({"name": None}, "INVALID_REQUEST", ["name"]),
        ({"name": "x" * 101}, "INVALID_REQUEST", ["name"]),
        ({"name": "a\0b"}, "INVALID_REQUEST", ["$"]),
        ({"cronExpression": "* * * * * *"}, "INVALID_REQUEST", ["cronExpression"]),
        ({"cronExpression": "0 0 31 2 *"}, "INVALID_REQUEST", ["cronExpression"]),
        ({"timezone": "Mars/Olympus"}, "INVALID_REQUEST", ["timezone"]),
        ({"timezone": 1, "jitterMs": -1}, "INVALID_REQUEST", ["timezone", "jitterMs"]),
        ({"overlapPolicy": "hope"}, "INVALID_REQUEST", ["overlapPolicy"]),
        ({"catchUpWindowMs": 2_592_000_001}, "INVALID_REQUEST", ["catchUpWindowMs"]),
        ({"maxRuns": 0}, "INVALID_REQUEST", ["maxRuns"]),
        ({"dailyBudgetCredits": 0}, "INVALID_REQUEST", ["dailyBudgetCredits"]),
        ({"maxRun": 3}, "INVALID_REQUEST", ["maxRun"]),
        ({"workflowTemplate": []}, "INVALID_MANIFEST", ["workflowTemplate"]),
        ({"workflowTemplate": {"capability": "cap.a", "inputs": {}}}, "INVALID_MANIFEST",
         ["workflowTemplate.inputs"]),
        ({"workflowTemplate": {"input": {}}}, "INVALID_MANIFEST",
         ["workflowTemplate.nodes.task.capabilityId"]),
        ({"workflowTemplate": {"nodes": {"a": {"capabilityId": "c", "dependsOn": ["a", "x"]}},
          "budget": 1, "dryRun": True, "trigger": {"type": "webhook"}}}, "INVALID_MANIFEST",
         None),
        ({"workflowTemplate": {"nodes": {"a": {"capabilityId": "c"}}, "payerDid": "did:x:y"}},
         "FORBIDDEN", []),
    ],
)  # fmt: skip
def test_a_wrong_schedule_is_refused_with_its_problems(
    payer: Caller, changed: Json, code: str, paths: list[str] | None
) -> None:
    """All problems of a template are listed when it is created, by the names of the request."""
    reply = payer.http.post(SCHEDULES, json={**schedule(), **changed})
    problem = refusal(reply, 403 if code == "FORBIDDEN" else 400, code)
    found = [one["path"] for one in problem.get("errors", [])]
    if paths is None:
        assert len(found) >= 5, found
        assert all(one.startswith("workflowTemplate.") for one in found), found
    else:
        assert found == paths
    assert answer(payer.http.get(SCHEDULES))["schedules"] == []


def test_a_schedule_is_changed_paused_and_resumed(payer: Caller, admin: Caller) -> None:
    """Each change is a version; what it does not name stays."""
    first = made(payer, maxRuns=3)
    path = f"{SCHEDULES}/{first['id']}"
    renamed = answer(payer.http.patch(path, json={"name": "other", "maxRuns": None}))
    assert (renamed["success"], renamed["version"]) == (True, 2)
    assert (renamed["name"], renamed["maxRuns"]) == ("other", None)
    assert renamed["nextRunAt"] == first["nextRunAt"]
    hourly = answer(payer.http.patch(path, json={"cronExpression": "0 * * * *"}))
    assert hourly["nextRunAt"] < first["nextRunAt"]
    paused = answer(admin.http.patch(path, json={"enabled": False}))
    assert [paused[name] for name in ("status", "reason", "nextRunAt")] == [
        "paused", "disabled", None,
    ]  # fmt: skip
    due = answer(payer.http.get(f"{path}/next", params={"n": 3}))["next"]
    assert len(due) == 3 and due == sorted(due)
    assert all(one[13:] == ":00:00.000Z" for one in due)
    refusal(payer.http.post(f"{path}/trigger"), 409, "CONFLICT")
    template = {"capability": "cap.test.other.v1"}
    resumed = answer(
        payer.http.patch(
            f"{TRIGGERS}/{first['id']}", json={"enabled": True, "workflowTemplate": template}
        )
    )
    assert (resumed["status"], resumed["reason"], resumed["version"]) == ("active", None, 5)
    assert resumed["workflowTemplate"]["nodes"]["task"]["capabilityId"] == "cap.test.other.v1"
    assert resumed["nextRunAt"] == due[0]
    for wrong, where in (({"jitterMs": 1.5}, "jitterMs"), ({"overlap": "skip"}, "overlap")):
        problem = refusal(payer.http.patch(path, json=wrong), 400, "INVALID_REQUEST")
        assert [one["path"] for one in problem["errors"]] == [where]
    wrong = {"workflowTemplate": {"nodes": {}}}
    refusal(payer.http.patch(path, json=wrong), 400, "INVALID_MANIFEST")
    assert answer(payer.http.get(path))["version"] == 5
    for n in ("0", "101", "x"):
        refusal(payer.http.get(f"{path}/next", params={"n": n}), 400, "INVALID_REQUEST")


def test_a_change_loses_no_due_time_that_has_come(
    payer: Caller, make_agent: MakeAgent, overdue: Overdue
) -> None:
    """Due times wait for the run before them, while members change that set no due times."""
    agent = make_agent(price_cents=0, is_held=True)
    record = made(
        payer, cronExpression="* * * * *", overlapPolicy="queue", enabled=False,
        catchUpWindowMs=3_600_000, workflowTemplate=priced(agent.capability),
    )  # fmt: skip
    schedule_id = overdue.copy(record["id"], 30)
    wait(lambda: len(runs_of(payer, schedule_id)) == 1, "the first run")
    path = f"{SCHEDULES}/{schedule_id}"
    due = answer(payer.http.get(path))["nextRunAt"]
    for change in ({"catchUpWindowMs": 7_200_000}, {"jitterMs": 1}):
        assert answer(payer.http.patch(path, json=change))["nextRunAt"] == due
    changed = answer(payer.http.patch(path, json={"timezone": "Asia/Kathmandu"}))
    assert changed["nextRunAt"] > due
    answer(payer.http.delete(path))
    agent.stub.gate.set()


def test_a_run_by_hand_is_a_workflow_of_its_own(payer: Caller, make_agent: MakeAgent) -> None:
    """Once per idempotency key; no due time moves."""
    agent = make_agent(price_cents=50)
    node = {"capabilityId": agent.capability, "inputMappings": {"at": "$.trigger.result.dueAt"}}
    record = made(payer, workflowTemplate={"nodes": {"a": node}}, maxRuns=2)
    path = f"{SCHEDULES}/{record['id']}"
    headers = {"Idempotency-Key": unique("run-")}
    started = answer(payer.http.post(f"{path}/trigger", headers=headers))
    again = payer.http.post(f"{path}/trigger", headers=headers)
    assert answer(again) == started
    assert again.headers["Idempotency-Replayed"] == "true"
    assert (started["success"], started["templateId"]) == (True, record["id"])
    workflow = payer.finished(f"/v1/workflows/{started['workflowId']}")
    assert (workflow["status"], workflow["spentCredits"]) == ("success", 0.5)
    assert (workflow["templateId"], workflow["templateVersion"]) == (record["id"], 1)
    (run,) = runs_of(payer, record["id"])
    assert answer(payer.http.get(f"{TRIGGERS}/{record['id']}/runs"))["runs"] == [run]
    assert workflow["nodes"]["a"]["result"]["inputs"]["at"] <= run["createdAt"]
    assert (run["status"], run["workflowStatus"]) == ("started", "success")
    assert (run["workflowId"], run["version"], run["dueAt"]) == (workflow["id"], 1, None)
    assert answer(payer.http.get(path))["nextRunAt"] == record["nextRunAt"]
    listed = answer(payer.http.get("/v1/workflows"))["workflows"]
    assert [one["templateId"] for one in listed] == [record["id"]]
    answer(payer.http.post(f"{path}/trigger"))
    ended = answer(payer.http.get(path))
    assert (ended["status"], ended["reason"], ended["runs"]) == ("ended", "maxRuns", 2)


def test_a_run_by_hand_is_refused_as_a_publish_is(
    make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    poor, agent = make_caller(), make_agent()
    record = made(poor, workflowTemplate=priced(agent.capability))
    path = f"{SCHEDULES}/{record['id']}"
    refusal(poor.http.post(f"{path}/trigger"), 401, "INSUFFICIENT_CREDITS")
    assert runs_of(poor, record["id"]) == []
    capped = made(poor, workflowTemplate=priced(agent.capability), dailyBudgetCredits=0.9)
    problem = refusal(poor.http.post(f"{SCHEDULES}/{capped['id']}/trigger"), 429, "QUOTA_EXCEEDED")
    assert "dailyBudgetCredits" in problem["detail"]


def test_a_run_by_hand_tells_that_the_schedules_credential_has_ended(
    make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    """It is a conflict: the caller's own key is good. A change by that key mends it."""
    doomed = make_caller(1)
    record = made(doomed, workflowTemplate=priced(make_agent(price_cents=1).capability))
    answer(doomed.http.delete(f"/v1/keys/{doomed.key_id}"))
    owner, path = make_caller(ownerDid=doomed.did), f"{SCHEDULES}/{record['id']}"
    problem = refusal(owner.http.post(f"{path}/trigger"), 409, "CONFLICT")
    assert "credentialEnded" in problem["detail"]
    answer(owner.http.patch(path, json={"enabled": True}))
    answer(owner.http.post(f"{path}/trigger"))


def test_an_owner_has_at_most_a_thousand_triggers_that_have_not_ended(
    payer: Caller, make_caller: MakeCaller, overdue: Overdue
) -> None:
    """Schedules and templates together; those of others do not count."""
    record = made(payer, enabled=False)
    overdue.multiply(record["id"], 999)
    trigger = {"type": "event", "config": {"eventType": "agent.revoked"}}
    manifest = {**priced("cap.test.nobody.v1"), "trigger": trigger}
    for reply in (payer.http.post(SCHEDULES, json=schedule()), payer.publish(manifest)):
        assert "has 1000 triggers" in refusal(reply, 409, "CONFLICT")["detail"]
    made(make_caller())
    answer(payer.http.delete(f"{SCHEDULES}/{record['id']}"))
    answer(payer.publish(manifest))


def test_due_times_run_once_each_and_those_that_cannot_say_why(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent, overdue: Overdue
) -> None:
    """After an outage of minutes, and of an hour and more; without money; with a key that ended."""
    agent, poor = make_agent(price_cents=1), make_caller()
    every_minute = {
        "cronExpression": "* * * * *", "overlapPolicy": "allow", "enabled": False,
        "workflowTemplate": priced(agent.capability),
    }  # fmt: skip
    on_time = overdue.copy(made(payer, **every_minute)["id"], 3)
    late = overdue.copy(made(payer, **every_minute, catchUpWindowMs=0)["id"], 2_000)
    unpaid = overdue.copy(made(poor, **every_minute)["id"], 30)
    doomed = make_caller(1)
    ended_key = made(doomed, **every_minute)["id"]
    answer(doomed.http.delete(f"/v1/keys/{doomed.key_id}"))
    ended = overdue.copy(ended_key, 3)

    wait(lambda: len(runs_of(payer, on_time)) >= 4, "the due times of four minutes")
    runs = runs_of(payer, on_time)
    assert {run["status"] for run in runs} == {"started"}
    assert len({run["workflowId"] for run in runs}) == len(runs)
    times = [run["dueAt"] for run in runs]
    assert len(set(times)) == len(times) and times == sorted(times)
    assert [run["key"] for run in runs] == sorted({run["key"] for run in runs})

    wait(lambda: len(runs_of(payer, late)) >= 2, "two days that were missed")
    first, second, *_ = runs_of(payer, late)
    assert (first["status"], first["reason"]) == ("skipped", "missed")
    missed = datetime.fromisoformat(first["missedUntil"]) - datetime.fromisoformat(first["dueAt"])
    assert missed > timedelta(minutes=1_990)
    assert (second["status"], second["missedUntil"]) == ("started", None)
    after = datetime.fromisoformat(second["dueAt"]) - datetime.fromisoformat(first["missedUntil"])
    assert after == timedelta(minutes=1)

    wait(lambda: len(runs_of(poor, unpaid)) >= 10, "ten refusals")
    assert {(run["status"], run["reason"]) for run in runs_of(poor, unpaid)} == {
        ("failed", "INSUFFICIENT_CREDITS")
    }
    paused = answer(poor.http.get(f"{SCHEDULES}/{unpaid}"))
    assert (paused["status"], paused["reason"], paused["refusals"]) == ("paused", "refusals", 10)
    assert len(runs_of(poor, unpaid)) == 10

    owner = make_caller(ownerDid=doomed.did)
    wait(lambda: len(runs_of(owner, ended)) >= 1, "the refusal of an ended key")
    (refused,) = runs_of(owner, ended)
    assert (refused["status"], refused["reason"]) == ("failed", "UNAUTHORIZED")
    stopped = answer(owner.http.get(f"{SCHEDULES}/{ended}"))
    assert (stopped["status"], stopped["reason"]) == ("paused", "credentialEnded")
    resumed = answer(owner.http.patch(f"{SCHEDULES}/{ended}", json={"enabled": True}))
    assert resumed["status"] == "active"
    for caller, schedule_id in ((payer, on_time), (payer, late), (owner, ended)):
        answer(caller.http.delete(f"{SCHEDULES}/{schedule_id}"))


def test_an_overlap_is_skipped_or_waits(
    payer: Caller, make_agent: MakeAgent, overdue: Overdue
) -> None:
    agent = make_agent(price_cents=1, is_held=True)
    found = {}
    for policy in ("skip", "queue"):
        made_one = made(
            payer, cronExpression="0 * * * *", overlapPolicy=policy, enabled=False,
            catchUpWindowMs=86_400_000, workflowTemplate=priced(agent.capability),
        )  # fmt: skip
        found[policy] = overdue.copy(made_one["id"], 180)
    wait(lambda: len(runs_of(payer, found["skip"])) >= 3, "two due times that overlap")
    started, *skipped = runs_of(payer, found["skip"])
    assert started["status"] == "started"
    assert {(run["status"], run["reason"]) for run in skipped} == {("skipped", "overlap")}
    assert [run["status"] for run in runs_of(payer, found["queue"])] == ["started"]
    agent.stub.gate.set()
    wait(lambda: len(runs_of(payer, found["queue"])) >= 3, "the due times that have waited")
    assert {run["status"] for run in runs_of(payer, found["queue"])} == {"started"}


def test_a_publish_with_a_trigger_stores_a_template(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    """It holds and runs nothing; its id is no workflow's, and a cancel of it ends the trigger."""
    trigger = {"type": "scheduled", "config": {"cronExpression": YEARLY, "timezone": "UTC"}}
    manifest = {**priced(make_agent().capability), "intent": "a report", "trigger": trigger}
    headers = {"Idempotency-Key": unique("template-")}
    stored = answer(payer.publish(manifest, **headers))
    again = payer.publish(manifest, **headers)
    assert (answer(again), again.headers["Idempotency-Replayed"]) == (stored, "true")
    template_id = stored["workflowId"]
    assert stored["id"] == stored["templateId"] == stored["scheduleId"] == template_id
    assert stored["status"] == "active"
    record = answer(payer.http.get(f"{TRIGGERS}/{template_id}"))
    assert (record["name"], record["nextRunAt"]) == ("a report", stored["nextRunAt"])
    assert "trigger" not in record["workflowTemplate"]
    assert payer.balance()["credits"] == 100
    path = f"/v1/workflows/{template_id}"
    problem = refusal(payer.http.get(path), 404, "NOT_FOUND")
    assert f"GET /v1/triggers/{template_id}" in problem["detail"]
    stranger = make_caller()
    assert template_id in refusal(stranger.http.get(path), 404, "NOT_FOUND")["detail"]
    assert "trigger" not in stranger.http.get(path).text
    refusal(stranger.cancel(path), 404, "NOT_FOUND")
    listed = {"nodes": [{"id": "a", "capability": "cap.test.nobody.v1"}], "trigger": trigger}
    assert answer(payer.http.post("/v1/workflows", json=listed))["scheduleId"]
    dry = answer(payer.publish({**manifest, "dryRun": True}))
    assert dry["dryRun"] is True
    bulk = {"workflows": [manifest]}
    (refused,) = answer(payer.http.post("/v1/workflows/publish/bulk", json=bulk))["results"]
    assert refused["errors"][0]["path"] == "trigger.type"
    wrong = {"type": "scheduled", "config": {"cronExpression": "61 * * * *"}}
    problem = refusal(payer.publish({**manifest, "trigger": wrong}), 400, "INVALID_MANIFEST")
    assert [one["path"] for one in problem["errors"]] == ["trigger.config.cronExpression"]
    cancelled = answer(payer.cancel(path))
    assert (cancelled["status"], cancelled["nodesAffected"]) == ("cancelled", 0)
    assert answer(payer.http.get(f"{TRIGGERS}/{template_id}"))["status"] == "ended"


def test_a_trigger_of_another_kind_is_changed_by_its_own_members(payer: Caller) -> None:
    """It is no schedule."""
    config = {"eventType": "agent.revoked", "maxRunsPerMinute": 3}
    manifest = {**priced("cap.test.nobody.v1"), "trigger": {"type": "event", "config": config}}
    trigger_id = answer(payer.publish(manifest))["templateId"]
    path = f"{TRIGGERS}/{trigger_id}"
    changed = answer(payer.http.patch(path, json={"maxRunsPerMinute": None, "maxRuns": 7}))
    assert (changed["eventType"], changed["maxRunsPerMinute"]) == ("agent.revoked", 60)
    assert (changed["kind"], changed["maxRuns"], changed["version"]) == ("event", 7, 2)
    for wrong in (
        {"cronExpression": YEARLY},
        {"secret": "whsec_x"},
        {"eventType": "trigger.ended"},
    ):
        problem = refusal(payer.http.patch(path, json=wrong), 400, "INVALID_REQUEST")
        assert [one["path"] for one in problem["errors"]] == list(wrong)
    refusal(payer.http.get(f"{SCHEDULES}/{trigger_id}"), 404, "NOT_FOUND")
    refusal(payer.http.get(f"{SCHEDULES}/{trigger_id}/next"), 404, "NOT_FOUND")
    assert answer(payer.http.get(SCHEDULES))["schedules"] == []
    assert [one["id"] for one in answer(payer.http.get(TRIGGERS))["triggers"]] == [trigger_id]
    assert answer(payer.http.delete(path))["status"] == "ended"


def test_what_starts_workflows_takes_both_rights(payer: Caller, make_caller: MakeCaller) -> None:
    """`schedules:write` alone ends triggers, and makes none."""
    record = made(payer)
    path = f"{SCHEDULES}/{record['id']}"
    without = make_caller(ownerDid=payer.did, scopes=["schedules:read", "schedules:write"])
    refusal(without.http.post(SCHEDULES, json=schedule()), 403, "INSUFFICIENT_SCOPE")
    refusal(without.http.patch(path, json={"name": "x"}), 403, "INSUFFICIENT_SCOPE")
    refusal(without.http.post(f"{path}/trigger"), 403, "INSUFFICIENT_SCOPE")
    workflows = make_caller(ownerDid=payer.did, scopes=["workflows:write"])
    refusal(workflows.http.post(SCHEDULES, json=schedule()), 403, "INSUFFICIENT_SCOPE")
    refusal(workflows.http.get(path), 403, "INSUFFICIENT_SCOPE")
    cancel = workflows.cancel(f"/v1/workflows/{record['id']}")
    refusal(cancel, 403, "INSUFFICIENT_SCOPE")
    assert answer(without.http.delete(path))["status"] == "ended"

"""Verbs of the command line that are one call: what each sends, and that it shows the reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callboard.client import Client
from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run

Json = dict[str, Any]
Verbs = list[tuple[tuple[str, ...], str, str, Json | None]]
WITH_RATES = ("--input-rate", "0.000001", "--output-rate", "0.000002")
PER_TOKEN = {"model": "per-token", "inputRate": "0.000001", "outputRate": "0.000002"}
CAPABILITY = "cap.text.shout.v1"
VERSIONS = f"/v1/capabilities/{CAPABILITY}/versions"
QUOTA = {"maxWorkflowsPerDay": 5, "maxConcurrentWorkflows": None, "maxSpendPerDayCents": 700}
DISPUTE = {
    "disputeType": "fraud",
    "description": "It is made up.",
    "workflowId": "w",
    "nodeId": "n",
    "evidence": {"a": 1},
}
PERIOD = ("--start", "2026-01-01", "--end", "2026-02-01")
MARKET: Verbs = [
    (("price", "show", "cap.x"), "GET", "/v1/capabilities/cap.x/price", None),
    (
        ("price", "set", "cap.x", "--cents", "0"),
        "PUT",
        "/v1/capabilities/cap.x/price",
        {"price_cents": 0},
    ),
    (
        ("price", "set", "cap.x", *WITH_RATES),
        "PUT",
        "/v1/capabilities/cap.x/price",
        {"pricing": PER_TOKEN},
    ),
    (("stake", "show", "did:net:a"), "GET", "/v1/stakes/did:net:a", None),
    (("receipt", "show", "rcpt_1"), "GET", "/v1/receipts/rcpt_1", None),
    (("stake", "deposit", "1.5"), "POST", "/v1/stakes", {"amount": "1.5"}),
    (
        ("stake", "withdraw", "1", "--agent", "did:net:a"),
        "POST",
        "/v1/stakes/unstake",
        {"amount": "1", "agentDid": "did:net:a"},
    ),
    (
        ("stake", "slash", "did:net:a", "w", "n", "It lies."),
        "POST",
        "/v1/stakes/slash",
        {"agentDid": "did:net:a", "workflowId": "w", "nodeId": "n", "reason": "It lies."},
    ),
    (
        ("agent", "revoke", "did:net:a", "--reason", "It lies.", "--evidence", '{"n": 1}'),
        "POST",
        "/v1/trust/revoke",
        {"did": "did:net:a", "reason": "It lies.", "evidence": {"n": 1}},
    ),
    (
        ("agent", "revoke", "did:net:a", "--reason", "Away.", "--expires-at", "2030-01-01"),
        "POST",
        "/v1/trust/revoke",
        {"did": "did:net:a", "reason": "Away.", "evidence": {}, "expiresAt": "2030-01-01"},
    ),
    (
        ("agent", "collect", "did:net:a", "--amount", "1"),
        "POST",
        "/v1/agents/did:net:a/collect",
        {"amount": "1"},
    ),
    (
        ("quota", "set", "did:net:p", "--concurrent", "0"),
        "POST",
        "/v1/quotas/did:net:p",
        {**dict.fromkeys(QUOTA), "maxConcurrentWorkflows": 0},
    ),
    (("agent", "unrevoke", "did:net:a"), "DELETE", "/v1/revoked/did:net:a", None),
    (("agent", "revoked", "did:net:a"), "GET", "/v1/revoked/did:net:a", None),
    (("reputation", "show", "did:net:a"), "GET", "/v1/reputation/did:net:a", None),
    (("quota", "show", "did:net:p"), "GET", "/v1/quotas/did:net:p", None),
    (
        ("quota", "set", "did:net:p", "--workflows-per-day", "5", "--spend-per-day", "700"),
        "POST",
        "/v1/quotas/did:net:p",
        QUOTA,
    ),
    (
        ("quota", "check", "did:net:p", "--spend", "3"),
        "POST",
        "/v1/quotas/did:net:p/check",
        {"estimatedSpendCents": 3},
    ),
    (("ledger", "account", "did:net:p"), "GET", "/v1/ledger/accounts/did:net:p", None),
    (
        ("invoice", "create", *PERIOD),
        "POST",
        "/v1/invoices",
        {"periodStart": "2026-01-01", "periodEnd": "2026-02-01"},
    ),
    (("invoice", "create", "--workflow", "w"), "POST", "/v1/invoices", {"workflowId": "w"}),
    (("invoice", "show", "i"), "GET", "/v1/invoices/i", None),
    (("invoice", "pay", "i"), "POST", "/v1/invoices/i/pay", {}),
    (("invoice", "void", "i"), "POST", "/v1/invoices/i/void", {}),
    (
        ("dispute", "open", "fraud", "It is made up.", "--workflow", "w", "--node", "n",
         "--evidence", '{"a":1}'),
        "POST",
        "/v1/disputes",
        DISPUTE,
    ),
    (("dispute", "show", "d"), "GET", "/v1/disputes/d", None),
    (
        ("dispute", "resolve", "d", "resolved_split", "half", "--refund", "0.5"),
        "POST",
        "/v1/disputes/d/resolve",
        {"status": "resolved_split", "resolution": "half", "creditsRefunded": "0.5"},
    ),
    (
        ("feedback", "give", "w", "did:net:a", "1", "--scale", "5"),
        "POST",
        "/v1/workflows/w/feedback",
        {"agentDid": "did:net:a", "rating": 1.0, "scale": 5},
    ),
    (("task", "show", "t"), "GET", "/v1/tasks/t", None),
    (
        ("task", "bid", "t", "0.25", "--node", "n", "--eta-ms", "10", "--agent", "did:net:a"),
        "POST",
        "/v1/tasks/t/bid",
        {"bidAmount": "0.25", "nodeId": "n", "etaMs": 10, "agentDid": "did:net:a"},
    ),
    (("auction", "show", "w", "n"), "GET", "/v1/auctions/w/n", None),
    (
        ("bid", "place", "w", "n", "0.25", "--eta-ms", "10", "--stake-offered", "1"),
        "POST",
        "/v1/auctions/w/n/bids",
        {"bidAmount": "0.25", "etaMs": 10, "stakeOffered": "1"},
    ),
]  # fmt: skip
NAMES, HEIR, DID = "/v1/identity/names", "/v1/identity/inheritance", "did:net:a"
RECOVER, GUARDIANS = "/v1/identity/recover", f"/v1/identity/guardians/{DID}"
IDENTITY: Verbs = [
    (("agent", "keys", DID), "GET", f"/v1/trust/key-history/{DID}?limit=50", None),
    (("name", "register", "n-1", DID), "POST", NAMES, {"name": "n-1", "agentDid": DID}),
    (("name", "show", "n-1"), "GET", f"{NAMES}/n-1", None),
    (("name", "list", DID), "GET", f"/v1/agents/{DID}/names?limit=50", None),
    (("name", "renew", "n-1", "--months", "3"), "POST", f"{NAMES}/n-1/renew",
     {"durationMonths": 3}),
    (("name", "transfer", "n-1", DID), "POST", f"{NAMES}/n-1/transfer", {"agentDid": DID}),
    (("name", "release", "n-1"), "DELETE", f"{NAMES}/n-1", None),
    (("heir", "set", DID, "did:net:h", "--days", "5", "--requires-inactivity"), "POST", HEIR,
     {"agentDid": DID, "inheritsToDid": "did:net:h", "deadManSwitchDays": 5,
      "conditions": {"requiresInactivity": True}}),
    (("heir", "show", DID), "GET", f"{HEIR}/{DID}", None),
    (("heir", "cancel", DID), "DELETE", f"{HEIR}/{DID}", None),
    (("recovery", "guardians", DID, "--guardian", "did:net:g", "--threshold", "1"), "PUT",
     GUARDIANS, {"guardians": ["did:net:g"], "threshold": 1, "delayHours": 72}),
    (("recovery", "request", DID, "social_recovery", "K", "--signature", "did:net:g=S=="), "POST",
     RECOVER, {"agentDid": DID, "recoveryType": "social_recovery", "newPublicKey": "K",
               "proof": {"signatures": [{"did": "did:net:g", "signature": "S=="}]}}),
    (("recovery", "show", "r"), "GET", f"{RECOVER}/r", None),
    (("recovery", "cancel", "r", "--signature", "S"), "POST", f"{RECOVER}/r/cancel",
     {"signature": "S"}),
    (("key", "rotate", "k", "--overlap", "5"), "POST", "/v1/keys/k/rotate", {"overlapSeconds": 5}),
    (("key", "create", DID, "--scope", "admin", "--scope", "audit:all"), "POST", "/v1/keys",
     {"ownerDid": DID, "scopes": ["admin", "audit:all"]}),
    (("key", "revoke", "k"), "DELETE", "/v1/keys/k", None),
]  # fmt: skip
SCHEDULE, TEMPLATE = "/v1/schedules/s", {"capability": "cap.x", "input": {"a": 1}}
SCHEDULES: Verbs = [
    (("schedule", "create", "n", "0 3 * * *", "--capability", "cap.x", "--input", '{"a": 1}',
      "--timezone", "Asia/Tokyo", "--max-runs", "3", "--overlap", "queue", "--catch-up-ms", "0",
      "--jitter-ms", "9", "--daily-budget", "1.5", "--paused"), "POST", "/v1/schedules",
     {"name": "n", "cronExpression": "0 3 * * *", "workflowTemplate": TEMPLATE,
      "timezone": "Asia/Tokyo", "maxRuns": 3, "overlapPolicy": "queue", "catchUpWindowMs": 0,
      "jitterMs": 9, "dailyBudgetCredits": "1.5", "enabled": False}),
    (("schedule", "show", "s"), "GET", SCHEDULE, None),
    (("schedule", "list", "--status", "paused"), "GET",
     "/v1/schedules?status=paused&limit=50", None),
    (("schedule", "runs", "s", "--cursor", "c"), "GET",
     "/v1/triggers/s/runs?limit=50&cursor=c", None),
    (("schedule", "next", "s", "--n", "3"), "GET", f"{SCHEDULE}/next?n=3", None),
    (("schedule", "pause", "s"), "PATCH", "/v1/triggers/s", {"enabled": False}),
    (("schedule", "resume", "s"), "PATCH", "/v1/triggers/s", {"enabled": True}),
    (("schedule", "trigger", "s"), "POST", f"{SCHEDULE}/trigger", {}),
    (("schedule", "delete", "s"), "DELETE", "/v1/triggers/s", None),
]  # fmt: skip
HOOKS: Verbs = [
    (("hook", "list"), "GET", "/v1/triggers?limit=50", None),
    (("hook", "show", "t"), "GET", "/v1/triggers/t", None),
    (("hook", "runs", "t"), "GET", "/v1/triggers/t/runs?limit=50", None),
    (("hook", "pause", "t"), "PATCH", "/v1/triggers/t", {"enabled": False}),
    (("hook", "resume", "t"), "PATCH", "/v1/triggers/t", {"enabled": True}),
    (("hook", "delete", "t"), "DELETE", "/v1/triggers/t", None),
]
PEERS: Verbs = [
    (("peer", "add", "https://p", "eu", "K", "--id", "p", "--did", "did:callboard:p",
      "--capability", "cap.x"), "POST", "/v1/federation/peers",
     {"endpoint": "https://p", "region": "eu", "publicKey": "K", "peerId": "p",
      "did": "did:callboard:p", "capabilities": ["cap.x"]}),
    (("peer", "list", "--region", "eu"), "GET", "/v1/federation/peers?region=eu&limit=50", None),
    (("peer", "check", "p", "--start", "A", "--end", "B"), "GET",
     "/v1/federation/peers/p/check?startTime=A&endTime=B", None),
    (("peer", "show", "p"), "GET", "/v1/federation/peers/p", None),
    (("peer", "remove", "p"), "DELETE", "/v1/federation/peers/p", None),
    (("route", "cap.x", "--region", "eu"), "GET",
     "/v1/federation/route/cap.x?requestRegion=eu", None),
]  # fmt: skip
OTHERS: Verbs = [
    (("agent", "deregister", DID), "DELETE", f"/v1/agents/{DID}", None),
    (("agent", "versions", DID), "GET", f"/v1/agents/{DID}/versions?limit=50", None),
    (("agent", "show", DID, "--include-inactive"), "GET",
     f"/v1/agents/{DID}?includeInactive=true", None),
    (("agent", "list", "--author", "A"), "GET", "/v1/agents?author=A&limit=50&offset=0", None),
    (("capability", "list", CAPABILITY), "GET", f"{VERSIONS}?limit=50", None),
    (("capability", "show", CAPABILITY, "1.0.0"), "GET", f"{VERSIONS}/1.0.0", None),
    (("capability", "deprecate", CAPABILITY, "1.0.0", "--successor", "1.1.0"), "POST",
     f"{VERSIONS}/1.0.0/deprecate", {"successor": "1.1.0"}),
    (("capability", "negotiate", CAPABILITY, "1.x", ">=2", "--preferred", "1.0.0"), "POST",
     "/v1/capabilities/negotiate",
     {"capabilityId": CAPABILITY, "supportedVersions": ["1.x", ">=2"],
      "preferredVersion": "1.0.0"}),
    (("workflow", "cancel", "w", "--reason", "error"), "POST", "/v1/workflows/w/cancel",
     {"reason": "error", "details": ""}),
    (("workflow", "resume", "w"), "POST", "/v1/workflows/w/resume", {}),
    (("workflow", "list", "--quarantined", "--cursor", "c"), "GET",
     "/v1/workflows?quarantined=true&limit=50&cursor=c", None),
    (("audit", "list", "--target-id", "w"), "GET", "/v1/audit?limit=100&targetId=w", None),
]  # fmt: skip


SUBNETS, POLICIES = "/v1/federation/subnets", "/v1/federation/policies"
OF_SUBNETS: Verbs = [
    (
        ("subnet", "create", "team", "--member", "did:net:a", "--member", "did:net:b"),
        "POST", SUBNETS,
        {"name": "team", "memberDids": ["did:net:a", "did:net:b"], "policyType": "private"},
    ),
    (
        ("subnet", "create", "team", "--type", "public", "--description", "ours"),
        "POST", SUBNETS,
        {"name": "team", "memberDids": [], "policyType": "public", "description": "ours"},
    ),
    (
        ("subnet", "join", "s", "did:net:a"),
        "POST", f"{SUBNETS}/s/members", {"memberDid": "did:net:a"},
    ),
    (
        ("subnet", "add", "s", "did:net:a"),
        "POST", f"{SUBNETS}/s/members", {"memberDid": "did:net:a"},
    ),
    (
        ("subnet", "leave", "s", "did:net:a"),
        "DELETE", f"{SUBNETS}/s/members?memberDid=did%3Anet%3Aa", None,
    ),
    (
        ("subnet", "remove", "s", "did:net:a"),
        "DELETE", f"{SUBNETS}/s/members?memberDid=did%3Anet%3Aa", None,
    ),
    (
        ("policy", "create", "s", "--type", "rate_limit", "--per-minute", "5"),
        "POST", POLICIES, {"subnetId": "s", "policyType": "rate_limit", "limitPerMinute": 5},
    ),
    (
        ("policy", "create", "s", "--type", "deny_capability", "--capability", "cap.x.*"),
        "POST", POLICIES,
        {"subnetId": "s", "policyType": "deny_capability", "capability": "cap.x.*"},
    ),
    (
        ("policy", "create", "s", "--type", "allow_region", "--region", "eu"),
        "POST", POLICIES, {"subnetId": "s", "policyType": "allow_region", "region": "eu"},
    ),
    (("policy", "remove", "p"), "DELETE", f"{POLICIES}/p", None),
]  # fmt: skip
WEBHOOKS: Verbs = [
    (
        ("webhook", "create", "https://a.example/x", "--event", "*", "--secret", "whsec_x"),
        "POST", "/v1/webhooks",
        {"url": "https://a.example/x", "events": ["*"], "secret": "whsec_x"},
    ),
    (("webhook", "update", "w", "--disable"), "PATCH", "/v1/webhooks/w", {"enabled": False}),
    (
        ("webhook", "update", "w", "--new-url", "https://b.example/", "--enable"),
        "PATCH", "/v1/webhooks/w", {"url": "https://b.example/", "enabled": True},
    ),
    (("webhook", "rotate", "w"), "PATCH", "/v1/webhooks/w", {"rotateSecret": True}),
    (("webhook", "test", "w"), "POST", "/v1/webhooks/w/test", {}),
    (("webhook", "redeliver", "w", "d"), "POST", "/v1/webhooks/w/deliveries/d/redeliver", {}),
    (("webhook", "delete", "w"), "DELETE", "/v1/webhooks/w", None),
]  # fmt: skip
# The arguments, the member that holds the rows, a member of a row that is shown, what is asked.
LISTS = [
    ("workflow list", "workflows", "id", "/v1/workflows?limit=50"),
    ("agent list", "agents", "did", "/v1/agents?limit=50&offset=0"),
    ("key list", "keys", "id", "/v1/keys?limit=50"),
    ("ledger history did:a:b", "events", "description", "/v1/ledger/did:a:b/history?limit=50"),
    ("ledger transactions", "transactions", "description", "/v1/ledger/transactions?limit=50"),
    ("audit list", "entries", "targetId", "/v1/audit?limit=100"),
    ("invoice list --status paid --cursor c", "invoices", "id",
     "/v1/invoices?status=paid&limit=50&cursor=c"),
    ("dispute list --status paid --cursor c", "disputes", "id",
     "/v1/disputes?status=paid&limit=50&cursor=c"),
    ("receipt list did:net:a", "receipts", "nodeId", "/v1/receipts/did:net:a?limit=50"),
    ("receipt workflow w", "receipts", "nodeId", "/v1/receipts/workflow/w?limit=50"),
    ("workflow signed-results w --all", "results", "nodeId",
     "/v1/trust/signed-results/w?all=true&limit=50"),
    ("subnet list --did did:net:a", "subnets", "id", f"{SUBNETS}?memberDid=did%3Anet%3Aa"),
    ("policy list --subnet s", "policies", "id", f"{POLICIES}?subnetId=s&limit=50"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "method", "target", "body"),
    [*MARKET, *IDENTITY, *SCHEDULES, *HOOKS, *PEERS, *OTHERS, *OF_SUBNETS, *WEBHOOKS],
    ids=lambda value: str(value)[:40],
)
def test_verb_sends_what_its_operation_takes(
    service: ScriptedService, arguments: tuple[str, ...], method: str, target: str, body: Json
) -> None:
    lists = (
        "keyHistory",
        "names",
        "versions",
        "agents",
        "workflows",
        "entries",
        "schedules",
        "triggers",
        "runs",
        "next",
        "peers",
    )
    reply = {"id": "row-1", "amount": 1.50, **{name: [] for name in lists}}
    service.script = [Scripted(200, reply)]
    result = run(*arguments, "--url", service.url, "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, reply)
    (asked,) = service.asked
    assert (asked.method, asked.target, asked.body) == (method, target, body)
    is_keyed = method == "POST" or (method == "PATCH" and target.startswith("/v1/webhooks"))
    assert ("idempotency-key" in asked.headers) is is_keyed


@pytest.mark.parametrize(("arguments", "rows", "shown", "target"), LISTS)
def test_every_list_is_a_table(
    service: ScriptedService, arguments: str, rows: str, shown: str, target: str
) -> None:
    row = {"id": "x", "capabilities": [{"id": "c"}], "scopes": ["a", "b"], shown: "row-1"}
    service.script = [Scripted(200, {rows: [row]})]
    result = run(*arguments.split(), "--url", service.url)
    assert result.exit_code == 0, result.output
    assert "row-1" in result.stdout
    assert service.asked[0].target == target


@pytest.mark.parametrize("kind", ["webhook", "event"])
def test_hook_create_publishes_its_manifest(service: ScriptedService, kind: str) -> None:
    manifest = {"nodes": {}, "trigger": {"type": kind}}
    service.script = [Scripted(200, {"id": "t", "hookUrl": "http://x/v1/hooks/y"})]
    result = run("hook", "create", "-", "--url", service.url, stdin=json.dumps(manifest))
    assert result.exit_code == 0, result.output
    assert "http://x/v1/hooks/y" in result.output
    (sent,) = service.asked
    assert (sent.method, sent.target) == ("POST", "/v1/workflows/publish")
    assert sent.body == manifest


def test_schedule_create_reads_its_template_from_standard_input(service: ScriptedService) -> None:
    template = {"nodes": {"a": {"capabilityId": "cap.x"}}}
    service.script = [Scripted(200, {"id": "s"})]
    given = ("schedule", "create", "n", "0 3 * * *", "--template", "-", "--url", service.url)
    result = run(*given, stdin=json.dumps(template))
    assert result.exit_code == 0, result.output
    (sent,) = service.asked
    assert sent.body["workflowTemplate"] == template


@pytest.mark.parametrize("trigger", [None, {"type": "manual"}, {"type": "scheduled"}, "webhook"])
def test_hook_create_refuses_other_triggers(service: ScriptedService, trigger: Json) -> None:
    manifest = json.dumps({"nodes": {}, "trigger": trigger})
    result = run("hook", "create", "-", "--url", service.url, stdin=manifest)
    assert result.exit_code == 2
    assert service.asked == []


def test_call_hook_takes_the_url_of_the_hook(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"workflowId": "w"})]
    with Client(service.url, "k") as client:
        reply = client.call_hook("https://other/v1/hooks/tok", [1], idempotency_key="d")
    assert reply.workflow_id == "w"
    (sent,) = service.asked
    assert (sent.target, sent.body) == ("/v1/hooks/tok", [1])
    assert sent.headers["idempotency-key"] == "d"

"""Subnets and policies through the command line: what each verb sends.

Reference: features.md (Subnets and policies).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run

SUBNETS, POLICIES = "/v1/federation/subnets", "/v1/federation/policies"


@pytest.mark.parametrize(
    ("verb", "method", "target", "body"),
    [
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
    ],
)  # fmt: skip
def test_verbs(
    service: ScriptedService, verb: tuple[str, ...], method: str, target: str, body: Any
) -> None:
    service.script = [Scripted(200, {"success": True, "id": "s"})]
    result = run(*verb, "--url", service.url)
    assert result.exit_code == 0, result.output
    (asked,) = service.asked
    assert (asked.method, asked.target, asked.body) == (method, target, body)
    assert (asked.headers.get("idempotency-key") is None) == (method == "DELETE")


@pytest.mark.parametrize(
    ("verb", "plural", "target"),
    [
        (("subnet", "list", "--did", "did:net:a"), "subnets", f"{SUBNETS}?memberDid=did:net:a"),
        (("policy", "list", "--subnet", "s"), "policies", f"{POLICIES}?subnetId=s&limit=50"),
    ],
)
def test_lists_are_tables(
    service: ScriptedService, verb: tuple[str, ...], plural: str, target: str
) -> None:
    service.script = [Scripted(200, {plural: [{"id": "row-1", "policyType": "private"}]})]
    result = run(*verb, "--url", service.url)
    assert result.exit_code == 0, result.output
    assert "row-1" in result.stdout
    assert service.asked[0].target.replace("%3A", ":") == target

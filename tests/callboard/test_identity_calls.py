"""Identity through client and command line: what each verb sends.

Spec: Key rotation, Name, Inheritance, Recovery request.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from nacl.signing import SigningKey

from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run

Json = dict[str, Any]
NAMES, HEIR, DID = "/v1/identity/names", "/v1/identity/inheritance", "did:net:a"
RECOVER, GUARDIANS = "/v1/identity/recover", f"/v1/identity/guardians/{DID}"
VERBS: list[tuple[tuple[str, ...], str, str, Json | None]] = [
    (("agent", "keys", DID), "GET", f"/v1/trust/key-history/{DID}?limit=100", None),
    (("name", "register", "n-1", DID), "POST", NAMES, {"name": "n-1", "agentDid": DID}),
    (("name", "show", "n-1"), "GET", f"{NAMES}/n-1", None),
    (("name", "list", DID), "GET", f"/v1/agents/{DID}/names?limit=100", None),
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


@pytest.mark.parametrize(
    ("arguments", "method", "target", "body"), VERBS, ids=lambda value: str(value)[:40]
)
def test_verb_sends_what_its_operation_takes(
    service: ScriptedService, arguments: tuple[str, ...], method: str, target: str, body: Json
) -> None:
    reply = {"id": "row-1", "keyHistory": [], "names": []}
    service.script = [Scripted(200, reply)]
    result = run(*arguments, "--url", service.url, "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, reply)
    (asked,) = service.asked
    assert (asked.method, asked.target, asked.body) == (method, target, body)


def test_the_current_key_signs_for_the_next_and_does_not_travel(
    service: ScriptedService, tmp_path: Path
) -> None:
    key = SigningKey.generate()
    private = base64.b64encode(bytes(key)).decode()
    (tmp_path / "key").write_text(private + "\n")
    service.script = [Scripted(200, {"id": DID})]
    options = ("--private-key", str(tmp_path / "key"), "--url", service.url)
    assert run("agent", "rotate-key", DID, "NEW", *options).exit_code == 0
    (asked,) = service.asked
    assert private not in json.dumps(asked.body)
    assert (asked.target, asked.body["newPublicKey"]) == ("/v1/trust/rotate-key", "NEW")
    key.verify_key.verify(
        f"rotate:{DID}:NEW".encode(), base64.b64decode(asked.body["rotationProof"])
    )


def test_a_file_without_a_key_is_wrong_usage(service: ScriptedService, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    for name in ("key", "absent"):
        options = ("--private-key", str(tmp_path / name), "--url", service.url)
        assert run("agent", "rotate-key", DID, "NEW", *options).exit_code == 2
    assert service.asked == []

"""Identity through client and command line: what each verb sends.

Reference: features.md (Key rotation, Names, Inheritance, Recovery).
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from nacl.signing import SigningKey

from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run

DID = "did:net:a"


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

"""What a bundle waits for. Reference: money.md (Verifying the chain)."""

from __future__ import annotations

import pytest

from callboard import proofs
from callboard.client import Client
from callboard.errors import Unavailable
from tests.callboard.audit_logs import log_of
from tests.callboard.scripted_service import Scripted, ScriptedService

NOTE = log_of(5)[1][4]
MISSING = Scripted(404, {"code": "NOT_FOUND", "detail": "there is no checkpoint"})


def test_a_bundle_waits_for_its_checkpoint_and_says_when_none_is_signed(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "_PAUSE_S", 0.0)
    signed = Scripted(200, NOTE, {"Content-Type": "text/plain; charset=utf-8"})
    with Client(service.url, "key") as client:
        service.script = [MISSING, MISSING, signed]
        assert proofs._checkpoint(client, 5) == NOTE
        monkeypatch.setattr(proofs, "_SIGNED_AFTER_S", -1.0)
        service.script = [MISSING]
        with pytest.raises(Unavailable, match="audit entry 5 is not signed yet"):
            proofs._checkpoint(client, 5)

"""Registrations in both spellings: what they are read as, and every problem of one at once."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import ErrorCode, ServiceError
from core.records.agent_forms import FlatRegistration, Registration
from core.records.api.shape import parsed

CARD: dict[str, Any] = {
    "did": "did:net:a",
    "endpoint": "http://127.0.0.1:9",
    "version": 2,
    "capabilities": [{"id": "cap.a.v1", "description": ""}],
    "mood": "good",
}


def paths(declared: type[Registration], body: Any) -> list[str]:
    with pytest.raises(ServiceError) as refused:
        parsed(declared, body)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    return [problem.path for problem in refused.value.problems]


def test_a_registration_keeps_its_card_as_sent_and_as_read() -> None:
    body = parsed(Registration, {"acard": CARD, "signingSecret": "s", "acardSignature": "x"})
    assert body.acard.raw is CARD
    assert body.acard.parsed.to_json() == CARD
    assert (body.signing_secret, body.acard_signature, body.owner_did) == ("s", "x", None)


def test_a_body_that_is_the_card_itself_is_a_registration_of_it() -> None:
    body = parsed(Registration, {**CARD, "ownerDid": "did:net:o"})
    assert (body.acard.parsed.did, body.owner_did) == ("did:net:a", "did:net:o")


def test_a_flat_registration_may_leave_most_of_the_card_out() -> None:
    flat = {
        "did": "did:net:a",
        "name": "A",
        "version": "3.1",
        "endpoint": None,
        "capabilities": ["cap.a.v1", {"name": "Sum up", "id": None}],
        "signingSecret": "s",
    }
    body = parsed(FlatRegistration, flat)
    assert body.acard.parsed.to_json() == {
        "did": "did:net:a",
        "endpoint": "",
        "version": 3,
        "capabilities": [
            {"id": "cap.a.v1", "description": ""},
            {"id": "cap.50e118950630.1.v1", "description": "", "name": "Sum up"},
        ],
        "metadata": {"name": "A"},
    }
    assert body.signing_secret == "s"
    assert parsed(FlatRegistration, {"acard": CARD}).acard.raw is CARD


def test_all_problems_of_card_and_registration_are_told_at_once() -> None:
    body = {
        "acard": {**CARD, "did": "nonsense", "capabilities": [{"id": "bad id"}]},
        "ownerDid": "nonsense",
        "signingSecret": "",
    }
    wrong = ["acard.did", "acard.capabilities[0].id", "ownerDid", "signingSecret"]
    assert paths(Registration, body) == wrong
    assert paths(Registration, {"acard": 5}) == ["acard"]
    twice = {**CARD, "capabilities": [{"id": "cap.a.v1"}] * 2}
    assert paths(Registration, {"acard": twice}) == ["acard.capabilities"]
    assert paths(FlatRegistration, []) == ["$"]


def test_a_secret_is_not_repeated_in_its_refusal() -> None:
    with pytest.raises(ServiceError) as refused:
        parsed(Registration, {"acard": CARD, "signingSecret": "secret" * 1_000})
    assert "secretsecret" not in str(refused.value.problems) + refused.value.detail

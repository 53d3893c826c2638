"""By which keys a result's signature is judged when the agent's has changed since its dispatch.

Reference: features.md (Key rotation).
"""

from __future__ import annotations

import base64

import pytest
from msgspec.structs import replace
from nacl.signing import SigningKey

from actors.ports import AgentEntry, DispatchOrder
from actors.values.reply_events import check_signature
from core.trust.signatures import result_message
from core.workflow.events import Failure
from tests.actors.transport.message_samples import required

HASH = "sha256:" + "1" * 64
OLD, NEW, OTHER = (SigningKey(bytes([number] * 32)) for number in (1, 2, 3))


def public(key: SigningKey) -> str:
    """Return a key as the registry has it."""
    return base64.b64encode(bytes(key.verify_key)).decode()


def order(key: str | None) -> DispatchOrder:
    """Return the order of a dispatch to an agent that had this key."""
    sample = required(DispatchOrder)
    assert isinstance(sample, DispatchOrder)
    return replace(sample, public_key=key)


def signature(key: SigningKey) -> str:
    """Return a signature over the result of that dispatch."""
    sent = order(None)
    message = result_message(sent.node, sent.workflow_id, HASH)
    return base64.b64encode(key.sign(message).signature).decode()


@pytest.mark.parametrize(
    ("by", "valid", "sent", "is_refused", "is_forged"),
    [
        pytest.param(NEW, (NEW,), OLD, False, False, id="by the new key"),
        pytest.param(OLD, (NEW, OLD), OLD, False, False, id="by the old one in its overlap"),
        pytest.param(OLD, (NEW,), OLD, True, False, id="by the old one, made before perhaps"),
        pytest.param(OTHER, (NEW,), OLD, True, True, id="by neither"),
        pytest.param(OLD, (NEW,), NEW, True, True, id="by one that was over at the dispatch"),
        pytest.param(NEW, (NEW,), None, False, False, id="by one that came after the dispatch"),
        pytest.param(OTHER, (NEW,), None, True, True, id="not by the one that came after it"),
        pytest.param(OLD, (), OLD, False, False, id="of an agent that is not known here"),
        pytest.param(OTHER, (), None, False, False, id="of an agent without a key"),
    ],
)
def test_a_signature_is_judged_by_the_keys_that_are_valid_as_it_arrives(
    by: SigningKey,
    valid: tuple[SigningKey, ...],
    sent: SigningKey | None,
    is_refused: bool,
    is_forged: bool,
) -> None:
    sent_to = order(None if sent is None else public(sent))
    found = check_signature(sent_to, signature(by), None, HASH, tuple(map(public, valid)))
    if is_refused:
        assert isinstance(found, Failure) and found.is_forged == is_forged
    else:
        assert found == (public(by) if valid or sent else None), "the key that verified it"
    named = check_signature(sent_to, signature(by), public(by), HASH, tuple(map(public, valid)))
    is_failed = isinstance(named, Failure)
    assert not is_failed or not named.is_forged, "another key is named: the agent may have changed"


def test_a_former_key_is_valid_until_its_time_is_over() -> None:
    entry = AgentEntry(
        "did:net:a", "did:net:o", "", "", {}, None, 1, 1,
        public_key="new", former_key="old", former_until_ms=100,
    )  # fmt: skip
    assert entry.valid_keys(99) == ("new", "old")
    assert entry.valid_keys(100) == ("new",)

"""Heartbeat tokens: they name one agent and one revision, and nothing about them can be changed."""

from __future__ import annotations

import pytest

from core.trust.deployment_keys import DeploymentKeys
from core.trust.tokens import heartbeat_token, read_heartbeat_token

KEYS = DeploymentKeys([(1, bytes(range(32)))])


@pytest.mark.parametrize("did", ["did:net:a", "did:web:host%3A8080:x_y", "did:x:" + "ü" * 20])
def test_a_token_names_its_agent_and_revision(did: str) -> None:
    token = heartbeat_token(KEYS, did, 7)
    assert token.isascii()
    assert token.count(".") == 0, "a credential with two full stops is taken for a JWT"
    assert read_heartbeat_token(KEYS, token) == (did, 7)


def test_no_changed_token_and_no_other_deployments_token_is_good() -> None:
    token = heartbeat_token(KEYS, "did:net:a", 7)
    other = heartbeat_token(KEYS, "did:net:b", 7)
    name, other_name = token.split("_")[2], other.split("_")[2]
    assert name != other_name
    for changed in (
        token.replace("hb_7", "hb_8"),
        token.replace(name, other_name),
        token[:-1] + ("0" if token[-1] != "0" else "1"),
        token + "0",
        token.upper(),
        "hb_7_\x00_" + "0" * 64,
        "",
    ):
        assert read_heartbeat_token(KEYS, changed) is None, changed
    assert read_heartbeat_token(DeploymentKeys.parse("00" * 32), token) is None

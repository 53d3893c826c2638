"""Chains of rotated keys: which key a heartbeat proves, for every key that a receiver may know.

Reference: features.md (Peers).
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ErrorCode, ServiceError
from core.peers.documents import current_key
from core.records.api.peers import PeerHeartbeat, RotatedKey
from core.trust.signing_keys import SigningKey, signing_key_rotation_message

KEYS = [SigningKey(bytes([number]) * 32) for number in range(6)]


def chain(keys: list[SigningKey]) -> list[RotatedKey]:
    """Return the keys after the first one, each signed by the key before."""
    return [
        RotatedKey(
            public_key=key.public_key,
            proof=former.sign(signing_key_rotation_message(key.public_key)),
        )
        for former, key in pairwise(keys)
    ]


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4), st.none() | st.integers(0, 4))
def test_a_key_is_proven_by_an_unbroken_chain_from_the_known_one(
    known: int, claimed: int, dropped: int, broken: int | None
) -> None:
    rotations = chain(KEYS)
    if broken is not None:
        rotations[broken] = RotatedKey(public_key=rotations[broken].public_key, proof="AAAA")
    heartbeat = PeerHeartbeat(public_key=KEYS[claimed].public_key, rotations=rotations[dropped:])
    is_whole = broken is None or not known <= broken < claimed
    # A chain that begins later than the known key's successor does not reach it.
    if claimed == known or (claimed > known and is_whole and dropped <= known):
        assert current_key(heartbeat, KEYS[known].public_key) == KEYS[claimed].public_key
        return
    with pytest.raises(ServiceError) as refused:
        current_key(heartbeat, KEYS[known].public_key)
    assert refused.value.code is ErrorCode.INVALID_SIGNATURE

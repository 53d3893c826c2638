"""The audit chain's records: canonical bodies. `callboard.verify` and its tests check chains."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from core.canonical import canonical
from core.trust.hashchain import GENESIS_HASH, record_body

payloads = st.dictionaries(
    st.text(st.characters(max_codepoint=127), max_size=10),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.integers(min_value=0, max_value=2**53 - 1)
    | st.lists(st.integers(min_value=0, max_value=10), max_size=3),
    max_size=4,
)


@given(payloads)
def test_bodies_are_canonical(payload: dict[str, object]) -> None:
    """The record's own encoder takes no detour: it must give what the reference gives."""
    body = record_body(
        1,
        "payment.settled",
        actor_did="did:net:a",
        target_type="workflow",
        target_id="w",
        action="settled",
        payload=payload,
        created_at="2025-01-01T00:00:00.000Z",
        prev_hash=GENESIS_HASH,
    )
    assert canonical(orjson.loads(body)) == body

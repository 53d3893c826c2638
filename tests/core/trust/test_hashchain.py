"""The audit chain: any change of any byte, and any change of the order, is found."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from core.canonical import canonical
from core.trust.hashchain import GENESIS_HASH, find_break, record_body, record_hash

payloads = st.dictionaries(
    st.text(st.characters(max_codepoint=127), max_size=10),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.integers(min_value=0, max_value=2**53 - 1)
    | st.lists(st.integers(min_value=0, max_value=10), max_size=3),
    max_size=4,
)


def chain(count: int, payload: dict[str, object] | None = None) -> list[tuple[bytes, bytes]]:
    """Make a chain of `count` records."""
    records = []
    previous = GENESIS_HASH
    for audit_id in range(1, count + 1):
        body = record_body(
            audit_id,
            "payment.settled",
            actor_did="did:net:a",
            target_type="workflow",
            target_id="w",
            action="settled",
            payload=payload if payload is not None else {"amount": str(audit_id)},
            created_at="2025-01-01T00:00:00.000Z",
            prev_hash=previous,
        )
        previous = record_hash(body)
        records.append((body, previous))
    return records


@given(payloads)
def test_bodies_are_canonical(payload: dict[str, object]) -> None:
    """The record's own encoder takes no detour: it must give what the reference gives."""
    ((body, digest),) = chain(1, payload)
    assert canonical(orjson.loads(body)) == body
    assert find_break([(body, digest)]) is None


def test_sound_chain_has_no_break() -> None:
    assert find_break(chain(5)) is None
    assert find_break([]) is None
    assert find_break(chain(5)[2:], first_id=3, prev_hash=chain(5)[1][1]) is None


@given(st.data())
def test_one_flipped_bit_is_found_in_its_record(data: st.DataObject) -> None:
    records = chain(3)
    index = data.draw(st.integers(0, 2))
    which = data.draw(st.integers(0, 1))
    part = bytearray(records[index][which])
    position = data.draw(st.integers(0, len(part) - 1))
    part[position] ^= 1 << data.draw(st.integers(0, 7))
    changed = list(records[index])
    changed[which] = bytes(part)
    records[index] = (changed[0], changed[1])
    found = find_break(records)
    assert found is not None
    assert found.audit_id == index + 1


def test_rewritten_record_with_its_own_hash_breaks_the_link_after_it() -> None:
    records = chain(3)
    body = records[1][0].replace(b'"amount":"2"', b'"amount":"9"')
    records[1] = (body, record_hash(body))
    found = find_break(records)
    assert found is not None
    assert found.audit_id == 3
    assert "prevHash" in found.reason


def test_removed_swapped_and_inserted_records_are_found() -> None:
    one, two, three = chain(3)
    for records in ([one, three], [two, one, three], [one, one, two, three], [one, two, two]):
        assert find_break(records) is not None


def test_body_in_another_spelling_is_found() -> None:
    ((body, _),) = chain(1)
    spelled = body.replace(b'"action":', b'"action": ')
    found = find_break([(spelled, record_hash(spelled))])
    assert found is not None
    assert "canonical" in found.reason

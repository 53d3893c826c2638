"""The offline check of the audit chain: an intact one passes, no change of it does."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.verify import (
    GENESIS_HASH,
    ChainBroken,
    EntriesHidden,
    entry_hash,
    events_of,
    verify_chain,
)


def chain(length: int, *, left_out: int = 0) -> list[dict[str, Any]]:
    """Make a chain, newest entry first; its maker may leave an id out and hash on."""
    entries: list[dict[str, Any]] = []
    previous = GENESIS_HASH
    for number in range(1, length + 1):
        if number == left_out:
            continue
        entry: dict[str, Any] = {
            "id": number,
            "eventType": "payment.settled",
            "actorDid": "did:net:é",
            "targetType": "workflow",
            "targetId": f"w{number}",
            "action": "settled",
            "payload": {"amount": 0.02 * number, "note": "ünïcode \U0001f600"},
            "prevHash": previous,
            "createdAt": "2026-01-01T00:00:00.000Z",
        }
        entry["hash"] = previous = entry_hash(entry)
        entries.insert(0, entry)
    return entries


def test_the_hash_is_sha256_over_the_canonical_form() -> None:
    # Computed apart from this code: printf '{"a":"é","b":1}' | sha256sum
    expected = "sha256:aa58fba8483623bed37c1b02edfccbdd9a53123837c20bfa4cb4049993a2872e"
    assert entry_hash({"b": 1.0, "hash": "x", "a": "é"}) == expected


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_an_intact_chain_is_counted(length: int) -> None:
    entries = chain(length)
    found = verify_chain(entries)
    assert found.entries == length
    assert found.head_hash == (entries[0]["hash"] if entries else GENESIS_HASH)


@given(data=st.data())
def test_no_changed_character_goes_unnoticed(data: st.DataObject) -> None:
    entries = chain(4)
    text = json.dumps(entries, ensure_ascii=False)
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.characters(codec="utf-8")) + text[place + 1 :]
    try:
        read = json.loads(changed)
    except ValueError:
        return
    if read == entries and json.dumps(read) == json.dumps(entries):
        return
    with pytest.raises(ChainBroken):
        verify_chain(read)


def test_a_removed_entry_is_noticed() -> None:
    for place in range(1, 4):
        entries = chain(4)
        del entries[place]
        with pytest.raises(ChainBroken):
            verify_chain(entries)


def test_swapped_entries_are_noticed() -> None:
    entries = chain(4)
    entries[1], entries[2] = entries[2], entries[1]
    with pytest.raises(ChainBroken):
        verify_chain(entries)


def test_a_rehashed_entry_breaks_the_link_of_the_next() -> None:
    entries = copy.deepcopy(chain(4))
    entries[2]["payload"]["amount"] = 1000
    entries[2]["hash"] = entry_hash(entries[2])
    with pytest.raises(ChainBroken, match="audit entry 3: prevHash"):
        verify_chain(entries)


def test_a_left_out_id_is_noticed_although_every_link_holds() -> None:
    with pytest.raises(ChainBroken, match="audit entry 4: predecessor's id"):
        verify_chain(chain(5, left_out=3))


def test_a_chain_that_starts_later_is_noticed() -> None:
    with pytest.raises(ChainBroken, match="oldest entry"):
        verify_chain(chain(4)[:-1])


def test_a_first_entry_with_a_past_is_noticed() -> None:
    (entry,) = chain(1)
    entry["prevHash"] = "sha256:" + "1" * 64
    entry["hash"] = entry_hash(entry)
    with pytest.raises(ChainBroken, match="prevHash"):
        verify_chain([entry])


def linked(entries: list[dict[str, Any]], *ids: int) -> list[dict[str, Any]]:
    """Reduce entries to what `GET /v1/audit` shows of them without the right audit:all."""
    shown = ("id", "eventType", "hash")
    return [{one: e[one] for one in shown} if e["id"] in ids else e for e in entries]


@pytest.mark.parametrize("ids", [(1,), (4,), (1, 3), (1, 2, 3, 4)])
def test_entries_shown_by_their_hash_only_are_hidden_and_not_broken(ids: tuple[int, ...]) -> None:
    with pytest.raises(EntriesHidden, match="audit:all") as hidden:
        verify_chain(linked(chain(4), *ids))
    assert (hidden.value.entries, hidden.value.hidden) == (4, len(ids))


def test_a_defect_beside_hidden_entries_is_a_broken_chain() -> None:
    entries = linked(chain(4), 2, 4)
    entries[2]["hash"] = "sha256:" + "1" * 64
    with pytest.raises(ChainBroken, match="audit entry 3: prevHash"):
        verify_chain(entries)
    with pytest.raises(ChainBroken, match="predecessor's id"):
        verify_chain([*linked(chain(4), 2, 4)[:2], chain(4)[3]])


def test_an_entry_without_canonical_form_is_a_broken_chain() -> None:
    with pytest.raises(ChainBroken, match="canonical"):
        verify_chain([{"id": 1, "payload": {"amount": 10**128}}])


def commanded(**changes: Any) -> list[dict[str, Any]]:
    """Make a chain of an entry of one event and one of a command with two, newest first."""
    first = {"type": "node.succeeded", "targetType": "workflow", "targetId": "w2", "payload": {}}
    paid = {**first, "type": "payment.settled", "payload": {"feeCredits": "0.05"}}
    (genesis,) = chain(1)
    entry: dict[str, Any] = {
        **chain(2)[0],
        "eventType": "node.succeeded",
        "payload": {"events": [first, paid]},
        "prevHash": genesis["hash"],
        **changes,
    }
    entry["hash"] = entry_hash(entry)
    return [entry, genesis]


def test_an_entry_without_events_is_its_own_and_one_of_a_command_lists_them() -> None:
    entries = commanded()
    assert verify_chain(entries).entries == 2
    assert [event["type"] for event in events_of(entries[0])] == [
        "node.succeeded",
        "payment.settled",
    ]
    (own,) = events_of(entries[1])
    assert own == {
        "type": "payment.settled",
        "targetType": "workflow",
        "targetId": "w1",
        "payload": entries[1]["payload"],
    }


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("eventType", "payment.settled"),
        ("targetType", "agent"),
        ("targetId", "w1"),
        ("payload", {"events": []}),
        ("payload", {"events": 5}),
        ("payload", {"events": ["node.succeeded"]}),
        ("payload", {"events": [{"type": "node.succeeded"}]}),
    ],
)
def test_an_entry_that_hides_its_first_event_is_noticed(member: str, value: object) -> None:
    with pytest.raises(ChainBroken):
        verify_chain(commanded(**{member: value}))

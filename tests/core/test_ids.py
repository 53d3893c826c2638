"""Derived identifiers: the same for the same dispatch, another one for any other."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from core.ids import composed_key, event_id, work_key
from ledger.features.auctions import bid_key

WORKFLOW = "0198c0de-0000-7000-8000-000000000001"


@given(st.text(), st.text(), st.integers(1, 10**9))
def test_event_id_is_a_uuid_of_version_5(workflow_id: str, node: str, attempt: int) -> None:
    space = uuid.UUID("6f2d7e0a-3f0e-5c7b-9a51-6d1c0a9f4b11")
    expected = uuid.uuid5(space, f"{workflow_id}|{node}|{attempt}")
    assert event_id(workflow_id, node, attempt) == str(expected)


def test_event_id_is_the_same_for_the_same_attempt() -> None:
    assert event_id(WORKFLOW, "a", 1) == event_id(WORKFLOW, "a", 1)
    assert event_id(WORKFLOW, "a", 1) != event_id(WORKFLOW, "a", 2)


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_composed_keys_are_equal_only_of_equal_parts(one: list[str], other: list[str]) -> None:
    assert (composed_key("k", *one) == composed_key("k", *other)) == (one == other)


def test_a_did_and_a_key_do_not_pass_for_another_did_and_key() -> None:
    pairs = [("did:web:x.com", "alice:k1"), ("did:web:x.com:alice", "k1")]
    assert len({composed_key("http", *pair) for pair in pairs}) == 2
    # A node's name may hold colons, digits and whole DIDs.
    assert bid_key("w", "a", 1, "did:x:1:did:x") != bid_key("w", "a:1:did:x", 1, "did:x")


def test_a_key_of_work_is_the_same_for_the_same_work_alone() -> None:
    key = work_key("w", "a", "did:x:1", "0")
    assert key == work_key("w", "a", "did:x:1", "0")
    assert len(key) == 32
    others = {
        work_key("v", "a", "did:x:1", "0"),
        work_key("w", "b", "did:x:1", "0"),
        work_key("w", "a", "did:x:2", "0"),
        work_key("w", "a", "did:x:1", "1"),
        work_key("w", "adid:x:1", "", "0"),
    }
    assert len(others - {key}) == 5

"""The forms and bounds of what callers choose."""

from __future__ import annotations

import pytest

from core.records.bounds import is_capability_id, is_did, is_node_name, text_defect


@pytest.mark.parametrize(
    "did", ["did:net:x", "did:web:x.com%3A3000:a", "did:key:z6Mk-_.", "did:a:" + "x" * 250]
)
def test_dids_are_recognised(did: str) -> None:
    assert is_did(did)


@pytest.mark.parametrize(
    "value",
    [
        "did:net",
        "did::x",
        "did:net:",
        "did:net:a b",
        "did:net:a\n",
        "did:net:a\0",
        "did:net:\ud800",
        "did:net:a/b",
        "did:a:" + "x" * 251,
        None,
        ["did:net:x"],
    ],
)
def test_other_values_are_no_dids(value: object) -> None:
    assert not is_did(value)


@pytest.mark.parametrize("value", ["", "-a", "a b", "a\n", "x" * 129, None, []])
def test_other_values_are_no_capability_ids(value: object) -> None:
    assert not is_capability_id(value)


@pytest.mark.parametrize("value", ["", " a", "a'b", "a#verify", "\ud800", "x" * 129, None, []])
def test_other_values_are_no_names_of_nodes(value: object) -> None:
    assert not is_node_name(value)
    assert is_node_name("a/b: ü")


@pytest.mark.parametrize(
    ("text", "defect"),
    [("", None), ("aä€😀", None), ("a\0", "U+0000"), ("\udfff", "a lone surrogate")],
)
def test_a_text_that_cannot_be_stored_is_found(text: str, defect: str | None) -> None:
    assert text_defect(text) == defect

"""The printed states are the table's."""

from __future__ import annotations

from scripts.states import DOCUMENT, states_document


def test_states_document_is_in_step_with_the_table() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == states_document(), "run python -m scripts.states"

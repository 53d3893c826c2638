"""The client's error."""

from __future__ import annotations

import pickle

from callboard.errors import CallboardError


def test_every_field_survives_pickling() -> None:
    places = ({"path": "$.nodes", "got": "{}", "expected": "at least one"},)
    error = CallboardError("INVALID_MANIFEST", 400, "no nodes", places, "req-1")
    back = pickle.loads(pickle.dumps(error))
    assert vars(back) == vars(error)
    assert str(back) == "INVALID_MANIFEST: no nodes\n  $.nodes: got {}, expected at least one"

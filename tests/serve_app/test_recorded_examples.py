"""Recording examples: a new operation gets its own, what is described no more goes, others stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.record_examples import added
from tests.contract.described import Described

Json = dict[str, Any]


def operation(*members: str) -> Json:
    """Describe an operation whose reply has these members, texts all of them."""
    schema = {
        "type": "object",
        "properties": {member: {"type": "string"} for member in members},
        "required": list(members),
    }
    content = {"application/json": {"schema": schema}}
    return {"responses": {"200": {"description": "", "content": content}}}


def exchange(path: str, body: Json, status: int = 200) -> str:
    shown = {"method": "GET", "path": path, "sent": "", "status": status, "body": json.dumps(body)}
    return json.dumps(shown) + "\n"


def test_what_is_recorded_is_added_to_what_is_there(tmp_path: Path) -> None:
    paths = {"/old": {"get": operation("a")}, "/new/{id}": {"get": operation("a")}}
    paths |= {"/changed": {"get": operation("a", "b")}, "/unseen": {"get": operation("a", "b")}}
    document = Described({"paths": paths, "components": {}})
    there = {"reply": {"a": "there"}}
    examples = {
        "operations": {f"GET /{name}": there for name in ("old", "changed", "unseen", "gone")},
        "problems": {"NOT_FOUND": {"code": "NOT_FOUND", "detail": "there"}},
    }
    kept = tmp_path / "kept"
    kept.write_text(
        exchange("/old", {"a": "seen"})
        + exchange("/new/1", {"a": "seen"})
        + exchange("/changed", {"a": "seen", "b": "seen"})
        + exchange("/old", {"code": "NOT_FOUND"}, status=404)
        + exchange("/old", {"code": "RATE_LIMITED"}, status=429)
    )
    found = added(examples, kept, document)
    assert found["operations"] == {
        "GET /changed": {"reply": {"a": "seen", "b": "seen"}},
        "GET /new/{id}": {"reply": {"a": "seen"}},
        "GET /old": there,
        "GET /unseen": there,
    }
    assert found["problems"] == {
        "NOT_FOUND": {"code": "NOT_FOUND", "detail": "there"},
        "RATE_LIMITED": {"code": "RATE_LIMITED"},
    }

"""Which schemas a capability's agents have is known as their cards come and go."""

from __future__ import annotations

import orjson

from actors.directory.agent_directory import Directory
from actors.directory.offered_schemas import SCHEMAS_MAX, TEXT_BYTES_MAX
from tests.actors.directory.test_agent_directory import KEYS

CAPABILITY = "cap.x.v1"
STRING, NUMBER = {"type": "string"}, {"type": "number"}


def directory() -> Directory:
    """Return an empty directory."""
    return Directory(
        service="callboard", deployment_keys=KEYS, default_secret=None, max_concurrency=1
    )


def put(here: Directory, did: str, schema: object, *, status: str = "active") -> None:
    """Register an agent with this outputSchema; None for none."""
    one = {"id": CAPABILITY, **({} if schema is None else {"outputSchema": schema})}
    row = {"did": did, "owner_did": "did:x:o", "endpoint": "http://a.invalid", "status": status}
    card = orjson.dumps({"capabilities": [one]})
    here.put([{**row, "card": card, "public_key": None, "signing_secret": None}])


def outputs(here: Directory, target: str | None = None) -> list[object]:
    """Return the outputSchemas that a node may meet."""
    return [orjson.loads(text) for text in here.schemas_of(CAPABILITY, target, is_output=True)]


def test_schemas_follow_the_cards() -> None:
    here = directory()
    put(here, "did:x:a", STRING)
    put(here, "did:x:b", STRING)
    assert outputs(here) == [STRING]
    put(here, "did:x:b", NUMBER)
    assert sorted(map(str, outputs(here))) == sorted(map(str, [STRING, NUMBER]))
    assert outputs(here, "did:x:b") == [NUMBER]
    put(here, "did:x:b", NUMBER, status="inactive")
    assert outputs(here) == [STRING]
    assert here.schemas_of(CAPABILITY, None, is_output=False) == ()


def test_one_agent_without_a_schema_may_return_anything() -> None:
    here = directory()
    put(here, "did:x:a", STRING)
    put(here, "did:x:b", None)
    assert outputs(here) == []
    assert outputs(here, "did:x:b") == []
    assert outputs(here, "did:x:a") == [STRING]


def test_of_many_or_large_schemas_nothing_is_said() -> None:
    here = directory()
    for number in range(SCHEMAS_MAX):
        put(here, f"did:x:{number}", {"maxLength": number})
    assert len(outputs(here)) == SCHEMAS_MAX
    put(here, "did:x:more", STRING)
    assert outputs(here) == []
    large = directory()
    put(large, "did:x:a", {"description": "x" * TEXT_BYTES_MAX})
    assert outputs(large) == []

"""Which tokens a node's row knows: by the version of the keys that is stored with its attempt."""

from __future__ import annotations

from typing import Any

import pytest

from core.trust.derived_keys import KEY_VERSION
from core.trust.result_token import result_id
from serve_app.operations.work.results import is_token

KEY = bytes(range(32))
WORKFLOW = "0198c0de-0000-7000-8000-000000000001"


def row(key_version: int) -> dict[str, Any]:
    """Return what is read of a node's row."""
    return {"workflow_id": WORKFLOW, "name": "a", "attempt": 3, "key_version": key_version}


def token(number: int, *, key: bytes = KEY, is_verification: bool = False) -> bytes:
    """Return the token of a dispatch."""
    return result_id(
        key,
        WORKFLOW,
        "a",
        number,
        is_verification=is_verification,
        key_version=KEY_VERSION,
    ).encode()


@pytest.mark.parametrize("is_verification", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_token_is_known_by_the_version_stored_with_its_attempt(
    number: int, is_verification: bool
) -> None:
    given = token(number, is_verification=is_verification)
    stored = row(KEY_VERSION)
    assert is_token(KEY, stored, number, given, is_verification=is_verification)
    assert not is_token(KEY, stored, number, given, is_verification=not is_verification)
    assert not is_token(bytes(32), stored, number, given, is_verification=is_verification)
    assert not is_token(KEY, stored, number + 1, given, is_verification=is_verification)


def test_a_node_that_was_never_dispatched_knows_no_token() -> None:
    assert not is_token(KEY, row(0), 3, token(3), is_verification=False)
    assert not is_token(KEY, row(0), 1, token(1), is_verification=False)

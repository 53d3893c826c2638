"""Which tokens a node's row knows: by the version of the key that is stored with its attempt."""

from __future__ import annotations

from typing import Any

import pytest

from core.trust.deployment_keys import DeploymentKeys
from core.trust.tokens import result_id
from serve_app.operations.work.results import is_token

KEYS = DeploymentKeys([(1, bytes(range(32)))])
ROTATED = KEYS.with_next(b"n" * 32).with_newest_in_use()
WORKFLOW = "0198c0de-0000-7000-8000-000000000001"


def row(key_version: int) -> dict[str, Any]:
    """Return what is read of a node's row."""
    return {"workflow_id": WORKFLOW, "name": "a", "attempt": 3, "key_version": key_version}


def token(number: int, *, is_verification: bool = False, keys: DeploymentKeys = KEYS) -> bytes:
    """Return the token of a dispatch."""
    return result_id(
        keys,
        WORKFLOW,
        "a",
        number,
        is_verification=is_verification,
        key_version=keys.version,
    ).encode()


@pytest.mark.parametrize("is_verification", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_token_is_known_by_the_version_stored_with_its_attempt(
    number: int, is_verification: bool
) -> None:
    given = token(number, is_verification=is_verification)
    stored = row(1)
    assert is_token(KEYS, stored, number, given, is_verification=is_verification)
    assert not is_token(KEYS, stored, number, given, is_verification=not is_verification)
    other = DeploymentKeys.parse("00" * 32)
    assert not is_token(other, stored, number, given, is_verification=is_verification)
    assert not is_token(KEYS, stored, number + 1, given, is_verification=is_verification)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_token_of_before_a_rotation_is_known_until_its_key_is_ended(number: int) -> None:
    """An attempt that was opened before keeps its key; one that is opened after has the new one."""
    given = token(number)
    assert is_token(ROTATED, row(1), number, given, is_verification=False)
    assert not is_token(ROTATED.with_one(), row(1), number, given, is_verification=False)
    fresh = token(number, keys=ROTATED)
    assert is_token(ROTATED.with_one(), row(2), number, fresh, is_verification=False)
    assert is_token(KEYS.with_next(b"n" * 32), row(2), number, fresh, is_verification=False)


def test_the_open_attempt_has_no_other_key_than_its_row_says() -> None:
    assert not is_token(ROTATED, row(2), 3, token(3), is_verification=False)
    assert is_token(ROTATED, row(2), 2, token(2), is_verification=False), "an earlier attempt's"


def test_a_node_that_was_never_dispatched_knows_no_token() -> None:
    assert not is_token(KEYS, row(0), 3, token(3), is_verification=False)
    assert not is_token(KEYS, row(0), 1, token(1), is_verification=False)

"""The token of a result: the same for the same attempt, another one for any other."""

from __future__ import annotations

from itertools import combinations

from core.trust.deployment_keys import DeploymentKeys
from core.trust.result_token import read_binding, result_id

KEYS = DeploymentKeys.parse("00" * 32)
WORKFLOW = "0198c0de-0000-7000-8000-000000000001"


def token(
    keys: DeploymentKeys, workflow_id: str, node: str, attempt: int, *, is_verification: bool
) -> str:
    """Return a token by the first key."""
    return result_id(
        keys,
        workflow_id,
        node,
        attempt,
        is_verification=is_verification,
        key_version=1,
    )


def test_result_id_differs_by_key_workflow_node_attempt_and_kind() -> None:
    tokens = [
        token(KEYS, WORKFLOW, "a", 1, is_verification=False),
        token(KEYS, WORKFLOW, "a", 1, is_verification=True),
        token(KEYS, WORKFLOW, "a", 2, is_verification=False),
        token(KEYS, WORKFLOW, "a", 2, is_verification=True),
        token(KEYS, WORKFLOW, "a|1", 1, is_verification=False),
        token(KEYS, WORKFLOW, "b", 1, is_verification=False),
        token(KEYS, WORKFLOW[:-1] + "2", "a", 1, is_verification=False),
        token(DeploymentKeys.parse("11" * 32), WORKFLOW, "a", 1, is_verification=False),
    ]
    assert all(one != other for one, other in combinations(tokens, 2))
    assert tokens[0] == token(KEYS, WORKFLOW, "a", 1, is_verification=False)
    assert len(bytes.fromhex(tokens[0])) == 32


def test_the_token_of_a_bound_attempt_says_what_it_is_bound_to_and_cannot_be_changed() -> None:
    one, other = "0" * 64, "1" * 64
    tokens = {
        binding: result_id(
            KEYS,
            WORKFLOW,
            "a",
            1,
            is_verification=False,
            key_version=1,
            binding=binding,
        )
        for binding in ("", one, other)
    }
    assert {binding: read_binding(token) for binding, token in tokens.items()} == {
        "": "",
        one: one,
        other: other,
    }
    ends = {token.rpartition(".")[2] for token in tokens.values()}
    assert len(ends) == 3


def test_no_long_text_is_taken_for_a_binding() -> None:
    """It would be hashed for each attempt that a node has had."""
    assert read_binding("x" * 10_000 + ".0") == read_binding("x" * 63 + ".0") == ""

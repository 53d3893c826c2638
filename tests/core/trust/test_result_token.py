"""The token of a result: the same for the same attempt, another one for any other."""

from __future__ import annotations

from itertools import combinations

from core.trust.deployment_keys import DeploymentKeys
from core.trust.tokens import result_id

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

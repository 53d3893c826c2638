"""All policies and their conflicts as a table, and that an added refusal never allows more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.records.statuses import PolicyType
from core.subnets.policies import Policy, decide, may_leave

CAPABILITY = "cap.text.count.v1"


def policy(described: str) -> Policy:
    """Return the policy that `subnet type argument` describes; its id is the text."""
    subnet_id, kind, *rest = described.split()
    value = rest[0] if rest else None
    return Policy(
        id=described,
        subnet_id=subnet_id,
        kind=PolicyType(kind),
        capability=None if "region" in kind or kind == "rate_limit" else value,
        region=value if "region" in kind else None,
        limit_per_minute=int(value) if value and kind == "rate_limit" else None,
    )


# Policies; the region, "" while none is chosen; the policy that refuses, None for allowed.
TABLE: list[tuple[list[str], str, str | None]] = [
    ([], "", None),
    ([], "eu", None),
    # One policy each.
    ([f"a allow_capability {CAPABILITY}"], "", None),
    (["a allow_capability cap.other.v1"], "", "a allow_capability cap.other.v1"),
    (["a allow_capability cap.text.*"], "eu", None),
    (["a allow_capability *"], "", None),
    ([f"a deny_capability {CAPABILITY}"], "", f"a deny_capability {CAPABILITY}"),
    (["a deny_capability cap.text.*"], "", "a deny_capability cap.text.*"),
    (["a deny_capability cap.text.count.v10"], "", None),
    (["a deny_capability cap.text.count"], "", None),
    (["a require_approval"], "", "a require_approval"),
    (["a require_approval cap.other.v1"], "", None),
    (["a rate_limit 0"], "", None),
    (["a allow_region eu"], "eu", None),
    (["a allow_region eu"], "us", "a allow_region eu"),
    (["a allow_region eu"], "", None),
    (["a deny_region eu"], "eu", "a deny_region eu"),
    (["a deny_region eu"], "us", None),
    (["a deny_region eu"], "", None),
    # Two of one kind in one subnet allow what either names.
    (["a allow_capability cap.other.v1", f"a allow_capability {CAPABILITY}"], "", None),
    (["a allow_region eu", "a allow_region us"], "us", None),
    # Each subnet with a list must name it.
    (
        [f"a allow_capability {CAPABILITY}", "b allow_capability cap.other.v1"],
        "",
        "b allow_capability cap.other.v1",
    ),
    (["a allow_region eu", "b allow_region us"], "eu", "b allow_region us"),
    (["a allow_region eu", f"b allow_capability {CAPABILITY}"], "eu", None),
    # A refusal wins, in the same subnet or in another, whatever the order.
    (
        [f"a allow_capability {CAPABILITY}", "a deny_capability cap.*"],
        "",
        "a deny_capability cap.*",
    ),
    (
        ["b deny_capability cap.*", f"a allow_capability {CAPABILITY}"],
        "",
        "b deny_capability cap.*",
    ),
    (["a allow_region eu", "b deny_region eu"], "eu", "b deny_region eu"),
    (["a allow_capability *", "a require_approval *"], "", "a require_approval *"),
    (["a allow_region eu", "a deny_capability *"], "eu", "a deny_capability *"),
    (["a allow_capability *", "a deny_region eu"], "eu", "a deny_region eu"),
    # Of several refusals the first is named, before any list.
    (
        ["a allow_capability cap.other.v1", "b require_approval", "c deny_capability *"],
        "",
        "b require_approval",
    ),
]


@pytest.mark.parametrize(("policies", "region", "refusing"), TABLE)
def test_decisions(policies: list[str], region: str, refusing: str | None) -> None:
    decision = decide(map(policy, policies), CAPABILITY, region or None)
    assert decision.is_allowed is (refusing is None)
    assert (decision.policy and decision.policy.id) == refusing


@pytest.mark.parametrize(
    ("policies", "is_allowed"),
    [
        (["a allow_region us"], True),
        (["a deny_region eu"], False),
        (["a deny_capability *"], False),
    ],
)
def test_only_a_denial_refuses_the_own_region(policies: list[str], *, is_allowed: bool) -> None:
    decision = decide(map(policy, policies), CAPABILITY, "eu", is_own=True)
    assert decision.is_allowed is is_allowed


@pytest.mark.parametrize(
    ("policies", "is_allowed", "named"),
    [
        ([], False, None),
        (["a allow_region eu"], True, None),
        (["a allow_region us"], False, "a allow_region us"),
        (["a allow_region eu", "b allow_region us"], False, "b allow_region us"),
        (["a allow_region eu", "b deny_region eu"], False, "b deny_region eu"),
        (["a allow_region eu", "b deny_capability *"], False, "b deny_capability *"),
        (["a allow_capability *"], False, None),
    ],
)
def test_inputs_leave_only_where_a_policy_names_the_region(
    policies: list[str], *, is_allowed: bool, named: str | None
) -> None:
    decision = may_leave(map(policy, policies), CAPABILITY, "eu")
    assert decision.is_allowed is is_allowed
    assert (decision.policy and decision.policy.id) == named


CAPABILITIES = ("cap.a.v1", "cap.b.v1", "cap.*", "*")
KINDS = [
    f"{subnet} {kind} {value}"
    for subnet in "ab"
    for kind, values in {
        "allow_capability": CAPABILITIES,
        "deny_capability": CAPABILITIES,
        "require_approval": CAPABILITIES,
        "rate_limit": ("5",),
        "allow_region": ("eu", "us"),
        "deny_region": ("eu", "us"),
    }.items()
    for value in values
]
POLICIES = st.lists(st.sampled_from(KINDS), max_size=6)
REFUSALS = st.sampled_from([one for one in KINDS if "allow" not in one and "rate" not in one])
NODES = st.tuples(st.sampled_from(("cap.a.v1", "cap.b.v1", "x")), st.sampled_from(("eu", "us", "")))


@given(POLICIES, REFUSALS, st.integers(0, 6), NODES)
def test_an_added_refusal_never_allows_more(
    policies: list[str], added: str, place: int, node: tuple[str, str]
) -> None:
    capability_id, region = node
    more = [*policies[:place], added, *policies[place:]]
    before = decide(map(policy, policies), capability_id, region or None)
    after = decide(map(policy, more), capability_id, region or None)
    assert before.is_allowed or not after.is_allowed
    if region:
        leaves = may_leave(map(policy, policies), capability_id, region)
        still = may_leave(map(policy, more), capability_id, region)
        assert leaves.is_allowed or not still.is_allowed


@given(POLICIES, POLICIES, NODES)
def test_another_subnet_never_allows_more(
    policies: list[str], others: list[str], node: tuple[str, str]
) -> None:
    """Nobody lifts the policies of a subnet by joining one of its own."""
    capability_id, region = node
    own = [one.replace(one[0], "c", 1) for one in others]
    before = decide(map(policy, policies), capability_id, region or None)
    after = decide(map(policy, [*policies, *own]), capability_id, region or None)
    assert before.is_allowed or not after.is_allowed

"""Subnets in a directory: to whom private agents are offered, and what policies refuse."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest

from actors.directory.agent_directory import Directory
from core.errors import NodeErrorCode
from core.subnets.policies import NodeRate
from core.workflow.actions import SelectVerifier
from core.workflow.events import AgentNotSelected, AgentSelected, VerifierSelected
from tests.actors.directory.test_agent_directory import CAPABILITY, KEYS, directory, row, select

_CHANGES = count(1)
A, B, C, OWNER = "did:x:a", "did:x:b", "did:x:c", "did:x:owner"


def subnet(
    subnet_id: str, *joined: str, kind: str = "private", policies: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    """Return a subnet's row."""
    return {
        "id": subnet_id,
        "policy_type": kind,
        "changed_id": next(_CHANGES),
        "joined_dids": list(joined),
        "policies": [
            {
                "id": f"{subnet_id}-{place}",
                "subnet_id": subnet_id,
                **dict.fromkeys(("capability", "region", "limit_per_minute")),
                **one,
            }
            for place, one in enumerate(policies)
        ],
    }


def private(did: str, subnet_id: str = "s", **more: Any) -> dict[str, Any]:
    """Return the row of an agent in a private subnet."""
    return row(did, private_subnet=subnet_id, **more)


def chosen(known: Directory, payer_did: str, **action: Any) -> str | None:
    """Return which agent takes a payer's node, None for none."""
    found = known.select(select(**action), 0, payer_did=payer_did)
    return found.agent_did if isinstance(found, AgentSelected) else None


def refusal(known: Directory, payer_did: str, **action: Any) -> tuple[str, str]:
    """Return why no agent takes a payer's node: code and message."""
    found = known.select(select(**action), 0, payer_did=payer_did)
    assert isinstance(found, AgentNotSelected), found
    return found.failure.code, found.failure.message


def test_others_get_what_they_get_without_the_agent() -> None:
    """Also an estimate, the schemas of a publish, the look for missing agents, and a verifier."""
    schema = {
        "capabilities": [{"id": CAPABILITY, "price_cents": 1, "inputSchema": {"type": "null"}}]
    }
    known, absent = directory(private(A, card=schema)), directory()
    known.subnets.apply_rows([subnet("s", OWNER, "member")])
    verify = SelectVerifier("n", CAPABILITY, "did:x:primary", (), 10**9)
    looks = [
        lambda one, payer: one.select(select(), 0, payer_did=payer),
        lambda one, payer: one.select(select(target_agent_id=A), 0, payer_did=payer),
        lambda one, payer: one.select(select(versions="^1"), 0, payer_did=payer),
        lambda one, payer: one.select_verifier(verify, 0, payer_did=payer),
        lambda one, payer: one.list_available_agents(select(), 0, payer_did=payer),
        lambda one, payer: one.asking_prices(CAPABILITY, A, payer_did=payer),
        lambda one, payer: one.available_prices(CAPABILITY, "", 0, payer_did=payer),
        lambda one, payer: one.is_missing(CAPABILITY, A, payer),
        lambda one, payer: one.select(select(capability_id=f"{CAPABILITY}x"), 0, payer_did=payer),
    ]
    for look in looks:
        assert str(look(known, "other")) == str(look(absent, "other"))
    assert known.schemas_of(CAPABILITY, A, is_output=False) == ()
    assert chosen(known, "member") == chosen(known, "member", target_agent_id=A) == A
    assert known.asking_prices(CAPABILITY, None, payer_did="member").dearest_micro == 10_000
    assert known.available_prices(CAPABILITY, "", 0, payer_did="member").cheapest_micro == 10_000
    assert not known.is_missing(CAPABILITY, A, "member")
    judged = known.select_verifier(verify, 0, payer_did="member")
    assert isinstance(judged, VerifierSelected)
    assert judged.agent_did == A


def test_members_take_the_best_of_private_and_public_agents() -> None:
    known = directory(row(A, cents=2), private(B), private(C, "t", cents=3))
    known.subnets.apply_rows([subnet("s", OWNER, "member"), subnet("t", OWNER, "both")])
    known.subnets.apply_rows([subnet("s", OWNER, "member", "both")])
    assert [chosen(known, one) for one in ("other", "member", "both")] == [A, B, B]
    dids, _ = known.list_available_agents(select(), 0, payer_did="both")
    assert set(dids) == {A, B, C}
    known.put([private(B, status="inactive")])
    assert [chosen(known, one) for one in ("member", "both")] == [A, A]


def test_who_leaves_loses_the_agents_and_takes_its_own() -> None:
    known = directory(private(A))
    known.subnets.apply_rows([subnet("s", OWNER, "member", "left")])
    assert chosen(known, "left") == A
    known.subnets.apply_rows([subnet("s", OWNER, "member")])
    assert chosen(known, "left") is None
    assert chosen(known, "member") == A
    known.subnets.apply_rows([subnet("s", "member")])
    assert chosen(known, "member") is None
    assert chosen(known, "member", target_agent_id=A) is None
    # A subnet that was not read yet hides its agents.
    assert chosen(directory(private(A)), OWNER) is None


def test_what_was_kept_is_what_a_new_directory_says() -> None:
    """Whatever has changed, in whatever order: cards, subnets and who has joined them."""
    random = Random(14)
    dids, payers = [f"did:x:{number}" for number in range(8)], ["p", "q", "r"]
    known, cards, subnets = directory(), {}, {}
    for _ in range(400):
        if random.random() < 0.6:
            did, place = random.choice(dids), random.choice(["", "s", "t"])
            one = row(did, cents=random.randrange(1, 9), owner=random.choice(["o", "u"]))
            one["private_subnet"] = place or None
            one["status"] = random.choice(["active", "active", "inactive"])
            cards.pop(did, None)
            cards[did] = one
            known.put([one], at_ms=10**9)
        else:
            subnet_id = random.choice("st")
            joined = [one for one in (*payers, "o", "u") if random.random() < 0.6]
            subnets[subnet_id] = subnet(subnet_id, *joined)
            known.subnets.apply_rows([subnets[subnet_id]])
        fresh = directory()
        fresh.subnets.apply_rows(subnets.values())
        fresh.put(cards.values(), at_ms=10**9)
        for payer in payers:
            found, expected = (
                {
                    *one.list_available_agents(select(), 0, payer_did=payer)[0],
                    one.available_prices(CAPABILITY, "", 0, payer_did=payer).cheapest_micro,
                }
                for one in (known, fresh)
            )
            assert found == expected
            assert (chosen(known, payer) is None) is (found == {None})


@pytest.mark.parametrize(
    ("policy", "action", "is_refused"),
    [
        ({"type": "deny_capability", "capability": CAPABILITY}, {}, True),
        ({"type": "deny_capability", "capability": "cap.text.*"}, {"target_agent_id": A}, True),
        ({"type": "deny_capability", "capability": CAPABILITY}, {"versions": "^1"}, True),
        ({"type": "require_approval"}, {}, True),
        ({"type": "allow_capability", "capability": "cap.other.v1"}, {}, True),
        ({"type": "allow_capability", "capability": CAPABILITY}, {}, False),
        ({"type": "rate_limit", "limit_per_minute": 0}, {}, False),
        ({"type": "allow_region", "region": "eu"}, {}, False),
        ({"type": "deny_region", "region": "us"}, {"target_agent_id": A}, False),
    ],
)
def test_policies_refuse_nodes_of_members(
    policy: dict[str, Any], action: dict[str, Any], *, is_refused: bool
) -> None:
    known = directory(row(A))
    known.subnets.apply_rows([subnet("s", "member", kind="public", policies=(policy,))])
    if not is_refused:
        assert chosen(known, "member", **action) == A
        return
    code, message = refusal(known, "member", **action)
    assert code == NodeErrorCode.POLICY_DENIED
    assert f"s-0 ({policy['type']})" in message
    _, failure = known.list_available_agents(select(**action), 0, payer_did="member")
    assert failure is not None
    assert failure.code == NodeErrorCode.POLICY_DENIED
    if "versions" not in action:
        assert chosen(known, "other", **action) == A


def test_region_policies_are_about_the_regions_of_cards() -> None:
    eu, us = ({"region": "eu"}, {"metadata": {"region": "us"}})
    known = directory(row(A, card=eu, cents=9), row(B, card=us), row(C, cents=5))
    allow = {"type": "allow_region", "region": "eu"}
    known.subnets.apply_rows([subnet("s", "member", policies=(allow,))])
    assert [chosen(known, one) for one in ("other", "member")] == [B, C]
    code, message = refusal(known, "member", target_agent_id=B)
    assert (code, "s-0 (allow_region)" in message) == (NodeErrorCode.POLICY_DENIED, True)
    known.put([row(C, status="inactive")], at_ms=10**9)
    assert chosen(known, "member") == A
    deny = {"type": "deny_region", "region": "eu"}
    known.subnets.apply_rows([subnet("s", "member", policies=(allow, deny))])
    code, message = refusal(known, "member")
    assert code == NodeErrorCode.NO_CANDIDATE
    assert "2 in a region that a policy of the payer's subnets refuses" in message


@pytest.mark.parametrize(
    ("own", "policies", "takers"),
    [
        # "" is a card without a region, the first to be taken: it counts as the own region.
        # Only `deny_region` refuses the own region.
        ("home", ("allow_region eu",), {"", "home", "eu"}),
        ("home", ("deny_region home",), {"eu", "us", "ap"}),
        ("home", ("allow_region home",), {"", "home"}),
        ("home", ("deny_region eu",), {"", "home", "us", "ap"}),
        ("home", ("allow_region us", "deny_region home"), {"us"}),
        # Without an own region, region policies are not about such a card.
        ("", ("allow_region eu",), {"", "eu"}),
        ("", ("deny_region eu",), {"", "home", "us", "ap"}),
    ],
)
def test_a_card_without_a_region_is_in_the_own_region(
    own: str, policies: tuple[str, ...], takers: set[str]
) -> None:
    regions = ("", "home", "eu", "us", "ap")
    known = Directory(
        service="c", deployment_keys=KEYS, default_secret=None, max_concurrency=9, region=own
    )
    known.put(row(f"did:x:{one}", card={"region": one} if one else {}) for one in regions)
    terms = (dict(zip(("type", "region"), one.split(), strict=True)) for one in policies)
    known.subnets.apply_rows([subnet("s", "member", policies=tuple(terms))])
    dids, _ = known.list_available_agents(select(), 0, payer_did="member")
    assert {did.removeprefix("did:x:") for did in dids} == takers
    for one in regions:
        did = f"did:x:{one}"
        expected = did if one in takers else None
        assert chosen(known, "member", target_agent_id=did) == expected


def test_a_removed_subnet_hides_its_agents_and_binds_nobody() -> None:
    known = directory(private(A), row(B, cents=9))
    deny = {"type": "deny_capability", "capability": CAPABILITY}
    known.subnets.apply_rows([subnet("s", OWNER, "member", policies=(deny,))])
    assert chosen(known, "member") is None
    known.subnets.apply_rows([subnet("s")])
    assert [chosen(known, "member", target_agent_id=one) for one in (None, A)] == [B, None]
    assert not known.subnets


def test_inputs_leave_by_a_policy_of_who_has_joined() -> None:
    known = directory()
    policies = (
        {"type": "allow_region", "region": "eu"},
        {"type": "deny_capability", "capability": "x*"},
    )
    known.subnets.apply_rows([subnet("s", "member", policies=policies)])
    may_leave = known.subnets.may_leave
    asked = [
        ("member", CAPABILITY, "eu"),
        ("member", CAPABILITY, "us"),
        ("other", CAPABILITY, "eu"),
    ]
    asked += [("member", f"{CAPABILITY}@1.0.0", "eu"), ("member", "x.v1", "eu")]
    assert [may_leave(*one).is_allowed for one in asked] == [True, False, False, True, False]


def test_rates_count_the_nodes_that_each_policy_is_about() -> None:
    known = directory()
    policies = (
        {"type": "rate_limit", "limit_per_minute": 5},
        {"type": "rate_limit", "limit_per_minute": 2, "capability": "cap.a*"},
        {"type": "rate_limit", "limit_per_minute": 0, "capability": "cap.b"},
        {"type": "require_approval", "capability": "cap.c"},
    )
    known.subnets.apply_rows([subnet("s", "member", policies=policies)])
    nodes = ["cap.a", "cap.a.v1", "cap.c"]
    assert known.find_rates("member", nodes) == (NodeRate("s-0", 5, 3), NodeRate("s-1", 2, 2))
    assert known.find_rates("other", nodes) == ()

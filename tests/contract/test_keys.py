"""Authentication, scopes and API keys, row by row.

Spec: Authentication 1 and 4, Errors (invalid or missing key).
"""

from __future__ import annotations

import time

import httpx
import pytest

from core.trust.access import DEFAULT_SCOPES
from tests.contract.conftest import (
    PATIENCE_S,
    POLL_S,
    Caller,
    MakeCaller,
    answer,
    refusal,
    unique,
    wait,
)


def test_bearer_carries_an_api_key_as_well(payer: Caller, anonymous: httpx.Client) -> None:
    headers = {"authorization": f"Bearer {payer.key}"}
    assert answer(anonymous.get("/v1/ledger/balance", headers=headers))["ownerDid"] == payer.did


def test_a_key_is_shown_once(admin: Caller) -> None:
    did = unique("did:net:k-")
    made = answer(admin.http.post("/v1/keys", json={"ownerDid": did, "name": "mine"}))
    assert made["success"] is True
    assert made["id"] == made["keyId"]
    assert made["scopes"] == list(DEFAULT_SCOPES)
    assert made["rateClass"] == "standard"
    (listed,) = answer(admin.http.get(f"/v1/keys?ownerDid={did}"))["keys"]
    assert listed["id"] == made["id"]
    assert listed["name"] == "mine"
    assert "key" not in listed
    assert made["key"] not in str(listed)


def test_a_caller_lists_own_keys_only(payer: Caller) -> None:
    keys = answer(payer.http.get("/v1/keys?ownerDid=did:net:somebody"))["keys"]
    assert [key["id"] for key in keys] == [payer.key_id]


def test_a_new_key_cannot_do_more_than_its_maker(payer: Caller, make_caller: MakeCaller) -> None:
    for scopes in (["admin"], ["ledger:deposit"]):
        response = payer.http.post("/v1/keys", json={"scopes": scopes})
        refusal(response, 403, "INSUFFICIENT_SCOPE")
    reader = make_caller(scopes=["keys:write", "agents:read"])
    made = answer(reader.http.post("/v1/keys", json={}))
    assert set(made["scopes"]) == {"keys:write", "agents:read"}
    refusal(
        reader.http.post("/v1/keys", json={"scopes": ["ledger:read"]}), 403, "INSUFFICIENT_SCOPE"
    )


def test_default_scopes_never_hold_a_single_right(make_caller: MakeCaller) -> None:
    """Also where the maker has single rights, and lacks some of the default scopes."""
    held = [scope for scope in DEFAULT_SCOPES if scope != "audit:write"]
    maker = make_caller(scopes=[*held, "ledger:deposit", "trust:revoke", "agents:heartbeat"])
    made = answer(maker.http.post("/v1/keys", json={}))
    assert made["scopes"] == held


def test_keys_for_others_and_rate_classes_need_an_administrator(payer: Caller) -> None:
    response = payer.http.post("/v1/keys", json={"ownerDid": "did:net:other"})
    refusal(response, 403, "FORBIDDEN")
    for body in ({"rateClass": "unlimited"}, {"rateLimits": {"read": 10}}):
        refusal(payer.http.post("/v1/keys", json=body), 403, "INSUFFICIENT_SCOPE")


@pytest.mark.parametrize(
    "body",
    [
        {"ownerDid": "nobody"},
        {"scopes": "admin"},
        {"scopes": ["fly"]},
        {"rateClass": "gold"},
        {"rateLimits": {"read": 0}},
        {"rateLimits": {"sleep": 1}},
        {"expiresAt": "2001-01-01T00:00:00Z"},
        {"expiresAt": "soon"},
        {"name": 3},
    ],
)
def test_a_bad_key_request_is_400(admin: Caller, body: dict[str, object]) -> None:
    refusal(admin.http.post("/v1/keys", json=body), 400, "INVALID_REQUEST")


def test_a_revoked_key_ends_within_a_second(make_caller: MakeCaller, admin: Caller) -> None:
    """It ends in any case; of several the quickest is judged, for the machine may be busy."""
    lasted = [opens_for_s(make_caller(), admin) for _ in range(5)]
    assert min(lasted) <= 1.0, lasted


def opens_for_s(caller: Caller, admin: Caller) -> float:
    """Revoke a key that is in use; return how long after the answer it still opened, seconds."""
    answer(caller.http.get("/v1/ledger/balance"))
    assert answer(admin.http.delete(f"/v1/keys/{caller.key_id}"))["success"] is True
    revoked = opened = time.monotonic()
    while caller.http.get("/v1/ledger/balance").status_code != 401:
        opened = time.monotonic()
        assert opened < revoked + PATIENCE_S, "the revoked key still opens"
        time.sleep(POLL_S)
    refusal(admin.http.delete(f"/v1/keys/{caller.key_id}"), 404, "NOT_FOUND")
    return opened - revoked


def test_a_rotated_key_keeps_its_rights_and_what_was_made_with_it(
    make_caller: MakeCaller, anonymous: httpx.Client
) -> None:
    caller = make_caller(scopes=["ledger:read", "keys:write", "keys:read"])
    child = answer(caller.http.post("/v1/keys", json={}))
    path, balance = f"/v1/keys/{caller.key_id}/rotate", "/v1/ledger/balance"
    first = answer(caller.http.post(path, json={"overlapSeconds": 600}))
    assert (first["id"], first["ownerDid"]) == (caller.key_id, caller.did)
    assert first["scopes"] == ["ledger:read", "keys:write", "keys:read"]
    assert first["key"] != caller.key
    opens = {key: {"headers": {"x-api-key": key}} for key in (first["key"], child["key"])}
    for opening in ({}, *opens.values()):
        answer((anonymous if opening else caller.http).get(balance, **opening))
    (row,) = answer(caller.http.get("/v1/keys"))["keys"][:1]
    assert row["previousEndsAt"] == first["previousEndsAt"] is not None
    second = answer(anonymous.post(path, headers={"x-api-key": first["key"]}))
    assert second["previousEndsAt"] is None
    wait(lambda: caller.http.get(balance).status_code == 401, "the first secret's end")
    wait(lambda: anonymous.get(balance, **opens[first["key"]]).status_code == 401, "its end")
    answer(anonymous.get(balance, **opens[child["key"]]))
    own = {"x-api-key": second["key"]}
    ended = answer(anonymous.delete(f"/v1/keys/{caller.key_id}", headers=own))["endedKeys"]
    assert ended == 2


def test_a_secret_of_before_ends_with_its_overlap(
    make_caller: MakeCaller, anonymous: httpx.Client
) -> None:
    caller = make_caller()
    made = answer(caller.http.post(f"/v1/keys/{caller.key_id}/rotate", json={"overlapSeconds": 1}))
    answer(caller.http.get("/v1/ledger/balance"))
    wait(lambda: caller.http.get("/v1/ledger/balance").status_code == 401, "the overlap's end")
    own = {"x-api-key": made["key"]}
    assert answer(anonymous.get("/v1/ledger/balance", headers=own))["ownerDid"] == caller.did


def test_a_key_is_rotated_by_none_who_would_get_more_by_it(
    make_caller: MakeCaller, admin: Caller, anonymous: httpx.Client
) -> None:
    caller, other = make_caller(), make_caller()
    path = f"/v1/keys/{caller.key_id}/rotate"
    child = {"x-api-key": answer(caller.http.post("/v1/keys", json={}))["key"]}
    refusal(anonymous.post(path, headers=child), 403, "FORBIDDEN")
    refusal(other.http.post(path), 404, "NOT_FOUND")
    refusal(admin.http.post("/v1/keys/unknown/rotate"), 404, "NOT_FOUND")
    for overlap in (-1, 86_401, "soon"):
        response = caller.http.post(path, json={"overlapSeconds": overlap})
        refusal(response, 400, "INVALID_REQUEST")
    answer(caller.http.get("/v1/ledger/balance"))
    made = answer(admin.http.post(path))
    # Which is remembered for a second, in which it may still read.
    for at in (path, "/v1/keys"):
        refusal(caller.http.post(at, json={}), 401, "UNAUTHORIZED")
    wait(lambda: caller.http.get("/v1/ledger/balance").status_code == 401, "its end")
    answer(anonymous.get("/v1/ledger/balance", headers={"x-api-key": made["key"]}))
    answer(admin.http.delete(f"/v1/keys/{caller.key_id}"))
    refusal(admin.http.post(path), 404, "NOT_FOUND")


def test_a_key_ends_with_the_key_it_was_made_with(
    make_caller: MakeCaller, anonymous: httpx.Client
) -> None:
    parent = make_caller()
    sibling = make_caller(ownerDid=parent.did)
    child = answer(parent.http.post("/v1/keys", json={}))
    assert child["parentId"] == parent.key_id
    headers = {"x-api-key": child["key"]}
    grandchild = answer(anonymous.post("/v1/keys", json={}, headers=headers))
    assert grandchild["parentId"] == child["keyId"]
    ended = answer(parent.http.delete(f"/v1/keys/{parent.key_id}"))["endedKeys"]
    assert ended == 3
    balance = "/v1/ledger/balance"
    for key in (child["key"], grandchild["key"]):
        opens = {"headers": {"x-api-key": key}}
        wait(lambda opens=opens: anonymous.get(balance, **opens).status_code == 401, "its end")
    assert answer(sibling.http.get(balance))["ownerDid"] == parent.did


def test_a_key_expires_no_later_than_the_one_it_was_made_with(make_caller: MakeCaller) -> None:
    parent = make_caller(expiresAt="2090-01-01T00:00:00.000Z")
    for given, shown in (
        (None, "2090-01-01T00:00:00.000Z"),
        ("2090-01-01T00:00:00Z", "2090-01-01T00:00:00.000Z"),
        ("2080-01-01T00:00:00Z", "2080-01-01T00:00:00.000Z"),
    ):
        child = answer(parent.http.post("/v1/keys", json={"expiresAt": given}))
        assert child["expiresAt"] == shown
    response = parent.http.post("/v1/keys", json={"expiresAt": "2090-01-01T00:00:00.001Z"})
    assert refusal(response, 400, "INVALID_REQUEST")["errors"][0]["path"] == "expiresAt"


def test_a_key_has_the_limits_of_the_one_it_was_made_with(
    make_caller: MakeCaller, anonymous: httpx.Client
) -> None:
    parent = make_caller(rateClass="standard", rateLimits={"read": 3})
    child = answer(parent.http.post("/v1/keys", json={}))
    assert (child["rateClass"], child["rateLimits"]) == ("standard", {"read": 3})
    headers = {"x-api-key": child["key"]}
    shown = anonymous.get("/v1/ledger/balance", headers=headers).headers
    assert shown["ratelimit-policy"] == '"read";q=3;w=60'


def test_a_key_that_an_administrator_makes_for_another_stands_by_itself(
    make_caller: MakeCaller, admin: Caller, anonymous: httpx.Client
) -> None:
    operator = make_caller(scopes=["admin", *DEFAULT_SCOPES])
    tenant = answer(operator.http.post("/v1/keys", json={"ownerDid": unique("did:net:k-")}))
    other = {"ownerDid": unique("did:net:k-"), "scopes": ["admin", "keys:read"]}
    second = answer(operator.http.post("/v1/keys", json=other))
    assert tenant["parentId"] is None
    assert second["parentId"] == operator.key_id
    assert answer(admin.http.delete(f"/v1/keys/{operator.key_id}"))["endedKeys"] == 2
    balance, opens = "/v1/ledger/balance", {"headers": {"x-api-key": second["key"]}}
    wait(lambda: anonymous.get(balance, **opens).status_code == 401, "its end")
    answer(anonymous.get(balance, headers={"x-api-key": tenant["key"]}))


def test_anothers_key_cannot_be_revoked(payer: Caller, make_caller: MakeCaller) -> None:
    other = make_caller()
    refusal(payer.http.delete(f"/v1/keys/{other.key_id}"), 404, "NOT_FOUND")
    answer(other.http.get("/v1/ledger/balance"))


def test_an_expired_key_is_401(admin: Caller, anonymous: httpx.Client) -> None:
    moment = time.gmtime(time.time() + 5)
    body = {
        "ownerDid": unique("did:net:k-"),
        "expiresAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", moment),
    }
    headers = {"x-api-key": answer(admin.http.post("/v1/keys", json=body))["key"]}
    balance = "/v1/ledger/balance"
    wait(lambda: anonymous.get(balance, headers=headers).status_code != 200, "its end")
    refusal(anonymous.get("/v1/ledger/balance", headers=headers), 401, "UNAUTHORIZED")


def test_the_first_key_is_an_administrators_and_unlimited(admin: Caller) -> None:
    keys = answer(admin.http.get(f"/v1/keys?ownerDid={admin.did}"))["keys"]
    assert any("admin" in key["scopes"] and key["rateClass"] == "unlimited" for key in keys)

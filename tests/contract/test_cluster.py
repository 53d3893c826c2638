"""The cluster as administrators see it, row by row. Decision cluster-and-releases.

Draining between machines: `tests/faults/test_drain.py`.
"""

from __future__ import annotations

import pytest

from tests.contract.conftest import Caller, answer, refusal

CLUSTER = "/v1/cluster"


def test_one_machine_has_a_member_that_holds_every_shard_and_cannot_drain(admin: Caller) -> None:
    shown = answer(admin.http.get(CLUSTER))
    assert shown["unheldShards"] == 0
    assert str(shown["version"]) == shown["members"][0]["version"]
    (member,) = shown["members"]
    assert (member["state"], member["isLive"], member["isDrained"]) == ("ready", True, False)
    assert member["shards"] == 256
    path = f"{CLUSTER}/machines/{member['machine']}"
    refusal(admin.http.post(f"{path}/drain"), 409, "CONFLICT")
    resumed = answer(admin.http.post(f"{path}/resume"))
    assert (resumed["success"], resumed["machine"]) == (True, member["machine"])
    assert [one["state"] for one in resumed["members"]] == ["ready"]
    by_prefix = answer(admin.http.post(f"{CLUSTER}/machines/{member['machine'][:6]}/resume"))
    assert by_prefix["machine"] == member["machine"]
    changes = answer(admin.http.get("/v1/audit", params={"eventType": "member.changed"}))
    assert changes["entries"] == [], "nothing has changed"


@pytest.mark.parametrize("machine", ["ffffff0000", "abc"])
@pytest.mark.parametrize("what", ["drain", "resume"])
def test_machine_that_is_not_there_is_404(admin: Caller, what: str, machine: str) -> None:
    refusal(admin.http.post(f"{CLUSTER}/machines/{machine}/{what}"), 404, "NOT_FOUND")

"""`callboard cluster` and `callboard drain` against a service on loopback that follows a script."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run

Json = dict[str, Any]
MACHINE = "b16b00b5"


def member(name: str, machine: str = MACHINE, **changes: object) -> Json:
    """Return a member as the service shows it: one that drains and holds something."""
    shown = {
        "id": name,
        "machine": machine,
        "address": f"at {name}",
        "version": "1",
        "state": "draining",
        "isLive": True,
        "load": 0,
        "openCalls": 2,
        "shards": 3,
        "isDrained": False,
    }
    return {**shown, **changes}


def changed(*members: Json, drain_ms: int = 60_000) -> Scripted:
    body = {"success": True, "machine": MACHINE, "members": members, "drainMs": drain_ms}
    return Scripted(200, body)


def cluster(*members: Json, unheld: int = 0) -> Scripted:
    return Scripted(200, {"members": members, "unheldShards": unheld, "version": 2})


DRAINED = {"openCalls": 0, "shards": 0, "isDrained": True}


def asked(service: ScriptedService) -> list[tuple[str, str]]:
    return [(one.method, one.target) for one in service.asked]


def test_the_cluster_is_a_table_and_shards_without_a_member_are_told(
    service: ScriptedService,
) -> None:
    service.script = [cluster(member("m-1"), member("m-2", "another"), unheld=7)]
    result = run("cluster", "--url", service.url)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["machine", "id"]
    assert [line.split()[1] for line in lines[1:3]] == ["m-1", "m-2"]
    assert lines[3] == "7 shards have no live member"
    service.script = [cluster(member("m-1"))]
    assert "no live member" not in run("cluster", "--url", service.url).stdout


def test_drain_shows_what_is_left_until_nothing_is(service: ScriptedService) -> None:
    other = member("m-9", "another", state="ready")
    service.script = [
        changed(member("m-1"), member("m-2")),
        cluster(member("m-1", shards=0), member("m-2", **DRAINED), other),
        cluster(member("m-1", shards=0, openCalls=0), member("m-2", **DRAINED), other),
        cluster(member("m-1", **DRAINED), member("m-2", **DRAINED), other),
    ]
    result = run("drain", "b16b00", "--url", service.url)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "6 shards and 4 open calls are left",
        "0 shards and 2 open calls are left",
        "0 shards and 0 open calls are left",  # which its member has not confirmed
        f"drained: {MACHINE} holds nothing and has no open call",
    ]
    assert asked(service) == [
        ("POST", "/v1/cluster/machines/b16b00/drain"),
        *[("GET", "/v1/cluster")] * 3,
    ]


@pytest.mark.parametrize(
    ("last", "is_over"),
    [
        (member("m-1", isLive=False, shards=0), True),
        (member("m-1", isLive=False, shards=1), False),
        (member("m-9", "another"), True),
    ],
    ids=["its process has ended", "it may come back", "it has left"],
)
def test_a_member_that_does_not_live_and_holds_nothing_has_ended(
    service: ScriptedService, last: Json, is_over: bool
) -> None:
    service.script = [changed(member("m-1")), cluster(last)]
    result = run("drain", MACHINE, "--wait", "0.6", "--url", service.url)
    assert result.exit_code == (0 if is_over else 1), result.stderr


@pytest.mark.parametrize("arguments", [("--wait", "0"), ()], ids=["asked", "by the service"])
def test_drain_ends_with_1_and_says_what_is_left(
    service: ScriptedService, arguments: tuple[str, ...]
) -> None:
    service.script = [changed(member("m-1"), drain_ms=0)]
    result = run("drain", MACHINE, *arguments, "--url", service.url)
    assert result.exit_code == 1
    assert result.stderr == (
        "callboard: not drained after 0 s: 3 shards and 2 open calls are left on b16b00b5,"
        " and the drain goes on\n"
    )
    assert "m-1" in result.stdout, "of which member"


def test_programs_read_one_answer(service: ScriptedService) -> None:
    ended = member("m-1", **DRAINED)
    service.script = [changed(member("m-1")), cluster(ended)]
    result = run("drain", MACHINE, "--url", service.url, "--output", "json")
    assert json.loads(result.stdout) == {"machine": MACHINE, "isDrained": True, "members": [ended]}
    service.script = [changed(member("m-1"))]
    result = run("drain", MACHINE, "--wait", "0", "--url", service.url, "--output", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["isDrained"] is False


def test_resume_shows_the_members_and_waits_for_nothing(service: ScriptedService) -> None:
    service.script = [changed(member("m-1", state="ready"))]
    result = run("drain", MACHINE, "--resume", "--url", service.url)
    assert result.exit_code == 0
    assert "ready" in result.stdout
    assert asked(service) == [("POST", f"/v1/cluster/machines/{MACHINE}/resume")]
    assert run("drain", MACHINE, "--resume", "--wait", "3", "--url", service.url).exit_code == 2

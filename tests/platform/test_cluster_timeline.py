"""What the demonstration reads out of its load's events: figures that claim something."""

from __future__ import annotations

import json

import pytest

from scripts.cluster_demo.timeline import Timeline, read_timeline, workflows_in

A, B, SMALL = "0-a", "0-b", "0-small"


def line(at: float, kind: str, **members: object) -> str:
    return json.dumps({"at": at, "kind": kind, **members}) + "\n"


@pytest.fixture
def timeline() -> Timeline:
    """Machine 1 drives A and is lost at 10; machine 2 goes on at 13.5. B runs at machine 2."""
    calls = [
        (8.0, "1", A, "n0"), (8.5, "2", B, "n0"), (9.9, "1", A, "n1"), (10.2, "2", A, "n2"),
        (11.0, "2", B, "n1"), (13.5, "2", A, "n2"), (14.0, "2", SMALL, "n0"), (14.5, "2", B, "n2"),
    ]  # fmt: skip
    return read_timeline(
        [
            line(1.0, "published", workflow=A),
            line(1.1, "published", workflow=B),
            *(line(t, "call", machine=m, workflow=w, node=n) for t, m, w, n in calls),
            line(9.0, "accepted", via="u1", took_s=0.1, workflow=SMALL),
            line(12.0, "refused", via="u1", took_s=1.0, error="NoReply"),
            line(12.5, "accepted", via="u2", took_s=0.7, workflow=SMALL),
            line(13.5, "refused", via="u2", took_s=0.2, error="NoReply"),
            line(20.0, "ended", workflow=A, status="success"),
            '{"at": 21.0, "ki',
        ]
    )


def test_resumed_dispatch_is_another_machines_and_was_not_on_its_way(timeline: Timeline) -> None:
    """A's dispatch at 10.2 was handed to machine 2 before its owner was lost."""
    assert timeline.resumed_s({A}, 10.0, "1") == {A: 3.5}
    assert timeline.resumed_s({A}, 10.0, "2") == {}


def test_workflow_is_unfinished_while_not_all_nodes_were_asked_for(timeline: Timeline) -> None:
    assert timeline.unfinished_at(10.0, nodes=2) == {B}
    assert timeline.unfinished_at(10.0, nodes=3) == {A, B}


def test_pause_is_between_dispatches_of_one_chain(timeline: Timeline) -> None:
    assert timeline.longest_pause_s(10.0) == pytest.approx(3.5)
    assert timeline.longest_pause_s(13.6) == pytest.approx(3.5)
    assert timeline.longest_pause_s(15.0) == 0.0


def test_publishes_through_the_lost_machine_do_not_count(timeline: Timeline) -> None:
    assert timeline.publishes_during(10.0, "u1") == (2, 1, 0.7)


def test_ends_are_read_and_half_a_line_is_not(timeline: Timeline) -> None:
    assert timeline.ends == {A: "success"}


def test_workflows_are_found_by_their_shards() -> None:
    own = "018f3c3e-7a00-7bff-8000-000000000000"
    assert workflows_in({0xFF}, [own]) == {own}
    assert workflows_in({0xFE}, [own]) == set()

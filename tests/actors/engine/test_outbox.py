"""Outboxes: a watcher hears of every finished workflow once, in one poll per wave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.engine.outbox import KEPT_BYTES_MAX, TOLD_BYTES_MAX, WATCHERS_MAX, Outboxes
from actors.transport.messages import WorkflowEnd
from actors.transport.wire import ENDS
from core.workflow.events import NodeChanged
from core.workflow.transitions import NodeStatus
from ledger.features.workflows import node_row
from tests.actors.engine.runner_bench import FIRST, Bench


async def test_a_poll_that_waits_is_woken_by_the_first_finish() -> None:
    boxes = Outboxes()
    poll = asyncio.ensure_future(boxes.take("w", 30.0))
    await asyncio.sleep(0)
    boxes.put("a", {"w", "other"})
    assert list(await poll) == ["a"]
    assert list(await boxes.take("other", 0.0)) == ["a"]


async def test_what_finished_before_the_poll_is_handed_over_once() -> None:
    boxes = Outboxes()
    boxes.put("a", {"w"})
    boxes.put("b", {"w"})
    assert list(await boxes.take("w", 30.0)) == ["a", "b"]
    assert await boxes.take("w", 0.001) == {}


def end_of(workflow_id: str, text: str = "{}") -> WorkflowEnd:
    return WorkflowEnd(
        workflow_id=workflow_id,
        created_ms=1,
        started_ms=2,
        completed_ms=3,
        spent_micro=4,
        nodes=(NodeChanged("a", NodeStatus.SUCCESS, result_json=text),),
    )


async def test_what_is_told_of_an_end_goes_with_it() -> None:
    boxes = Outboxes()
    boxes.put("a", {"w"}, end_of("a"))
    body = (await boxes.take("w", 30.0))["a"]
    assert body is not None
    assert ENDS.decode(body) == end_of("a")


async def test_records_that_are_not_taken_are_bounded_together() -> None:
    """A gateway that has ended takes nothing any more: what is beyond is told by its id."""
    boxes = Outboxes()
    text = '"' + 30_000 * "x" + '"'
    count = 2 * KEPT_BYTES_MAX // len(text)
    for number in range(count):
        boxes.put(f"w{number}", {"gone"}, end_of(f"w{number}", text))
    boxes.put("x", {"alive"}, end_of("x", text))
    assert await boxes.take("alive", 30.0) == {"x": None}
    bodies = (await boxes.take("gone", 30.0)).values()
    assert len(bodies) == count
    assert KEPT_BYTES_MAX / 2 < sum(len(body or b"") for body in bodies) <= KEPT_BYTES_MAX
    boxes.put("y", {"alive"}, end_of("y"))
    assert (await boxes.take("alive", 30.0))["y"] is not None


async def test_an_end_that_is_told_twice_takes_room_once() -> None:
    boxes = Outboxes()
    text = '"' + 30_000 * "x" + '"'
    for _ in range(2 * KEPT_BYTES_MAX // len(text)):
        boxes.put("w", {"g"}, end_of("w", text))
    assert (await boxes.take("g", 30.0))["w"] is not None


async def test_a_gateway_that_is_forgotten_keeps_no_room() -> None:
    boxes = Outboxes()
    for number in range(3 * WATCHERS_MAX):
        boxes.put("w", {f"gone{number}"}, end_of("w", '"' + 3_000 * "x" + '"'))
    boxes.put("x", {"alive"}, end_of("x"))
    assert (await boxes.take("alive", 30.0))["x"] is not None


def ended(result: object = None, **changes: Any) -> tuple[Bench, list[WorkflowEnd | None]]:
    """Run a chain to its end; return what its watchers are told besides its id.

    Args:
        result: of each node.
    """
    bench = Bench()
    ends: list[WorkflowEnd | None] = []
    bench.runner = bench.new_runner(on_finished=lambda _, __, end: ends.append(end))
    bench.publish_and_commit(**{"watcher": "g", **changes})
    while not ends:
        bench.deliver_and_commit(bench.outbox.sent[-1], result)
    return bench, ends


def test_a_success_is_told_with_its_rows_and_what_the_ledger_has_released() -> None:
    bench, (end,) = ended()
    assert end is not None
    stored = bench.model.workflows[FIRST]
    row = {name: stored[name] for name in ("created_ms", "started_ms", "completed_ms")}
    assert row == {name: getattr(end, name) for name in row}
    assert end.spent_micro == sum(change.cost_micro for change in end.nodes) > 0
    rows = bench.model.nodes[FIRST]
    assert {change.node for change in end.nodes} == set(rows)
    for change in end.nodes:
        assert change.result_json is not None
        assert rows[change.node].items() >= node_row(FIRST, change).items()


@pytest.mark.parametrize(
    ("result", "changes"),
    [({"text": TOLD_BYTES_MAX * "x"}, {}), (None, {"watcher": ""})],
    ids=["large", "not waited for"],
)
def test_what_is_large_or_not_waited_for_is_not_told(result: object, changes: Any) -> None:
    assert ended(result, **changes)[1] == [None]


def test_what_was_restored_is_read_from_its_rows() -> None:
    """Its process does not know when it was published and begun."""
    bench = Bench()
    ends: list[WorkflowEnd | None] = []
    bench.publish_and_commit()
    bench.runner = bench.new_runner(on_finished=lambda _, __, end: ends.append(end))
    bench.adopt_all()
    assert bench.runner.watch(FIRST, "g")
    bench.gate.commit()
    while not ends:
        bench.deliver_and_commit(bench.outbox.sent[-1])
    assert ends == [None]


def test_a_failure_is_read_from_its_rows() -> None:
    bench = Bench()
    ends: list[WorkflowEnd | None] = []
    bench.runner = bench.new_runner(on_finished=lambda _, __, end: ends.append(end))
    bench.publish_and_commit(watcher="g")
    bench.cancel_and_commit()
    assert ends == [None]

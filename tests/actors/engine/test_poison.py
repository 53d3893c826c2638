"""A workflow whose step ends its owner's process does not end every successor."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.ports import DispatchOrder
from actors.process.at_work import ENDS_MAX, AtWork
from actors.transport.messages import ResumeReply, ResumeRequest
from tests.actors.engine.runner_bench import PAYER, Bench


class Killed(BaseException):
    """The end of a process within a step: nothing that follows is run."""


def new_process(bench: Bench, path: Path, *, is_to_blame: bool) -> None:
    """Replace the owner's process: it restores what is stored, and may end in that."""
    bench.gate.waiting.clear()
    bench.outbox.sent.clear()
    bench.runner = bench.new_runner(at_work=AtWork(path, is_to_blame=is_to_blame))
    try:
        bench.adopt_all()
        bench.gate.commit()
    except Killed:
        return


def poisoned(path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a bench with two workflows, of which the first ends each process that sends it."""
    bench = Bench()
    bench.runner = bench.new_runner(at_work=AtWork(path))
    for workflow_id in ("w1", "w2"):
        bench.publish(workflow_id=workflow_id)
    bench.gate.commit()
    send = bench.outbox.send

    def send_or_end(order: DispatchOrder, *arguments: object) -> None:
        if order.workflow_id == "w1":
            raise Killed
        send(order, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.outbox, "send", send_or_end)
    return bench


def test_a_workflow_that_ends_its_owner_again_and_again_is_quarantined_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = poisoned(tmp_path / "work", monkeypatch)
    new_process(bench, tmp_path / "work", is_to_blame=False)
    for _ in range(ENDS_MAX):
        assert not bench.runner.is_quarantined("w1")
        new_process(bench, tmp_path / "work", is_to_blame=True)
    assert bench.runner.is_quarantined("w1")
    assert bench.model.workflows["w1"]["quarantine_code"] == "STEP_FAILED"
    while bench.runner.is_driving("w2"):
        bench.deliver(bench.outbox.sent[-1])
        bench.gate.commit()
    assert bench.model.workflows["w2"]["status"] == "success"
    assert bench.model.workflows["w1"]["status"] in ("pending", "running")

    monkeypatch.undo()
    bench.runner.resume(ResumeRequest(workflow_id="w1", actor_did=PAYER), bench.replies.append)
    bench.gate.commit()
    assert isinstance(bench.replies[-1], ResumeReply)
    bench.adopt_all()
    assert bench.runner.is_driving("w1"), "a resume is a new try"


def test_ends_from_outside_quarantine_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = poisoned(tmp_path / "work", monkeypatch)
    for _ in range(3 * ENDS_MAX):
        new_process(bench, tmp_path / "work", is_to_blame=False)
    assert not bench.runner.is_quarantined("w1")

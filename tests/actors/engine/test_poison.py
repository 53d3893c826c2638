"""A workflow whose step ends its owner's process does not end every successor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import actors.engine.runner as runner_module
from actors.ports import DispatchOrder
from actors.process.at_work import ENDS_MAX, AtWork
from actors.transport.messages import CancelReply, ResumeReply, ResumeRequest
from core.errors import ErrorCode, ServiceError
from ledger.commands import Outcome, OutcomeStatus
from tests.actors.engine.runner_bench import PAYER, Bench, wid


class Killed(BaseException):
    """The end of a process within a step, with its file as it was then.

    What follows is run here, but not by a process that is gone: a `finally` would write the file.
    """


def end_process(path: Path) -> None:
    """End the process where it is."""
    raise Killed(path.read_bytes())


def new_process(bench: Bench, path: Path, *, is_to_blame: bool) -> None:
    """Replace the owner's process: it restores what is stored, and may end in that."""
    bench.gate.waiting.clear()
    bench.outbox.sent.clear()
    bench.runner = bench.new_runner(at_work=AtWork(path, is_to_blame=is_to_blame))
    try:
        bench.adopt_all()
        bench.gate.commit()
    except Killed as end:
        path.write_bytes(end.args[0])


def poisoned(path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a bench with two workflows, of which the first ends each process that sends it."""
    bench = Bench()
    bench.runner = bench.new_runner(at_work=AtWork(path))
    for workflow_id in (wid("w1"), wid("w2")):
        bench.publish(workflow_id=workflow_id)
    bench.gate.commit()
    send = bench.outbox.send

    def send_or_end(order: DispatchOrder, *arguments: object) -> None:
        if order.workflow_id == wid("w1"):
            end_process(path)
        send(order, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.outbox, "send", send_or_end)
    return bench


def test_a_workflow_that_ends_its_owner_again_and_again_is_quarantined_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = poisoned(tmp_path / "work", monkeypatch)
    new_process(bench, tmp_path / "work", is_to_blame=False)
    for _ in range(ENDS_MAX):
        assert not bench.runner.is_quarantined(wid("w1"))
        new_process(bench, tmp_path / "work", is_to_blame=True)
    assert bench.runner.is_quarantined(wid("w1"))
    assert bench.model.workflows[wid("w1")]["quarantine_code"] == "STEP_FAILED"
    while bench.runner.is_driving(wid("w2")):
        bench.deliver_and_commit(bench.outbox.sent[-1])
    assert bench.model.workflows[wid("w2")]["status"] == "success"
    assert bench.model.workflows[wid("w1")]["status"] in ("pending", "running")

    monkeypatch.undo()
    bench.runner.resume(ResumeRequest(workflow_id=wid("w1"), actor_did=PAYER), bench.replies.append)
    bench.gate.commit()
    assert isinstance(bench.replies[-1], ResumeReply)
    bench.adopt_all()
    assert bench.runner.is_driving(wid("w1")), "a resume is a new try"


def quarantined(path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a bench whose workflow ends each process that restores it, and is quarantined."""
    bench = Bench()
    bench.runner = bench.new_runner(at_work=AtWork(path))
    bench.publish_and_commit()

    def restore_or_end(*_: object) -> Any:
        end_process(path)

    monkeypatch.setattr(runner_module, "restore_workflow", restore_or_end)
    new_process(bench, path, is_to_blame=False)
    for _ in range(ENDS_MAX):
        assert not bench.runner.is_quarantined(wid("w1"))
        new_process(bench, path, is_to_blame=True)
    assert bench.runner.is_quarantined(wid("w1"))
    bench.unsure.clear()
    return bench


def test_a_poison_workflow_does_not_end_its_owner_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was restored then, and each successor of its owner ended in that again."""
    bench = quarantined(tmp_path / "work", monkeypatch)
    bench.clock.run_until(bench.model.workflows[wid("w1")]["deadline_ms"])
    assert bench.unsure == [wid("w1")]
    bench.adopt_all()
    bench.gate.commit()
    assert bench.status() == "timeout"
    assert bench.finished == [wid("w1")]


def test_a_poison_workflow_does_not_end_its_owner_when_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = quarantined(tmp_path / "work", monkeypatch)
    bench.cancel()
    bench.adopt_all()
    bench.gate.commit()
    assert bench.status() == "cancelled"
    assert isinstance(bench.replies[-1], CancelReply)


def test_a_resume_that_the_ledger_refuses_is_no_new_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = quarantined(tmp_path / "work", monkeypatch)
    bench.runner.resume(ResumeRequest(workflow_id=wid("w1"), actor_did=PAYER), bench.replies.append)
    _, done = bench.gate.waiting.pop()
    done(Outcome(OutcomeStatus.REJECTED, {}, ErrorCode.OVERLOADED, "not now"))
    assert isinstance(bench.replies[-1], ServiceError)
    bench.cancel()
    bench.adopt_all()
    bench.gate.commit()
    assert bench.status() == "cancelled"


def test_ends_from_outside_quarantine_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = poisoned(tmp_path / "work", monkeypatch)
    for _ in range(3 * ENDS_MAX):
        new_process(bench, tmp_path / "work", is_to_blame=False)
    assert not bench.runner.is_quarantined(wid("w1"))

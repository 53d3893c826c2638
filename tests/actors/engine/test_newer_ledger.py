"""A step that the ledger's version cannot read: its workflow waits, and is not quarantined."""

from __future__ import annotations

from actors.transport.wire import NewerMessage, newer_outcome
from tests.actors.engine.runner_bench import Bench, wid


def test_a_step_that_only_a_newer_ledger_reads_is_decided_again_from_the_rows() -> None:
    bench = Bench()
    bench.publish_and_commit()
    bench.deliver(bench.outbox.sent[0])
    _, done = bench.gate.waiting.pop()
    done(newer_outcome(NewerMessage("a record")))
    assert not bench.runner.is_quarantined(wid("w1"))
    assert bench.unsure == [wid("w1")]
    # The newer ledger has taken over, and reads it.
    bench.adopt_all()
    bench.gate.commit()
    bench.deliver_and_commit(bench.outbox.sent[-1])
    assert not bench.runner.is_quarantined(wid("w1"))
    assert bench.model.attempts[wid("w1")]

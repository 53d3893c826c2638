"""Stakes in the owner: who is asked for how much, and what a refused lock leads to.

Reference: money.md (Slashing, Stakes).
"""

from __future__ import annotations

import json

from actors.directory.agent_directory import Directory
from core.market.ranking import render_reasons
from core.settings import Settings
from core.workflow.events import AgentSelected, RetryDue
from ledger.features.accounts import Deposit
from ledger.features.stakes import DepositStake
from tests.actors.directory.test_agent_directory import KEYS, paid, row, select
from tests.actors.engine.runner_bench import Bench, wid
from tests.simulation.shapes import agent_rows

BPS = 5_000
CENT = 10_000
A, B = "did:x:a", "did:x:b"


def directory(*, bps: int = BPS, **stakes: tuple[int, int]) -> Directory:
    """Return a directory of two agents at one cent, with these free and locked stakes."""
    made = Directory(
        service="callboard",
        deployment_keys=KEYS,
        default_secret=None,
        max_concurrency=32,
        stake_bps=bps,
    )
    made.put([row(A), row(B)])
    made.stakes.apply_parts({f"did:x:{name}": parts for name, parts in stakes.items()})
    return made


def chosen(known: Directory, **fields: object) -> AgentSelected:
    """Select and return who takes it."""
    answer = known.select(select(**fields), 0)
    assert isinstance(answer, AgentSelected), answer
    return answer


def test_no_node_asks_more_than_its_price() -> None:
    known = directory(bps=10_000, a=(CENT, 0), b=(CENT - 1, 0))
    known.standings.apply_tallies({A: paid(failed=10), B: paid(failed=10)})
    assert chosen(known).stake_micro == CENT, "1.3 times the price without the bound"
    reach = known.stakes.find_limits(A, known.standings.of(A).score)
    assert reach == (CENT, CENT), "as much as the price of a node that it may take"


def test_an_agent_that_has_staked_too_little_is_shown_as_such_and_not_taken() -> None:
    answer = chosen(directory(a=(CENT // 2 - 1, 0), b=(CENT // 2, 0)))
    assert answer.agent_did == B
    assert answer.selection_json is not None
    shown = json.loads(render_reasons(answer.selection_json))["candidates"]
    assert {one["agentDid"]: one.get("excluded") for one in shown} == {A: "under_staked", B: None}


def test_free_stake_comes_before_stake_that_may_be_free_soon() -> None:
    assert chosen(directory(a=(0, CENT), b=(CENT, 0))).agent_did == B
    assert chosen(directory(a=(0, CENT))).agent_did == A


def staked_bench(**micro: int) -> Bench:
    """Return a bench whose agents have these stakes, in truth and as its owner knows them."""
    bench = Bench(settings=Settings(stake_bps=BPS), stake_bps=BPS)
    for agent in agent_rows():
        stake(bench, agent["did"], micro.get(agent["did"].removeprefix("did:sim:"), 0))
    return bench


def stake(bench: Bench, did: str, micro: int, *, key: str = "") -> None:
    """Let an agent stake; the owner hears of it."""
    if micro:
        money = Deposit(key=f"d{key}:{did}", request_hash=b"", actor_did=did, owner_did=did,
                        amount_micro=micro, description="")  # fmt: skip
        put = DepositStake(key=f"s{key}:{did}", request_hash=b"", actor_did=did, is_admin=False,
                           agent_did=did, amount_micro=micro)  # fmt: skip
        bench.model.commit([money, put])
    free_micro = bench.model.balances.get(f"stake:{did}", 0)
    bench.directory.stakes.apply_parts({did: (free_micro, 0)})


def test_what_the_ledger_did_not_lock_is_not_sent_and_another_agent_is() -> None:
    """Two workflows choose the same agent before either commit; its stake is enough for one."""
    bench = staked_bench(w0=600_000, w1=600_000)
    bench.publish()
    bench.publish_and_commit(workflow_id=wid("w2"))
    sent = {order.workflow_id: (order.agent_did, order.attempt) for order in bench.outbox.sent}
    assert sent == {wid("w1"): ("did:sim:w0", 1), wid("w2"): ("did:sim:w1", 2)}
    assert bench.model.balances["stake_locked:did:sim:w0"] == 500_000
    assert not bench.lost


def test_alone_it_is_waited_for() -> None:
    bench = staked_bench(w0=500_000)
    bench.publish()
    bench.publish_and_commit(workflow_id=wid("w2"))
    assert [order.workflow_id for order in bench.outbox.sent] == [wid("w1")]
    assert bench.model.nodes[wid("w2")]["a"]["status"] == "ready"
    stake(bench, "did:sim:w0", 500_000, key="more")
    bench.runner.receive(wid("w2"), RetryDue("a", bench.model.nodes[wid("w2")]["a"]["retry_at_ms"]))
    bench.gate.commit()
    assert [order.workflow_id for order in bench.outbox.sent] == [wid("w1"), wid("w2")]

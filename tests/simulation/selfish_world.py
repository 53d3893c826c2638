"""A simulated deployment in which one owner plays a selfish strategy against honest parties.

Honest payers, agents and verifiers make no mistake: agents deliver within 400 ms and promise 10 s.
At the end is checked that nobody was robbed. money.md.
"""

from __future__ import annotations

import random

from actors.dispatch.http_failures import judge_failure
from actors.ports import DispatchOrder
from actors.transport.messages import PublishReply
from core.workflow.events import AuctionOpened, Failure
from core.workflow.transitions import WorkflowStatus
from federation.http_connection import HttpFailure, HttpFailureKind
from tests.simulation.money_checks import PAYERS, deposit, staked
from tests.simulation.selfish_strategies import (
    AGENTS,
    DIDS,
    FAILING,
    HONEST,
    OWNER,
    VERIFIER,
    live_bid_micro,
    rows_of,
    shape_of,
    strategy,
)
from tests.simulation.shapes import prices_micro, token_cost_micro
from tests.simulation.simulated_agents import TOO_MANY, WORDS, Later, Timed
from tests.simulation.simulated_clients import Client
from tests.simulation.simulated_market import Market
from tests.simulation.troubles import CALM
from tests.simulation.violation import require
from tests.simulation.world import World

PAYER = PAYERS[0]
STAKE_BPS, STAKE_MICRO, WALLET_MICRO = 1_000, 10**9, 10**10
PUBLISHED_MS, TIMES = 2_000, 3  # in which time each workflow is published, and how often
NEVER_MS = 10**9
BOOM = WORDS[1]
REFUSED = HttpFailure(HttpFailureKind.UNREACHABLE, "the connection was refused")
# How a node's end may count for the reputation of its last agent.
BLAMES = ("failed", "cancelled")
SCORES = ("successful", *BLAMES)


class SelfishMarket(Market):
    """The selfish owner's live bids, and its withdrawals of stakes as a round closes."""

    def __init__(self, world: SelfishWorld) -> None:
        super().__init__(world, STAKE_BPS, is_whole=True)
        self._plays = world.strategy.plays

    def _bid(self, workflow_id: str, opened: AuctionOpened) -> None:
        clock, model = self._world.clock, self._world.model
        for did, play in self._plays.items():
            micro = live_bid_micro(play, did, opened.reserve_micro)
            if micro is not None and opened.closes_ms > opened.opened_ms:
                place = (workflow_id, opened.node, opened.round)
                clock.call_at(opened.opened_ms + 1, self._place, place, did, micro)
                if play.bid == "withdraws":
                    clock.call_at(opened.closes_ms, model.withdraw_stake, did)


class SelfishWorld(World):
    """One run of the strategy of a seed."""

    def __init__(self, seed: int) -> None:
        self.strategy = strategy(seed)
        super().__init__(seed, troubles=CALM, shapes=[], script=self._answers, stake_bps=STAKE_BPS)
        self.market = SelfishMarket(self)
        self.rows = rows_of(self.strategy)
        self._draws = random.Random(f"selfish answers {seed}")
        self.model.commit([deposit(self.strategy.payer, WALLET_MICRO)])
        for did in self.rows:
            self.model.commit(staked(did, STAKE_MICRO))
        self.delivered: set[tuple[str, str, int]] = set()  # by the selfish owner's agents

    def run(self) -> SelfishWorld:
        """Run to the end and check everything; a failure names the seed and the strategy."""
        try:
            for kind in self.strategy.honest_pays:
                self._draw_publishes(PAYER, kind)
            for kind in self.strategy.pays:
                self._draw_publishes(self.strategy.payer, kind)
            self.clock.run()
            require(sum(self.model.balances.values()) == 0, "the books do not balance")
            for check in CHECKS:
                check(self)
        except BaseException as error:  # a violation is no `Exception`
            error.add_note(f"replay: pytest tests/simulation/test_selfish.py --seed {self.seed}")
            error.add_note(str(self.strategy))
            raise
        finally:
            for process in self.all_processes:
                process.loop.discard_tasks()
        return self

    def _draw_publishes(self, payer: str, kind: str) -> None:
        for _ in range(TIMES if kind != "nothing" else 0):
            self.clock.call_in(self.chance.randint(0, PUBLISHED_MS), self._publish_as, payer, kind)

    def _publish_as(self, payer: str, kind: str) -> None:
        number = len(self.clients)
        request = self._request(number, f"key {number}", payer, shape_of(kind))
        self.clients.append(Client(request, self._now()))
        self._ask(self.clients[-1])
        if kind == "cancels":
            self.clock.call_in(self.chance.randint(0, 500), self._cancel, self.clients[-1])

    def _answers(self, order: DispatchOrder) -> list[Timed]:
        if order.agent_did in AGENTS:
            return [Timed(*self._selfish_answer(order))]
        after_ms = self._draws.randint(30, 400)
        if order.agent_did == FAILING:
            return [Timed(BOOM, after_ms)]
        is_settled = order.payer_did in DIDS and "settles" in self.strategy.pays
        if is_settled and not order.is_verification:
            self.clock.call_in(20, self.settling.ask, order, 1)
        if is_settled or self._draws.random() < 0.3:
            return [Timed(Later(True, after_ms, 1), 5)]
        return [Timed(True, after_ms)]

    def _selfish_answer(self, order: DispatchOrder) -> tuple[bool | Failure | Later, int]:
        if order.is_verification:
            return False, 5
        answer = "works" if order.payer_did in DIDS else self.strategy.plays[order.agent_did].answer
        match answer:
            case "full":
                return TOO_MANY, 5
            case "refuses":
                return judge_failure(order, REFUSED, self.settings)[0], 5
            case "fails later":
                return Later(BOOM, 50, 1), 5
            case "leaves":
                row = {**self.rows[order.agent_did], "status": "inactive"}
                self._tell_directories({**row, "updated_ms": self._now()})
                return True, NEVER_MS
        self.delivered.add((order.workflow_id, order.node, order.attempt))
        return True, 5


def check_gain(world: SelfishWorld) -> None:
    """No strategy ends with more than its work earned, and at most the price of failed work."""
    model = world.model
    owned = [f"{kind}:{did}" for kind in ("wallet", "stake", "stake_locked") for did in DIDS]
    gained = sum(model.balances.get(one, 0) for one in owned)
    gained -= WALLET_MICRO + len(AGENTS) * STAKE_MICRO
    earned = 0
    for workflow_id, escrow in model.escrows.items():
        is_own = escrow.payer_did in DIDS
        for line, (did, micro, fee) in escrow.paid.items():
            earned -= micro + fee if is_own else 0
            attempt = model.nodes[workflow_id].get(line, {}).get("attempt", 0)
            if did in DIDS and is_own:
                earned += micro
            elif did in DIDS and (workflow_id, line, attempt) in world.delivered:
                earned += min(micro, due_micro(world, workflow_id, line))
    for (workflow_id, name, _), (did, _, lost) in model.ended_locks.items():
        is_own = model.escrows[workflow_id].payer_did in DIDS
        if is_own and did == FAILING:
            earned += min(lost, due_micro(world, workflow_id, name))
        elif not is_own and did in DIDS:
            earned -= lost
    require(gained <= earned, "the selfish owner gained", gained, "and earned", earned)


def check_honest_agents(world: SelfishWorld) -> None:
    """Honest agents lose neither stake nor reputation, and what they delivered is paid."""
    model = world.model
    for did in (*HONEST, VERIFIER):
        lost = STAKE_MICRO - model.balances[f"stake:{did}"]
        require(lost == 0, did, "lost", lost, "of its stake")
    for workflow_id, nodes in model.nodes.items():
        is_own = model.workflows[workflow_id]["payer_did"] in DIDS
        for node in nodes.values():
            did, counts_as = node.get("agent_did"), node.get("counts_as")
            is_blamed = did in HONEST and counts_as in BLAMES
            require(not is_blamed, did, "was blamed:", node)
            is_farmed = is_own and did in AGENTS and counts_as in SCORES
            require(not is_farmed, did, "is scored by a node of its owner:", node)
    for workflow_id, attempts in model.attempts.items():
        for row in attempts:
            if row["agent_did"] in HONEST and row["outcome"] == "success":
                paid = model.escrows[workflow_id].paid.get(row["node"], ("", 0, 0))
                due = due_micro(world, workflow_id, row["node"])
                require(sum(paid[1:]) >= due, row["agent_did"], "got", paid, "for", due, row)


def check_honest_payers(world: SelfishWorld) -> None:
    """No honest node fails for a stranger's offer.

    It may fail by the fault of an agent that took it, which costs that agent its reputation.
    """
    for client in world.clients:
        if client.request.payer_did in DIDS:
            continue
        (reply,) = client.replies
        require(isinstance(reply, PublishReply), "an honest publish was refused:", reply)
        workflow_id = client.request.workflow_id
        row = world.model.workflows[workflow_id]
        failed = (row.get("error") or {}).get("node", "")
        node = world.model.nodes[workflow_id].get(failed, {})
        is_fault = node.get("agent_did") in AGENTS and node.get("counts_as") in BLAMES
        is_well = row["status"] is WorkflowStatus.SUCCESS or is_fault
        attempts = world.model.attempts[workflow_id]
        require(is_well, "an honest workflow failed:", row["error"], row, node, attempts)


CHECKS = (check_gain, check_honest_agents, check_honest_payers)


def due_micro(world: SelfishWorld, workflow_id: str, name: str) -> int:
    """Return what the last agent of a node is due: by its card, or by the bids of other owners."""
    node = world.model.nodes[workflow_id][name]
    compiled, did = world.shapes[workflow_id].compiled.nodes[name], node["agent_did"]
    if compiled.is_auction:
        payer = world.model.workflows[workflow_id]["payer_did"]
        closed = world.model.auctions.closed[workflow_id, name, node["auction_round"]]
        own = min(bid.amount_micro for bid in closed.bids if bid.agent_did == did)
        apart = {world.rows[did]["owner_did"], OWNER if payer in DIDS else payer}
        excluded = dict(closed.excluded)
        others = (
            bid.amount_micro
            for bid in closed.bids
            if bid.agent_did not in excluded
            and world.rows[bid.agent_did]["owner_did"] not in apart
            and bid.amount_micro >= own
        )
        return min(others, default=own)
    if node.get("price_json"):
        return token_cost_micro("0", workflow_id, name, node["attempt"])
    return prices_micro(world.rows[did])[compiled.capability_id]

"""What must hold in every simulated run, whatever went wrong in it.

While it runs: no dispatch before its commit, after a refused one, or before its parents' results;
back-off is kept; a dispatch has a stored attempt and true inputs. At the end: every workflow is
over, books balance, each line is paid once and for work that was really delivered and approved.
The checks know what the simulated agents did; they believe nothing that the machine says.
Reference: features.md (States), money.md (Settlement), http.md (Request limits).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import orjson

from actors.ports import DispatchOrder
from actors.transport.messages import OwnerReply
from core.errors import ErrorCode, NodeErrorCode, ServiceError
from core.shards.shard import shard_of
from core.workflow.events import AttemptFinished, Failure, NodeChanged, Verdict
from core.workflow.rules.retry import MOVES_MAX
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.money_checks import misplaced_lock, misplaced_stake
from tests.simulation.money_model import Row
from tests.simulation.shapes import Shape, estimate_bounds_micro, is_by_token, token_cost_micro
from tests.simulation.simulated_agents import OrderId, digest_of, order_id, result_of
from tests.simulation.simulated_market import award_of, wrong_auction
from tests.simulation.slashes import wrong_slash
from tests.simulation.violation import Violation, require

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

Result = dict[str, Any]
BACKOFF_MS = (1_000, 5_000, 30_000)
FEE_BPS = 500
AGENTS_MAX = 3
STUCK_MS = 60_000
# Within this time after it has ended what was due, an owner's new process says that it is ready.
AWAY_MS = 1_000
# A workflow whose rows have to be read again may be read so often: a read may come too early.
READS_OF_ONE = 3
# How often one order may be sent: a verification again after each restore of its workflow.
SENT_MAX = 20
ENDS = (NodeStatus.SUCCESS, NodeStatus.FAILED, NodeStatus.SKIPPED, NodeStatus.TIMEOUT)
OPEN = (NodeStatus.DISPATCHED, NodeStatus.RUNNING)


class Checks:
    """Hears everything that happens in a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._opened: set[tuple[str, str, int, str | None]] = set()
        self._verifying: set[tuple[str, str, int, str | None]] = set()
        # When the next try of a node is due; and of its verification: of which attempt.
        self._retry_at_ms: dict[tuple[str, str], tuple[int, int | None]] = {}
        self._replies: dict[tuple[str, str, int, int], list[bool | Failure]] = {}
        self._in_flight: dict[str, dict[tuple[str, int, int], DispatchOrder]] = {}
        self.vanished: set[tuple[str, str]] = set()  # nodes whose port broke its promise
        self.dispatches = 0
        self._results: dict[int, tuple[DispatchOrder, Result]] = {}
        self._sent: Counter[OrderId] = Counter()

    @property
    def _model(self) -> LedgerModel:
        return self._world.model

    # -- while it runs ----------------------------------------------------------------------------

    def applied(self, command: Command, _: Outcome) -> None:
        """Hear of a commit: remember which attempts are stored, and judge the back-off."""
        self._world.quarantines.applied(command)
        if not isinstance(command, PublishWorkflow | AdvanceWorkflow):
            return
        if self._world.market.stake_bps:
            misplaced = misplaced_lock(self._model, command.workflow_id)
            require(misplaced is None, misplaced, "after", command)
        self._world.revoking.applied(command)
        self._world.settling.applied(command)
        for record in command.records:
            if isinstance(record, AttemptFinished) and self._is_timed_by_one(command, record):
                took_ms = record.completed_ms - record.started_ms
                require(took_ms >= 0, "a span below 0 ms:", record)
            latency_ms = (getattr(record, "metrics", None) or {}).get("latency_ms", 0)
            require(latency_ms >= 0, "a latency below 0 ms:", record)
        workflow_id = command.workflow_id
        failed_ms = {
            record.node: record.completed_ms
            for record in command.records
            if type(record) is AttemptFinished
        }
        seen: set[str] = set()
        for record in command.records:
            if type(record) is not NodeChanged:
                continue
            require(record.node not in seen, "two rows of one node in a step", command)
            seen.add(record.node)
            if record.status in OPEN:
                self._opened.add((workflow_id, record.node, record.attempt, record.agent_did))
                if record.verifier_did is not None:
                    self._verifying.add(
                        (workflow_id, record.node, record.verify_attempt, record.verifier_did)
                    )
            self._world.waits.stored(workflow_id, record, self._world.clock.now_ms())
            if record.retry_at_ms is None:
                continue
            if self._world.waits.is_wait(record):  # which may end at any time
                self._retry_at_ms.pop((workflow_id, record.node), None)
                continue
            of_attempt = record.attempt if record.status is NodeStatus.RUNNING else None
            self._retry_at_ms[workflow_id, record.node] = record.retry_at_ms, of_attempt
            used = max(record.retries_used, record.verify_retries_used)
            if record.node in failed_ms:
                used = record.retries_used
                if record.status is NodeStatus.RUNNING:
                    used = record.verify_retries_used
                delay_ms = record.retry_at_ms - failed_ms[record.node]
                expected_ms = BACKOFF_MS[min(used, 3) - 1]
                require(used > 0 and delay_ms >= expected_ms, "back-off", delay_ms, "of", record)

    def result_of(self, order: DispatchOrder) -> Result:
        """Return what the agent of an order that was sent delivers."""
        return self._results[id(order)][1]

    def dispatched(self, order: DispatchOrder, process: Process) -> None:
        """Hear of a dispatch as it leaves."""
        self.dispatches += 1
        identity = order_id(order)
        self._sent[identity] += 1
        require(self._sent[identity] <= SENT_MAX, "repeated without bound:", order)
        # Kept with the order, so that no identity is used again.
        self._results[id(order)] = order, result_of(order, self._sent[identity])
        workflow_id, node, sources = order.workflow_id, order.node, order.sources
        assert sources is not None
        require(workflow_id not in process.refused, "dispatch after a refused commit", order)
        held = self._model.shards.holders[shard_of(workflow_id)]
        is_its = held.member == process.member or process.has_rival
        require(is_its, process, "sends for a shard that is held by", held)
        now_ms = process.owner.clock.now_ms()
        is_known = process.directory.is_revoked(order.agent_did, now_ms)
        require(not is_known, "dispatch to an agent that is known to be revoked", order)
        rows = self._model.nodes.get(workflow_id, {})
        if order.is_verification:
            key = (workflow_id, node, order.verify_attempt, order.agent_did)
            require(key in self._verifying, "verification before its commit", order)
            value, given = f"{node}/{order.attempt}", sources.unverified
            is_it = given is not None and orjson.loads(given)["value"] == value
            require(is_it, "a verifier got", given)
        else:
            key = (workflow_id, node, order.attempt, order.agent_did)
            require(key in self._opened, "dispatch before its commit", order)
            is_mistrusted = self._world.revoking.is_mistrusted(key)
            require(not is_mistrusted, "dispatched to a revoked agent", order)
            if self._world.market.stake_bps and self._world.is_current(process):
                self._check_staked(order, rows[node])
            for parent in sources.node.depends_on:
                row = rows.get(parent, {})
                require(row.get("status") == NodeStatus.SUCCESS, "dispatched before", parent, order)
                is_equal = orjson.loads(sources.results[parent]) == orjson.loads(row["result_json"])
                require(is_equal, "inputs", order)
        if self._world.is_current(process):
            due_ms, of_attempt = self._retry_at_ms.get((workflow_id, node), (0, None))
            # A verification that was waited for is over when its agent's work counts no longer.
            is_meant = of_attempt == (order.attempt if order.is_verification else None)
            is_due = now_ms + self._world.faults.skew_ms >= due_ms or not is_meant
            require(is_due, "dispatched before its time", order)
        flying = self._in_flight.setdefault(workflow_id, {})
        flying[node, order.attempt, order.verify_attempt] = order
        self._world.settling.sent(order)

    def _check_staked(self, order: DispatchOrder, stored: Row) -> None:
        """An agent that is sent work has its stake locked with it; no agent has a past here."""
        lock = self._model.locks.get((order.workflow_id, order.node))
        if stored.get("auction_round"):  # of the reserve: who has none at risk was asked for none
            require(lock is None or lock[:2] == (order.attempt, order.agent_did), lock, order)
            return
        if stored.get("price_json"):  # of the most that its tokens may cost
            require(bool(lock) == bool(stored.get("stake_micro")), "locked", lock, "for", order)
            return
        required = -(-stored["price_micro"] * self._world.market.stake_bps // 10_000)
        expected = (order.attempt, order.agent_did, required) if required else None
        require(lock == expected, "locked", lock, "for", order)

    def answered(self, order: DispatchOrder, reply: bool | Failure, _: Process) -> None:
        """Hear what an agent answers just before the runner does."""
        key = (order.workflow_id, order.node, order.attempt, order.verify_attempt)
        self._replies.setdefault(key, []).append(reply)
        self._landed(order)

    def handed_in(self, order: DispatchOrder, reply: bool | Failure) -> None:
        """Hear what an agent hands in that had accepted an order, and where its place is held."""
        key = (order.workflow_id, order.node, order.attempt, order.verify_attempt)
        self._replies.setdefault(key, []).append(reply)
        process = self._world.holder_of(order.workflow_id)
        if process is None:
            return
        run = None if process.runner is None else process.runner.find_run(order.workflow_id)
        # Of an agent that has been deregistered, an adopted attempt holds no place.
        if run is None or not process.is_alive or self._world.troubles.gone:
            return
        state = run.machine.node(order.node)
        number = (state.attempt, state.verify_attempt if state.has_result else 0)
        is_open = number == (order.attempt, order.verify_attempt) and state.is_active
        if order.is_verification:
            is_open = is_open and state.verifier_did is not None
        if is_open and state.is_accepted:
            # After a hand-over the place is held where the order was sent.
            alive = [one for one in self._world.processes.values() if one.is_alive]
            is_held = any(one.dispatch.holds(order) for one in alive)
            require(is_held, "no place is held for", order)

    def taken(self, order: DispatchOrder, answer: OwnerReply) -> None:
        """Hear how a result that was handed in is answered: taken means stored."""
        if isinstance(answer, ServiceError):
            codes = [ErrorCode.ALREADY_SETTLED, ErrorCode.ESCROW_RELEASED]
            require(answer.code in codes, "a result was refused:", answer)
            return
        tries = self._model.attempts[order.workflow_id]
        kind = "verify" if order.is_verification else "primary"
        number = order.verify_attempt if order.is_verification else order.attempt
        stored = any(
            (row["node"], row["kind"], row["attempt"]) == (order.node, kind, number)
            for row in tries
        )
        require(stored, "taken, but not stored:", order, answer)

    def told(self, process: Process, *, is_revoked: Callable[[str], bool]) -> None:
        """Hear that an owner was told who is revoked: none of them has anything to do there."""
        runner = process.runner
        driven = () if runner is None else runner._running.stored()
        for workflow_id in (run.workflow_id for run in driven if not run.is_halted):
            assert runner is not None
            run = runner.find_run(workflow_id)
            assert run is not None, workflow_id
            left = set(filter(is_revoked, run.machine.agents_at_work()))
            left = left if run.is_stored else set()  # its work is taken when its publish is known
            require(not left, "revoked agents are at work in", workflow_id, left)

    def aborted(self, order: DispatchOrder) -> None:
        """Hear that the runner no longer wants a reply."""
        self._landed(order)

    def _landed(self, order: DispatchOrder) -> None:
        flying = self._in_flight.get(order.workflow_id, {})
        flying.pop((order.node, order.attempt, order.verify_attempt), None)

    def answered_commit(self, command: Command, outcome: Outcome, process: Process) -> None:
        """Hear a commit's outcome just before the runner does."""
        # A round that is over in the meantime is no reason to stop: its bids are just not told.
        if not isinstance(command, PublishWorkflow | AdvanceWorkflow):
            return
        is_unsure = isinstance(command, PublishWorkflow) and outcome.status is not (
            OutcomeStatus.APPLIED
        )
        if is_unsure or outcome.error is not None:
            process.rows_needed += READS_OF_ONE
            self._world.disturbed.add(command.workflow_id)  # it is restored from its rows
        if outcome.status is OutcomeStatus.STALE or outcome.error is not None:
            process.refused.add(command.workflow_id)
        elif isinstance(command, AdvanceWorkflow) and command.is_fresh:
            process.refused.discard(command.workflow_id)

    def lost(self, process: Process, reason: str) -> None:
        """Hear that a runner gave up: only being fenced off is a reason."""
        require(not self._world.is_current(process), "a runner gave up:", reason)

    def finished(self, workflow_id: str) -> None:
        """Hear that an owner reports a workflow as finished."""
        status = self._model.workflows[workflow_id]["status"]
        require(is_over(status), "reported as finished:", workflow_id, status)

    def not_stuck(self, workflow_id: str) -> None:
        """Be called long after a workflow's last deadline."""
        row = self._model.workflows.get(workflow_id)
        require(row is None or is_over(row["status"]), "stuck:", row, self._model.nodes)

    def _is_timed_by_one(
        self, command: PublishWorkflow | AdvanceWorkflow, record: AttemptFinished
    ) -> bool:
        """Say whether one clock has told the start and the end of an attempt.

        A lost attempt may have begun on another machine, and so may an accepted one that is
        discarded after its workflow was taken over: where clocks differ, its row alone is clamped
        (decision process-liveness-and-standby). A deadline may lie before the start of what it
        ends, when a commit was
        slow.
        """
        if record.outcome == "lost" or record.error_code == "WORKFLOW_TIMEOUT":
            return False
        may_be_taken_over = record.kind == "primary" and record.outcome == "discarded"
        is_disturbed = command.workflow_id in self._world.disturbed
        return not (may_be_taken_over and is_disturbed and self._world.troubles.skewed)

    # -- at the end -------------------------------------------------------------------------------

    def at_end(self, shapes: dict[str, Shape]) -> None:
        """Check every stored workflow, all balances, and that nothing is held at any agent."""
        for process in self._world.all_processes:
            read, needed = process.owner.reader.rows_read, process.rows_needed
            require(read <= needed, process, "has read", read, "workflows; it needed", needed)
        for process in self._world.processes.values():
            held = process.dispatch.held if process.is_alive else {}
            require(not held, "a place is held after the end:", held)
        require(sum(self._model.balances.values()) == 0, "the books do not balance")
        for address, micro in self._model.balances.items():
            require(micro >= 0 or address == "world", "overdrawn:", address, micro)
            if address.startswith(("escrow:", "stake_locked:")):
                require(micro == 0, "left after the end:", address, micro)
        wrong = wrong_auction(self._model) or misplaced_stake(self._model)
        require(wrong is None, wrong)
        for workflow_id, row in self._model.workflows.items():
            try:
                self._check_workflow(workflow_id, row, shapes[workflow_id])
            except Violation as violation:
                nodes = "\n".join(map(str, self._model.nodes[workflow_id].values()))
                tries = "\n".join(map(str, self._model.attempts[workflow_id]))
                raise Violation(f"{violation}\n{row}\n{nodes}\n{tries}") from None

    def _check_workflow(self, workflow_id: str, row: Row, shape: Shape) -> None:
        status = row["status"]
        require(is_over(status), "not over:", status)
        nodes = self._model.nodes[workflow_id]
        escrow = self._model.escrows.get(workflow_id)
        if escrow is None:
            require(status is WorkflowStatus.FAILED and not nodes, "no escrow, but", status)
            return
        require(escrow.is_released, "the escrow is held after the end")
        budget = shape.compiled.budget_micro
        hold = row["estimate_micro"] if budget is None else budget
        require(escrow.amount == hold, "held", escrow.amount, "instead of", hold)
        require(escrow.rest >= 0, "overpaid")
        require(escrow.fee_bps == FEE_BPS, "fee", escrow.fee_bps)
        if not (self._world.troubles.gone or self._world.troubles.dearer):
            least, most = estimate_bounds_micro(shape, has_market=self._world.market.is_whole)
            require(least <= row["estimate_micro"] <= most, "estimate", least, most, row)
        require(set(nodes) == set(shape.compiled.nodes), "nodes without an end", set(nodes))
        costs: dict[str, int] = {}
        for line, (agent, micro, fee) in escrow.paid.items():
            require(fee == (micro + fee) * FEE_BPS // 10_000, "fee", fee, "of", micro + fee)
            name = self._check_payment(workflow_id, line, agent, micro + fee, shape)
            costs[name] = costs.get(name, 0) + micro + fee
        for name, node in nodes.items():
            require(node.get("cost_micro", 0) == costs.get(name, 0), "cost of", name)
            self._check_node(workflow_id, name, node, shape)
        is_success = all(node["status"] is NodeStatus.SUCCESS for node in nodes.values())
        require(is_success == (status is WorkflowStatus.SUCCESS), "status", status)
        if status is WorkflowStatus.FAILED and workflow_id not in self._world.disturbed:
            self._check_failure(workflow_id, row, shape)
        if workflow_id not in self._world.disturbed:
            require(not self._in_flight.get(workflow_id), "not aborted:", self._in_flight)

    def _check_payment(
        self, workflow_id: str, line: str, agent: str, gross: int, shape: Shape
    ) -> str:
        """Return the node that a line pays for; the agents must have earned it."""
        name, _, verification = line.partition("#verify")
        node = self._model.nodes[workflow_id][name]
        price = self._world.prices_seen[agent]
        if "#" in line:
            key = (workflow_id, name, int(verification or 1))
            judged = [
                reply for (w, n, _, v), replies in self._replies.items() if (w, n, v) == key
                for reply in replies
            ]  # fmt: skip
            require(any(isinstance(reply, bool) for reply in judged), "unearned", line)
            capability = shape.compiled.nodes[name].verifier_capability_id
            require(gross in price[capability], "paid", gross, "for", line)
            return name
        require(node["status"] is NodeStatus.SUCCESS, "paid without success:", line)
        require(agent == node["agent_did"], "paid to", agent, "for", node)
        require(gross == node["price_micro"], "paid", gross, "for", node)
        if self._world.settling.is_done((workflow_id, name, node["attempt"])):
            self._check_settled(workflow_id, name, agent, gross, shape)
            return name
        if shape.compiled.nodes[name].is_auction:
            won = award_of(self._model, workflow_id, name)
            require(won == (agent, gross), "paid", agent, gross, "won:", won)
        elif self._world.market.is_whole and is_by_token(shape.compiled.nodes[name]):
            due = token_cost_micro(agent, workflow_id, name, node["attempt"])
            require(gross == due, "paid", gross, "for tokens of", due)
        else:
            require(gross in price[shape.compiled.nodes[name].capability_id], "price", gross)
        replies = self._replies.get((workflow_id, name, node["attempt"], 0), [])
        require(True in replies, "paid without delivery:", node)
        if shape.compiled.nodes[name].requires_verification:
            key = (workflow_id, name, node["attempt"], node["verify_attempt"])
            require(True in self._replies.get(key, []), "paid without approval:", node)
        return name

    def _check_settled(
        self, workflow_id: str, name: str, agent: str, gross: int, shape: Shape
    ) -> None:
        """A payer that ends an attempt pays the price, or more up to what it named."""
        compiled = shape.compiled.nodes[name]
        key = (workflow_id, name, self._model.nodes[workflow_id][name]["attempt"])
        prices: Collection[int | None]
        if compiled.is_auction:
            prices = (award_of(self._model, workflow_id, name)[1],)
        elif self._world.market.is_whole and is_by_token(compiled):
            prices = (None,)
        else:
            prices = self._world.prices_seen[agent][compiled.capability_id]
        is_asked = any(self._world.settling.may_cost(key, gross, one) for one in prices)
        require(is_asked, "settled with", gross, "for", name, "of", workflow_id)

    def _check_node(self, workflow_id: str, name: str, node: Row, shape: Shape) -> None:
        compiled = shape.compiled.nodes[name]
        tries = [
            row
            for row in self._model.attempts[workflow_id]
            if row["node"] == name and row["kind"] == "primary"
        ]
        numbers = [row["attempt"] for row in tries]
        require(numbers == sorted(set(numbers)), "attempts of", name, numbers)
        if node["status"] is NodeStatus.SUCCESS:
            require(node["result_json"] is not None, "no result")
            rows = self._model.nodes[workflow_id]
            sources = {*compiled.depends_on, *(item.source for item in compiled.mappings)}
            made_of = digest_of({source: rows[source]["result_json"] for source in sources})
            is_of_these = orjson.loads(node["result_json"])["of"] == made_of
            require(is_of_these, "a result of other inputs:", node)
            if node["price_micro"]:
                require(name in self._model.escrows[workflow_id].paid, "never paid:", name)
            for parent in compiled.depends_on:
                parent_row = self._model.nodes[workflow_id][parent]
                require(parent_row["status"] is NodeStatus.SUCCESS, "ran before", parent)
        require(node["status"] in ENDS, "a node is left over:", node)
        self._check_not_forgotten(workflow_id, name, node)
        for row in tries:
            heard = self._replies.get((workflow_id, name, row["attempt"], 0), [])
            key = (workflow_id, name, row["attempt"], node.get("verify_attempt", 0))
            is_rejected = False in self._replies.get(key, [])
            is_own_last = not any(
                later["agent_did"] == row["agent_did"] and later["attempt"] > row["attempt"]
                for later in tries
            )
            wrong = wrong_slash(
                self._model, row, node, heard, is_rejected=is_rejected, is_own_last=is_own_last
            )
            require(wrong is None, wrong, row, node, heard)
        require(node.get("retries_used", 0) <= compiled.max_retries, "retries of", node)
        lost = sum(row["outcome"] == "lost" for row in tries)
        taken = [row for row in tries if not self._is_untaken(row)]
        bound = 1 + compiled.max_retries + AGENTS_MAX - 1 + lost
        require(len(taken) <= bound, len(taken), "attempts of", name)
        require(len(tries) <= MOVES_MAX + bound, len(tries), "attempts of", name)
        # An agent that has declined is left for another beside those the limit counts, also when it
        # took an earlier attempt.
        agents = {row["agent_did"] for row in taken}
        agents -= {row["agent_did"] for row in tries if self._is_untaken(row)}
        limit = AGENTS_MAX if shape.compiled.allow_fallback_agents else 1
        if compiled.target_agent_id is not None and compiled.allow_broadcast_fallback:
            limit = max(limit, 2)
        require(len(agents) <= limit, "agents of", name, agents)

    def _is_untaken(self, row: Row) -> bool:
        """Say whether an attempt was declined, or not sent because the stake was locked."""
        if row.get("error_code") == NodeErrorCode.NO_CANDIDATE:
            return True
        heard = self._replies.get((row["workflow_id"], row["node"], row["attempt"], 0), [])
        return any(isinstance(reply, Failure) and reply.is_declined for reply in heard)

    def _check_not_forgotten(self, workflow_id: str, name: str, node: Row) -> None:
        """Who was cut off by the deadline must have been at work, or waiting, until about then."""
        row = self._model.workflows[workflow_id]
        is_cut_off = (node.get("error") or {}).get("code") == "WORKFLOW_TIMEOUT"
        if not is_cut_off or node.get("attempt", 0) == 0:
            return
        if workflow_id in self._world.quarantines.ever:
            return
        key = (workflow_id, name)
        due_ms = max(node.get("deadline_ms") or 0, self._retry_at_ms.get(key, (0, None))[0])
        due_ms = max(due_ms, self._world.waits.ends_ms.get(key, 0))
        is_idle = due_ms + STUCK_MS < row["deadline_ms"]
        # A process that freezes at its start is replaced later than one that works.
        ready_ms = [at_ms for times in self._world.ready_ms.values() for at_ms in times]
        late_ms = row["deadline_ms"] - STUCK_MS
        was_away = any(late_ms < one <= row["completed_ms"] + AWAY_MS for one in ready_ms)
        require(not is_idle or was_away or key in self.vanished, "forgotten:", node)

    def _check_failure(self, workflow_id: str, row: Row, shape: Shape) -> None:
        """The node that failed first must have used up what the manifest allows it."""
        name = row["error"]["node"]
        node = self._model.nodes[workflow_id][name]
        last = self._replies.get((workflow_id, name, node.get("attempt", 0), 0), [True])[0]
        compiled = shape.compiled.nodes[name]
        if isinstance(last, Failure) and last.verdict is Verdict.RETRYABLE:
            allowed = compiled.max_retries
            is_given_up = row["error"]["code"] == str(last.code)
            if is_given_up and node["completed_ms"] == self._ended_ms(workflow_id, name):
                require(node.get("retries_used", 0) == allowed, "a retry is missing:", node)

    def _ended_ms(self, workflow_id: str, name: str) -> int:
        return max(
            (r["completed_ms"] for r in self._model.attempts[workflow_id] if r["node"] == name),
            default=0,
        )


def is_over(status: WorkflowStatus) -> bool:
    """Say whether a workflow's status is final, in words of the specification."""
    return str(status) in ("success", "failed", "cancelled", "timeout")

"""A whole deployment in one thread and virtual time: owners, agents, ledger, clients, misfortune.

`World(seed).run()` publishes some workflows, lets things go wrong as the seed says, and returns
when nothing is left to happen; every promise is checked (`checks.py`). The engine is the real one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.ports import DispatchOrder
from actors.transport.messages import (
    CancelReply,
    CancelRequest,
    OwnerReply,
    PublishReply,
    PublishRequest,
)
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.shards.assignment import target_addresses
from core.shards.shard import shard_of
from core.workflow.events import Failure
from ledger.writer.group_commit import QUEUE_MAX
from tests.simulation.faults import Faults
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.ledger_service import LedgerService
from tests.simulation.money_checks import PAYERS, opening
from tests.simulation.process import Process
from tests.simulation.quarantines import Quarantines
from tests.simulation.revoking import Revoking
from tests.simulation.run_checks import STUCK_MS, Checks, is_over
from tests.simulation.settling import Settling
from tests.simulation.shapes import (
    CENT_MICRO,
    SHAPES,
    Shape,
    agent_row,
    agent_rows,
    auctioned_shape,
    prices_micro,
    shape,
)
from tests.simulation.simulated_agents import Later, Temper, Timed, result_request
from tests.simulation.simulated_clients import Client, check_clients
from tests.simulation.simulated_market import Market
from tests.simulation.skewed_clock import START_MS, VirtualClock
from tests.simulation.timekeeping import REPLACED_MS_MAX, Timekeeping
from tests.simulation.troubles import CALM, Troubles, troubles_of
from tests.simulation.violation import require
from tests.simulation.waits import Waits

# What a caller repeats: the request may have been served, or will be soon.
AGAIN = (ErrorCode.OVERLOADED, ErrorCode.LEDGER_UNAVAILABLE)
OWNERS = ("workflow@one", "workflow@two")
BULK_SHARD = target_addresses(OWNERS).index(OWNERS[0])
# For how long renewals are lost: some leases expire of it.
CUTS_MS = (1_000, 2_800, 5_000, 20_000)
HAND_IN_PATIENCE_MS = 3_000
RESTART_MS, GATEWAY_RETRY_MS, GATEWAY_PATIENCE_MS = 1_000, 100, 15_000
TROUBLE_S = 30
# How long the ledger is away; and how long a process takes, when it is not, to answer at most.
OUTAGES_MS = (500, 5_000, 30_000)
ANSWER_MS_MAX = 40_000
BULK_AT_MS = 500  # when every owner has started
Script = Callable[[DispatchOrder], Sequence[bool | Failure | Later | Timed]]


@dataclass(frozen=True, slots=True)
class Crowd:
    """How given shapes are published: within `spread_ms`, or all in one batch (`is_bulk`).

    `crash_at_ms`: when an owner is killed, 0: never. `slowness`: by how much owners are slower.
    """

    is_bulk: bool = False
    spread_ms: int = 0
    crash_at_ms: int = 0
    slowness: int = 1


class World:
    """One run.

    Args:
        seed: decides everything.
        workflows: how many are published within the first seconds.
        troubles: the odds; None: drawn from the seed.
        shapes: their shapes; None: drawn from the seed.
        script: what agents answer, for runs without chance.
        crash_point: kill the owner as it passes its n-th step (see `Process.step`).
        stake_bps: the stake that nodes ask of agents.
        has_market: agents bid, half of all nodes are auctioned, others are paid by tokens.
        has_revocations: agents are revoked for a while.
        has_settlements: payers end attempts that agents have accepted.
        settings: of the owners; None: the defaults.
        crowd: how `shapes` are published when they are many; None: each by itself, at once.
    """

    def __init__(
        self,
        seed: int,
        *,
        workflows: int = 50,
        troubles: Troubles | None = None,
        shapes: list[Shape] | None = None,
        script: Script | None = None,
        crash_point: int | None = None,
        stake_bps: int = 0,
        has_market: bool = False,
        has_revocations: bool = False,
        has_settlements: bool = False,
        settings: Settings | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.troubles = troubles_of(self.chance) if troubles is None else troubles
        self.clock = VirtualClock()
        self.script = script
        self.crash_point = crash_point
        self.points: list[str] = []
        self.checks = Checks(self)
        self.revoking = Revoking(self, is_on=has_revocations)
        self.settling = Settling(self, is_on=has_settlements)
        self.model = self.new_model()
        self.market = Market(self, stake_bps, is_whole=has_market)
        self.queue_max = self.troubles.queue_max or QUEUE_MAX
        made = Settings(stake_bps=stake_bps)
        self.settings = made if settings is None else settings
        self.ledger = LedgerService(self)
        self.model.now_ms = self.ledger.now_ms
        self.faults = Faults(self)
        self.timekeeping = Timekeeping(self)
        self.quarantines = Quarantines(self)
        self.offsets_ms: dict[str, int] = {}  # of each machine's wall clock
        self.faults.begin(OWNERS)
        self.rows = self.market.rows(agent_rows())
        self.prices_seen: dict[str, dict[str, set[int]]] = {}
        self.tempers = {
            did: Temper(
                self.chance,
                is_flaky=self.chance.random() < self.troubles.flaky,
                is_later=self.chance.random() < self.troubles.later,
            )
            for did in self.rows
        }
        self.disturbed: set[str] = set()  # workflows whose owner changed while they ran
        self.shapes: dict[str, Shape] = {}
        self.clients: list[Client] = []
        self._given_shapes = shapes
        self._crowd = Crowd() if crowd is None else crowd
        self._workflows = workflows if shapes is None else len(shapes)
        for row in self.rows.values():
            self._know_prices(row)
        self.waits = Waits(self)
        self.model.commit(opening(seed, stake_bps, self.rows))
        self.all_processes: list[Process] = []
        # When each owner's processes, one after the other, had restored everything.
        self.ready_ms: dict[str, list[int]] = {name: [] for name in OWNERS}
        self.processes = {name: self._new_process(name) for name in OWNERS}

    def new_model(self) -> LedgerModel:
        """Return the ledger of this world."""
        model = LedgerModel(self.checks.applied)
        model.on_quarantined = lambda *what: self.quarantines.began(*what)
        model.cannot_apply = lambda command: self.faults.cannot_apply(command)
        return model

    def run(self) -> World:
        """Run to the end and check everything; a failure names the seed."""
        try:
            if self._crowd.is_bulk:
                self.clock.call_in(BULK_AT_MS, self._publish_bulk)
            for number in range(0 if self._crowd.is_bulk else self._workflows):
                spread_ms = 2_000 if self._given_shapes is None else self._crowd.spread_ms
                delay_ms = self.chance.randint(0, spread_ms) if spread_ms else 0
                self.clock.call_in(delay_ms, self._publish, number)
            if self._crowd.crash_at_ms:
                self.clock.call_in(self._crowd.crash_at_ms, self._crash)
            if self.troubles is not CALM:
                for second in range(TROUBLE_S):
                    self.clock.call_in(1_000 * second + 7, self._misfortune)
            self.revoking.begin()
            self.timekeeping.begin()
            self.clock.run()
            self.checks.at_end(self.shapes)
            is_calm, has_faults = self.troubles is CALM, self.faults.has_happened
            check_clients(self.clients, self.model, is_calm=is_calm, has_faults=has_faults)
        except BaseException as error:  # a violation is no `Exception`
            if self._given_shapes is None:
                error.add_note(f"replay: pytest tests/simulation --seed {self.seed}")
            raise
        finally:
            for process in self.all_processes:
                process.loop.discard_tasks()
        return self

    # -- clients ----------------------------------------------------------------------------------

    def _publish(self, number: int) -> None:
        chosen = (
            self._shape(self.chance.randrange(SHAPES))
            if self._given_shapes is None
            else self._given_shapes[number]
        )
        payer = self.chance.choices(PAYERS, weights=(90, 8, 2))[0]
        if self._given_shapes is not None:
            payer = PAYERS[0]
        client = Client(self._request(number, f"key {number}", payer, chosen), self._now())
        self.clients.append(client)
        self._ask(client)
        draw, troubles = self.chance.random(), self.troubles
        if draw < troubles.request_repeated:
            self.clock.call_in(self.chance.randint(0, 20), self._ask, client)
        elif draw < troubles.request_repeated + troubles.key_repeated:
            again = self._request(number + 1_000, f"key {number}", payer, chosen)
            twin = Client(again, self._now())
            self.clients.append(twin)
            self.clock.call_in(self.chance.randint(0, 3_000), self._ask, twin)
        if self.chance.random() < troubles.cancel:
            self.clock.call_in(self.chance.randint(0, 8_000), self._cancel, client)

    def _publish_bulk(self) -> None:
        """Publish all shapes in one batch at one owner, which must live."""
        assert self._given_shapes is not None
        process = self.processes[OWNERS[0]]
        if BULK_SHARD not in process.owner.held:  # a slow ledger has not let it take any
            self.clock.call_in(BULK_AT_MS, self._publish_bulk)
            return
        clients = [
            Client(self._request(number, f"key {number}", PAYERS[0], chosen), self._now())
            for number, chosen in enumerate(self._given_shapes)
        ]
        self.clients += clients

        def done(replies: list[OwnerReply]) -> None:
            for client, reply in zip(clients, replies, strict=True):
                assert isinstance(reply, PublishReply | ServiceError)
                self._replied(client, reply)

        process.ask([client.request for client in clients], done)

    def _shape(self, number: int) -> Shape:
        return auctioned_shape(number) if self.market.is_whole else shape(number)

    def _request(self, number: int, key: str, payer: str, chosen: Shape) -> PublishRequest:
        # One shard for a batch that one owner is asked for, else all kinds of them.
        shard = BULK_SHARD if self._crowd.is_bulk else number * 37 & 0xFF
        workflow_id = f"{self.seed:08x}-0000-70{shard:02x}-8000-{number:012x}"
        self.shapes[workflow_id] = chosen
        return PublishRequest(
            command_key=key,
            request_hash=key.encode(),
            actor_did=payer,
            workflow_id=workflow_id,
            task_id=f"{self.seed:08x}-0000-7000-9000-{number:012x}",
            payer_did=payer,
            manifest_json=chosen.manifest_json,
            compiled=chosen.compiled,
        )

    def _ask(self, client: Client) -> None:
        """Send the request to a living owner, again when that one dies before it answers."""
        waited_ms = self._now() - client.since_ms
        if waited_ms > GATEWAY_PATIENCE_MS:
            return
        process = self.holder_of(client.request.workflow_id)
        if process is None or self.chance.random() < 0.05:  # the map may be old
            process = self.chance.choice(list(self.processes.values()))
        if not process.is_alive:
            self.clock.call_in(GATEWAY_RETRY_MS, self._ask, client)
            return
        is_open = True

        def done(replies: list[OwnerReply]) -> None:
            nonlocal is_open
            is_open = False
            (reply,) = replies
            if isinstance(reply, ServiceError) and reply.code in AGAIN:
                waited_ms = self._now() - client.since_ms
                if waited_ms + GATEWAY_RETRY_MS <= GATEWAY_PATIENCE_MS:
                    self.clock.call_in(GATEWAY_RETRY_MS, self._ask, client)
                    return
            assert isinstance(reply, PublishReply | ServiceError)
            self._replied(client, reply)

        def died() -> None:
            if is_open:
                self.clock.call_in(GATEWAY_RETRY_MS, self._ask, client)

        process.on_death.append(died)
        process.ask([client.request], done)

    def _replied(self, client: Client, reply: PublishReply | ServiceError) -> None:
        client.replies.append(reply)
        if isinstance(reply, PublishReply):
            deadline_ms = self.model.workflows[reply.workflow_id]["deadline_ms"]
            late_ms = STUCK_MS + self.faults.skew_ms
            if self.troubles.forgetful:  # a new timekeeper waits long for a first answer
                late_ms += REPLACED_MS_MAX
            self.clock.call_at(deadline_ms + late_ms, self.checks.not_stuck, reply.workflow_id)

    def _cancel(self, client: Client) -> None:
        workflow_id = client.request.workflow_id
        process = self.holder_of(workflow_id)
        if workflow_id not in self.model.workflows or process is None or not process.is_alive:
            return
        request = CancelRequest(
            workflow_id=workflow_id,
            reason="user_request",
            details="",
            actor_did=client.request.payer_did,
        )
        is_running = process.runner is not None and process.runner.is_driving(workflow_id)
        answers: list[OwnerReply] = []

        def done(replies: list[OwnerReply]) -> None:
            (reply,) = replies
            answers.append(reply)
            now = self.model.workflows[workflow_id]["status"]
            assert reply is None or isinstance(reply, CancelReply | ServiceError)
            if reply is None:
                is_elsewhere = self.holder_of(workflow_id) is not process
                is_lost = not is_running or is_elsewhere or self.faults.has_happened
                require(is_lost or is_over(now), "not driven:", workflow_id, now)
            elif isinstance(reply, CancelReply):
                require(now == "cancelled", "cancelled, but", workflow_id, now)
            elif is_running and reply.code not in AGAIN and not self.faults.has_happened:
                require(reply.code is ErrorCode.NOT_CANCELLABLE, "cancel:", reply)

        process.ask([request], done)
        # A process that starts in an outage answers after it, and outages begin until `TROUBLE_S`.
        troubled_ms = max(0, START_MS + 1_000 * TROUBLE_S - self.clock.now_ms())
        away_ms = troubled_ms + OUTAGES_MS[-1] if self.troubles.outage else 0
        self.clock.call_in(away_ms + ANSWER_MS_MAX, self._is_answered, answers, process)

    def _is_answered(self, answers: list[OwnerReply], process: Process) -> None:
        is_silent = process.is_alive and not process.was_frozen
        require(bool(answers) or not is_silent, "no answer to cancel")

    # -- agents that answer later -----------------------------------------------------------------

    def hand_in(self, order: DispatchOrder, reply: bool | Failure, tries: int = 50) -> None:
        """Bring a result to the workflow's owner of now, until it is answered."""
        self.checks.handed_in(order, reply)
        row = self.model.workflows[order.workflow_id]
        process = self.holder_of(order.workflow_id)
        again = (HAND_IN_PATIENCE_MS, self.hand_in, order, reply, tries - 1)
        patience = self.clock.call_in(*again) if tries else None

        def done(replies: list[OwnerReply]) -> None:
            (answer,) = replies
            again = (*AGAIN, ErrorCode.INTERNAL_ERROR) if self.faults.has_happened else AGAIN
            if answer is None or (isinstance(answer, ServiceError) and answer.code in again):
                return  # driven elsewhere: the agent tries again
            if patience is not None:
                patience.cancel()
            self.checks.taken(order, answer)

        if process is not None and process.is_alive:
            is_late = is_over(row["status"])
            result = self.checks.result_of(order)
            process.ask([result_request(order, reply, result, is_late=is_late)], done)

    # -- misfortune -------------------------------------------------------------------------------

    def _misfortune(self) -> None:
        """Once a second, draw what breaks within it."""
        chance, troubles = self.chance, self.troubles
        for odds, happening in (
            (troubles.crash, self._crash),
            (troubles.rival, self._rival),
            (troubles.cut, self._cut),
            (troubles.outage, self._outage),
            (troubles.gone, self._agent_gone),
            (troubles.dearer, self._agent_dearer),
        ):
            if odds and chance.random() < odds:
                self.clock.call_in(chance.randint(0, 999), happening)

    def _crash(self) -> None:
        process = self.processes[self.chance.choice(OWNERS)]
        if process.is_alive:
            process.kill()
            self.restart_later(process)

    def _rival(self) -> None:
        """Start a successor while the old process goes on, not knowing."""
        old = self.processes[self.chance.choice(OWNERS)]
        if old.is_alive:
            old.has_rival = True
            self._start(old.name)

    def _cut(self) -> None:
        """Keep a process's renewals from the ledger; its commits go on."""
        process = self.processes[self.chance.choice(OWNERS)]
        process.cut_until_ms = self._now() + self.chance.choice(CUTS_MS)
        self._disturb(process.name)

    def _outage(self) -> None:
        self.ledger.is_away = True
        self.clock.call_in(self.chance.choice(OUTAGES_MS), self._ledger_back)

    def _ledger_back(self) -> None:
        self.ledger.is_away = False

    def _agent_gone(self) -> None:
        row = self.rows[self.chance.choice(list(self.rows))]
        self.waits.back_ms.pop(row["did"], None)
        self._tell_directories({**row, "status": "inactive", "updated_ms": self._now()})
        self.clock.call_in(self.chance.randint(10, 20_000), self._agent_back, row)

    def _agent_back(self, row: dict[str, Any]) -> None:
        self.waits.back_ms[row["did"]] = self._now()
        self._tell_directories(row)

    def _agent_dearer(self) -> None:
        did = self.chance.choice(list(self.rows))
        known = self.prices_seen[did]
        more = self.chance.choice((-1, 1, 50))
        cents = {name: max(0, max(p) // CENT_MICRO + more) for name, p in known.items()}
        self.rows[did] = self.market.row(agent_row(did, cents))
        self._know_prices(self.rows[did])
        self._tell_directories(self.rows[did])

    def _tell_directories(self, row: dict[str, Any]) -> None:
        for process in self.processes.values():
            process.directory.put([row], at_ms=self._now())

    def _know_prices(self, row: dict[str, Any]) -> None:
        known = self.prices_seen.setdefault(row["did"], {})
        for capability_id, micro in prices_micro(row).items():
            known.setdefault(capability_id, set()).add(micro)

    # -- processes --------------------------------------------------------------------------------

    def pass_point(self, process: Process, what: str) -> None:
        """Count a step of a process; kill it there if this is the one."""
        self.points.append(what)
        if len(self.points) == self.crash_point:
            process.kill()
            self.restart_later(process)

    def restart_later(self, process: Process) -> None:
        """Start a process anew after a while, unless a successor is there already."""
        self._disturb(process.name)
        self.clock.call_in(RESTART_MS, self._restart, process)

    def address_of(self, workflow_id: str) -> str:
        """Return the address of the member that holds a workflow's shard, "" for none."""
        held = self.model.shards.holders[shard_of(workflow_id)]
        return held.member.partition("~")[0]

    def holder_of(self, workflow_id: str) -> Process | None:
        """Return the process at the address of the member that holds a workflow's shard."""
        return self.processes.get(self.address_of(workflow_id))

    def is_current(self, process: Process) -> bool:
        """Say whether the ledger would still take this process's commands."""
        return self.model.shards.is_live(process.member)

    @property
    def is_calm_but_for_agents(self) -> bool:
        """Whether nothing happens but that agents are deregistered and come back."""
        return self.troubles == replace(CALM, gone=self.troubles.gone)

    def is_over(self) -> bool:
        """Say whether nothing can be published any more and all that was has ended."""
        troubled_s = 0 if self.troubles is CALM else TROUBLE_S
        is_late = self._now() > START_MS + troubled_s * 1_000 + GATEWAY_PATIENCE_MS
        return is_late and all(is_over(row["status"]) for row in self.model.workflows.values())

    def _restart(self, process: Process) -> None:
        if self.processes[process.name] is process and not process.is_alive:
            self._start(process.name)

    def _start(self, name: str) -> None:
        self._disturb(name)
        self.processes[name] = self._new_process(name)

    def _new_process(self, name: str) -> Process:
        process = Process(self, name)
        process.loop.slowness = self._crowd.slowness
        self.all_processes.append(process)
        return process

    def _disturb(self, owner: str) -> None:
        self.disturbed.update(
            workflow_id
            for workflow_id in self.model.workflows
            if self.address_of(workflow_id) in ("", owner)
        )

    def shards_moved(self, shards: set[int]) -> None:
        """Hear that shards have another member now."""
        self.disturbed.update(one for one in self.model.workflows if shard_of(one) in shards)

    def _now(self) -> int:
        return self.clock.now_ms()

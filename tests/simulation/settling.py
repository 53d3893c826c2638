"""Payers that end attempts which agents have accepted, while these may hand in what they have made.

Draws by itself, so that worlds without it stay as they are.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import orjson

from actors.ports import DispatchOrder
from actors.transport.messages import NodeResultReply, OwnerReply, SettlementRequest
from core.errors import ErrorCode, ServiceError
from core.workflow.events import AttemptFinished
from core.workflow.transitions import NodeStatus
from ledger.commands import Command
from ledger.features.workflow_commands import AdvanceWorkflow
from tests.simulation.violation import require

if TYPE_CHECKING:
    from tests.simulation.world import World

SHARE: Final = 0.5
SHARE_EARLY: Final = 0.1
# Of micro-credits: next to nothing, less than most prices, more than any.
NAMED_MICRO: Final = (1, 15_000, 10**12)
DELAYS_MS: Final = (0, 5, 200, 5_000)
ASKS_AGAIN_MS: Final = 3_000
REFUSALS: Final = (ErrorCode.ALREADY_SETTLED, ErrorCode.ESCROW_RELEASED)

Key = tuple[str, str, int]


class Settling:
    """What payers ask, and what became of it.

    Args:
        world: the run.
        is_on: whether they ask.
    """

    def __init__(self, world: World, *, is_on: bool) -> None:
        self._world = world
        self._is_on = is_on
        self._chance = random.Random(f"settling {world.seed}")
        self._accepted: set[Key] = set()
        self._asked: dict[Key, set[int]] = {}
        self._done: set[Key] = set()

    @property
    def count(self) -> int:
        """How many attempts were ended so."""
        return len(self._done)

    def sent(self, order: DispatchOrder) -> None:
        """Hear of an order as it leaves: a payer may ask before its agent has answered."""
        if not order.is_verification:
            self._draw(order, SHARE_EARLY)

    def accepted(self, order: DispatchOrder) -> None:
        """Hear that an agent accepts an order: now its payer may end it."""
        if not order.is_verification:
            self._accepted.add(_key(order))
            self._draw(order, SHARE)

    def applied(self, command: Command) -> None:
        """Hear of a commit: a step in a payer's name has ended an accepted attempt."""
        if not isinstance(command, AdvanceWorkflow):
            return
        if command.actor_did != self._world.model.workflows[command.workflow_id]["payer_did"]:
            return
        for record in command.records:
            if isinstance(record, AttemptFinished) and record.outcome == "success":
                key = (command.workflow_id, record.node, record.attempt)
                require(key in self._accepted, "settled, but not accepted:", record)
                require(key in self._asked, "settled, but not asked for:", record)
                self._done.add(key)

    def is_done(self, key: Key) -> bool:
        """Say whether an attempt was ended by its payer."""
        return key in self._done

    def may_cost(self, key: Key, gross: int, price: int | None) -> bool:
        """Say whether a payer has asked for this payment.

        Args:
            price: of the attempt; None: it is paid by tokens, and has a limit alone.
        """
        return any(
            gross <= named_micro if price is None else price <= gross <= max(price, named_micro)
            for named_micro in self._asked[key]
        )

    def _draw(self, order: DispatchOrder, share: float) -> None:
        if self._is_on and self._chance.random() < share:
            named_micro = self._chance.choice(NAMED_MICRO)
            for _ in range(self._chance.choice((1, 1, 2))):
                delay_ms = self._chance.choice(DELAYS_MS)
                self._world.clock.call_in(delay_ms, self.ask, order, named_micro)

    def ask(self, order: DispatchOrder, named_micro: int, tries: int = 50) -> None:
        """Ask the workflow's owner of now, until it answers."""
        world, key = self._world, _key(order)
        self._asked.setdefault(key, set()).add(named_micro)
        process = world.holder_of(order.workflow_id)
        again = (ASKS_AGAIN_MS, self.ask, order, named_micro, tries - 1)
        timer = world.clock.call_in(*again) if tries else None

        def done(replies: list[OwnerReply]) -> None:
            (answer,) = replies
            if isinstance(answer, NodeResultReply):
                is_ended = answer.status == NodeStatus.SUCCESS and not answer.is_repeat
                require(not is_ended or key in self._done, "settled, but not stored:", order)
            elif answer is None or (
                isinstance(answer, ServiceError) and answer.code not in REFUSALS
            ):
                return  # driven elsewhere: the payer asks again
            if timer is not None:
                timer.cancel()

        if process is not None and process.is_alive:
            row = world.model.workflows[order.workflow_id]
            request = SettlementRequest(
                workflow_id=order.workflow_id,
                node=order.node,
                attempt=order.attempt,
                verify_attempt=0,
                # Another than a payer has: what comes of it is checked as any agent's.
                result_json=orjson.dumps(world.checks.result_of(order)).decode(),
                output_hash="sha256:out",
                named_micro=named_micro,
                actor_did=str(row["payer_did"]),
                is_late=str(row["status"]) in ("success", "failed", "cancelled", "timeout"),
            )
            process.ask([request], done)


def _key(order: DispatchOrder) -> Key:
    return order.workflow_id, order.node, order.attempt

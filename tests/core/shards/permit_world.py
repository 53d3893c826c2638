"""Members, their calls and ledgers, as far as permits know them: both sides are the product's.

Time passes when the test says so. A message arrives, arrives late, or never; a ledger that was
replaced goes on for as long as its last proof holds. What is counted at an agent are calls that
were sent by members whose permits have not ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from core.shards.held_permits import HeldPermits
from core.shards.leases import PROOF_MS, SELF_FENCE_MS, LeaseTable
from core.shards.permit_messages import PermitAnswer, PermitReport
from core.shards.permit_table import PermitTable


class Node:
    """A member: what waits, what is open and sent, what is open and could not be sent.

    `parent`: of a process of a single workflow. `taken_over`: calls that its successors have made
    again.
    """

    def __init__(self, name: str, world: World, parent: Node | None = None) -> None:
        self.name, self.world, self.parent = name, world, parent
        self.is_running = True
        self.children = 0
        self.asked = 0
        self.permits = HeldPermits(lambda agent: world.limits[agent], self._ask)
        self.waiting: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.unsent: Counter[str] = Counter()
        self.taken_over: Counter[str] = Counter()
        self.began: Counter[str] = Counter()
        self.acknowledged_ms: int | None = None

    def _ask(self) -> None:
        self.asked += 1

    def may_send(self) -> bool:
        """Say whether its last acknowledged renewal is new enough."""
        sent_ms = self.acknowledged_ms
        return sent_ms is not None and self.world.now_ms - sent_ms <= SELF_FENCE_MS

    def agents(self) -> Iterable[str]:
        """Implement `AgentLoads`."""
        return [agent for agent in self.world.limits if any(self.load(agent))]

    def load(self, agent: str) -> tuple[int, int]:
        """Implement `AgentLoads`."""
        taken = self.sent[agent] + self.unsent[agent] + self.taken_over[agent]
        return taken, self.waiting[agent]

    def put(self, agent: str, count: int = 1) -> None:
        """Let orders for an agent come."""
        for _ in range(count):
            self.waiting[agent] += 1
            self.open(agent)
            if self.waiting[agent]:
                self.permits.note_waiting(agent, sum(self.load(agent)))

    def open(self, agent: str) -> None:
        """Open what may be open, and send it when anything may be sent."""
        while self.waiting[agent] and self.load(agent)[0] < self.permits.allowed(agent):
            self.waiting[agent] -= 1
            self.unsent[agent] += 1
        if self.may_send():
            self.began[agent] += self.unsent[agent]
            self.sent[agent] += self.unsent.pop(agent, 0)

    def finish(self, agent: str) -> None:
        """End one call at an agent, if there is one."""
        calls = self.sent if self.sent[agent] else self.taken_over
        if calls[agent]:
            calls[agent] -= 1
            self.permits.note_freed(agent)
            self.open(agent)

    def hear(self, report: PermitReport, answer: PermitAnswer, acknowledged_ms: int) -> None:
        """Use an answer."""
        self.acknowledged_ms = max(acknowledged_ms, self.acknowledged_ms or 0)
        opened = {*self.permits.hear(report, answer), *self.unsent}
        if answer.is_void:
            self.waiting.update(self.unsent)
            self.unsent.clear()
        for agent in opened:
            self.open(agent)


@dataclass
class Ledger:
    """A ledger's process. `members`: as it last knew them, with whether each holds a shard."""

    leases: LeaseTable
    table: PermitTable
    members: dict[str, bool]

    def live(self) -> list[str]:
        """Return the members whose leases have not ended."""
        return [name for name in self.members if self.leases.is_live(name)]


@dataclass
class Request:
    """A renewal on its way. `answers`: those of ledgers that are on their way back, each with the
    time from which the member may send.
    """

    node: Node
    report: PermitReport
    sent_ms: int
    answers: list[tuple[PermitAnswer, int]] = field(default_factory=list)


@dataclass
class World:
    """Members, the ledger that writes, the one before it while that may still answer."""

    limits: dict[str, int]
    now_ms: int = 1_000
    nodes: dict[str, Node] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    former: Ledger | None = None
    former_until_ms: int = 0
    epoch: int = 1
    joined: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(LeaseTable(self.now_ms), PermitTable(1), {})

    def join(self, *, has_shards: bool = True) -> Node:
        """Let a new member join."""
        self.joined += 1
        name = f"m{self.joined}"
        node = self.nodes[name] = Node(name, self)
        self.ledger.members[name] = has_shards
        self.ledger.leases.grant(name)
        return node

    def bear(self, parent: Node) -> Node:
        """Let a member start the process of a single workflow."""
        parent.children += 1
        name = f"{parent.name}/{parent.children}"
        node = self.nodes[name] = Node(name, self, parent)
        parent.permits.add_child(name)
        return node

    def bury(self, child: Node) -> None:
        """Let the process of a single workflow end, and its parent know that for certain."""
        self.end(child)
        del self.nodes[child.name]
        if child.parent is not None and child.parent.is_running:
            child.parent.permits.drop_child(child.name)

    def pass_ms(self, ms: int) -> None:
        """Let time pass for everybody."""
        for _ in range(0, ms, 50):
            self.now_ms += 50
            for ledger in (self.ledger, self.former):
                if ledger is not None:
                    ledger.leases.tick(self.now_ms)

    def replace_ledger(self) -> None:
        """Start another ledger's process, which knows what is committed and nothing more."""
        self.former, self.former_until_ms = self.ledger, self.now_ms + PROOF_MS
        self.epoch += 1
        members = dict(self.ledger.members)
        leases = LeaseTable(self.now_ms)
        for name in members:
            leases.grant_first(name)
        self.ledger = Ledger(leases, PermitTable(self.epoch, members), members)

    def send(self, node: Node) -> Request:
        """Let a member send a renewal; others may be under way."""
        request = Request(node, node.permits.report(node, self.now_ms), self.now_ms)
        self.requests.append(request)
        return request

    def serve(self, request: Request, *, by_former: bool = False) -> None:
        """Let a ledger answer a renewal."""
        ledger = self.ledger
        if by_former and self.former is not None and self.now_ms <= self.former_until_ms:
            ledger = self.former
        name, parent = request.node.name, request.node.parent
        if parent is not None:
            self._serve_child(ledger, request, parent)
            return
        if name not in ledger.members or not ledger.leases.renew(name):
            if ledger is self.ledger:
                self.end(request.node)
            return
        self._follow(ledger)
        answer = ledger.table.exchange(name, request.report, self.now_ms)
        request.answers.append((answer, request.sent_ms))

    def _serve_child(self, ledger: Ledger, request: Request, parent: Node) -> None:
        self._follow(ledger)
        answer = ledger.table.exchange(request.node.name, request.report, self.now_ms)
        if ledger.leases.is_live(parent.name):
            # As `ChildLease` counts.
            since_ms = request.sent_ms - ledger.leases.silent_ms(parent.name)
            request.answers.append((answer, since_ms))

    def _follow(self, ledger: Ledger) -> None:
        counted = {one for one in ledger.members if ledger.members[one]} | {*ledger.live()}
        if ledger is self.ledger:
            for one in ledger.members.keys() - counted:
                node = self.nodes[one]
                node.taken_over.update(node.sent)
                node.sent.clear()
        ledger.table.follow(ledger.members, counted)

    def arrive(self, request: Request) -> None:
        """Let the answers to a renewal arrive that are on their way."""
        answers, request.answers = request.answers, []
        for answer, acknowledged_ms in answers:
            if request.node.is_running:
                request.node.hear(request.report, answer, acknowledged_ms)

    def exchange(self, node: Node) -> None:
        """Let one renewal be sent, answered and heard."""
        request = self.send(node)
        self.serve(request)
        self.arrive(request)
        self.requests.remove(request)

    def end(self, node: Node) -> None:
        """End a member's process; its calls count on until its permits have ended."""
        node.is_running = False

    def take(self) -> None:
        """Let living members take what belongs to those that do not live: these are GONE."""
        live = self.ledger.live()
        for name in [one for one in self.ledger.members if one not in live]:
            if live and self.ledger.members[name]:
                del self.ledger.members[name]
                self.ledger.leases.forget(name)
                for node in [*self.nodes.values()]:
                    if node.name == name or (node.parent is not None and node.parent.name == name):
                        self.end(node)
                        del self.nodes[node.name]
                self.ledger.members[live[0]] = True

    def used(self, agent: str) -> int:
        """Return how many calls are open at an agent, of those that count."""
        return sum(node.sent[agent] for node in self.nodes.values())


def step(world: World, nodes: Sequence[Node], ms: int = 50) -> None:
    """Let every member renew once, then time pass."""
    for node in nodes:
        if node.is_running:
            world.exchange(node)
    world.pass_ms(ms)


def cluster(members: int, **limits: int) -> tuple[World, list[Node]]:
    """Return a world with members that know each other."""
    world = World(limits)
    nodes = [world.join() for _ in range(members)]
    for _ in range(3):
        step(world, nodes)
    return world, nodes

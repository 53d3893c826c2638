"""Permits of agents, in the ledger's memory: how many calls each member may have at each agent.

Theory of operation. An agent's concurrency is shared out in permits. A member reports what it holds
and what it needs with its renewals, and the answer says how many permits it may use from then on.
Charged to a member is the greater of what it was told last and what it has reported since, so the
charges of an agent never undercount what is used, whichever message is lost. A member sends one
report until it hears an answer to that, and hears no other answer to it: so a newer report replaces
the charge, and one that comes again adds to it what is granted now.

What is granted: needs are met as equally as they can be (max-min fairness), then a member gets as
much again, if it is free, so that it does not ask for each call. What another member holds beyond
its share is called back when a need is unmet, and only then. If there are fewer permits than
members with a need, those take turns.

A member that is alone uses agents without permits: `is_shared` of its answers is false. From that
answer until its next complete report it is *unknown*: it may hold anything. So is each member, for
a new ledger, until it has reported in that ledger's term. While a member is unknown, no member is
granted anything, and all go on with what they hold. An older ledger that still answers cannot grant
more to a member that has reported here, because members ignore older terms.

A charge ends when the member's lease has ended and it holds no shard: its successors have taken the
places of its calls, which they make again. If such a member comes back, its permits are void. The
term of a member grows whenever its claims are forgotten here.

The process of a single workflow is a child of a member. It has claims of its own, like a member,
from when its parent names it until the parent names it no longer, because that process has ended;
or until the parent's own charge ends. A child that was named in a term of this ledger first has
nothing; any other is unknown at first. It has no lease that would end: one that is unknown and
says nothing for as long as a first lease may send nothing any more, and its permits are void; else
a frozen process would stop everybody. Terms of other ledgers that are newer than a member's term
here show that this ledger was replaced: then it follows no child, since the new one may not know
what it would grant to that.

Pure: the caller measures the time. Decision 0204.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from core.shards.leases import FIRST_LEASE_MS
from core.shards.permit_messages import (
    CHILDREN_MAX,
    CLAIMS_MAX,
    GRANTS_MAX,
    PermitAnswer,
    PermitClaim,
    PermitGrant,
    PermitReport,
)

# How long a member keeps the permit of an agent that has fewer of them than members want.
TURN_MS: Final = 500
# A need that has not been repeated for so long is not waited for.
NEED_MS: Final = 1_500
# Agents of which one member's claims are kept.
AGENTS_MAX: Final = 20_000
# The terms of one ledger process: those of the next one are all greater.
_TERMS: Final = 1 << 31


@dataclass(slots=True)
class _Claim:
    """`charged`: the most that may be used. `waits_ms`: since when the member waits for more.
    `granted_ms`: since when it has had anything.
    """

    charged: int = 0
    need: int = 0
    limit: int = 1
    waits_ms: int = 0
    granted_ms: int = 0


@dataclass(slots=True)
class _Member:
    """A member or a child. `is_void`: its permits have ended and it has not heard that."""

    term: int
    is_void: bool = False
    serial: int = 0
    heard_ms: int = 0
    agents: set[str] = field(default_factory=set)
    children: set[str] = field(default_factory=set)


class PermitTable:
    """The permits of all members that are not GONE.

    Args:
        epoch: of this ledger, greater than those of all before it.
        members: those that may hold permits which another ledger has granted.
    """

    def __init__(self, epoch: int, members: Collection[str] = ()) -> None:
        self._term = epoch * _TERMS
        self._members = {one: _Member(self._term) for one in members}
        self._counted: Set[str] = frozenset(members)
        self._parents: dict[str, str] = {}  # of children
        self._unknown = set(members)
        self._agents: dict[str, dict[str, _Claim]] = {}
        # Agents of which some need is unmet; who was looked at last stands last.
        self._contended: dict[str, None] = {}

    def __repr__(self) -> str:
        return (
            f"<PermitTable term={self._term} members={len(self._members)}"
            f" unknown={len(self._unknown)} agents={len(self._agents)}>"
        )

    def charged(self, agent: str) -> Mapping[str, int]:
        """Return by member what is charged of an agent, of those that are known."""
        claims = self._agents.get(agent, {})
        return {member: claim.charged for member, claim in claims.items() if claim.charged}

    def follow(self, members: Collection[str], counted: Set[str]) -> None:
        """Follow who is a member.

        Args:
            members: all that are not GONE; one that is new has no permits.
            counted: those of them whose lease has not ended or that hold a shard.
        """
        for member in members:
            if member not in self._members:
                self._members[member] = _Member(self._term)
        for member in self._members.keys() - counted - self._parents.keys():
            self._end(member)
        for member in self._members.keys() - set(members) - self._parents.keys():
            del self._members[member]
        self._counted = counted

    def exchange(self, member: str, report: PermitReport, now_ms: int) -> PermitAnswer:
        """Note what a member reports, and return what it may hold.

        Args:
            member: one that is followed, whose lease has just been renewed; or a child.
            now_ms: of a monotonic clock.
        """
        one = self._members.get(member)
        if one is None:  # a child that its parent has not named yet, or names no longer
            return PermitAnswer(is_shared=True)
        if report.serial < one.serial:  # late: the member hears no more of it than the term
            return PermitAnswer(term=one.term, is_shared=True, is_void=one.is_void)
        is_repeat = report.serial == one.serial
        one.serial, one.heard_ms = report.serial, now_ms
        self._follow_children(member, report, now_ms)
        self._end_silent_children(now_ms)
        if self._counted == {member} and not one.children:
            self._let_alone(member, report)
            return PermitAnswer(term=one.term)
        if report.term != one.term or not report.is_shared:
            return PermitAnswer(term=one.term, is_shared=True, is_void=one.is_void)
        one.is_void = False
        claims = report.claims[:CLAIMS_MAX]
        for claim in claims:
            if not is_repeat:
                self._note(member, claim, now_ms)
        if report.is_complete:
            self._unknown.discard(member)
        listed = dict.fromkeys(claim.agent for claim in claims)
        grants = tuple(self._grants(member, listed, now_ms))
        assert len(grants) <= GRANTS_MAX, len(grants)
        return PermitAnswer(term=one.term, is_shared=True, grants=grants)

    # -- claims -----------------------------------------------------------------------------------

    def _follow_children(self, parent: str, report: PermitReport, now_ms: int) -> None:
        one = self._members[parent]
        if report.term > one.term:
            return  # another ledger is the head
        named = report.children[:CHILDREN_MAX]
        for name in one.children.difference(child.name for child in named):
            self._drop_child(name)
        for child in named:
            if child.name in self._members:
                continue
            self._term += 1  # it may have been followed in a term before
            self._members[child.name] = _Member(self._term, heard_ms=now_ms)
            self._parents[child.name] = parent
            one.children.add(child.name)
            if child.term != one.term:
                self._unknown.add(child.name)

    def _end_silent_children(self, now_ms: int) -> None:
        for child in self._unknown & self._parents.keys():
            if now_ms - self._members[child].heard_ms > FIRST_LEASE_MS:
                self._end(child)

    def _drop_child(self, child: str) -> None:
        for agent in list(self._members[child].agents):
            self._forget(agent, child)
        self._members[self._parents.pop(child)].children.discard(child)
        del self._members[child]
        self._unknown.discard(child)

    def _let_alone(self, member: str, report: PermitReport) -> None:
        """Forget the claims of a member that is alone from now on: it may hold anything.

        Those of its report must not be noted either, should it come again when others are there.
        """
        one = self._members[member]
        if report.is_shared or one.agents or member not in self._unknown:
            self._forget_all(member)
        one.is_void = False
        self._unknown.add(member)

    def _end(self, member: str) -> None:
        """Charge nothing to a member any more."""
        one = self._members[member]
        for child in list(one.children):
            self._drop_child(child)
        if one.is_void:
            return
        self._forget_all(member)
        one.is_void = True
        self._unknown.discard(member)

    def _forget_all(self, member: str) -> None:
        one = self._members[member]
        for agent in list(one.agents):
            self._forget(agent, member)
        self._term += 1
        one.term = self._term

    def _forget(self, agent: str, member: str) -> None:
        claims = self._agents[agent]
        del claims[member]
        self._members[member].agents.discard(agent)
        if not claims:
            del self._agents[agent]
            self._contended.pop(agent, None)

    def _note(self, member: str, told: PermitClaim, now_ms: int) -> None:
        one = self._members[member]
        mine = self._agents.get(told.agent, {}).get(member)
        if not told.held and not told.need:
            if mine is not None:
                self._forget(told.agent, member)
            return
        if mine is None:
            # Calls that are there are always noted; members have bounds of their own for those.
            if not told.held and len(one.agents) >= AGENTS_MAX:
                return
            mine = self._agents.setdefault(told.agent, {})[member] = _Claim()
            one.agents.add(told.agent)
        was_waiting, had = mine.need > mine.charged, mine.charged
        mine.charged, mine.need, mine.limit = told.held, told.need, max(1, told.limit)
        if not was_waiting or told.held < had:
            mine.waits_ms = now_ms

    # -- granting ---------------------------------------------------------------------------------

    def _grants(self, member: str, listed: Collection[str], now_ms: int) -> Iterator[PermitGrant]:
        """Grant what a member has listed, and call back what others need of the rest.

        What it has not listed does not grow: if the answer were lost, it would stay charged. While
        a member is unknown, all go on with what they hold.
        """
        if self._unknown:
            return
        agents = self._members[member].agents
        for agent in listed:
            if agent in agents:
                yield PermitGrant(agent, self._grant(agent, member, now_ms))
        rest = (agent for agent in self._contended if agent in agents and agent not in listed)
        for agent in list(islice(rest, CLAIMS_MAX)):
            had = self._agents[agent][member].charged
            permits = self._permits(agent, member, now_ms)
            if permits < had:
                yield PermitGrant(agent, permits)

    def _grant(self, agent: str, member: str, now_ms: int) -> int:
        mine = self._agents[agent][member]
        permits = self._permits(agent, member, now_ms)
        if permits and not mine.charged:
            mine.granted_ms = now_ms
        mine.charged = max(mine.charged, permits)
        return permits

    def _permits(self, agent: str, member: str, now_ms: int) -> int:
        """Return how many permits of an agent a member may have now."""
        claims = self._agents[agent]
        mine = claims[member]
        limit = min(claim.limit for claim in claims.values())
        total = sum(claim.charged for claim in claims.values())
        shares = self._shares(claims, limit, now_ms)
        unmet = sum(max(0, shares[one] - claim.charged) for one, claim in claims.items())
        self._contended.pop(agent, None)
        if unmet or total > limit:
            self._contended[agent] = None
        target = _target(mine, shares[member], limit, total=total, unmet=unmet)
        # Nor more than others leave: of what is charged, not all was granted. The places of orders
        # that agents have accepted come to who restores them, and a limit may have been lowered.
        return max(0, min(target, limit - (total - mine.charged)))

    def _shares(self, claims: Mapping[str, _Claim], limit: int, now_ms: int) -> dict[str, int]:
        """Return by member its share of an agent: its need, or as much as each other's (max-min).

        What is left of an equal division goes to those that have it, then to who waits longest. If
        less than one permit is there for each, those that have one keep it for a turn.
        """
        needs = {
            member: min(claim.need, limit)
            for member, claim in claims.items()
            if now_ms - self._members[member].heard_ms <= NEED_MS
        }
        shares = dict.fromkeys(claims, 0)
        left, level = limit, 0
        wanting = sorted(needs, key=needs.__getitem__)
        while wanting:  # the smallest need first: what it leaves is the others'
            level = left // len(wanting)
            if needs[wanting[0]] > level:
                break
            member = wanting.pop(0)
            shares[member] = needs[member]
            left -= needs[member]

        def place(member: str) -> tuple[bool, int]:
            claim = claims[member]
            if claim.charged <= level:
                return True, claim.waits_ms
            return (level == 0 and now_ms >= claim.granted_ms + TURN_MS), now_ms

        for order, member in enumerate(sorted(wanting, key=place)):
            shares[member] = level + (order < left - level * len(wanting))
        return shares


def _target(mine: _Claim, share: int, limit: int, *, total: int, unmet: int) -> int:
    """Return what a member should have by its share: more, if that is free, less, or what it has.

    Args:
        total: of what is charged of this agent.
        unmet: of what members lack to their shares.
    """
    free, lack = limit - total, share - mine.charged
    if lack > 0:
        spare = min(min(2 * mine.need, limit) - share, free - unmet)
        return share + max(0, spare)
    if unmet > free:
        return share
    return mine.charged

"""The permits of one member: what it may open at each agent, what it reports, what it hears.

Theory of operation. A member that is alone may use each agent's whole concurrency, and reports
nothing. When others are there it opens no more calls at an agent than it has permits of; an order
without one waits in the agent's queue as for a full agent, and a report is asked for at once. What
a report lists are the claims that differ from what the ledger has heard, and those with an unmet
need, so that an idle member reports nothing. Permits are kept while their agent is used and given
back some seconds later; what the ledger calls back is given back as calls end.

One report is under way at a time: each renewal carries it, unchanged, until the first answer to it
comes; answers to reports before it are dropped. `permit_table.py` relies on that. A newer term is
heard in whichever answer says it, because that answer may also end a fence: permits that are void
must be so before anything is sent. Pure: the caller measures the time and exchanges the messages.
Decision 0204.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

from core.shards.permit_messages import (
    CLAIMS_MAX,
    PermitAnswer,
    PermitChild,
    PermitClaim,
    PermitReport,
)

# How long permits of an agent are kept that nothing is sent to.
IDLE_MS: Final = 2_000
# Between two looks at all agents. Others are looked at when something of them has changed.
SCAN_MS: Final = 500


class AgentLoads(Protocol):
    """The calls of a member by agent."""

    def agents(self) -> Iterable[str]:
        """Return the agents with calls that are open, held or waiting."""

    def load(self, agent: str) -> tuple[int, int]:
        """Return how many calls are open or held at an agent, and how many wait for it."""


class HeldPermits:
    """What one member may open at each agent.

    Args:
        limit_of: an agent's concurrency, as the member knows it.
        ask: lets the next report be soon.
        is_shared: it starts without permits; else with each agent's whole concurrency.
    """

    def __init__(
        self, limit_of: Callable[[str], int], ask: Callable[[], None], *, is_shared: bool = True
    ) -> None:
        self._limit_of = limit_of
        self._ask = ask
        self._is_shared = is_shared
        self._term = 0
        self._serial = 0
        self._permits: dict[str, int] = {}
        self._told: dict[str, PermitClaim] = {}  # as the ledger has heard them in this term
        # The report under way. Agents to look at in the next one; those with unmet needs.
        self._report: PermitReport | None = None
        self._changed: dict[str, None] = {}
        self._unmet: dict[str, None] = {}
        # Agents that no report of this term has looked at yet. Unmet needs come again in every
        # report: with more of them than one report lists, `_changed` is never empty.
        self._untold: set[str] = set()
        # Processes of single workflows under this one; by name, the term of the first report of it.
        self._children: dict[str, int | None] = {}
        self._used: set[str] = set()
        self._used_ms: dict[str, int] = {}
        self._scanned_ms: int | None = None

    def __repr__(self) -> str:
        return (
            f"<HeldPermits is_shared={self._is_shared} agents={len(self._permits)}"
            f" permits={sum(self._permits.values())} unmet={len(self._unmet)}"
            f" children={len(self._children)}>"
        )

    @property
    def is_wanting(self) -> bool:
        """Whether orders wait for permits, so that the next report should not be late."""
        return bool(self._unmet or self._changed)

    def allowed(self, agent: str) -> int:
        """Return how many calls may be at an agent from here."""
        limit = self._limit_of(agent)
        if not self._is_shared:
            return limit
        self._used.add(agent)
        return min(limit, self._permits.get(agent, 0))

    def note_waiting(self, agent: str, need: int) -> None:
        """Ask for more when an order waits for an agent.

        Args:
            need: calls that are open, held or waiting there.
        """
        if not self._is_shared or agent in self._changed or agent in self._unmet:
            return
        permits = self._permits.get(agent, 0)
        if permits < need and permits < self._limit_of(agent):
            self._changed[agent] = None
            self._ask()

    def note_freed(self, agent: str) -> None:
        """Report soon that a call has ended whose permit was called back."""
        told = self._told.get(agent)
        if told is not None and told.held > self._permits.get(agent, 0):
            self._changed[agent] = None
            self._ask()

    def add_child(self, child: str) -> None:
        """Name a child in the next reports, which may then use permits as a member does.

        Args:
            child: a name that no process has had.
        """
        self._children[child] = None
        self._ask()

    def drop_child(self, child: str) -> None:
        """Name a child no longer: its process has ended for certain."""
        del self._children[child]
        self._ask()

    # -- exchange ---------------------------------------------------------------------------------

    def report(self, loads: AgentLoads, now_ms: int) -> PermitReport:
        """Return what the ledger is to hear now: the same until an answer to it has come.

        Args:
            now_ms: of a monotonic clock.
        """
        if self._report is None:
            self._serial += 1
            self._report = self._next_report(loads, now_ms)
        return self._report

    def _next_report(self, loads: AgentLoads, now_ms: int) -> PermitReport:
        children = self._named_children()
        if not self._is_shared:
            return PermitReport(serial=self._serial, term=self._term, children=children)
        is_first = self._scanned_ms is None
        if self._scanned_ms is None or now_ms - self._scanned_ms >= SCAN_MS:
            self._scan(loads, now_ms)
        if is_first:
            self._untold = set(self._changed)
        self._changed.update(self._unmet)
        claims = tuple(islice(self._differing(loads), CLAIMS_MAX))
        return PermitReport(
            serial=self._serial,
            term=self._term,
            is_shared=True,
            is_complete=not self._untold,
            claims=claims,
            children=children,
        )

    def _named_children(self) -> tuple[PermitChild, ...]:
        for child, term in self._children.items():
            if term is None:
                self._children[child] = self._term
        return tuple(PermitChild(child, term or 0) for child, term in self._children.items())

    def hear(self, report: PermitReport, answer: PermitAnswer) -> list[str]:
        """Use what the ledger grants; return the agents of which there may be more.

        Args:
            report: what is answered.
        """
        is_new_term = answer.term > self._term
        is_awaited = self._report is not None and report.serial == self._report.serial
        if answer.term < self._term or not (is_new_term or is_awaited):
            return []
        heard = () if self._report is None else self._report.claims
        was_shared = self._is_shared
        self._report, self._is_shared, self._term = None, answer.is_shared, answer.term
        if not answer.is_shared:
            waiting = [*self._changed, *(claim.agent for claim in heard), *self._unmet]
            self._forget()
            return waiting if was_shared else []
        if is_new_term and answer.is_void:
            self._permits.clear()
        if is_new_term or not was_shared:
            self._told.clear()
            self._scanned_ms = None
            self._ask()
            return []
        return self._hear_grants(heard, answer)

    def _forget(self) -> None:
        for kept in (self._permits, self._told, self._changed, self._unmet):
            kept.clear()
        self._used.clear()
        self._used_ms.clear()
        self._scanned_ms = None

    def _scan(self, loads: AgentLoads, now_ms: int) -> None:
        """Look at every agent in the next reports; give back what was not used for long."""
        self._scanned_ms = now_ms
        for agent in list(self._permits):
            if agent in self._used:
                self._used_ms[agent] = now_ms
            elif now_ms - self._used_ms.setdefault(agent, now_ms) >= IDLE_MS:
                del self._permits[agent], self._used_ms[agent]
        self._used.clear()
        for agents in (loads.agents(), self._permits, self._told):
            self._changed.update(dict.fromkeys(agents))

    def _differing(self, loads: AgentLoads) -> Iterator[PermitClaim]:
        """Take changed agents; yield the claims that are not as the ledger has heard them."""
        while self._changed:
            agent = next(iter(self._changed))
            del self._changed[agent]
            self._untold.discard(agent)
            open_calls, waiting = loads.load(agent)
            permits, limit = self._permits.get(agent, 0), self._limit_of(agent)
            need = min(open_calls + waiting, limit)
            claim = PermitClaim(agent, max(permits, open_calls), need, limit)
            told = self._told.get(agent)
            if need > permits:
                self._unmet[agent] = None
            else:
                self._unmet.pop(agent, None)
            is_nothing = not claim.held and not need
            if need > permits or (told is not None if is_nothing else told != claim):
                yield claim

    def _hear_grants(self, heard: Sequence[PermitClaim], answer: PermitAnswer) -> list[str]:
        for claim in heard:
            if claim.held or claim.need:
                self._told[claim.agent] = claim
            else:
                self._told.pop(claim.agent, None)
        needs = {claim.agent: claim.need for claim in heard}
        more: list[str] = []
        for grant in answer.grants:
            agent, permits = grant.agent, grant.permits
            had = self._permits.pop(agent, 0)
            if permits:
                self._permits[agent] = permits
            if permits >= needs.get(agent, permits + 1):
                self._unmet.pop(agent, None)
            if permits > had:
                more.append(agent)
            elif permits < had:
                self._changed[agent] = None
        if self._changed:
            self._ask()
        return more

"""Rules of trust: agents are revoked and taken back; what they have done meanwhile moves nothing.

Each rule leaves the agent as it found it, so that no other rule has to know who is revoked.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from core.errors import ErrorCode
from core.workflow.events import AttemptFinished, Record
from tests.ledger.machine.base import any_index, asking, four
from tests.ledger.machine.work import WorkRules
from tests.ledger.making import AT, new_key, revoke, unrevoke

FOR_MS = 1_000


class TrustRules(WorkRules):
    """Case 19."""

    @precondition(lambda self: self.works(at_work=True))
    @rule(index=any_index, judge=st.one_of(st.none(), four), asking=asking, expires=st.booleans())
    def work_while_revoked(self, index: int, judge: int | None, asking: str, expires: bool) -> None:
        """What an agent hands in, or what it judges, is refused, and whatever its owner has sent
        behind that, until the rows were read again; the attempt goes on as if nothing had come."""
        busy = self.works(at_work=True)
        flow, work = busy[index % len(busy)]
        did = work.agent if judge is None else self.worker(judge)
        if not self.revoked(did, asking, expires=expires):
            return
        said: tuple[Record, ...] = (*self.freed(work), *self.done(work, work.price, latency_ms=1))
        if judge is not None:
            said = (AttemptFinished(work.name, 99, did, "rejected", AT, AT + 5, "verify"),)
        handed_in, behind, over = self.commit(
            flow.advance(*said, key=new_key()),
            flow.pay(1, node="behind", agent="did:test:other", key=new_key()),
            flow.end(),
        )
        assert handed_in.error is ErrorCode.FORBIDDEN
        assert behind.error is over.error is ErrorCode.CONFLICT
        self.applies(replace(flow.advance(key=new_key()), is_fresh=True))
        self.taken_back(did, expires=expires)

    @precondition(lambda self: self.flows)
    @rule(index=any_index, agent=four, asking=asking, expires=st.booleans())
    def be_given_work_while_revoked(
        self, index: int, agent: int, asking: str, expires: bool
    ) -> None:
        """An attempt of a revoked agent is named, and stored like any other."""
        did = self.worker(agent)
        if not self.revoked(did, asking, expires=expires):
            return
        flow = self.flow(index)
        one = self.attempt(self.new_work(), did, 0, 10)
        result = self.applies(flow.advance(*one.records()))
        assert result["revoked"] == [one.work.name]
        assert result.get("unstaked", []) == self.begins(flow, one)
        self.taken_back(did, expires=expires)

    def revoked(self, did: str, asking: str, *, expires: bool) -> bool:
        """Revoke an agent, if the caller may."""
        actor = self.trustee(did, asking)
        expires_ms = self.now + FOR_MS if expires else None
        command = revoke(did, actor_did=actor, expires_ms=expires_ms)
        if actor not in (did, self.registered_owner(did)):
            self.refuses(command, ErrorCode.FORBIDDEN)
            return False
        self.applies(command)
        self.refuses(replace(command, key=new_key()), ErrorCode.ALREADY_REVOKED)
        self.trusted_by = actor
        return True

    def taken_back(self, did: str, *, expires: bool) -> None:
        if expires:
            self.now += FOR_MS
            self.refuses(unrevoke(did, is_admin=True), ErrorCode.NOT_FOUND)
            # Nothing is left of it, should the next writer's clock be behind.
            self.applies(revoke(did, actor_did=self.trusted_by))
        self.refuses(unrevoke(did, actor="did:test:other"), ErrorCode.FORBIDDEN)
        self.applies(unrevoke(did, actor=self.trusted_by))

    def trustee(self, did: str, asking: str) -> str:
        if asking == "stranger":
            return "did:test:other"
        return self.registered_owner(did) if asking == "owner" else did

    def registered_owner(self, did: str) -> str:
        """Return who owns an agent; a payer that works is registered nowhere."""
        return self.owner_of(did) if did in self.agents else did

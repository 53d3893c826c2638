"""Rules of wallets, stakes and quotas."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from core.errors import ErrorCode
from core.market.sharing.quota import QuotaLimits
from core.money import cents_ceil
from ledger.features.inheritance import RunInheritance, SetInheritance
from ledger.features.quotas import SetQuota
from tests.ledger.machine.base import MoneyMachine, amounts, asking, few, four, share_of, shares
from tests.ledger.machine.model import Limits
from tests.ledger.making import deposit, new_key
from tests.ledger.test_stakes import stake, unstake

STEPS_BETWEEN_QUOTAS = 15
STEPS_BETWEEN_HEIRS = 30
START_MICRO = 10**9
# Mostly none: a payer who may not publish has no history.
limits = st.one_of(st.none(), st.none(), st.none(), st.integers(1, 6))
# Of what the wallet has, so that a limit is met before the wallet is empty.
quarters = st.one_of(st.none(), st.integers(0, 3))


class StakeRules(MoneyMachine):
    """Money that comes in, and what is put up or limited."""

    def equip(self) -> None:
        for did in self.model.wallets:
            self.model.wallets[did] = START_MICRO
        self.commit(*(deposit(START_MICRO, owner_did=did) for did in self.model.wallets))
        for did in self.agents:
            self.model.deposit_stake(did, did, START_MICRO // 2)
        self.commit(*(stake(START_MICRO // 2, agent=did, actor=did) for did in self.agents))

    @rule(payer=four, micro=amounts)
    def deposit(self, payer: int, micro: int) -> None:
        self.deposits(self.payers[payer], micro)

    @rule(agent=few, share=shares, asking=asking)
    def stake(self, agent: int, share: int, asking: str) -> None:
        """Stake a share (percent) of the agent's wallet, or of its owner's."""
        did = self.agents[agent]
        actor = self.actor(did, asking)
        micro = max(1, share_of(self.model.wallets[actor], share))
        command = stake(micro, agent=did, actor=actor)
        if actor not in (did, self.owner_of(did)):
            self.refuses(command, ErrorCode.FORBIDDEN)
        elif micro > self.model.room_of_stake(did):
            self.refuses(command, ErrorCode.INVALID_REQUEST)
        elif micro > self.model.wallets[actor]:
            self.refuses(command, ErrorCode.INSUFFICIENT_CREDITS)
        else:
            self.model.deposit_stake(did, actor, micro)
            self.says_stake(self.applies(command), did, actor)

    @rule(agent=few, share=shares, asking=asking)
    def unstake(self, agent: int, share: int, asking: str) -> None:
        """Take a share (percent) of the free stake out; above 100, or another's, it is refused."""
        did = self.agents[agent]
        actor = self.actor(did, asking)
        free = self.model.stakes.get(did, 0)
        micro = max(1, share_of(free, share))
        command = unstake(micro, agent=did, actor=actor)
        if actor not in (did, self.owner_of(did)):
            self.refuses(command, ErrorCode.FORBIDDEN)
        elif micro > free:
            self.refuses(command, ErrorCode.STAKE_LOCKED)
        elif micro > self.model.settled(did).get(actor, 0):
            self.refuses(command, ErrorCode.FORBIDDEN)  # another depositor's
        elif self.model.settled(did)[actor] - micro < min(
            self.model.settled(did)[actor], self.model.locked.get(did, 0)
        ):
            self.refuses(command, ErrorCode.STAKE_LOCKED)  # would leave the risk to the others
        else:
            self.model.deposit_stake(did, actor, -micro)
            self.says_stake(self.applies(command), did, actor)

    @precondition(lambda self: self.is_due("inheritance", STEPS_BETWEEN_HEIRS))
    @rule()
    def inherit(self) -> None:
        """The first agent goes to the second payer, and from there back to its owner."""
        self.done_now("inheritance")
        did, owner, heir = self.agents[0], self.payers[0], self.payers[1]
        for giver, taker in ((owner, heir), (heir, owner)):
            named = SetInheritance(
                key=new_key(), actor_did=giver, is_admin=False, did=did, heir_did=taker, days=1,
                requires_inactivity=False,
            )  # fmt: skip
            revision = self.applies(named)["revision"]
            moved = self.model.inherit(did, giver, taker)
            run = RunInheritance(
                key=f"inherit:{did}:{revision}", actor_did="timekeeper", did=did,
                revision=revision, owner_did=giver, heir_did=taker,
            )  # fmt: skip
            assert self.applies(run) == {"movedMicro": moved}

    def says_stake(self, result: dict[str, int], did: str, actor: str) -> None:
        assert result["balanceMicro"] == self.model.wallets[actor]
        assert result["freeMicro"] == self.model.stakes[did]
        assert result["lockedMicro"] == self.model.locked.get(did, 0)

    @precondition(lambda self: self.is_due("quota", STEPS_BETWEEN_QUOTAS))
    @rule(payer=few, per_day=limits, at_once=limits, quarters=quarters)
    def set_quota(
        self, payer: int, per_day: int | None, at_once: int | None, quarters: int | None
    ) -> None:
        """Limit a payer close to what it uses; `quarters` of its wallet may go today."""
        self.done_now("quota")
        did = self.payers[payer]
        own, _, spend = self.model.usage(did, self.now)
        per_day = None if per_day is None else own + per_day
        more = self.model.wallets[did] * (quarters or 0) // 4
        cents = None if quarters is None else cents_ceil(spend + more)
        new = QuotaLimits(per_day, at_once, cents)
        self.applies(
            SetQuota(key=new_key(), actor_did="did:test:admin", did=did, changes=asdict(new))
        )
        self.model.limits[did] = Limits(per_day, at_once, cents)

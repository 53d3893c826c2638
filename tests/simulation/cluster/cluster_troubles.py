"""What goes wrong in a simulated cluster: drawn from its seed, second by second.

Kinds with one trouble say more than the others: what must not happen when nothing else is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from core.shards.lease_messages import MemberState
from core.shards.leases import LEASE_MS, RENEWAL_MS, STARVED_MS
from ledger.code_version import CODE_VERSION
from ledger.features.shards import ChangeMember

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster_world import ClusterWorld
    from tests.simulation.cluster.ledger_process import LedgerProcess
    from tests.simulation.cluster.member_process import MemberProcess

# "calm": members join and drain. "starved": more than half are silent, for less than STARVED_MS.
# "ledger": ledgers are frozen, killed and replaced. "database": it is away or slow. In these no
# member that lives may lose a shard. "silent": one after the other is cut off or frozen. "split": a
# ledger is cut off from the database, a second one takes over, and a member reaches the first only.
# "standby": the head is frozen, killed without a successor, or handed over, and a standby takes it.
# "takeover": as "split", but by a standby.
# "upgrade": members of a newer version join one by one and those of before are drained; sometimes
# it is taken back.
KEEPING_KINDS = ("calm", "starved", "ledger", "database", "standby", "upgrade")
OLD, NEW = CODE_VERSION - 1, CODE_VERSION
ADDRESSES = ("member-a", "member-b", "member-c", "member-d")
FIFTH = "member-e"
KINDS = (*KEEPING_KINDS, "silent", "split", "takeover")
STANDBY_KINDS = ("standby", "takeover")
CALM_MS, TROUBLE_MS = 3_000, 20_000
# Between two members of an upgrade; and when it is taken back, if it is.
ROLL_MS, BACK_MS = 1_500, 12_000
# How many of the worlds with any trouble are nearly upgraded.
MIXED = 0.3
RESTART_MS = (50, 2_500)
AWAY_MS = (200, 12_000)
# Longer than starvation would spare those that a ledger takes for silent.
LEDGER_AWAY_MS = (13_000, 25_000)
USUAL_US_MAX = (4_000, 4_000, 300_000)
SPLIT_MS = (3_000, 6_000, 18_500)
SILENT_EACH_MS, SILENT_FOR_MS = 4_000, (2_500, 6_000)
# When more than half of the members fall silent, and for how long, true time: too short for a
# lease to expire, or so long that all are quiet together; after it and a renewal the ledger's
# clock, which may be faster, has not reached STARVED_MS.
STARVED_AT_MS, STARVED_FOR_MS = (4_000, 14_000), ((200, 1_200), (4_000, 8_500))


class ClusterTroubles:
    """The troubles of one world.

    Args:
        kind: one of `KINDS`, or empty for any, some together.
    """

    def __init__(self, world: ClusterWorld, kind: str) -> None:
        self._world = world
        self._kind = kind
        self._chance = world.chance
        self.keeps_shards = kind in KEEPING_KINDS
        self.sends_once = kind in ("calm", "upgrade")
        self.has_standby = kind in STANDBY_KINDS
        self.is_database_away = False
        self.slow = self.answer_lost = 0.0
        self.ends_ms = CALM_MS + TROUBLE_MS
        self._is_over = False
        self._frozen: set[LedgerProcess | MemberProcess] = set()
        self._absent: set[str] = set()
        # Addresses that a drain was sent for, which may be late: their successors are drained too.
        self._drained: set[str] = set()
        self._versions: dict[str, int] = {}  # by address, of what starts there; else the old one

    def __repr__(self) -> str:
        return f"<ClusterTroubles {self._kind or 'any'}>"

    @property
    def bound_ms(self) -> int:
        """How long it may take after the last fault until all is as it should be, true time."""
        rate_min = 0.8
        return int((STARVED_MS + LEASE_MS + 20 * RENEWAL_MS) / rate_min)

    def begin(self) -> None:
        """Draw what happens when."""
        odds = self._odds()
        weather = self._world.network.weather
        weather.usual_us_max = self._chance.choice(USUAL_US_MAX)
        if not self._kind:
            draw = self._chance.choice
            weather.lost, weather.repeated = draw((0, 0.02, 0.1)), draw((0, 0.1))
            weather.late, self.slow = draw((0, 0.02, 0.1)), draw((0, 0.02, 0.1))
            self.answer_lost = draw((0, 0.02))
            if self._chance.random() < MIXED:  # one is old, or has just gone
                self._versions = dict.fromkeys((*ADDRESSES[1:], FIFTH), NEW)
        elif self._kind == "database":
            self.slow = self._chance.choice((0, 0.1))
        elif self._kind == "starved":
            for at_ms in STARVED_AT_MS:
                self._world.clock.call_in(at_ms, self._starve)
        elif self._kind == "silent":
            weather.late = self._chance.choice((0, 0.4))
            self.slow = self._chance.choice((0, 0, 0.3))
            for at_ms in range(CALM_MS, CALM_MS + TROUBLE_MS, SILENT_EACH_MS):
                self._world.clock.call_in(at_ms, self._silence)
        elif self._kind == "split":
            self._world.clock.call_in(CALM_MS, self._split)
        elif self._kind == "takeover":
            self._world.clock.call_in(CALM_MS, self._overtake)
        elif self._kind == "upgrade":
            is_taken_back = self._chance.random() < 0.6
            for turn, address in enumerate(ADDRESSES):
                at_ms, newer = CALM_MS + turn * ROLL_MS, f"{address}+1"
                self._versions[newer] = NEW
                self._world.clock.call_in(at_ms, self._roll, address, newer)
                if is_taken_back:
                    self._world.clock.call_in(at_ms + BACK_MS, self._roll, newer, address)
        for second in range(TROUBLE_MS // 1_000):
            for trouble, odd in odds.items():
                if self._chance.random() < odd:
                    at_ms = CALM_MS + 1_000 * second + self._chance.randint(0, 999)
                    self._world.clock.call_in(at_ms, self._happens, trouble)

    def end(self) -> None:
        """Mend everything."""
        self._is_over = True
        self._world.network.cut.clear()
        weather = self._world.network.weather
        weather.lost = weather.repeated = weather.late = 0.0
        self.is_database_away, self.slow, self.answer_lost = False, 0.0, 0.0
        for process in sorted(self._frozen, key=lambda one: one.loop._name):
            self._thaw(process)
        if not any(one.loop.is_alive for one in self._world.ledgers):
            self._world.start_ledger()
        living = {one.address for one in self._world.living.values()}
        # Where all that live are being drained, nobody would take what the others have held.
        if living <= self._drained:
            self._absent.clear()
        for process in list(self._world.processes):
            if process.address not in living and process.address not in self._absent:
                self._restart(process.address)

    def version_at(self, address: str) -> int:
        """Return the version of the code that starts at an address."""
        return self._versions.get(address, OLD)

    def member_ended(self, process: MemberProcess) -> None:
        """Start a successor at the same address, mostly."""
        if self._chance.random() < 0.1 or self.sends_once:
            self._absent.add(process.address)
        self._restart(process.address)

    def ledger_ended(self) -> None:
        """Start another."""
        world, ended = self._world, self._world.ledger

        def start() -> None:
            living = [one for one in world.ledgers if one.loop.is_alive]
            if all(one.slot != ended.slot for one in living):
                world.start_ledger(ended.slot)

        # With a standby, its machine may be lost, for longer than that waits.
        is_lost = self.has_standby and self._chance.random() < 0.7
        after_ms = LEDGER_AWAY_MS if is_lost else RESTART_MS
        world.clock.call_in(self._chance.randint(*after_ms), start)

    def standby_ended(self, ledger: LedgerProcess) -> None:
        """Start another in the place of one that was no head any more, unless there is one."""
        world = self._world

        def start() -> None:
            living = [one for one in world.ledgers if one.loop.is_alive]
            if all(one.slot != ledger.slot for one in living):
                world.start_ledger(ledger.slot)

        world.clock.call_in(self._chance.randint(*RESTART_MS), start)

    def _odds(self) -> dict[Callable[[], None], float]:
        draw = self._chance.choice
        match self._kind:
            case "calm":
                return {self._drain: 0.15, self._join: 0.15}
            case "starved" | "silent" | "split" | "takeover" | "upgrade":
                return {}
            case "standby":
                return {
                    self._freeze_ledger: draw((0, 0.1)),
                    self._kill_ledger: draw((0, 0.1)),
                    self._hand_over: draw((0.1, 0.3)),
                }
            case "ledger":
                return {
                    self._freeze_ledger: draw((0.05, 0.3)),
                    self._kill_ledger: draw((0, 0.1)),
                    self._replace_ledger: draw((0, 0.1)),
                }
            case "database":
                return {self._lose_database: 0.1}
        return {
            self._kill_member: draw((0, 0.05, 0.2)),
            self._freeze_member: draw((0, 0.1, 0.3)),
            self._cut_member: draw((0, 0.1, 0.3)),
            self._kill_ledger: draw((0, 0.1)),
            self._freeze_ledger: draw((0, 0.1)),
            self._replace_ledger: draw((0, 0.1)),
            self._cut_ledger: draw((0, 0.1)),
            self._lose_database: draw((0, 0.05)),
            self._drain: draw((0, 0.1)),
            self._join: draw((0, 0.1)),
            self._change_version: draw((0, 0, 0.2)),
        }

    def _happens(self, trouble: Callable[[], None]) -> None:
        if not self._is_over:
            trouble()

    # -- members -----------------------------------------------------------------------------------

    def _member(self) -> MemberProcess | None:
        living = [one for one in self._world.living.values() if one.is_well]
        return self._chance.choice(living) if living else None

    def _kill_member(self) -> None:
        process = self._member()
        if process is not None:
            process.kill()

    def _freeze_member(self) -> None:
        process = self._member()
        if process is not None:
            self._freeze(process)

    def _cut_member(self) -> None:
        process = self._member()
        if process is not None:
            self._cut(process.address, self._world.ledger.name)

    def _starve(self) -> None:
        """Let more than half of the members fall silent, nearly at once, for a bounded time."""
        world = self._world
        living = sorted(world.living.values(), key=lambda one: one.member)
        away_ms = self._chance.randint(*self._chance.choice(STARVED_FOR_MS))
        for process in self._chance.sample(living, len(living) // 2 + 1):
            at_ms = self._chance.randint(0, 300)
            if self._chance.random() < 0.5:
                world.clock.call_in(at_ms, self._freeze, process, away_ms)
            else:
                world.clock.call_in(at_ms, self._cut, process.address, world.ledger.name, away_ms)

    def _silence(self) -> None:
        """Let one member fall silent for about as long as a lease lasts."""
        process, away_ms = self._member(), self._chance.randint(*SILENT_FOR_MS)
        if process is None:
            return
        if self._chance.random() < 0.5:
            self._freeze(process, away_ms)
        else:
            self._cut(process.address, self._world.ledger.name, away_ms)

    def _split(self) -> None:
        world, before = self._world, self._world.ledger
        self._cut(before.name, "database", self._chance.choice(SPLIT_MS))
        process = self._member()

        def begin() -> None:
            after = world.start_ledger()
            if process is not None:
                self._cut(process.address, after.name, TROUBLE_MS)

        world.clock.call_in(self._chance.randint(0, 1_000), begin)
        world.clock.call_in(self._chance.randint(0, 2_500), world.start_member, FIFTH)
        if process is not None and self._chance.random() < 0.5:
            at_ms = self._chance.randint(1_000, 3_000)
            world.clock.call_in(at_ms, self._cut, process.address, before.name, TROUBLE_MS)

    def _overtake(self) -> None:
        """Cut the head off from the database, and a member from the standby."""
        world, before, after = self._world, self._world.ledger, self._world.standby
        process = self._member()
        if after is None or process is None:
            return
        self._cut(before.name, "database", self._chance.choice(SPLIT_MS))
        self._cut(process.address, after.name, TROUBLE_MS)
        world.clock.call_in(self._chance.randint(0, 5_000), world.start_member, FIFTH)
        if self._chance.random() < 0.5:
            at_ms = self._chance.randint(1_000, 3_000)
            world.clock.call_in(at_ms, self._cut, process.address, before.name, TROUBLE_MS)

    def _drain(self) -> None:
        world = self._world
        process = self._member()
        if process is not None and process.is_joined and len(world.living) > 2:
            self._drain_member(process, self._member() or process)

    def _drain_member(self, process: MemberProcess, operator: MemberProcess) -> None:
        self._drained.add(process.address)
        command = ChangeMember(
            key=f"drain:{process.member}",
            actor_did="",
            member=process.member,
            state=MemberState.DRAINING,
        )
        operator.loop.create_task(operator.commit(command))

    def _roll(self, before: str, after: str) -> None:
        """Start a member in another's place, and drain that one once the new one has joined."""
        self._absent.discard(after)
        self._absent.add(before)
        self._world.start_member(after)
        self._drain_once_joined(before, after)

    def _drain_once_joined(self, before: str, after: str) -> None:
        living = {one.address: one for one in self._world.living.values()}
        old, new = living.get(before), living.get(after)
        if new is None or not new.is_joined or (old is not None and not old.is_joined):
            self._world.clock.call_in(100, self._drain_once_joined, before, after)
        elif old is not None:
            self._drain_member(old, new)

    def _change_version(self) -> None:
        """Let what starts at an address next be of the other version."""
        address = self._chance.choice((FIFTH, *ADDRESSES))
        self._versions[address] = OLD + NEW - self.version_at(address)

    def _join(self) -> None:
        address = self._chance.choice((FIFTH, FIFTH, *ADDRESSES))
        self._absent.discard(address)
        self._world.start_member(address)

    # -- ledgers and the database ------------------------------------------------------------------

    def _kill_ledger(self) -> None:
        self._world.ledger.kill()

    def _freeze_ledger(self) -> None:
        ledger = self._world.ledger
        if ledger.loop.is_alive and ledger not in self._frozen:
            self._freeze(ledger, self._chance.choice((0, self._chance.randint(*LEDGER_AWAY_MS))))

    def _replace_ledger(self) -> None:
        """Start another process, and end the one before a little later."""
        world, before = self._world, self._world.ledger
        world.start_ledger(before.slot)
        world.clock.call_in(self._chance.randint(0, 2_500), before.kill)

    def _hand_over(self) -> None:
        """Hand the head over as planned: the old one releases it, the new one takes it."""
        world, before, after = self._world, self._world.ledger, self._world.standby
        if after is None or not (before.is_well and after.is_well):
            return
        before.loop.create_task(before.hand_over())

        def end() -> None:
            if world.ledger is after:
                world.handed_over += 1
                before.kill()

        world.clock.call_in(self._chance.randint(200, 2_500), end)

    def _cut_ledger(self) -> None:
        self._cut(self._world.ledger.name, "database")

    def _lose_database(self) -> None:
        self.is_database_away = True

        def back() -> None:
            self.is_database_away = False

        self._world.clock.call_in(self._away_ms(), back)

    # -- both --------------------------------------------------------------------------------------

    def _away_ms(self) -> int:
        return self._chance.choice(
            (self._chance.randint(*AWAY_MS), self._chance.randint(200, 3_500))
        )

    def _cut(self, one: str, other: str, away_ms: int = 0) -> None:
        ends, network = frozenset((one, other)), self._world.network
        network.cut.add(ends)
        self._world.clock.call_in(away_ms or self._away_ms(), network.cut.discard, ends)

    def _freeze(self, process: LedgerProcess | MemberProcess, away_ms: int = 0) -> None:
        """Stop a process, or suspend its machine."""
        if self._chance.random() < 0.5:
            process.loop.freeze()
        else:
            process.clock.suspend()
        self._frozen.add(process)
        self._world.clock.call_in(away_ms or self._away_ms(), self._thaw, process)

    def _thaw(self, process: LedgerProcess | MemberProcess) -> None:
        if process not in self._frozen:
            return
        self._frozen.discard(process)
        if process.clock.is_suspended:
            process.clock.resume()
        if process.loop.is_frozen:
            process.loop.thaw()

    def _restart(self, address: str) -> None:
        def start() -> None:
            if address not in self._absent:
                self._world.start_member(address)

        self._world.clock.call_in(self._chance.randint(*RESTART_MS), start)

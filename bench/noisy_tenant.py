"""Measures the effect of an attacking tenant on another one: rows 1 to 9.

Run as `python -m bench.noisy_tenant [ROW …] [--seconds S] [--home DIR | --checkout DIR]`. Per row:
a deployment of its own (or the one in `--home`), the other tenant alone, then under the attack. Row
6 kills the owner in both, because its backlog is the attack, not the kill. The attack may use
`--cap` of a core on average, its cost in the service included. Prints figures; exit status 1 when a
request of the other tenant failed or its money is not exact, never for times. Decision 0113.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.checkouts import Checkout
from bench.figures.process_usage import Meter
from bench.load.clients import Target
from bench.noise.attack import PREPARE, START, STOP, Attack, Seen, attack_process
from bench.noise.backlog import KILLED, KILLED_AFTER_S, OwnerKilled, kill_owner
from bench.noise.connections import SlowSenders, WaitingReads, WaitingReadsOfOne
from bench.noise.gate import shared_numbers
from bench.noise.remotes import Remote, remote
from bench.noise.requests import (
    DeadAgentBulk,
    FullWallet,
    HealthAsked,
    KeyWithNul,
    LargeCards,
    LongRespondent,
    ManyInvoices,
    RandomKeys,
)
from bench.noise.stored_money import money_defects
from bench.noise.tenant import DEPOSIT, PUBLISH, Account, Phase, Sample, tenant_process
from bench.noise.throttle import CONTROL_S, Spent, Throttle
from bench.workflows import stubs
from core.money import credits_text

ATTACKS: tuple[type[Attack], ...] = (
    KeyWithNul, LongRespondent, FullWallet, ManyInvoices, DeadAgentBulk, OwnerKilled,
    SlowSenders, WaitingReads, WaitingReadsOfOne, RandomKeys, HealthAsked, LargeCards,
)  # fmt: skip
WARM_UP_S = 3.0
SLOWEST_SHOWN = 8
FIRST_ACCEPTED_WITHIN_S = 180.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The results of one row."""

    alone: Phase
    attacked: Phase
    account: Account
    spent: Spent
    units: int
    seen: Seen
    ended: list[str]
    first_accepted_s: float | None

    @property
    def failures(self) -> int:
        """Return the other tenant's failed requests, and its workflows that did not succeed."""
        requests = sum(phase.failures().total() for phase in (self.alone, self.attacked))
        ended = self.account.ended
        return requests + sum(ended.values()) - ended.get("success", 0)


def run_row(kind: type[Attack], target: Target, seconds: float, cap: float) -> Finding:
    """Measure one row.

    1. Prepare the other tenant. 2. Prepare the attack. 3. Measure the other tenant alone. 4. Run
    the attack. 5. Check the other tenant's money.

    Args:
        seconds: of the other tenant alone, and of the attack.
        cap: the share of a core that the attack may use on average.
    """
    answered, _ = shared_numbers()
    rate, started = shared_numbers()
    with ExitStack() as stack:
        (port,) = stack.enter_context(stubs(target.home, 1))
        tenant = stack.enter_context(remote(tenant_process, target, port, answered))
        attacker = stack.enter_context(remote(attack_process, kind, target, rate, started))
        did = tenant.ask(("prepare",))  # 1
        if kind.prepares_before_alone:
            attacker.ask(PREPARE)  # 2
        tenant.ask(("work", WARM_UP_S))
        meter, before = Meter(target.home), answered.value
        alone = _alone(kind, target, tenant, seconds)  # 3
        per_request_s = meter.seconds() / max(1.0, answered.value - before)
        if not kind.prepares_before_alone:
            attacker.ask(PREPARE)
        meter = Meter(target.home)
        throttle = Throttle(
            cap=cap,
            meter=meter,
            attacker_pid=attacker.pid,
            answered=answered,
            per_request_s=per_request_s,
        )
        tenant.send_order(("work", seconds))  # 4
        attacker.ask(START)
        throttle.hold(rate, started, seconds, kind.first_rate)
        attacker.send_order(STOP)
        spent = throttle.spent()
        while not attacker.has_replied(CONTROL_S):
            spent = throttle.spent()
        seen: Seen = attacker.reply()
        attacked: Phase = tenant.reply()
        ended = meter.find_ended()
        first_accepted_s = _first_accepted_s(attacked, seen)
        if first_accepted_s is None and KILLED in seen.marks:
            first_accepted_s = tenant.ask(("first_accepted", FIRST_ACCEPTED_WITHIN_S))
        account, (alone, attacked) = tenant.ask(("account", [alone, attacked]))  # 5
        account.defects += money_defects(target, did, account)
    units = int(started.value)
    return Finding(alone, attacked, account, spent, units, seen, ended, first_accepted_s)


def _alone(kind: type[Attack], target: Target, tenant: Remote, seconds: float) -> Phase:
    tenant.send_order(("work", seconds))
    if kind.kills_alone:
        time.sleep(KILLED_AFTER_S)
        kill_owner(target.home)
    phase: Phase = tenant.reply()
    return phase


def show(kind: type[Attack], finding: Finding, cap: float) -> None:
    """Print the results of a row."""
    print(f"row {kind.row}: {kind.title}")
    requests = len(finding.alone.samples) + len(finding.attacked.samples)
    print(f"  other tenant: {finding.failures} failures of {requests} requests")
    for name, phase in (("alone", finding.alone), ("attacked", finding.attacked)):
        for reason, count in phase.failures().most_common(8):
            print(f"    {name}: {count} x {reason}")
    print(f"    workflows by end: {finding.account.ended}")
    for what in (PUBLISH, DEPOSIT):
        _show_times(what, finding.alone.latencies(what), finding.attacked.latencies(what))
    _show_times("publish to end", finding.alone.chain_ms, finding.attacked.chain_ms)
    _show_slowest(finding.attacked.samples)
    if KILLED in finding.seen.marks:
        _show_kill(finding)
    account = finding.account
    if account.defects:
        print(f"  money: {'; '.join(account.defects)}")
    else:
        print(
            f"  money: exact, {credits_text(account.balance_micro)} ="
            f" {credits_text(account.deposited_micro)} deposited ({account.deposits} deposits) -"
            f" {credits_text(account.spent_micro)} paid, over the API and in the database"
        )
    spent = finding.spent
    print(
        f"  CPU in cores: attack {spent.attacker + spent.service:.3f} (cap {cap}) ="
        f" attacker {spent.attacker:.3f} + service {spent.service:.3f} above its"
        f" {spent.baseline:.3f} for the other tenant; {finding.units} x {kind.unit}"
    )
    replies = ", ".join(f"{count} x {name}" for name, count in finding.seen.replies.most_common(8))
    open_at_end = finding.seen.open_at_end
    print(f"  replies to the attacker: {replies or 'none'}; {open_at_end} awaited when it ended")
    if finding.seen.bytes_read:
        print(f"  {finding.seen.bytes_read / 1e6:.1f} MB read by the attacker")
    print(
        f"  processes of the service that ended: {', '.join(finding.ended) or 'none'}", flush=True
    )


def _show_times(what: str, alone: list[float], attacked: list[float]) -> None:
    if not alone or not attacked:
        print(f"    {what}: {len(alone)} alone, {len(attacked)} attacked")
        return
    parts = []
    for name, share in (("p50", 0.50), ("p99", 0.99)):
        before, after = (ordered[int(len(ordered) * share)] for ordered in (alone, attacked))
        parts.append(f"{name} {before:.1f} -> {after:.1f} ms (x {after / max(before, 0.1):.2f})")
    print(f"    {what}: {', '.join(parts)}")


def _show_slowest(samples: list[Sample]) -> None:
    began_s = min((sample.begun_s for sample in samples), default=0.0)
    slowest = sorted(samples, key=lambda sample: -sample.latency_ms)[:SLOWEST_SHOWN]
    shown = ", ".join(
        f"{sample.what} at {sample.begun_s - began_s:.2f} s {sample.latency_ms:.0f} ms"
        for sample in sorted(slowest, key=lambda sample: sample.begun_s)
    )
    print(f"    slowest under attack: {shown}")


def _after_kill(attacked: Phase, seen: Seen) -> list[Sample]:
    """Return the publishes that started after the kill of the owner."""
    killed_s = seen.marks.get(KILLED, math.inf)
    return [s for s in attacked.samples if s.what == PUBLISH and s.begun_s >= killed_s]


def _first_accepted_s(attacked: Phase, seen: Seen) -> float | None:
    """Return the time of the first accepted publish (monotonic clock), None without one."""
    after = _after_kill(attacked, seen)
    accepted = [s.begun_s + s.latency_ms / 1_000 for s in after if s.failure is None]
    return min(accepted, default=None)


def _show_kill(finding: Finding) -> None:
    after = _after_kill(finding.attacked, finding.seen)
    failed = sum(sample.failure is not None for sample in after)
    first = f"none within {FIRST_ACCEPTED_WITHIN_S:.0f} s"
    if finding.first_accepted_s is not None:
        first = f"{finding.first_accepted_s - finding.seen.marks[KILLED]:.1f} s after it"
    print(f"    after the kill: {failed} of {len(after)} publishes failed; first accepted: {first}")


@contextmanager
def _target(options: argparse.Namespace) -> Iterator[Target]:
    if options.home is not None:
        yield Target.at(Path(options.home), options.url)
        return
    with Checkout.at(options.checkout).deployment(options.toml) as home:
        yield Target.at(home)


def main() -> int:
    """Run the rows; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = sorted({kind.row for kind in ATTACKS} | {kind.row[0] for kind in ATTACKS})
    parser.add_argument("rows", nargs="*", choices=[[], *known], metavar="ROW", help="default: all")
    parser.add_argument("--seconds", type=float, default=20.0, help="alone, and of each attack")
    parser.add_argument("--cap", type=float, default=0.25, help="cores that an attack may use")
    parser.add_argument("--home", help="a running deployment's folder; default: one per row")
    parser.add_argument("--url", help="another address of the deployment in --home")
    parser.add_argument("--checkout", help="start deployments of the code in this folder")
    parser.add_argument("--toml", default="", help="settings of the deployments started")
    options = parser.parse_args()
    broken = []
    for kind in ATTACKS:
        if options.rows and not {kind.row, kind.row[0]} & set(options.rows):
            continue
        with _target(options) as target:
            finding = run_row(kind, target, options.seconds, options.cap)
        show(kind, finding, options.cap)
        if finding.failures or finding.account.defects:
            broken.append(kind.row)
    print(f"rows with failures or wrong money: {', '.join(broken) or 'none'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

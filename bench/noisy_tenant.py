"""Measures the effect of an attacking tenant on another one.

Run as `python -m bench.noisy_tenant [ROW …] [--seconds S] [--checkout DIR]`. Per row: a deployment
of its own, the other tenant alone, then under the attack. Prints latencies, failures and CPU; exit
status 1 when a request of the other tenant failed or its money is not exact, never for times.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psycopg

from bench.checkouts import Checkout
from bench.figures.process_usage import AGENTS, cpu_seconds
from bench.load.clients import Target
from bench.noise.attacks import ATTACKS, attack
from bench.noise.tenant import DEPOSIT, PUBLISH, Account, Phase, tenant
from bench.workflows import stubs
from scripts.books import CHECKS

PREPARED_WITHIN_S = 600.0


def run_row(row: str, target: Target, seconds: float) -> bool:
    """Measure one row; return whether nothing failed and the money is exact.

    1. Prepare the attack. 2. Measure the other tenant alone. 3. Run both. 4. Check the books.
    """
    context = get_context("spawn")
    with (
        context.Manager() as shared,
        ProcessPoolExecutor(2, context) as pool,
        stubs(target.home, 1) as ports,
    ):
        prepared, alone_ended, go = (shared.Event() for _ in range(3))
        attacker = pool.submit(attack, row, target, seconds, prepared, go)
        if not prepared.wait(PREPARED_WITHIN_S):  # 1
            raise SystemExit(f"row {row}: not prepared in {PREPARED_WITHIN_S:.0f} s")
        before = _service_cpu_s(target)
        other = pool.submit(tenant, target, ports[0], seconds, alone_ended, go)
        alone_ended.wait(PREPARED_WITHIN_S)  # 2
        between = _service_cpu_s(target)
        go.set()
        seen = attacker.result()  # 3
        alone, attacked, account = other.result()
        after = _service_cpu_s(target)
    with psycopg.connect(target.database_url, options="-c search_path=callboard") as database:
        account.defects += [
            what for what, query in CHECKS.items() if database.execute(query).fetchall()
        ]  # 4
    print(f"row {row}: {ATTACKS[row].title}")
    _show(alone, attacked, account)
    print(
        f"  attack: {seen.begun} units, {seen.cpu_s:.1f} CPU-s of its own; CPU-s of the service:"
        f" {between - before:.1f} alone, {after - between:.1f} attacked; replies:"
        f" {', '.join(f'{count} x {what}' for what, count in seen.replies.most_common(8))}",
        flush=True,
    )
    ended_well = set(account.ended) <= {"success"}
    return not (alone.failures or attacked.failures or account.defects) and ended_well


def _service_cpu_s(target: Target) -> float:
    return sum(s for kind, s in cpu_seconds(target.home).items() if kind != AGENTS)


def _show(alone: Phase, attacked: Phase, account: Account) -> None:
    for what in (PUBLISH, DEPOSIT):
        times = [sorted(phase.latencies_ms[what]) for phase in (alone, attacked)]
        for name, share in (("p50", 0.50), ("p99", 0.99)):
            before, after = (ordered[int(len(ordered) * share)] for ordered in times)
            print(f"  {what} {name}: {before:.1f} ms alone, {after:.1f} ms attacked")
    for name, phase in (("alone", alone), ("attacked", attacked)):
        for reason, count in phase.failures.most_common(8):
            print(f"  {name}: {count} x {reason}")
    print(f"  workflows: {account.ended}; money: {'; '.join(account.defects) or 'exact'}")


def main() -> int:
    """Run the rows; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "rows", nargs="*", choices=[[], *ATTACKS], metavar="ROW", help=f"of {ATTACKS}"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="alone, and of each attack")
    parser.add_argument("--checkout", help="start deployments of the code in this folder")
    parser.add_argument("--toml", default="", help="settings of the deployments started")
    options = parser.parse_args()
    broken = []
    for row in options.rows or ATTACKS:
        with Checkout.at(options.checkout).deployment(options.toml) as home:
            if not run_row(row, Target.at(home), options.seconds):
                broken.append(row)
    print(f"rows with failures or wrong money: {', '.join(broken) or 'none'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""Limits a running attack to its share of a core and measures its CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from bench.figures.process_usage import Meter
from bench.noise.gate import Shared, next_rate

CONTROL_S = 0.25


@dataclass(frozen=True, slots=True)
class Spent:
    """An attack's CPU, in cores on average over its time.

    `baseline`: the service's CPU for the other tenant; `service`: the service's CPU beyond that.
    Under load requests share batches and cost less each, so `service` is a lower estimate.
    """

    attacker: float
    service: float
    baseline: float


class Throttle:
    """Measures an attack's CPU and sets its rate; created when the attack starts.

    Args:
        cap: the share of a core the attack may use on average.
        meter: the meter of the service, created at the same time.
        attacker_pid: the attacking process.
        answered: counts the successful requests of the other tenant.
        per_request_s: the service's CPU seconds for one of these, without an attack.
    """

    def __init__(
        self,
        *,
        cap: float,
        meter: Meter,
        attacker_pid: int,
        answered: Shared,
        per_request_s: float,
    ) -> None:
        self._cap = cap
        self._meter = meter
        self._attacker = psutil.Process(attacker_pid)
        self._attacker_before_s = self._attacker_s()
        self._answered = answered
        self._answered_before = answered.value
        self._per_request_s = per_request_s
        self._began_s = time.monotonic()

    def hold(self, rate: Shared, started: Shared, seconds: float, first_rate: float) -> None:
        """Allow units for that long, then stop them.

        Args:
            rate, started: the attack's gate.
            first_rate: units a second while nothing is known of their cost.
        """
        rate.value = first_rate
        while (elapsed_s := time.monotonic() - self._began_s) < seconds:
            spent = self.spent()
            rate.value = next_rate(
                cap=self._cap,
                elapsed_s=elapsed_s,
                spent_s=(spent.attacker + spent.service) * elapsed_s,
                started=int(started.value),
                rate=rate.value,
                first_rate=first_rate,
            )
            time.sleep(CONTROL_S)
        rate.value = 0.0

    def spent(self) -> Spent:
        """Return the CPU used since the attack started."""
        elapsed_s = max(1e-3, time.monotonic() - self._began_s)
        tenant_s = (self._answered.value - self._answered_before) * self._per_request_s
        service_s = max(0.0, self._meter.seconds() - tenant_s)
        attacker_s = self._attacker_s() - self._attacker_before_s
        return Spent(attacker_s / elapsed_s, service_s / elapsed_s, tenant_s / elapsed_s)

    def _attacker_s(self) -> float:
        times = self._attacker.cpu_times()
        return float(times.user + times.system)

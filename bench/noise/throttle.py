"""Holds an attack to its share of a core while it lasts, and says what it used."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from bench.noise.gate import Shared, next_rate
from bench.processes import Meter

CONTROL_S = 0.25


@dataclass(frozen=True, slots=True)
class Spent:
    """What an attack used, in cores on average over its time.

    `baseline`: what the service used for the other tenant; `service` is what it used beyond that.
    """

    attacker: float
    service: float
    baseline: float
    units: int


@dataclass(slots=True)
class Throttle:
    """Measures twice a second or more often, and sets the attack's rate.

    Args:
        cap: the share of a core the attack may use.
        per_request_s: CPU seconds of the service for a request of the other tenant, alone.
        answered: requests of the other tenant that were answered.
        rate, started: the attack's gate.
    """

    cap: float
    per_request_s: float
    answered: Shared
    rate: Shared
    started: Shared

    def hold(self, meter: Meter, attacker_pid: int, seconds: float, first_rate: float) -> Spent:
        """Let the attack go on for that long.

        Args:
            meter: of the service, made when the attack begins.
            attacker_pid: the process that attacks.
            first_rate: units a second while nothing is known of their cost.
        """
        attacker = psutil.Process(attacker_pid)
        before_s, before_answered = _cpu_s(attacker), self.answered.value
        began = time.monotonic()
        self.rate.value = first_rate
        while True:
            elapsed_s = time.monotonic() - began
            attacker_s = _cpu_s(attacker) - before_s
            for_tenant_s = (self.answered.value - before_answered) * self.per_request_s
            service_s = max(0.0, meter.seconds() - for_tenant_s)
            if elapsed_s >= seconds:
                self.rate.value = 0.0
                return Spent(
                    attacker_s / elapsed_s,
                    service_s / elapsed_s,
                    for_tenant_s / elapsed_s,
                    int(self.started.value),
                )
            self.rate.value = next_rate(
                cap=self.cap,
                elapsed_s=elapsed_s,
                spent_s=attacker_s + service_s,
                started=int(self.started.value),
                rate=self.rate.value,
                first_rate=first_rate,
            )
            time.sleep(CONTROL_S)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)

"""The environment variables by which the runner tells a peer's processes where things are."""

from __future__ import annotations

# Ports of the stub agents on loopback, separated by commas.
PORTS_VARIABLE = "BENCH_AGENT_PORTS"
DATABASE_VARIABLE = "BENCH_DATABASE_URL"

"""One machine with two owners and two replicas: work, faults and connections to Postgres.

Goal: both owners drive and dispatch, and the connections stay
within their bound although every process is asked for more reads than that. Method: a deployment
that spreads its dispatches, and a pool size that would allow six times as many connections.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.victims import find_all, superuser_url, wait
from tests.platform.deployments import RunningDeployment, deployed

pytestmark = [pytest.mark.slow, pytest.mark.soak]

OWNERS = REPLICAS = 2
PROGRESS = 40
CONNECTIONS_MAX = 40
# Of which a cluster has one: the timekeeper's for reads, large reads, probes and the audit log, the
# ledger's.
ELSEWHERE = 5
READERS, READS = 48, 20


@pytest.fixture(scope="module")
def victim(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment of two owners and two replicas."""
    settings = (
        f'dispatch = "spread"\nworkflow_actors_per_machine = {OWNERS}\n'
        f"serve_replicas = {REPLICAS}\n"
        f"machine_connections_max = {CONNECTIONS_MAX}\n"
    )
    with deployed(short_folder, settings) as running:
        wait(lambda: len(find_all(running, "workflows")) == OWNERS, "both owners")
        wait(lambda: len(find_all(running, "replica")) == REPLICAS, "both replicas")
        yield running


def shards_held(load: Load) -> list[int]:
    """Return how many shards each member that lives holds."""
    with load.client() as client:
        members = client.get("/v1/cluster").json()["members"]
    return [one["shards"] for one in members if one["isLive"]]


def connections(victim: RunningDeployment) -> int:
    """Return how many connections to Postgres the deployment's processes have now."""
    with psycopg.connect(superuser_url(victim)) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'callboard-%'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def dispatching(deployment: RunningDeployment, ports: set[int]) -> set[int]:
    """Return the pids of the owners that hold a connection to an agent."""
    found = set()
    for pid in find_all(deployment, "workflows"):
        connections = psutil.Process(pid).net_connections("tcp4")
        if any(item.raddr and item.raddr.port in ports for item in connections):
            found.add(pid)
    return found


def lost_attempts(victim: RunningDeployment) -> list[str]:
    """Return why attempts were lost between two owners."""
    with psycopg.connect(superuser_url(victim)) as connection:
        found = connection.execute(
            "SELECT error_message FROM callboard.attempt WHERE outcome = 'lost'"
        ).fetchall()
    return [str(reason) for (reason,) in found]


def test_both_owners_drive_and_dispatch(victim: RunningDeployment, load: Load) -> None:
    load.wait_progress(PROGRESS)
    wait(
        lambda: len(held := shards_held(load)) == OWNERS and min(held) > 0 and sum(held) == 256,
        lambda: f"shards at both owners: {shards_held(load)}",
    )
    ports = load.agent_ports()
    wait(
        lambda: len(dispatching(victim, ports)) == OWNERS,
        lambda: f"dispatches from both: {dispatching(victim, ports)}",
    )
    check(load, victim)
    # Each sends orders through the other; one that is refused is lost, and sent from elsewhere.
    assert not lost_attempts(victim)


def test_connections_stay_within_their_bound(victim: RunningDeployment, load: Load) -> None:
    load.wait_progress(PROGRESS)
    is_over, most = threading.Event(), [0]

    def watch() -> None:
        while not is_over.wait(0.05):
            most[0] = max(most[0], connections(victim))

    def read(_: int) -> None:
        with load.client() as client:
            for _ in range(READS):
                assert client.get("/v1/agents?limit=100").status_code == 200

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with ThreadPoolExecutor(READERS) as readers:
            list(readers.map(read, range(READERS)))
    finally:
        is_over.set()
        watching.join()
    assert REPLICAS + OWNERS < most[0] <= CONNECTIONS_MAX + ELSEWHERE
    check(load, victim)

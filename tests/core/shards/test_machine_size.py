"""What a machine runs follows its cores, and its connections to Postgres stay within the bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.settings import Settings, SettingsError, build_settings
from core.shards.machine_size import (
    CHILD_CONNECTIONS,
    OWNER_CONNECTIONS,
    REPLICA_CONNECTIONS,
    MachineSize,
    Wanted,
)


@pytest.mark.parametrize(
    ("cores", "size"),
    [
        (1, MachineSize(1, 1, 5)),
        (2, MachineSize(1, 1, 5)),
        (3, MachineSize(1, 1, 5)),
        (4, MachineSize(2, 2, 5)),
        (7, MachineSize(3, 3, 5)),
        (8, MachineSize(4, 4, 2)),
        (128, MachineSize(4, 4, 2)),
    ],
)
def test_owners_and_replicas_follow_the_cores(cores: int, size: MachineSize) -> None:
    settings = Settings()
    assert settings.wanted_size.size(cores) == size
    own = settings.on_machine(cores)
    assert (own.workflow_actors_per_machine, own.serve_replicas, own.reader_pool_size) == size
    assert own.on_machine(2 * cores) == own, "what is a number stays"


def test_numbers_that_are_set_hold_on_every_machine() -> None:
    settings = Settings(workflow_actors_per_machine=3, serve_replicas=1)
    assert settings.wanted_size.size(2)[:2] == (3, 1)
    assert settings.wanted_size.size(64)[:2] == (3, 1)


def test_processes_of_single_workflows_are_counted() -> None:
    """Each has connections of its own, and an owner has as many of them as it may."""
    assert Settings(isolation="dedicated").wanted_size.size(64)[:2] == (1, 2)


@pytest.mark.parametrize(
    "values",
    [
        {"workflow_actors_per_machine": 64},
        {"serve_replicas": 7},
        {"machine_connections_max": 16, "serve_replicas": 2},
        {"isolation": "dedicated", "machine_connections_max": 40},
    ],
)
def test_more_processes_than_connections_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=r"^machine_connections_max: got \d+, expected \d+ or"):
        build_settings(values)


@given(
    wanted=st.builds(
        Wanted,
        owners=st.integers(0, 64),
        replicas=st.integers(0, 64),
        children=st.integers(0, 16),
        reader_pool_size=st.integers(1, 50),
        connections_max=st.integers(16, 5_000),
    ),
    cores=st.integers(1, 256),
)
def test_connections_never_exceed_their_bound(wanted: Wanted, cores: int) -> None:
    if wanted.connections_min > wanted.connections_max:
        return
    owners, replicas, pool_size = wanted.size(cores)
    assert owners == (wanted.owners or owners) >= 1
    assert replicas == (wanted.replicas or replicas) >= 1
    assert 1 <= pool_size <= wanted.reader_pool_size
    each_owner = OWNER_CONNECTIONS + wanted.children * CHILD_CONNECTIONS + pool_size
    each_replica = REPLICA_CONNECTIONS + pool_size
    assert owners * each_owner + replicas * each_replica <= wanted.connections_max

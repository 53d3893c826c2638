"""Shards that a member loses: by a refused command or by the map, with one line of the log."""

from __future__ import annotations

import logging

import pytest

from core.shards.lease_messages import HeldShard
from tests.actors.shards.test_membership import Cluster


async def test_a_stale_command_drops_its_shard_alone_and_only_of_its_epoch() -> None:
    cluster = Cluster()
    await cluster.join()
    cluster.member.note_stale(5, 7)
    assert 5 in cluster.held
    cluster.member.note_stale(5, 1)
    assert 5 not in cluster.held
    assert cluster.work.did == [("lost", [5])]
    assert cluster.ended == []


async def test_a_shard_that_another_took_is_dropped_by_the_next_map() -> None:
    """An idle member hears of no refused command."""
    cluster = Cluster()
    await cluster.join()
    cluster.shards[9] = HeldShard("you", 2)
    cluster.version += 1
    await cluster.member.renew_once()
    assert cluster.work.did[0] == ("lost", [9])


async def test_one_loss_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Of 80 shards that were taken each had a line, as soon as a command of it was refused."""
    cluster = Cluster()
    await cluster.join()
    for shard in (7, 5):
        cluster.member.note_stale(shard, 1)
    cluster.shards[9] = HeldShard("you", 2)
    cluster.version += 1
    await cluster.member.renew_once()
    await cluster.member.renew_once()
    await cluster.member.renew_once()
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert lines == ["shards lost member=me shards=5,7", "shards lost member=me shards=9"]

"""Shards that a member loses: by a refused command or by the map, with one line of the log."""

from __future__ import annotations

import logging

import pytest

from tests.actors.shards.test_membership import joined


async def test_a_stale_command_drops_its_shard_alone_and_only_of_its_epoch() -> None:
    cluster = await joined()
    cluster.member.note_stale(5, 7)
    assert 5 in cluster.held
    cluster.member.note_stale(5, 1)
    assert 5 not in cluster.held
    assert cluster.work.did == [("lost", [5])]
    assert cluster.ended == []


async def test_a_shard_that_another_took_is_dropped_by_the_next_map() -> None:
    """An idle member hears of no refused command."""
    cluster = await joined()
    await cluster.moved(9, "you", 2)
    assert cluster.work.did[0] == ("lost", [9])


async def test_one_loss_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Of 80 shards that were taken each had a line, as soon as a command of it was refused."""
    cluster = await joined()
    for shard in (7, 5):
        cluster.member.note_stale(shard, 1)
    await cluster.moved(9, "you", 2)
    await cluster.member.renew_once()
    await cluster.member.renew_once()
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert lines == ["shards lost member=me shards=5,7", "shards lost member=me shards=9"]

"""When a head has stood still, by one standby's own reads, and how an address is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.shards.leases import HEAD_SILENCE_MS
from core.shards.ledger_head import (
    GAP_MS_MAX,
    HEAD_READ_MS,
    HeadSilence,
    LedgerAddress,
    LedgerHead,
)

HEAD = LedgerHead(epoch=3, audit_id=7, beat=1, address="ledger - 1")


def read(silence: HeadSilence, head: LedgerHead, at_ms: int, *, took_ms: int = 0) -> bool:
    return silence.note(head, asked_ms=at_ms, read_ms=at_ms + took_ms)


def test_head_that_stands_still_is_silent_after_three_seconds_of_reads() -> None:
    silence, found = HeadSilence(), []
    for at_ms in range(1_000, 1_000 + HEAD_SILENCE_MS + HEAD_READ_MS, HEAD_READ_MS):
        found.append(read(silence, HEAD, at_ms))
    assert found == [False] * (HEAD_SILENCE_MS // HEAD_READ_MS) + [True]


@pytest.mark.parametrize(
    "change", [{"epoch": 4}, {"audit_id": 8}, {"beat": 2}, {"address": "ledger#1 - 2"}], ids=str
)
def test_any_change_of_the_head_is_a_sign_of_life(change: dict[str, int]) -> None:
    silence = HeadSilence()
    for at_ms in range(0, HEAD_SILENCE_MS, HEAD_READ_MS):
        assert not read(silence, HEAD, at_ms)
    changed = replace(HEAD, **change)  # type: ignore[arg-type]
    for at_ms in range(HEAD_SILENCE_MS, 2 * HEAD_SILENCE_MS, HEAD_READ_MS):
        assert not read(silence, changed, at_ms)
    assert read(silence, changed, 2 * HEAD_SILENCE_MS)


def test_time_without_reads_counts_for_little() -> None:
    """Postgres was away, or the standby suspended: neither is the writer's silence."""
    silence = HeadSilence()
    assert not read(silence, HEAD, 0)
    left_ms = HEAD_SILENCE_MS - GAP_MS_MAX
    for passed_ms in range(0, left_ms, HEAD_READ_MS):
        assert not read(silence, HEAD, 3_600_000 + passed_ms)
    assert read(silence, HEAD, 3_600_000 + left_ms)


def test_how_long_a_read_took_is_no_silence() -> None:
    """The head may have changed after it was looked at and before the answer came."""
    silence = HeadSilence()
    for at_ms in range(0, 10 * HEAD_SILENCE_MS, HEAD_READ_MS):
        assert not read(silence, HEAD, at_ms, took_ms=HEAD_READ_MS)


@pytest.mark.parametrize(
    "address",
    [LedgerAddress("ledger", "1f"), LedgerAddress("ledger#1", "2e")],
    ids=str,
)
def test_address_comes_back_as_it_was(address: LedgerAddress) -> None:
    assert LedgerAddress.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "ledger", "ledger ", "a  b", "a b c", " - 1"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert LedgerAddress.parse(text) is None

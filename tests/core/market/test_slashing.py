"""What costs stake and how much. Reference: money.md (Slashing, Stakes)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import NodeErrorCode
from core.market.slashing import SlashTrigger, is_agents_failure, lock_micro, slash_bps, slash_micro

AMOUNTS = st.integers(0, 10**15)


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_case_26_a_lock_is_what_is_required_and_never_more_than_offered_or_free(
    required: int, offered: int, free: int
) -> None:
    locked = lock_micro(required, offered_micro=offered, free_micro=free)
    if locked is None:
        assert required > offered or required > free
    else:
        assert locked == required
        assert locked <= offered
        assert locked <= free


@given(AMOUNTS, st.integers(0, 10_000))
def test_case_27_a_slash_never_exceeds_the_locked_stake_nor_its_share(
    locked: int, bps: int
) -> None:
    slashed = slash_micro(locked, bps)
    assert 0 <= slashed <= locked
    assert slashed * 10_000 <= locked * bps < (slashed + 1) * 10_000


def test_case_27_all_is_taken_for_fraud_and_a_tenth_for_failure() -> None:
    expected = {SlashTrigger.NODE_FAILED: 100}
    for trigger in SlashTrigger:
        bps = slash_bps(trigger, failure_bps=1_000, fraud_bps=10_000)
        assert slash_micro(1_000, bps) == expected.get(trigger, 1_000)


@pytest.mark.parametrize("code", NodeErrorCode)
def test_case_29_what_the_coordinator_or_the_network_caused_never_slashes(
    code: NodeErrorCode,
) -> None:
    blamed = {
        "AGENT_ERROR", "AGENT_TIMEOUT", "INVALID_REPLY", "RESULT_TOO_LARGE", "OUTPUT_SCHEMA",
        "VERIFICATION_REJECTED",
    }  # fmt: skip
    assert is_agents_failure(code) is (code in blamed)
    assert not is_agents_failure(code, is_spared=True)

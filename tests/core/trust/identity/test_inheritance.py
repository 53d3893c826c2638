"""How far a dead man's switch is."""

from __future__ import annotations

import pytest

from core.trust.identity.succession import DAY_MS, SwitchStatus, switch_status


@pytest.mark.parametrize(
    ("silent_ms", "days", "is_triggered", "expected"),
    [
        (0, 10, False, SwitchStatus.INACTIVE),
        (8 * DAY_MS - 1, 10, False, SwitchStatus.INACTIVE),
        (8 * DAY_MS, 10, False, SwitchStatus.WARNING),
        (11 * DAY_MS, 10, False, SwitchStatus.WARNING),
        (0, 10, True, SwitchStatus.TRIGGERED),
    ],
)
def test_it_warns_from_four_fifths_on_until_it_has_run(
    silent_ms: int, days: int, is_triggered: bool, expected: SwitchStatus
) -> None:
    assert switch_status(silent_ms, days, is_triggered=is_triggered) is expected

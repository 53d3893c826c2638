"""What one message between owners may do to the others of its batch."""

from __future__ import annotations

import pytest

from actors.dispatch.peer_messages import ORDERS, End, OrderMessage, take_each


def test_what_one_message_raises_is_its_own_refusal(caplog: pytest.LogCaptureFixture) -> None:
    """The call failed for the whole batch, which its sender repeats until it is answered: every
    event of that member waited behind it for ever."""
    taken: list[int] = []

    def take(message: OrderMessage) -> bool:
        if message.serial == 2:
            raise RuntimeError("a defect")
        taken.append(message.serial)
        return True

    bodies = [ORDERS.encode(End(serial, "a")) for serial in (1, 2, 3)]
    assert take_each(ORDERS, [*bodies, b"no message"], take) == [True, False, True, False]
    assert taken == [1, 3]
    assert "kind=End" in caplog.text

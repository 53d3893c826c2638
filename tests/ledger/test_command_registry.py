"""Every command has its kind, and what its kind says fits its fields."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from core.message import Message
from ledger.commands import BarrierCommand, Command
from ledger.registry import KINDS, kind_of
from ledger.writer.plan import is_stale
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import Head, StateCache
from tests.actors.transport.message_samples import full
from tests.ledger.making import ToldLives, new_id

ALL: tuple[type[Message], ...] = get_args(Command)


def test_every_command_has_one_kind_and_nothing_else_has() -> None:
    assert set(KINDS) == set(ALL)


@pytest.mark.parametrize("command_type", ALL, ids=lambda one: one.__name__)
def test_a_kind_fits_its_command(command_type: type[Message]) -> None:
    command: Any = full(command_type)
    kind = kind_of(command)
    assert kind.is_hashed == hasattr(command, "request_hash")
    assert kind.is_fenced == hasattr(command, "shard_epoch")
    if kind.is_fenced:
        known = replace(command, workflow_id=new_id())
        assert is_stale(known, StateCache(Head(1, 0, 0, b"", 0), ToldLives())), "nobody's shard"
    assert kind.weight(command) >= 1_600
    assert isinstance(kind.may_repeat(command), bool)
    wanted = ReadSet()
    kind.add_reads(command, wanted)
    assert (wanted.barrier is command) == isinstance(command, BarrierCommand)
    assert kind.is_barrier >= isinstance(command, BarrierCommand)


def test_what_is_no_command_is_refused_by_its_plan_alone() -> None:
    """Its weight is asked where nothing may raise."""
    odd: Any = SimpleNamespace(key="odd")
    kind = kind_of(odd)
    assert kind.weight(odd) > 0
    assert not kind.is_barrier
    with pytest.raises(TypeError, match="SimpleNamespace"):
        kind.plan(odd, odd)

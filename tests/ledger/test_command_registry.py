"""Every command is registered, and its kind fits it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ledger.commands import Command
from ledger.registry import KINDS, kind_of
from ledger.writer import command_kind
from ledger.writer.plan import is_stale
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import Head, StateCache
from tests.actors.transport.message_samples import full
from tests.ledger.making import ToldLives, new_id


@pytest.mark.parametrize("command_type", KINDS, ids=lambda one: one.__name__)
def test_a_kind_fits_its_command(command_type: type[Command]) -> None:
    command: Any = full(command_type)
    kind = kind_of(command)
    if kind.is_fenced:
        known = replace(command, workflow_id=new_id())
        assert is_stale(known, StateCache(Head(1, 0, 0, b"", 0), ToldLives())), "nobody's shard"
    assert isinstance(kind.may_repeat(command), bool)
    kind.reads(command, ReadSet())


def test_every_command_is_registered() -> None:
    """A feature's module that the registry does not import would be missing."""
    ledger = Path(command_kind.__file__).parents[1]
    plans = "".join(file.read_text(encoding="utf-8") for file in ledger.glob("*/*.py"))
    assert len(KINDS) == len(re.findall(r"^@plans\(", plans, re.MULTILINE))


def test_what_is_no_command_is_refused_by_its_plan_alone() -> None:
    odd: Any = SimpleNamespace(key="odd")
    kind = kind_of(odd)
    assert not kind.is_barrier(odd)
    with pytest.raises(TypeError, match="SimpleNamespace"):
        kind.plan(odd, odd)

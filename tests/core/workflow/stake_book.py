"""The stakes of an engine's agents: refuses what is not free, and asserts what may never be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from core.workflow.events import NodeChanged, Record, StakeLocked, StakeUnlocked


@dataclass
class StakeBook:
    """Every attempt requires `stake_micro`; `free`: the agents' free stakes, None: unlimited."""

    stake_micro: int = 2
    free: dict[str, int] | None = None
    locked: dict[str, StakeLocked] = field(default_factory=dict)
    locks: int = 0

    def commit(self, records: list[Record]) -> tuple[list[Record], set[str]]:
        """Move stakes; return the records with rows as stored, and the nodes refused."""
        refused: set[str] = set()
        for record in records:
            if isinstance(record, StakeUnlocked):
                lock = self.locked.pop(record.node)
                assert lock == StakeLocked(*_members(record)), f"{record} instead of {lock}"
                self._add(record.agent_did, record.micro)
            elif isinstance(record, StakeLocked):
                assert record.micro > 0
                assert record.node not in self.locked, f"{record} beside {self.locked}"
                if self.free is not None and self.free.get(record.agent_did, 0) < record.micro:
                    refused.add(record.node)
                    continue
                self.locks += 1
                self.locked[record.node] = record
                self._add(record.agent_did, -record.micro)
        stored = [
            replace(record, stake_micro=0)
            if isinstance(record, NodeChanged) and record.node in refused
            else record
            for record in records
        ]
        return stored, refused

    def check(self, rows: Mapping[str, NodeChanged]) -> None:
        """Every row says what is locked with its open attempt, and nothing else is."""
        said = {
            name: (row.attempt, row.agent_did, row.stake_micro)
            for name, row in rows.items()
            if row.stake_micro
        }
        assert said == {
            name: (lock.attempt, lock.agent_did, lock.micro) for name, lock in self.locked.items()
        }

    def _add(self, did: str, micro: int) -> None:
        if self.free is not None:
            self.free[did] = self.free.get(did, 0) + micro


def _members(record: StakeUnlocked) -> tuple[str, int, str, int]:
    return record.node, record.attempt, record.agent_did, record.micro
